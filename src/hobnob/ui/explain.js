// May one session do something to another? The verdict, the rule, and the setting that would change it.

import { announce, fill, h, icon } from "./dom.js";

const VERBS = [
  ["send", "send a message to"],
  ["history", "read the history of"],
  ["list", "see in its list"],
  ["search", "search in"],
  ["status", "ask the status of"],
  ["spawn", "spawn a sub-agent under"],
  ["abort", "stop"],
  ["control", "reset, change or delete"],
];

export class View {
  constructor({ wire, people }) {
    Object.assign(this, { wire, people });
    this.known = h("datalist", { id: "known-sessions" });
    const session = (label, hint) =>
      h("input", {
        list: "known-sessions",
        "aria-label": label,
        placeholder: hint,
        autocomplete: "off",
        spellcheck: "false",
      });
    this.from = session("From", "this credential (you)");
    this.to = session("To", "agent:helper:main");
    this.verb = h(
      "select",
      { "aria-label": "Action" },
      VERBS.map(([verb, text]) => h("option", { value: verb }, text)),
    );
    this.answer = h("div", { class: "verdict", role: "status", "aria-live": "polite" });
    const submit = (event) => {
      event.preventDefault();
      const parts = [this.from.value.trim() || "-", this.verb.value, this.to.value.trim()];
      const hash = `#/explain/${parts.map(encodeURIComponent).join("/")}`;
      if (location.hash === hash) this.#ask();
      else location.hash = hash;
    };
    this.el = h(
      "div",
      { class: "explain-view" },
      h("h2", { class: "question" }, "May it?"),
      h("p", { class: "quiet" }, "Pick two sessions and what one wants to do to the other."),
      h(
        "form",
        { onsubmit: submit },
        h("label", { class: "field" }, h("span", null, "May"), this.from),
        h("label", { class: "field" }, h("span", { class: "unseen" }, "Action"), this.verb),
        h("label", { class: "field" }, h("span", null, "the session"), this.to),
        h("button", { class: "primary", type: "submit" }, "Explain"),
      ),
      this.known,
      this.answer,
    );
  }

  async open(rest) {
    this.route(rest);
    const page = await this.wire.ask("sessions.list", { limit: 100 });
    const keys = new Set([
      ...page.sessions.map((row) => row.key),
      ...this.people.agents.map((agent) => `agent:${agent.id}:main`),
    ]);
    for (const row of page.sessions) this.people.remember(row);
    fill(
      this.known,
      [...keys].map((key) => h("option", { value: key }, this.people.session(key))),
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
    this.#ask();
  }

  async #ask() {
    const params = { action: this.verb.value, target: this.to.value.trim() };
    if (this.from.value.trim()) params.source = this.from.value.trim();
    try {
      this.#show(await this.wire.ask("policy.explain", params));
    } catch (problem) {
      fill(
        this.answer,
        h(
          "div",
          { class: "card problem", role: "alert" },
          problem.message,
          problem.fix ? ` ${problem.fix}` : "",
        ),
      );
    }
  }

  #show(found) {
    const text = VERBS.find(([verb]) => verb === found.action)[1];
    const rules = found.rules.map((rule) =>
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
    const fixes = found.fix.map((fix) => `${fix.path} = ${JSON.stringify(fix.value)}`);
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
      this.answer,
      h(
        "div",
        { class: `card ${found.allowed ? "yes" : "no"}` },
        h("h2", null, found.allowed ? "Yes" : "No"),
        h(
          "p",
          null,
          h("code", { class: "key" }, found.from),
          found.allowed ? ` may ${text} ` : ` may not ${text} `,
          h("code", { class: "key" }, found.to),
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
      announce("Copied.");
    } catch {
      announce("The browser does not let this page copy.");
    }
  }
}
