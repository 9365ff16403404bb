// The connection to the gateway this page came from, and to no other.

const FIRST_PAUSE_MS = 150;
const LONGEST_PAUSE_MS = 3000;
const IMPLIED = {
  "operator.read": ["operator.read"],
  "operator.write": ["operator.read", "operator.write"],
  "operator.admin": ["operator.read", "operator.write", "operator.admin"],
};

/** A request the gateway refused, with the rule and what would change the answer. */
export class Refused extends Error {
  constructor(error) {
    super(error.message);
    this.code = error.details?.code ?? error.code;
    this.fix = error.details?.fix ?? null;
    this.retryAfterMs = error.retryAfterMs ?? null;
  }
}

/** The connection broke before the answer came. */
export class Lost extends Error {
  constructor() {
    super("The connection broke before the gateway answered.");
    this.code = "lost";
  }
}

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Calls, events, and sessions that are followed across as many connections as it takes.
 * `onState(state, problem)` hears `connecting`, `live`, `lost` and `refused`.
 */
export class Wire {
  constructor(token, onState) {
    this.token = token;
    this.onState = onState;
    this.state = "connecting";
    this.hello = null;
    this.socket = null;
    this.waiting = new Map(); // request id: {resolve, reject}
    this.live = []; // those who wait for a connection
    this.listeners = new Map(); // event: functions
    this.followed = new Map(); // session key: {after, sessionId, listeners}
    this.pause = FIRST_PAUSE_MS;
    this.closed = false;
    this.opened = 0;
  }

  open() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/`);
    this.socket = socket;
    socket.onmessage = (message) => this.#heard(JSON.parse(message.data));
    socket.onclose = () => this.#over(socket);
  }

  close() {
    this.closed = true;
    this.state = "closed";
    clearTimeout(this.timer);
    this.socket?.close();
  }

  /** Whether the credential holds a scope. */
  holds(scope) {
    return (this.hello?.auth.scopes ?? []).some((own) => IMPLIED[own]?.includes(scope));
  }

  /** Ask for something that does no harm when it is asked for twice: it is, when the connection breaks. */
  async ask(method, params = {}) {
    for (;;) {
      await this.#connected();
      try {
        return await this.act(method, params);
      } catch (problem) {
        if (!(problem instanceof Lost) || this.closed) throw problem;
      }
    }
  }

  /** Ask once. */
  act(method, params = {}) {
    if (this.state !== "live" && method !== "connect") return Promise.reject(new Lost());
    const id = newId();
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.socket.send(JSON.stringify({ type: "req", id, method, params }));
    });
  }

  /** Hear events of a name; returns a function that stops it. */
  on(event, listener) {
    if (!this.listeners.has(event)) this.listeners.set(event, new Set());
    this.listeners.get(event).add(listener);
    return () => this.listeners.get(event).delete(listener);
  }

  /**
   * Hear all of one session from now on, also after a restart of the gateway, each message once.
   * Resolves to `{after, sessionId}`, where the transcript ended.
   */
  async follow(key, listener) {
    let followed = this.followed.get(key);
    if (!followed) {
      followed = { after: null, sessionId: null, listeners: new Set() };
      this.followed.set(key, followed);
    }
    followed.listeners.add(listener);
    try {
      if (followed.after === null)
        await this.#resume(key, followed, (method, params) => this.ask(method, params));
    } catch (problem) {
      this.unfollow(key, listener);
      throw problem;
    }
    return { after: followed.after, sessionId: followed.sessionId };
  }

  unfollow(key, listener) {
    const followed = this.followed.get(key);
    if (!followed) return;
    followed.listeners.delete(listener);
    if (followed.listeners.size) return;
    this.followed.delete(key);
    if (this.state === "live") this.act("sessions.messages.unsubscribe", { key }).catch(() => {});
  }

  async #resume(key, followed, ask) {
    const place = followed.after === null ? {} : { after: followed.after, sessionId: followed.sessionId };
    const answer = await ask("sessions.messages.subscribe", { key, ...place });
    const other = followed.sessionId !== null && followed.sessionId !== answer.sessionId;
    followed.sessionId = answer.sessionId;
    if (followed.after === null || other) followed.after = answer.after;
    if (other) for (const listener of followed.listeners) listener("reset", { sessionId: answer.sessionId });
  }

  #connected() {
    if (this.state === "live") return Promise.resolve();
    return new Promise((resolve) => this.live.push(resolve));
  }

  #heard(frame) {
    if (frame.type === "res") {
      const waiting = this.waiting.get(frame.id);
      this.waiting.delete(frame.id);
      if (frame.ok) waiting?.resolve(frame.payload);
      else waiting?.reject(new Refused(frame.error));
    } else if (frame.event === "connect.challenge") {
      this.#introduce();
    } else {
      this.#tell(frame.event, frame.payload);
    }
  }

  #tell(event, payload) {
    const followed = this.followed.get(payload.sessionKey);
    if (followed && event !== "sessions.changed") {
      if (event === "session.message") {
        followed.after = payload.messageSeq;
        followed.sessionId = payload.sessionId;
      }
      for (const listener of followed.listeners) listener(event, payload);
    }
    for (const listener of this.listeners.get(event) ?? []) listener(payload);
  }

  async #introduce() {
    const client = { id: "webchat-ui", version: "1", platform: "web", mode: "webchat" };
    const params = { minProtocol: 4, maxProtocol: 4, client, role: "operator", auth: { token: this.token } };
    try {
      this.hello = await this.act("connect", params);
    } catch (problem) {
      if (problem instanceof Lost) return;
      this.closed = true;
      this.#become("refused", problem);
      return;
    }
    this.pause = FIRST_PAUSE_MS;
    this.opened += 1;
    this.#become("live");
    // Subscriptions before anything else that waits: what is read after them misses nothing.
    const asks = [this.act("sessions.subscribe")];
    for (const [key, followed] of this.followed) {
      asks.push(this.#resume(key, followed, (method, given) => this.act(method, given)));
    }
    await Promise.allSettled(asks);
    for (const resolve of this.live.splice(0)) resolve();
    if (this.opened > 1) this.#tell("again", {});
  }

  #over(socket) {
    if (socket !== this.socket) return;
    for (const { reject } of this.waiting.values()) reject(new Lost());
    this.waiting.clear();
    if (this.closed) return;
    this.#become("lost");
    this.timer = setTimeout(() => this.open(), this.pause * (0.75 + Math.random() / 2));
    this.pause = Math.min(this.pause * 1.7, LONGEST_PAUSE_MS);
  }

  #become(state, problem) {
    this.state = state;
    this.onState(state, problem);
  }
}
