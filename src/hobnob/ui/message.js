// Renders one message of a transcript: sender, provenance, text, tool calls, usage.

import { parseKey, toneClass } from "./directory.js";
import { h, icon } from "./dom.js";
import { excerpt, formatBytes, formatCount, formatDateTime, formatMoney, formatTime } from "./format.js";
import { preview, renderMarkdown } from "./markdown.js";
import { problem } from "./problem.js";

/** What an agent that stays silent replies, and what that means. */
export const SKIP_REPLIES = { REPLY_SKIP: "had nothing to add", ANNOUNCE_SKIP: "announced nothing" };
const FOLD_CHARS = 6000; // longer texts are folded

/** An agent's initial in its colour. */
export function avatar(name, id = name) {
  return h("span", { class: `avatar ${toneClass(id)}`, "aria-hidden": "true" }, initial(name));
}

const initial = (name) => ([...name.trim()][0] ?? "?").toUpperCase();

/** A link to a session, with its name. */
export function sessionLink(directory, key, row) {
  const href = `#/s/${encodeURIComponent(key)}`;
  return h("a", { class: "session-link", href, title: key }, directory.sessionName(key, row));
}

/**
 * Render a message; `onCall(id, toolCall)` is called for each tool call in it. A tool result belongs inside
 * its call; one whose call is not loaded is rendered alone.
 */
export function messageElement(message, context, onCall) {
  switch (message.role) {
    case "assistant":
      return message.compaction
        ? summaryMessage(message)
        : assistantMessage(message, context, onCall);
    case "toolResult":
      return orphanResult(message);
    default:
      return userMessage(message, context);
  }
}

function userMessage(message, { directory }) {
  const source = message.provenance;
  if (source?.kind !== "inter_session") {
    const body = h("div", { class: "message-text" }, renderParts(message));
    const label = source
      ? h(
          "span",
          { class: "origin" },
          h("span", { class: "badge system" }, source.kind),
          ` ${source[source.kind] ?? ""}`,
        )
      : null;
    return article(
      "person",
      message,
      h("span", { class: "avatar person", "aria-hidden": "true" }, "●"),
      source ? "External" : "You",
      label,
      body,
    );
  }
  if (source.step === "announce")
    return gatewayStep(message, "Announce step", "asked to announce the outcome in its chat", source);
  const from = source.sourceSessionKey;
  const name = from ? directory.sessionName(from) : "another session";
  const label = h("span", { class: "origin" }, ...origin(source, from, directory));
  const agent = from ? parseKey(from).agent : "?";
  const avatarEl = avatar(directory.agentName(agent), agent);
  const isReport = source.sourceTool === "sessions_spawn" && /^Status: /.test(textOf(message));
  const content = isReport ? spawnReport(textOf(message)) : renderParts(message);
  const body = h("div", { class: "message-text" }, content);
  return article(`peer ${isReport ? "report" : ""}`, message, avatarEl, name, label, body);
}

function origin(source, from, directory) {
  const link = from ? sessionLink(directory, from) : "another session";
  const exchange = source.exchangeId
    ? h(
        "a",
        { class: "muted", href: `#/exchanges/${source.exchangeId}`, title: "Show the exchange" },
        hopLabel(source),
      )
    : null;
  const kind = source.replyTurn
    ? `reply-back ${source.replyTurn}`
    : source.sourceTool === "sessions_spawn"
      ? "spawn"
      : "send";
  return [h("span", { class: "badge" }, kind), " from session ", link, " ", exchange];
}

const hopLabel = (source) => (source.hop ? `hop ${source.hop}` : "exchange");

function spawnReport(text) {
  const rows = [];
  for (const line of text.split("\n")) {
    const field = /^(Status|Result|Notes|Stats): ?(.*)/.exec(line);
    if (field) rows.push([field[1], field[2]]);
    else if (rows.length) rows.at(-1)[1] += `\n${line}`;
  }
  const stats = rows.find(([name]) => name === "Stats");
  return [
    h(
      "dl",
      { class: "facts" },
      rows.filter((row) => row !== stats).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]),
    ),
    stats
      ? h(
          "details",
          { class: "foldable stats" },
          h("summary", null, stats[1].split(" • ").slice(0, 2).join(" · ")),
          h("div", null, stats[1]),
        )
      : null,
  ];
}

function gatewayStep(message, title, text, source) {
  const link = source.exchangeId
    ? h("a", { class: "muted", href: `#/exchanges/${source.exchangeId}` }, "exchange")
    : null;
  const body = h("p", null, h("span", { class: "badge system" }, title), " ", text, " ", link);
  return h(
    "article",
    { class: "message step", "data-seq": message.seq, "aria-label": `${title}, by the gateway` },
    body,
  );
}

