// The explain view: whether one session may act on another, by which rule, and which settings allow it.

import { fill, h, icon, notifyScreenReader } from "./dom.js";
import { assignment, problem } from "./problem.js";

const VERBS = [
  ["send", "send a message to"],
  ["history", "read the history of"],
  ["list", "list"],
  ["search", "search"],
  ["status", "read the status of"],
  ["spawn", "spawn a sub-agent under"],
  ["abort", "stop"],
  ["control", "reset, change or delete"],
];

export class View {
  constructor({ connection, directory }) {
    Object.assign(this, { connection, directory });
    this.knownSessions = h("datalist", { id: "known-sessions" });
    const session = (label, hint) =>
      h("input", {
        list: "known-sessions",
        "aria-label": label,
        placeholder: hint,
        autocomplete: "off",
        spellcheck: "false",
      });
    this.from = session("From", "your token");
    this.to = session("To", "agent:helper:main");
    this.verb = h(
      "select",
      { "aria-label": "Action" },
      VERBS.map(([verb, text]) => h("option", { value: verb }, text)),
    );
    this.verdictEl = h("div", { class: "verdict", role: "status", "aria-live": "polite" });
    const submit = (event) => {
      event.preventDefault();
      const parts = [this.from.value.trim() || "-", this.verb.value, this.to.value.trim()];
      const hash = `#/explain/${parts.map(encodeURIComponent).join("/")}`;
      if (location.hash === hash) this.#load();
      else location.hash = hash;
    };
    this.el = h(
      "div",
      { class: "explain-view" },
      h("h2", { class: "question" }, "Is it allowed?"),
      h("p", { class: "muted" }, "Choose two sessions and an action."),
      h(
        "form",
        { onsubmit: submit },
        h("label", { class: "field" }, h("span", null, "From"), this.from),
        h("label", { class: "field" }, h("span", { class: "visually-hidden" }, "Action"), this.verb),
        h("label", { class: "field" }, h("span", null, "To"), this.to),
        h("button", { class: "primary", type: "submit" }, "Explain"),
      ),
      this.knownSessions,
      this.verdictEl,
    );
  }

  async open(rest) {
    this.route(rest);
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

  async #load() {
    const params = { action: this.verb.value, target: this.to.value.trim() };
    if (this.from.value.trim()) params.source = this.from.value.trim();
    try {
      this.#render(await this.connection.query("policy.explain", params));
    } catch (error) {
      fill(this.verdictEl, h("div", { class: "card error", role: "alert" }, problem(error)));
    }
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
    fill(
      this.verdictEl,
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
