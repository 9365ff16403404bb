// Commands that wait for a person's yes, above everything else.

import { announce, fill, h, icon } from "./dom.js";

export class Questions {
  constructor({ wire, people }) {
    this.wire = wire;
    this.people = people;
    this.asked = new Map();
    this.el = h("section", { class: "questions", "aria-label": "Commands that wait for a yes", hidden: true });
    wire.on("exec.approval.requested", (question) => {
      this.asked.set(question.id, question);
      announce(`${this.people.agent(question.request.agentId)} asks to run a command.`);
      this.#draw();
    });
    wire.on("exec.approval.resolved", ({ id }) => {
      if (this.asked.delete(id)) this.#draw();
    });
    wire.on("again", () => this.load());
  }

  async load() {
    const { approvals } = await this.wire.ask("exec.approval.list");
    this.asked = new Map(approvals.map((question) => [question.id, question]));
    this.#draw();
  }

  #draw() {
    this.el.hidden = this.asked.size === 0;
    fill(this.el, [...this.asked.values()].map((question) => this.#card(question)));
  }

  #card({ id, request }) {
    const said = h("p", { class: "problem", role: "alert", hidden: true });
    const answer = async (decision) => {
      try {
        await this.wire.act("exec.approval.resolve", { id, decision });
        if (this.asked.delete(id)) this.#draw();
      } catch (problem) {
        said.hidden = false;
        fill(said, problem.message);
      }
    };
    const where = request.sandbox ? "in the sandbox" : "on the host, with the gateway's own rights";
    const session = h(
      "a",
      { href: `#/s/${encodeURIComponent(request.sessionKey)}` },
      this.people.session(request.sessionKey),
    );
    const may = this.wire.holds("operator.admin");
    const buttons = [
      h("button", { class: "primary", onclick: () => answer("allow-once") }, "Allow once"),
      h("button", { class: "plain", onclick: () => answer("deny") }, "Deny"),
    ];
    return h(
      "article",
      { class: "permit" },
      icon("warn"),
      h(
        "div",
        null,
        h("p", null, h("strong", null, this.people.agent(request.agentId)), " in ", session, ` asks to run ${where}:`),
        h("pre", null, request.command),
        request.asked ? h("p", { class: "quiet" }, `It was asked: ${request.asked}`) : null,
        said,
      ),
      may
        ? h("div", { class: "answers" }, buttons)
        : h("p", { class: "quiet" }, "Answering needs operator.admin."),
    );
  }
}
