// One session: its transcript as it grows, how it is doing, and what one can do to it.

import { Composer } from "./composer.js";
import { announce, fill, h, icon, oncePerFrame, throttled } from "./dom.js";
import { mark, plain, sessionLink } from "./message.js";
import { actions } from "./operator.js";
import { prose } from "./prose.js";
import { Transcript } from "./transcript.js";
import { Lost } from "./wire.js";
import { count, money, oneLine, split, standing } from "./words.js";

const REFRESH_MS = 250;
const POLICY_MS = 10_000;
const COSTLY = 30_000; // characters of an answer that is drawn less often while it comes

/** `at` is a message to show; `transcript` an older transcript of the session, which is only read. */
export class Conversation {
  constructor({
    wire,
    people,
    key,
    at = null,
    transcript = null,
    about = null,
    answer = false,
    compact = false,
    onBack = null,
    onGone = null,
  }) {
    Object.assign(this, { wire, people, key, at, about, answer, compact, onBack, onGone });
    this.old = transcript;
    this.row = null;
    this.sessionId = null;
    this.pending = new Map(); // id: {text, el}
    this.run = null; // what is being said: {id, text, thinking}
    this.stops = [];
    this.heard = (event, payload) => this.#heard(event, payload);
    this.refresh = throttled(() => this.#status(), REFRESH_MS);
    this.draw = oncePerFrame(() => this.#drawRun());
    this.#build();
  }

  #build() {
    const name = this.people.session(this.key);
    this.transcript = new Transcript({
      name,
      read: (before, limit) => this.#read(before, limit),
      context: { people: this.people, key: this.key },
      empty: () => this.#empty(),
    });
    this.head = h("header", { class: "conversation-head" });
    this.notice = h("div", { class: "notice", role: "alert", hidden: true });
    this.live = h("div", { class: "live" });
    this.transcript.tail.append(this.live);
    this.el = h(
      "section",
      { class: "conversation", "aria-label": `Conversation with ${name}` },
      this.head,
      this.notice,
      this.transcript.el,
    );
    if (!this.old) this.#addComposer();
    this.#drawHead();
  }

  async open() {
    this.stops.push(this.wire.on("sessions.changed", (news) => this.#changed(news)));
    this.stops.push(this.wire.on("exchange.changed", (news) => this.#exchange(news)));
    this.stops.push(this.wire.on("again", () => this.#again()));
    if (this.old) await this.#status();
    await Promise.all([this.#status(), this.#begin()]);
    this.#joined();
  }

  /** Whoever comes while a turn is under way has not heard it begin. */
  #joined() {
    if (this.closed || this.old || this.row?.status !== "running") return;
    this.transcript.atWork();
    this.run ??= { id: null, text: "", thinking: "" };
    this.draw();
  }

  #addComposer() {
    const name = this.people.session(this.key);
    this.composer = new Composer({
      name,
      commands: this.people.commands,
      may: this.wire.holds("operator.write"),
      send: (text, id) => this.#send(text, id),
    });
    this.el.append(this.composer.el);
  }

  close() {
    for (const stop of this.stops) stop();
    this.wire.unfollow(this.key, this.heard);
    this.transcript.close();
    this.closed = true;
  }

  // -- reading

  async #begin() {
    try {
      if (!this.old) {
        const end = await this.wire.follow(this.key, this.heard);
        this.sessionId = end.sessionId;
        this.transcript.total = Math.max(this.transcript.total, end.after);
      }
      if (this.closed) return;
      if (this.at) await this.transcript.around(this.at, { about: this.about, answer: this.answer });
      else await this.transcript.newest();
    } catch (problem) {
      // One that nobody has written to yet is no failure: it begins with the first message.
      if (problem.code === "session.not_found" || problem.code === "not_found") this.unborn = true;
      else this.#problem(problem);
      this.transcript.restart();
    }
  }

  async #read(before, limit) {
    const params = { sessionKey: this.old ?? this.key, limit };
    if (before) params.before = before;
    const page = await this.wire.ask("chat.history", params);
    return page.messages;
  }

  async #status() {
    if (this.closed) return;
    try {
      this.row = await this.wire.ask("sessions.status", { key: this.key });
      this.people.remember(this.row);
      if (this.old === this.row.sessionId) {
        this.old = null; // not an earlier one at all
        this.#addComposer();
      }
    } catch {
      this.row = null;
    }
    if (this.closed) return;
    if (this.run?.id === null && this.row?.status !== "running") {
      this.run = null;
      this.draw();
    }
    this.#drawHead();
    this.#policy();
  }

  /** What the send policy says: asked again when the session changed in what it goes by, or after a while. */
  async #policy() {
    const { sendPolicy, lastChannel, archivedAt } = this.row ?? {};
    const stamp = JSON.stringify([sendPolicy, lastChannel, archivedAt, Math.floor(Date.now() / POLICY_MS)]);
    if (!this.composer || stamp === this.judged) return;
    this.judged = stamp;
    try {
      this.composer.policy(await this.wire.ask("policy.explain", { action: "send", target: this.key }));
    } catch {
      // The box says nothing then; a refusal comes with the message.
    }
  }

  // -- what happens

  #heard(event, payload) {
    if (event === "session.message") this.#message(payload);
    else if (event === "chat") this.#chat(payload);
    else if (event === "agent") this.#agent(payload);
    else if (event === "session.tool" && payload.data.phase === "start")
      this.transcript.tool(payload.data.toolCallId)?.started();
    else if (event === "reset") this.#reset(payload.sessionId);
  }

  #message({ message, runId, sessionId }) {
    if (this.sessionId !== null && sessionId !== this.sessionId) this.#reset(sessionId);
    this.sessionId = sessionId;
    if (message.role === "user") this.#arrived(runId);
    if (message.role === "assistant" && this.run && (this.run.id ?? runId) === runId) {
      // The last answer takes the place of what was drawn as it came; after a tool call, more is to come.
      if (message.stopReason === "toolUse") this.run.text = this.run.thinking = "";
      else this.run = null;
      this.draw();
    }
    this.transcript.add(message);
    const said = message.role === "assistant" && document.hasFocus() ? oneLine(plain(message), 200) : "";
    if (said) announce(`${this.people.agent(split(this.key).agent)}: ${said}`);
  }

  #chat(payload) {
    if (payload.deliveryId) return;
    if (payload.state === "delta") {
      const run = this.#runOf(payload.runId);
      run.text = payload.replace ? payload.deltaText : run.text + payload.deltaText;
    } else {
      if (this.run?.id === payload.runId) this.run = null;
      this.#arrived(payload.runId);
      if (payload.state === "error")
        this.#problem({ message: payload.errorMessage ?? "The turn failed.", code: "failed" });
      if (payload.state === "aborted") announce("Stopped.");
    }
    this.draw();
  }

