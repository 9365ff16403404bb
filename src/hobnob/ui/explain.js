// The explain view: whether one session may act on another, by which rule, and which settings allow it.

import { field, select } from "./dialog.js";
import { parseKey } from "./directory.js";
import { fill, h, icon, notifyScreenReader } from "./dom.js";
import { assignment, problem } from "./problem.js";

const VERBS = [
  ["send", "send a message to"],
  ["history", "read the history of"],
  ["list", "list"],
  ["search", "search"],
  ["status", "read the status of"],
  ["spawn", "spawn a sub-agent of"],
  ["abort", "stop"],
  ["change", "change the settings of"],
  ["approve", "approve commands of"],
  ["control", "reset or delete"],
];

const questionHash = (from, verb, to) =>
  `#/explain/${[from || "-", verb, to].map(encodeURIComponent).join("/")}`;

export class View {
  constructor({ connection, directory }) {
    Object.assign(this, { connection, directory });
    this.knownSessions = h("datalist", { id: "known-sessions" });
    const session = (placeholder) =>
      h("input", { list: "known-sessions", placeholder, autocomplete: "off", spellcheck: "false" });
    this.from = session("your token");
    this.to = session("agent:helper:main");
    this.verb = select(
      "action",
      VERBS.map(([verb, text]) => [verb, text]),
      "send",
    );
    this.examples = h("ul", { class: "examples" });
    this.verdictEl = h("div", { class: "verdict", role: "status", "aria-live": "polite" });
    const submit = (event) => {
      event.preventDefault();
      const hash = questionHash(this.from.value.trim(), this.verb.value, this.to.value.trim());
      if (location.hash === hash) this.#load();
      else location.hash = hash;
    };
    this.el = h(
      "div",
      { class: "explain-view" },
      h("h2", { class: "question" }, "Is it allowed?"),
      h(
        "p",
        { class: "muted" },
        "Ask whether a session may do something to another one. The answer names the rule that decides and the settings that would change it.",
      ),
      h(
        "form",
        { onsubmit: submit },
        field("From", this.from, "Who would do it: a session, token:NAME, or empty for your own token."),
        field("Action", this.verb, "What it would do."),
        field("To", this.to, "Which session it concerns; for a spawn, an agent or a harness."),
        h("button", { class: "primary", type: "submit" }, "Explain"),
      ),
      h("section", { "aria-label": "Examples" }, h("h3", null, "Examples"), this.examples),
      this.knownSessions,
      this.verdictEl,
    );
  }

  async open(rest) {
    this.route(rest);
    this.#showExamples();
    const page = await this.connection.query("sessions.list", { limit: 100 });
    const keys = new Set([
      ...page.sessions.map((row) => row.key),
      ...this.directory.agents.map((agent) => `agent:${agent.id}:main`),
    ]);
    for (const row of page.sessions) this.directory.rememberLabel(row);
    fill(
      this.knownSessions,
      [...keys].map((key) => h("option", { value: key }, this.directory.sessionName(key))),
    );
  }

  close() {}

  route([from, verb, to]) {
    if (!to) {
      this.to.focus();
      return;
    }
    this.from.value = from === "-" ? "" : from;
    this.verb.value = verb;
    this.to.value = to;
    this.#load();
  }

  /** Questions about the agents of this gateway, ready to ask. */
  #showExamples() {
    const [one, other = one] = this.directory.agents.map(({ id }) => `agent:${id}:main`);
    const questions = [
      [one, "send", other],
      [other, "history", one],
      [one, "spawn", parseKey(other).agent],
      ["", "control", one],
    ];
    const example = ([from, verb, to]) => {
      const names = [from, to].map((key) => (key ? this.#nameOf(key) : "your token"));
      const text = `May ${names[0]} ${VERBS.find(([each]) => each === verb)[1]} ${names[1]}?`;
      return h("li", null, h("a", { href: questionHash(from, verb, to) }, text));
    };
    fill(this.examples, questions.map(example));
  }

  #nameOf(key) {
    return parseKey(key).agent ? this.directory.sessionName(key) : this.directory.agentName(key);
  }

  async #load() {
    const params = { action: this.verb.value, target: this.to.value.trim() };
    if (this.from.value.trim()) params.source = this.from.value.trim();
    try {
      this.#render(await this.connection.query("policy.explain", params));
    } catch (error) {
      this.#show(h("div", { class: "card error", role: "alert" }, problem(error)));
    }
  }

  #show(card) {
    fill(this.verdictEl, card);
    card.scrollIntoView({ block: "nearest" });
  }

  #render(verdict) {
    const action = VERBS.find(([verb]) => verb === verdict.action)[1];
    const rules = verdict.rules.map((rule) =>
      h(
        "li",
        { class: rule.allowed ? "yes" : "no" },
        h(
          "span",
          { class: "sign", "aria-label": rule.allowed ? "allows" : "forbids" },
          rule.allowed ? "✓" : "✗",
        ),
        h("span", null, rule.why, " ", h("code", null, rule.code)),
      ),
    );
    const fixes = verdict.fix.map(assignment);
    const copy = h(
      "button",
      {
        class: "ghost",
        "aria-label": "Copy these settings",
        title: "Copy",
        onclick: () => this.#copy(fixes.join("\n")),
      },
      icon("copy"),
    );
    this.#show(
      h(
        "div",
        { class: `card ${verdict.allowed ? "yes" : "no"}` },
        h("h2", null, verdict.allowed ? "Yes" : "No"),
        h(
          "p",
          null,
          h("code", { class: "key" }, verdict.from),
          verdict.allowed ? ` may ${action} ` : ` may not ${action} `,
          h("code", { class: "key" }, verdict.to),
          ".",
        ),
        h("ul", { class: "rules" }, rules),
        fixes.length
          ? h(
              "div",
              { class: "fixes" },
              h("h3", null, fixes.length > 1 ? "To allow it, set all of these" : "To allow it, set", copy),
              h("pre", { class: "code", tabindex: "0" }, fixes.join("\n")),
            )
          : null,
      ),
    );
  }

  async #copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      notifyScreenReader("Copied.");
    } catch {
      notifyScreenReader("The browser blocked copying.");
    }
  }
}