/** A summary that models read instead of older messages, which stay in the transcript. Folded at first. */
function summaryMessage(message) {
  const { covers = [1, 0], tokensBefore, failed, memoryFlush } = message.compaction;
  const [first, last] = covers;
  const count = last - first + 1;
  const title = `${failed ? "Incomplete summary" : "Summary"} of ${formatCount(count)} messages`;
  const facts = [`messages ${formatCount(first)} to ${formatCount(last)}`];
  if (tokensBefore) facts.push(`about ${formatCount(tokensBefore)} tokens before`);
  if (memoryFlush) facts.push(`notes: ${memoryFlush}`);
  const note = "The agent is sent this text instead of those messages, which stay readable above.";
  return h(
    "article",
    { class: "message step summary", "data-seq": message.seq, "aria-label": title },
    h(
      "details",
      { class: "foldable" },
      h(
        "summary",
        null,
        h("span", { class: failed ? "badge warn" : "badge system" }, title),
        ` ${facts.join(" · ")}`,
      ),
      h("p", { class: "muted" }, note),
      h("div", { class: "summary-text" }, renderText(textOf(message))),
      usageFooter(message),
    ),
  );
}

function assistantMessage(message, { directory, key, onRetry }, onCall) {
  const agent = parseKey(key).agent;
  const name = directory.agentName(agent);
  const parts = partsOf(message);
  const text = textOf(message).trim();
  if (text in SKIP_REPLIES && parts.length === 1) {
    const note = h(
      "p",
      null,
      h("span", { class: "badge system" }, "Skipped"),
      ` ${name} ${SKIP_REPLIES[text]} `,
      h("code", null, text),
    );
    return h("article", { class: "message step", "data-seq": message.seq }, note);
  }
  const body = h("div", { class: "message-text" });
  const tools = h("div", { class: "tools" });
  for (const part of parts) {
    if (part.type === "text" && part.text) body.append(...renderText(part.text));
    else if (part.type === "thinking" && part.thinking) body.append(thinkingBlock(part.thinking));
    else if (part.type === "image") body.append(imagePlaceholder(part));
    else if (part.type === "toolCall") {
      const call = new ToolCall(part, directory);
      tools.append(call.el);
      onCall?.(part.id, call);
    }
  }
  const error = message.errorMessage ? failureNote(message, onRetry) : null;
  return article(
    "agent",
    message,
    avatar(name, agent),
    name,
    null,
    body,
    tools.children.length ? tools : null,
    error,
    usageFooter(message),
  );
}

function article(kind, message, avatarEl, name, label, ...content) {
  const at = message.timestamp;
  const time = at
    ? h("time", { datetime: new Date(at).toISOString(), title: formatDateTime(at) }, formatTime(at))
    : null;
  const head = h("header", null, h("b", null, name), label, time);
  return h(
    "article",
    { class: `message ${kind}`, "data-seq": message.seq },
    avatarEl,
    h("div", { class: "body" }, head, ...content),
  );
}

function usageFooter(message) {
  const usage = message.usage;
  if (!usage) return null;
  const cost = usage.cost?.total ?? usage.costUsd;
  const cached = usage.cacheRead ? ` (${formatCount(usage.cacheRead)} cached)` : "";
  const facts = [`${formatCount(usage.input ?? 0)} in${cached}`, `${formatCount(usage.output ?? 0)} out`];
  if (cost) facts.push(formatMoney(cost));
  if (message.model) facts.push(message.model);
  const title = "Input tokens, output tokens, cost, model";
  return h("footer", { class: "usage", title }, facts.join(" · "));
}

export function partsOf(message) {
  return typeof message.content === "string"
    ? [{ type: "text", text: message.content }]
    : (message.content ?? []);
}

/** The text parts of a message. */
export function textOf(message) {
  return partsOf(message)
    .filter((part) => part.type === "text")
    .map((part) => part.text)
    .join("\n");
}

function renderParts(message) {
  return partsOf(message).map((part) =>
    part.type === "image" ? imagePlaceholder(part) : renderText(part.text ?? ""),
  );
}

function renderText(text) {
  if (text.length <= FOLD_CHARS) return renderMarkdown(text);
  const rest = h(
    "details",
    { class: "rest" },
    h("summary", null, `Show all ${formatCount(text.length)} characters`),
  );
  const unfold = () => rest.replaceWith(...renderMarkdown(text.slice(FOLD_CHARS)));
  rest.addEventListener("toggle", unfold, { once: true });
  return [...renderMarkdown(text.slice(0, FOLD_CHARS)), rest];
}

