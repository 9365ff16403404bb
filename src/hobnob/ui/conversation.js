// The view of one session: header, live transcript, streaming answer, composer.

import { Composer } from "./composer.js";
import { ConnectionLost, newId } from "./connection.js";
import { renderHead } from "./conversation-head.js";
import { parseKey } from "./directory.js";
import { fill, h, icon, notifyScreenReader, oncePerFrame, throttled } from "./dom.js";
import { preview, renderMarkdown } from "./markdown.js";
import { avatar, sessionLink, textOf } from "./message.js";
import { problem } from "./problem.js";
import { Transcript } from "./transcript.js";

const REFRESH_MS = 250;
const POLICY_MS = 10_000;
const SLOW_RENDER_CHARS = 30_000; // longer streaming answers are rendered at most every 200 ms

/**
 * `seq` is the message to show, `oldTranscriptId` an earlier transcript (read-only). `containing` and
 * `findAnswer` choose the message to highlight, see `Transcript.showMessage`.
 */
export class Conversation {
  constructor({
    connection,
    directory,
    key,
    seq = null,
    oldTranscriptId = null,
    containing = null,
    findAnswer = false,
    compact = false,
    onBack = null,
    onDeleted = null,
  }) {
    Object.assign(this, { connection, directory, key, seq, oldTranscriptId, containing, findAnswer });
    Object.assign(this, { compact, onBack, onDeleted });
    this.row = null;
    this.known = false; // whether the session was looked up
    this.loadError = null; // why it could not be
    this.sessionId = null;
    this.pending = new Map(); // idempotency key: {text, el, state}
    this.run = null; // the streaming turn: {id, text, thinking}; id is null when its start was missed
    this.unsubscribers = [];
    this.onEvent = (event, payload) => this.#onEvent(event, payload);
    this.refresh = throttled(() => this.#loadStatus(), REFRESH_MS);
    this.render = oncePerFrame(() => this.#renderRun());
    this.#build();
  }

  #build() {
    const name = this.directory.sessionName(this.key);
    this.transcript = new Transcript({
      name,
      read: (before, limit) => this.#readPage(before, limit),
      context: { directory: this.directory, key: this.key, onRetry: this.#mayRetry() },
      renderEmptyState: () => this.#emptyState(),
    });
    this.head = h("header", { class: "conversation-head" });
    this.notice = h("div", { class: "notice", role: "alert", hidden: true });
    this.liveEl = h("div", { class: "live" });
    this.approvalsEl = h("div", { class: "approvals" });
    this.transcript.tail.append(this.liveEl, this.approvalsEl);
    this.el = h(
      "section",
      { class: "conversation", "aria-label": `Conversation with ${name}` },
      this.head,
      this.notice,
      this.transcript.el,
    );
    if (!this.oldTranscriptId) this.#addComposer();
    this.#renderHead();
  }

  async open() {
    this.unsubscribers.push(
      this.connection.on("sessions.changed", (change) => this.#onSessionChanged(change)),
      this.connection.on("exchange.changed", (exchange) => this.#onExchangeChanged(exchange)),
      this.connection.on("reconnected", () => this.#onReconnected()),
      this.directory.approvals.onChange(() => this.#showApprovals()),
    );
    this.#showApprovals();
    if (this.oldTranscriptId) await this.#loadStatus();
    await Promise.all([this.#loadStatus(), this.#loadTranscript()]);
    this.#showRunningTurn();
  }

  /** The view may open after the turn started, so its start event was missed. */
  #showRunningTurn() {
    if (this.closed || this.oldTranscriptId || this.row?.status !== "running") return;
    this.transcript.markCallsRunning();
    this.run ??= { id: null, text: "", thinking: "" };
    this.render();
  }

  /** Show the commands of this session that wait for approval, below the last message. */
  #showApprovals() {
    const waiting = this.oldTranscriptId ? [] : this.directory.approvals.of(this.key);
    const shown = new Map([...this.approvalsEl.children].map((card) => [card.dataset.id, card]));
    const cards = waiting.map(
      (approval) => shown.get(approval.id) ?? this.directory.approvals.card(approval),
    );
    this.approvalsEl.replaceChildren(...cards);
    this.transcript.markCallsWaiting(waiting.map(({ request }) => request.toolCallId));
    this.#renderHead();
    this.render();
  }

  #addComposer() {
    const name = this.directory.sessionName(this.key);
    this.composer = new Composer({
      name,
      commands: this.directory.commands,
      canSend: this.connection.hasScope("operator.write"),
      send: (text, id) => this.#send(text, id),
    });
    this.el.append(this.composer.el);
  }

  close() {
    for (const stop of this.unsubscribers) stop();
    this.connection.unsubscribe(this.key, this.onEvent);
    this.transcript.close();
    this.closed = true;
  }

  // -- loading

  #loadTranscript() {
    this.transcriptLoaded = this.#readTranscript();
    return this.transcriptLoaded;
  }

  async #readTranscript() {
    try {
      if (!this.oldTranscriptId) {
        const end = await this.connection.subscribe(this.key, this.onEvent);
        this.sessionId = end.sessionId;
        this.transcript.total = Math.max(this.transcript.total, end.after);
      }
      if (this.closed) return;
      const { seq, containing, findAnswer } = this;
      if (seq) await this.transcript.showMessage(seq, { containing, findAnswer });
      else await this.transcript.showNewest();
    } catch (error) {
      if (isNotFound(error)) this.notCreated = true;
      else this.#showLoadError(error);
      this.transcript.reset();
    }
  }

  async #readPage(before, limit) {
    const params = { sessionKey: this.oldTranscriptId ?? this.key, limit };
    if (before) params.before = before;
    const page = await this.connection.query("chat.history", params);
    return page.messages;
  }

  async #loadStatus() {
    if (this.closed) return;
    try {
      this.row = await this.connection.query("sessions.status", { key: this.key });
      this.directory.rememberLabel(this.row);
      if (this.oldTranscriptId === this.row.sessionId) {
        this.oldTranscriptId = null; // it is the current one
        this.#addComposer();
      }
      this.known = true;
      this.loadError = null;
    } catch (error) {
      if (isNotFound(error)) [this.row, this.known] = [null, true];
      else if (!(error instanceof ConnectionLost)) this.#showLoadError(error);
    }
    if (this.closed) return;
    if (this.run?.id === null && this.row?.status !== "running") {
      this.run = null;
      this.render();
    }
    this.#renderHead();
    this.#loadPolicy();
  }

  /** Load the send policy verdict; again when the session's policy inputs change or POLICY_MS passed. */
  async #loadPolicy() {
    const { sendPolicy, lastChannel, archivedAt } = this.row ?? {};
    const key = JSON.stringify([sendPolicy, lastChannel, archivedAt, Math.floor(Date.now() / POLICY_MS)]);
    if (!this.composer || key === this.policyKey) return;
    this.policyKey = key;
    try {
      const params = { action: "send", target: this.key };
      this.composer.showPolicy(await this.connection.query("policy.explain", params));
    } catch {
      // Without a verdict the composer shows none; a send would still be refused.
    }
  }

