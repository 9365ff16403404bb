// The WebSocket connection to the gateway that served this page: requests, events, reconnects.

const MIN_BACKOFF_MS = 150;
const MAX_BACKOFF_MS = 3000;

/** The gateway refused a request: `code` names the rule, `fix` what to change. */
export class RequestError extends Error {
  constructor(error) {
    super(error.message);
    this.code = error.details?.code ?? error.code;
    this.fix = error.details?.fix ?? null;
    this.retryAfterMs = error.retryAfterMs ?? null;
  }
}

/** The connection closed before the response arrived. */
export class ConnectionLost extends Error {
  constructor() {
    super("The gateway closed the connection.");
    this.code = "gateway.lost";
    this.fix = "The page reconnects by itself; then try again.";
  }
}

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Requests, events and session subscriptions that survive reconnects.
 * `onState(state, error)` is called with `connecting`, `live`, `lost` or `refused`.
 */
export class Connection {
  constructor(token, onState) {
    this.token = token;
    this.onState = onState;
    this.state = "connecting";
    this.hello = null;
    this.socket = null;
    this.pendingRequests = new Map(); // request id: {resolve, reject}
    this.connectWaiters = []; // resolve functions of queries that wait for a connection
    this.listeners = new Map(); // event name: set of functions
    this.subscriptions = new Map(); // session key: {after, sessionId, listeners}
    this.backoffMs = MIN_BACKOFF_MS;
    this.closed = false;
    this.connectCount = 0;
  }

  open() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/`);
    this.socket = socket;
    socket.onmessage = (message) => this.#onFrame(JSON.parse(message.data));
    socket.onclose = () => this.#onClose(socket);
  }

  close() {
    this.closed = true;
    this.state = "closed";
    clearTimeout(this.reconnectTimer);
    this.socket?.close();
  }

  /** Whether the token has a scope. */
  hasScope(scope) {
    return (this.hello?.auth.scopes ?? []).includes(scope);
  }

  /** Send an idempotent request; wait for a connection and retry when it breaks. */
  async query(method, params = {}) {
    for (;;) {
      await this.#connected();
      try {
        return await this.call(method, params);
      } catch (error) {
        if (!(error instanceof ConnectionLost) || this.closed) throw error;
      }
    }
  }

  /** Send a request once. */
  call(method, params = {}) {
    if (this.state !== "live" && method !== "connect") return Promise.reject(new ConnectionLost());
    const id = newId();
    return new Promise((resolve, reject) => {
      this.pendingRequests.set(id, { resolve, reject });
      this.socket.send(JSON.stringify({ type: "req", id, method, params }));
    });
  }

  /** Listen for an event; returns a function that removes the listener. */
  on(event, listener) {
    if (!this.listeners.has(event)) this.listeners.set(event, new Set());
    this.listeners.get(event).add(listener);
    return () => this.listeners.get(event).delete(listener);
  }

  /**
   * Receive all events of one session, also after a gateway restart, each message exactly once.
   * Resolves to `{after, sessionId}`: the end of the transcript when the subscription started.
   */
  async subscribe(key, listener) {
    let subscription = this.subscriptions.get(key);
    if (!subscription) {
      subscription = { after: null, sessionId: null, listeners: new Set() };
      this.subscriptions.set(key, subscription);
    }
    subscription.listeners.add(listener);
    try {
      if (subscription.after === null)
        await this.#resume(key, subscription, (method, params) => this.query(method, params));
    } catch (error) {
      this.unsubscribe(key, listener);
      throw error;
    }
    return { after: subscription.after, sessionId: subscription.sessionId };
  }

  unsubscribe(key, listener) {
    const subscription = this.subscriptions.get(key);
    if (!subscription) return;
    subscription.listeners.delete(listener);
    if (subscription.listeners.size) return;
    this.subscriptions.delete(key);
    if (this.state === "live") this.call("sessions.messages.unsubscribe", { key }).catch(() => {});
  }

  async #resume(key, subscription, send) {
    const { after, sessionId, listeners } = subscription;
    const cursor = after === null ? {} : { after, sessionId };
    const response = await send("sessions.messages.subscribe", { key, ...cursor });
    const wasReset = subscription.sessionId !== null && subscription.sessionId !== response.sessionId;
    subscription.sessionId = response.sessionId;
    if (subscription.after === null || wasReset) subscription.after = response.after;
    if (wasReset) for (const listener of listeners) listener("reset", { sessionId: response.sessionId });
  }

  #connected() {
    if (this.state === "live") return Promise.resolve();
    return new Promise((resolve) => this.connectWaiters.push(resolve));
  }

  #onFrame(frame) {
    if (frame.type === "res") {
      const request = this.pendingRequests.get(frame.id);
      this.pendingRequests.delete(frame.id);
      if (frame.ok) request?.resolve(frame.payload);
      else request?.reject(new RequestError(frame.error));
    } else if (frame.event === "connect.challenge") {
      this.#handshake();
    } else {
      this.#dispatch(frame.event, frame.payload);
    }
  }

  #dispatch(event, payload) {
    const subscription = this.subscriptions.get(payload.sessionKey);
    if (subscription && event !== "sessions.changed") {
      if (event === "session.message") {
        subscription.after = payload.messageSeq;
        subscription.sessionId = payload.sessionId;
      }
      for (const listener of subscription.listeners) listener(event, payload);
    }
    for (const listener of this.listeners.get(event) ?? []) listener(payload);
  }

  async #handshake() {
    const client = { id: "webchat-ui", version: "1", platform: "web", mode: "webchat" };
    const params = { minProtocol: 4, maxProtocol: 4, client, role: "operator", auth: { token: this.token } };
    try {
      this.hello = await this.call("connect", params);
    } catch (error) {
      if (error instanceof ConnectionLost) return;
      this.closed = true;
      this.#setState("refused", error);
      return;
    }
    this.backoffMs = MIN_BACKOFF_MS;
    this.connectCount += 1;
    this.#setState("live");
    // Subscribe before the waiting queries run, so that no change after a read is missed.
    const requests = [this.call("sessions.subscribe")];
    for (const [key, subscription] of this.subscriptions) {
      requests.push(this.#resume(key, subscription, (method, params) => this.call(method, params)));
    }
    await Promise.allSettled(requests);
    for (const resolve of this.connectWaiters.splice(0)) resolve();
    if (this.connectCount > 1) this.#dispatch("reconnected", {});
  }

  #onClose(socket) {
    if (socket !== this.socket) return;
    for (const { reject } of this.pendingRequests.values()) reject(new ConnectionLost());
    this.pendingRequests.clear();
    if (this.closed) return;
    this.#setState("lost");
    this.reconnectTimer = setTimeout(() => this.open(), this.backoffMs * (0.75 + Math.random() / 2));
    this.backoffMs = Math.min(this.backoffMs * 1.7, MAX_BACKOFF_MS);
  }

  #setState(state, error) {
    this.state = state;
    this.onState(state, error);
  }
}