  #agent({ runId, stream, data }) {
    if (stream === "thinking") {
      const run = this.#runOf(runId);
      run.thinking = data.restart ? data.delta : run.thinking + data.delta;
      this.draw();
    } else if (stream === "lifecycle" && data.phase === "start") {
      this.#runOf(runId);
      this.draw();
    }
  }

  #runOf(id) {
    if (this.run?.id !== id) this.run = { id, text: "", thinking: "" };
    return this.run;
  }

  #changed(news) {
    if (news.sessionKey !== this.key) return;
    if (news.reason === "delete") {
      this.onGone?.();
      return;
    }
    if (this.unborn) {
      this.unborn = false;
      this.#begin();
    }
    if (news.reason === "reset" && news.sessionId !== this.sessionId) this.#reset(news.sessionId);
    if (news.hasActiveRun === false && this.run?.id === news.runId) {
      this.run = null;
      this.draw();
    }
    this.refresh();
  }

  #exchange(exchange) {
    if (exchange.requester === this.key || exchange.target === this.key) this.refresh();
  }

  #again() {
    // What was being said may have ended while nobody was told.
    this.run = null;
    this.draw();
    this.#status().then(() => this.#joined());
    for (const [id, { text }] of this.pending) this.#deliver(text, id);
  }

  #reset(sessionId) {
    this.sessionId = sessionId;
    this.run = null;
    this.transcript.restart();
    this.draw();
    announce("A new transcript has begun.");
  }

  // -- writing

  #send(text, id) {
    const sign = h("span", { class: "mark person", "aria-hidden": "true" }, "●");
    const state = h("span", { class: "quiet" }, "sending…");
    const body = h(
      "div",
      { class: "body" },
      h("header", null, h("b", null, "Person"), state),
      h("div", { class: "words" }, prose(text)),
    );
    const el = h("article", { class: "message person pending" }, sign, body);
    this.pending.set(id, { text, el, state });
    this.live.append(el);
    this.transcript.following = true;
    if (!this.transcript.attached) this.transcript.newest();
    this.#deliver(text, id);
  }

  async #deliver(text, id) {
    try {
      const answer = await this.wire.act("chat.send", {
        sessionKey: this.key,
        message: text,
        idempotencyKey: id,
      });
      const pending = this.pending.get(id);
      if (pending) pending.state.textContent = "queued";
      if (answer.status === "ok" || answer.status === "error") this.#arrived(id);
    } catch (problem) {
      if (problem instanceof Lost) return; // sent again, under the same id, when the gateway is back
      this.#arrived(id);
      this.#problem(problem);
      if (this.composer && !this.composer.input.value) this.composer.input.value = text;
    }
  }

  #arrived(id) {
    this.pending.get(id)?.el.remove();
    this.pending.delete(id);
  }

  // -- drawing

  #drawRun() {
    const run = this.run;
    if (!run) {
      this.bubble?.remove();
      this.bubble = null;
      return;
    }
    if (!this.bubble) {
      const { agent } = split(this.key);
      this.words = h("div", { class: "words" });
      const name = this.people.agent(agent);
      const dots = h("span", { class: "dots", role: "img", "aria-label": "working" }, h("i"), h("i"), h("i"));
      const body = h("div", { class: "body" }, h("header", null, h("b", null, name), dots), this.words);
      this.bubble = h("article", { class: "message agent streaming" }, mark(name, agent), body);
      this.live.prepend(this.bubble);
    }
    if (run.text.length > COSTLY && performance.now() - (this.drawn ?? 0) < 200) {
      setTimeout(() => this.draw(), 200);
      return;
    }
    this.drawn = performance.now();
    const thinking =
      run.thinking && !run.text ? h("p", { class: "thinking" }, run.thinking.slice(-600)) : null;
    fill(this.words, thinking, prose(run.text));
  }

  #drawHead() {
    const row = this.row;
    const { agent } = split(this.key);
    const name = this.people.session(this.key, row);
    const how = row ? standing(row, this.people) : { word: "nothing said yet", kind: "idle" };
    const facts = [];
    if (row) {
      facts.push(row.kind, row.channel === "unknown" ? null : row.channel, row.model);
      if (row.totalTokens) facts.push(`${count(row.totalTokens)} tokens`);
      if (row.costUsd) facts.push(money(row.costUsd));
      if (row.thinkingLevel) facts.push(`thinks ${row.thinkingLevel}`);
      if (row.sendPolicy) facts.push(`send ${row.sendPolicy}`);
    }
    const running = row && (row.openTurns > 0 || row.status === "running");
    fill(
      this.head,
      this.onBack
        ? h(
            "button",
            { class: "ghost back", "aria-label": "Back to the list", onclick: this.onBack },
            icon("back"),
          )
        : null,
      mark(this.people.agent(agent), agent),
      h(
        "div",
        { class: "titles" },
        h("h2", null, name, h("span", { class: `state ${how.kind}` }, how.word)),
        h(
          "p",
          { class: "facts-line" },
          h("code", { class: "key", title: "The key of this session" }, this.key),
          facts.filter(Boolean).map((fact) => h("span", null, fact)),
        ),
        row?.spawnedBy || row?.childSessions ? this.#family(row) : null,
      ),
      h(
        "div",
        { class: "head-actions" },
        running && this.wire.holds("operator.write") && !this.old
          ? h(
              "button",
              { class: "stop", onclick: () => this.#stop(), title: "End the running turn" },
              icon("stop"),
              "Stop",
            )
          : null,
        row && !this.compact ? actions(this) : null,
        this.compact
          ? h(
              "a",
              {
                class: "ghost",
                href: `#/s/${encodeURIComponent(this.key)}`,
                "aria-label": `Open ${name} alone`,
                title: "Open alone",
              },
              icon("send"),
            )
          : null,
      ),
    );
    if (this.old && row)
      this.#say(
        h(
          "span",
          null,
          "An earlier transcript of this session. ",
          sessionLink(this.people, this.key, { label: "Show the current one" }),
        ),
      );
  }

  #family(row) {
    const parts = [];
    if (row.spawnedBy) parts.push("spawned by ", sessionLink(this.people, row.spawnedBy));
    for (const child of row.childSessions ?? [])
      parts.push(parts.length ? " · " : "", sessionLink(this.people, child));
    return h("p", { class: "family" }, row.spawnedBy ? null : "children: ", parts);
  }

  async #stop() {
    try {
      await this.wire.act("sessions.abort", { key: this.key });
      announce("Stopping.");
    } catch (problem) {
      this.#problem(problem);
    }
  }

  /** Say what went wrong, where the reader is. */
  #problem(problem) {
    const fix = problem.fix ? h("span", { class: "fix" }, ` ${problem.fix}`) : null;
    this.#say(
      h("span", null, problem.message, " ", problem.code ? h("code", null, problem.code) : null, fix),
      "bad",
    );
  }

  problem(problem) {
    this.#problem(problem);
  }

  #say(content, kind = "") {
    this.notice.hidden = false;
    this.notice.className = `notice ${kind}`;
    const close = h(
      "button",
      { class: "ghost", "aria-label": "Dismiss", onclick: () => (this.notice.hidden = true) },
      icon("close"),
    );
    fill(this.notice, content, close);
  }

  #empty() {
    const name = this.people.session(this.key, this.row);
    const can = this.wire.holds("operator.write") && !this.old;
    const rehearsal = !this.wire.hello?.snapshot.sessionDefaults.modelConfigured;
    const hint = rehearsal
      ? " No model is configured, so the rehearsal model answers: try “what is 6 * 7?” or “list sessions”."
      : "";
    return h(
      "div",
      { class: "empty" },
      h("h3", null, "Nothing said yet"),
      h("p", null, can ? `Write to ${name} below.${hint}` : "What is said here appears as it is said."),
    );
  }
}
