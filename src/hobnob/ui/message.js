// One message of a transcript: who says it, where it comes from, its tools, what it used.

import { h, icon } from "./dom.js";
import { prose } from "./prose.js";
import { bytes, clock, count, exact, money, oneLine, split, tone } from "./words.js";

const SKIPS = { REPLY_SKIP: "had nothing to add", ANNOUNCE_SKIP: "chose to announce nothing" };
const LONG = 6000; // characters of a text that is folded

/** The mark of an agent: its initial, in its colour. */
export function mark(name, id = name) {
  return h("span", { class: `mark ${tone(id)}`, "aria-hidden": "true" }, initial(name));
}

const initial = (name) => ([...name.trim()][0] ?? "?").toUpperCase();

/** A session as a link to it. */
export function sessionLink(people, key, row) {
  const place = `#/s/${encodeURIComponent(key)}`;
  return h("a", { class: "session-link", href: place, title: key }, people.session(key, row));
}

/**
 * The element of a message. `calls` is told of each tool call in it: (id, Tool).
 * Results of tools are shown within the call; `orphan` makes one that stands alone.
 */
export function messageElement(message, context, onCall) {
  switch (message.role) {
    case "assistant":
      return assistant(message, context, onCall);
    case "toolResult":
      return orphan(message);
    default:
      return user(message, context);
  }
}

function user(message, { people, key }) {
  const source = message.provenance;
  if (source?.kind !== "inter_session") {
    const body = h("div", { class: "words" }, texts(message));
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
      h("span", { class: "mark person", "aria-hidden": "true" }, "●"),
      source ? "From outside" : "Person",
      label,
      body,
    );
  }
  if (source.step === "announce")
    return step(message, "Announce step", "asked to tell its chat what came of the exchange", source);
  const from = source.sourceSessionKey;
  const name = from ? people.session(from) : "another session";
  const label = h("span", { class: "origin" }, ...origin(source, from, people));
  const agent = from ? split(from).agent : "?";
  const sign = mark(people.agent(agent), agent);
  const own = from === key ? "own" : "";
  const report = source.sourceTool === "sessions_spawn" && /^Status: /.test(plain(message));
  const body = h("div", { class: "words" }, report ? reported(plain(message)) : texts(message));
  return article(`peer ${report ? "report" : ""} ${own}`, message, sign, name, label, body);
}

function origin(source, from, people) {
  const link = from ? sessionLink(people, from) : "another session";
  const exchange = source.exchangeId
    ? h(
        "a",
        { class: "quiet", href: `#/exchanges/${source.exchangeId}`, title: "Show the exchange" },
        hop(source),
      )
    : null;
  const what = source.replyTurn
    ? `reply-back ${source.replyTurn}`
    : source.sourceTool === "sessions_spawn"
      ? "spawn"
      : "send";
  return [h("span", { class: "badge" }, what), " from session ", link, " ", exchange];
}

const hop = (source) => (source.hop ? `hop ${source.hop}` : "exchange");

function reported(text) {
  const rows = [];
  for (const line of text.split("\n")) {
    const head = /^(Status|Result|Notes|Stats): ?(.*)/.exec(line);
    if (head) rows.push([head[1], head[2]]);
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
          { class: "thought stats" },
          h("summary", null, stats[1].split(" • ").slice(0, 2).join(" · ")),
          h("div", null, stats[1]),
        )
      : null,
  ];
}

function step(message, title, text, source) {
  const link = source.exchangeId
    ? h("a", { class: "quiet", href: `#/exchanges/${source.exchangeId}` }, "exchange")
    : null;
  const body = h("p", null, h("span", { class: "badge system" }, title), " ", text, " ", link);
  return h(
    "article",
    { class: "message step", "data-seq": message.seq, "aria-label": `${title}, by the gateway` },
    body,
  );
}

function assistant(message, { people, key }, onCall) {
  const agent = split(key).agent;
  const name = people.agent(agent);
  const parts = partsOf(message);
  const text = plain(message).trim();
  if (text in SKIPS && parts.length === 1) {
    const said = h(
      "p",
      null,
      h("span", { class: "badge system" }, "Silence"),
      ` ${name} ${SKIPS[text]} `,
      h("code", null, text),
    );
    return h("article", { class: "message step", "data-seq": message.seq }, said);
  }
  const body = h("div", { class: "words" });
  const tools = h("div", { class: "tools" });
  for (const part of parts) {
    if (part.type === "text" && part.text) body.append(...folded(part.text));
    else if (part.type === "thinking" && part.thinking) body.append(thought(part.thinking));
    else if (part.type === "image") body.append(picture(part));
    else if (part.type === "toolCall") {
      const tool = new Tool(part, people);
      tools.append(tool.el);
      onCall?.(part.id, tool);
    }
  }
  const failed = message.errorMessage ? h("p", { class: "problem" }, message.errorMessage) : null;
  return article(
    "agent",
    message,
    mark(name, agent),
    name,
    null,
    body,
    tools.children.length ? tools : null,
    failed,
    used(message),
  );
}

function article(kind, message, sign, name, label, ...content) {
  const at = message.timestamp;
  const time = at ? h("time", { datetime: new Date(at).toISOString(), title: exact(at) }, clock(at)) : null;
  const head = h("header", null, h("b", null, name), label, time);
  return h(
    "article",
    { class: `message ${kind}`, "data-seq": message.seq },
    sign,
    h("div", { class: "body" }, head, ...content),
  );
}