  // -- events

  #onEvent(event, payload) {
    if (event === "session.message") this.#onMessage(payload);
    else if (event === "chat") this.#onChat(payload);
    else if (event === "agent") this.#onAgent(payload);
    else if (event === "session.tool" && payload.data.phase === "start")
      this.transcript.toolCall(payload.data.toolCallId)?.markRunning();
    else if (event === "reset") this.#reset(payload.sessionId);
  }

  #onMessage({ message, runId, sessionId }) {
    if (this.sessionId !== null && sessionId !== this.sessionId) this.#reset(sessionId);
    this.sessionId = sessionId;
    if (message.role === "user") this.#removePending(runId);
    if (message.compaction) return this.transcript.add(message); // the turn goes on
    if (message.role === "assistant" && this.run && (this.run.id ?? runId) === runId) {
      // The final answer replaces the streamed text; after a tool call the turn goes on.
      if (message.stopReason === "toolUse") this.run.text = this.run.thinking = "";
      else this.run = null;
      this.render();
    }
    this.transcript.add(message);
    const text = message.role === "assistant" && document.hasFocus() ? preview(textOf(message), 200) : "";
    if (text) notifyScreenReader(`${this.directory.agentName(parseKey(this.key).agent)}: ${text}`);
  }

  #onChat(payload) {
    if (payload.deliveryId) return;
    if (payload.state === "delta") {
      const run = this.#runOf(payload.runId);
      run.text = payload.replace ? payload.deltaText : run.text + payload.deltaText;
    } else {
      if (this.run?.id === payload.runId) this.run = null;
      this.#removePending(payload.runId);
      if (payload.state === "aborted") notifyScreenReader("Stopped.");
    }
    this.render();
  }

  #onAgent({ runId, stream, data }) {
    if (stream === "thinking") {
      const run = this.#runOf(runId);
      run.thinking = data.restart ? data.delta : run.thinking + data.delta;
      this.render();
    } else if (stream === "lifecycle" && data.phase === "start") {
      this.#runOf(runId);
      this.render();
      // Its input is in the transcript now. The event of a message may have come before the subscription.
      this.transcriptLoaded.then(() => this.#removePending(runId));
    }
  }

  #runOf(id) {
    if (this.run?.id !== id) this.run = { id, text: "", thinking: "" };
    return this.run;
  }

  #onSessionChanged(change) {
    if (change.sessionKey !== this.key) return;
    if (change.reason === "delete") {
      this.onDeleted?.();
      return;
    }
    if (this.notCreated) {
      this.notCreated = false;
      this.#loadTranscript();
    }
    if (change.reason === "reset" && change.sessionId !== this.sessionId) this.#reset(change.sessionId);
    if (change.hasActiveRun === false && this.run?.id === change.runId) {
      this.run = null;
      this.render();
    }
    this.refresh();
  }

  #onExchangeChanged(exchange) {
    if (exchange.requester === this.key || exchange.target === this.key) this.refresh();
  }

  #onReconnected() {
    // The turn may have ended while disconnected.
    this.run = null;
    this.render();
    this.#loadStatus().then(() => this.#showRunningTurn());
    for (const [id, { text }] of this.pending) this.#deliver(text, id);
  }

  #reset(sessionId) {
    this.sessionId = sessionId;
    this.run = null;
    this.transcript.reset();
    this.render();
    notifyScreenReader("New transcript started.");
  }

  // -- sending

  #send(text, id) {
    const avatarEl = h("span", { class: "avatar person", "aria-hidden": "true" }, "●");
    const state = h("span", { class: "muted" }, "sending…");
    const body = h(
      "div",
      { class: "body" },
      h("header", null, h("b", null, "You"), state),
      h("div", { class: "message-text" }, renderMarkdown(text)),
    );
    const el = h("article", { class: "message person pending" }, avatarEl, body);
    this.pending.set(id, { text, el, state });
    this.liveEl.append(el);
    this.transcript.following = true;
    if (!this.transcript.hasNewest) this.transcript.showNewest();
    this.#deliver(text, id);
  }

  async #deliver(text, id) {
    try {
      const response = await this.connection.call("chat.send", {
        sessionKey: this.key,
        message: text,
        idempotencyKey: id,
      });
      const pending = this.pending.get(id);
      if (pending) pending.state.textContent = "queued";
      if (response.status === "ok" || response.status === "error") this.#removePending(id);
    } catch (error) {
      // Sent again with the same idempotency key after the reconnect.
      if (error instanceof ConnectionLost) return;
      this.#removePending(id);
      this.showError(error);
      if (this.composer && !this.composer.input.value) this.composer.input.value = text;
    }
  }

  /** What sends the input of a failed turn again, if the token allows it; null otherwise. */
  #mayRetry() {
    if (this.oldTranscriptId || !this.connection.hasScope("operator.write")) return null;
    return (failedSeq) => this.#retry(failedSeq);
  }

  async #retry(failedSeq) {
    const input = this.transcript.items.findLast(
      ({ seq, message }) => seq < failedSeq && message.role === "user",
    );
    try {
      const params = { sessionKey: this.key, seq: input?.seq ?? 1, idempotencyKey: newId() };
      await this.connection.call("chat.retry", params);
      notifyScreenReader("Sent again.");
    } catch (error) {
      this.showError(error);
    }
  }

  #removePending(id) {
    this.pending.get(id)?.el.remove();
    this.pending.delete(id);
  }

  // -- rendering

  #renderRun() {
    const run = this.approvalsEl.firstChild && !this.run?.text ? null : this.run; // it waits for approval
    if (!run) {
      this.streamingEl?.remove();
      this.streamingEl = null;
      return;
    }
    if (!this.streamingEl) {
      const { agent } = parseKey(this.key);
      this.streamingText = h("div", { class: "message-text" });
      const name = this.directory.agentName(agent);
      const dots = h("span", { class: "dots", role: "img", "aria-label": "working" }, h("i"), h("i"), h("i"));
      const head = h("header", null, h("b", null, name), dots);
      const body = h("div", { class: "body" }, head, this.streamingText);
      this.streamingEl = h("article", { class: "message agent streaming" }, avatar(name, agent), body);
      this.liveEl.prepend(this.streamingEl);
    }
    if (run.text.length > SLOW_RENDER_CHARS && performance.now() - (this.renderedAt ?? 0) < 200) {
      setTimeout(() => this.render(), 200);
      return;
    }
    this.renderedAt = performance.now();
    const thinking =
      run.thinking && !run.text ? h("p", { class: "thinking" }, run.thinking.slice(-600)) : null;
    fill(this.streamingText, thinking, renderMarkdown(run.text));
  }

  #renderHead() {
    renderHead(this.head, this, () => this.#stop());
    if (this.oldTranscriptId && this.row)
      this.#showNotice(
        h(
          "span",
          null,
          "An earlier transcript of this session. ",
          sessionLink(this.directory, this.key, { label: "Show the current one" }),
        ),
      );
  }

  async #stop() {
    try {
      await this.connection.call("sessions.abort", { key: this.key });
      notifyScreenReader("Stopping.");
    } catch (error) {
      this.showError(error);
    }
  }

  showError(error) {
    this.#showNotice(problem(error), "bad");
  }

  #showLoadError(error) {
    this.loadError = error;
    this.showError(error);
    this.#renderHead();
  }

  async #loadAgain() {
    this.loadError = null;
    this.notice.hidden = true;
    await Promise.all([this.#loadStatus(), this.#loadTranscript()]);
    this.#showRunningTurn();
  }

  #showNotice(content, kind = "") {
    this.notice.hidden = false;
    this.notice.className = `notice ${kind}`;
    const close = h(
      "button",
      { class: "ghost", "aria-label": "Dismiss", onclick: () => (this.notice.hidden = true) },
      icon("close"),
    );
    fill(this.notice, content, close);
  }

  #emptyState() {
    if (this.loadError)
      return h(
        "div",
        { class: "empty" },
        h("h3", null, "Not loaded"),
        h("p", null, "The messages could not be read."),
        h("button", { class: "plain", onclick: () => this.#loadAgain() }, "Try again"),
      );
    const name = this.directory.sessionName(this.key, this.row);
    const canSend = this.connection.hasScope("operator.write") && !this.oldTranscriptId;
    const hasModel = this.connection.hello?.snapshot.sessionDefaults.modelConfigured;
    const hint = hasModel
      ? ""
      : " No model is configured: the rehearsal model answers. Try “what is 6 * 7?” or “list sessions”.";
    return h(
      "div",
      { class: "empty" },
      h("h3", null, "No messages yet"),
      h("p", null, canSend ? `Write to ${name} below.${hint}` : "New messages appear here."),
    );
  }
}

/** Not a failure to load: a session is created by its first message. */
const isNotFound = (error) => error.code === "session.not_found" || error.code === "not_found";