function thinkingBlock(text) {
  const body = h("div", null, renderMarkdown(text));
  return h("details", { class: "foldable" }, h("summary", null, "Thinking"), body);
}

function imagePlaceholder(part) {
  const size = part.bytes ? `, ${formatBytes(part.bytes)}` : "";
  return h(
    "p",
    { class: "attachment" },
    icon("clip"),
    ` Image (${part.mimeType ?? "picture"}${size}), not shown here`,
  );
}

/** A folded tool call: arguments, state, result. */
export class ToolCall {
  constructor(part, directory) {
    this.part = part;
    this.result = null;
    this.running = this.waiting = false;
    this.stateEl = h("span", { class: "tool-state" }, "");
    const summary = h(
      "summary",
      null,
      icon("tool"),
      h("span", { class: "tool-name" }, part.name),
      h("span", { class: "tool-summary" }, callSummary(part, directory)),
      this.stateEl,
    );
    this.content = h("div", { class: "tool-content" });
    this.details = h("details", null, summary, this.content);
    this.note = h("div");
    this.el = h("div", { class: "tool" }, this.details, this.note);
    this.details.addEventListener("toggle", () => this.#renderContent());
  }

  markRunning() {
    this.running = true;
    this.setWaiting(this.waiting);
  }

  /** Whether the call waits for approval. */
  setWaiting(waiting) {
    this.waiting = waiting;
    if (this.result) return;
    if (waiting) this.#setState("waiting", "needs approval");
    else if (this.running) this.#setState("running", "running…");
  }

  setResult(message) {
    this.result = message;
    const result = parseJson(textOf(message));
    const refused = result?.status === "forbidden" || result?.status === "error" || message.isError;
    this.#setState(
      refused ? "refused" : "done",
      refused ? (result?.code ?? "failed") : (result?.status ?? "done"),
    );
    this.note.replaceChildren();
    if (refused && result?.error) this.note.append(refusalNote(result));
    this.#renderContent();
  }

  #setState(kind, text) {
    this.el.dataset.state = kind;
    this.stateEl.textContent = text;
  }

  #renderContent() {
    if (!this.details.open) return;
    const { attachments, ...rest } = this.part.arguments ?? {};
    this.content.replaceChildren(
      h("h4", null, "Arguments"),
      h(
        "pre",
        { class: "code", tabindex: "0" },
        prettyJson(Array.isArray(attachments) ? rest : this.part.arguments),
      ),
      ...(Array.isArray(attachments) ? attachments.map(attachment) : []),
      h("h4", null, "Result"),
      h(
        "pre",
        { class: "code", tabindex: "0" },
        this.result ? prettyJson(parseJson(textOf(this.result)) ?? textOf(this.result)) : "No result yet.",
      ),
    );
  }
}

function attachment(file) {
  const size = typeof file.content === "string" ? `, ${formatBytes(file.content.length)}` : "";
  return h("p", { class: "attachment" }, icon("clip"), ` ${file.name ?? "file"}${size}`);
}

/** A refusal: the reason, the rule, and what to change. */
function refusalNote({ error, code, status, fix }) {
  return h("p", { class: "refusal" }, icon("warn"), problem({ message: error, code: code ?? status, fix }));
}

/** Why a turn failed. The button is shown on the last message only. */
function failureNote({ errorMessage, seq }, onRetry) {
  const retry = onRetry ? h("button", { class: "plain retry", onclick: () => onRetry(seq) }, "Retry") : null;
  const text = h("span", { class: "problem" }, h("b", null, "The turn failed. "), errorMessage);
  return h("div", { class: "refusal failure" }, icon("warn"), text, retry);
}

function callSummary(part, directory) {
  const args = part.arguments ?? {};
  const target = args.sessionKey ?? (args.agentId && `agent:${args.agentId}:main`) ?? args.label;
  const text = args.message ?? args.task ?? args.query;
  const name = String(target).startsWith("agent:") ? directory.sessionName(String(target)) : target;
  if (name || text)
    return excerpt([name && `→ ${name}`, text && `“${preview(text, 120)}”`].filter(Boolean).join("  "), 120);
  return excerpt(
    Object.entries(args)
      .map(([name, value]) => `${name} ${JSON.stringify(value)}`)
      .join(", "),
    120,
  );
}

function orphanResult(message) {
  const call = new ToolCall(
    { name: message.toolName ?? "tool", arguments: {} },
    { sessionName: (key) => key },
  );
  call.setResult(message);
  return h("article", { class: "message orphan", "data-seq": message.seq }, call.el);
}

function parseJson(text) {
  if (!/^\s*[{[]/.test(text)) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const prettyJson = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