/** What an answer used. */
function used(message) {
  const usage = message.usage;
  if (!usage) return null;
  const cost = usage.cost?.total ?? usage.costUsd;
  const cached = usage.cacheRead ? ` (${count(usage.cacheRead)} cached)` : "";
  const said = [`${count(usage.input ?? 0)} in${cached}`, `${count(usage.output ?? 0)} out`];
  if (cost) said.push(money(cost));
  if (message.model) said.push(message.model);
  return h("footer", { class: "used", title: "Tokens read, tokens written, cost, model" }, said.join(" · "));
}

export function partsOf(message) {
  return typeof message.content === "string"
    ? [{ type: "text", text: message.content }]
    : (message.content ?? []);
}

/** The words of a message. */
export function plain(message) {
  return partsOf(message)
    .filter((part) => part.type === "text")
    .map((part) => part.text)
    .join("\n");
}

function texts(message) {
  return partsOf(message).map((part) => (part.type === "image" ? picture(part) : folded(part.text ?? "")));
}

function folded(text) {
  if (text.length <= LONG) return prose(text);
  const rest = h(
    "details",
    { class: "rest" },
    h("summary", null, `Show all ${count(text.length)} characters`),
  );
  rest.addEventListener("toggle", () => rest.replaceWith(...prose(text.slice(LONG))), { once: true });
  return [...prose(text.slice(0, LONG)), rest];
}

function thought(text) {
  return h("details", { class: "thought" }, h("summary", null, "Thought"), h("div", null, prose(text)));
}

function picture(part) {
  const size = part.bytes ? `, ${bytes(part.bytes)}` : "";
  return h(
    "p",
    { class: "attachment" },
    icon("clip"),
    ` Image (${part.mimeType ?? "picture"}${size}), not shown here`,
  );
}

/** A tool call, folded: its arguments, how it goes, what it gave back. */
export class Tool {
  constructor(part, people) {
    this.part = part;
    this.result = null;
    this.state = h("span", { class: "tool-state" }, "");
    const summary = h(
      "summary",
      null,
      icon("tool"),
      h("span", { class: "tool-name" }, part.name),
      h("span", { class: "tool-gist" }, gist(part, people)),
      this.state,
    );
    this.inside = h("div", { class: "tool-inside" });
    this.fold = h("details", null, summary, this.inside);
    this.note = h("div");
    this.el = h("div", { class: "tool" }, this.fold, this.note);
    this.fold.addEventListener("toggle", () => this.#show());
  }

  started() {
    if (!this.result) this.#become("running", "running…");
  }

  answered(message) {
    this.result = message;
    const answer = parsed(plain(message));
    const refused = answer?.status === "forbidden" || answer?.status === "error" || message.isError;
    this.#become(
      refused ? "refused" : "done",
      refused ? (answer?.code ?? "failed") : (answer?.status ?? "done"),
    );
    this.note.replaceChildren();
    if (refused && answer?.error) this.note.append(refusal(answer));
    this.#show();
  }

  #become(kind, word) {
    this.el.dataset.state = kind;
    this.state.textContent = word;
  }

  #show() {
    if (!this.fold.open) return;
    const { attachments, ...rest } = this.part.arguments ?? {};
    this.inside.replaceChildren(
      h("h4", null, "Arguments"),
      h(
        "pre",
        { class: "code", tabindex: "0" },
        pretty(Array.isArray(attachments) ? rest : this.part.arguments),
      ),
      ...(Array.isArray(attachments) ? attachments.map(attachment) : []),
      h("h4", null, "Result"),
      h(
        "pre",
        { class: "code", tabindex: "0" },
        this.result ? pretty(parsed(plain(this.result)) ?? plain(this.result)) : "Not yet.",
      ),
    );
  }
}

function attachment(file) {
  const size = typeof file.content === "string" ? `, ${bytes(file.content.length)}` : "";
  return h("p", { class: "attachment" }, icon("clip"), ` ${file.name ?? "file"}${size}`);
}

/** Why it was refused, by which rule, and what to change. */
export function refusal(answer) {
  const fix = Array.isArray(answer.fix)
    ? answer.fix
        .map((each) => (typeof each === "string" ? each : `${each.path} = ${JSON.stringify(each.value)}`))
        .join("; ")
    : answer.fix;
  return h(
    "p",
    { class: "refusal" },
    icon("warn"),
    h(
      "span",
      null,
      answer.error,
      " ",
      h("code", null, answer.code ?? answer.status),
      fix ? h("span", { class: "fix" }, ` ${fix}`) : null,
    ),
  );
}

function gist(part, people) {
  const given = part.arguments ?? {};
  const to = given.sessionKey ?? (given.agentId && `agent:${given.agentId}:main`) ?? given.label;
  const said = given.message ?? given.task ?? given.query;
  const named = to && String(to).startsWith("agent:") ? people.session(String(to)) : to;
  if (named || said)
    return oneLine([named && `→ ${named}`, said && `“${said}”`].filter(Boolean).join("  "), 120);
  return oneLine(
    Object.entries(given)
      .map(([name, value]) => `${name} ${JSON.stringify(value)}`)
      .join(", "),
    120,
  );
}

function orphan(message) {
  const tool = new Tool({ name: message.toolName ?? "tool", arguments: {} }, { session: (key) => key });
  tool.answered(message);
  return h("article", { class: "message lone", "data-seq": message.seq }, tool.el);
}

function parsed(text) {
  if (!/^\s*[{[]/.test(text)) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
