// Commands that wait for approval, shown above every view.

import { fill, h, icon, notifyScreenReader } from "./dom.js";

export class Approvals {
  constructor({ connection, directory }) {
    this.connection = connection;
    this.directory = directory;
    this.pending = new Map(); // by approval id
    const label = "Commands waiting for approval";
    this.el = h("section", { class: "approvals", "aria-label": label, hidden: true });
    connection.on("exec.approval.requested", (approval) => {
      this.pending.set(approval.id, approval);
      notifyScreenReader(`${this.directory.agentName(approval.request.agentId)} asks to run a command.`);
      this.#render();
    });
    connection.on("exec.approval.resolved", ({ id }) => {
      if (this.pending.delete(id)) this.#render();
    });
    connection.on("reconnected", () => this.load());
  }

  async load() {
    const { approvals } = await this.connection.query("exec.approval.list");
    this.pending = new Map(approvals.map((approval) => [approval.id, approval]));
    this.#render();
  }

  #render() {
    this.el.hidden = this.pending.size === 0;
    fill(
      this.el,
      [...this.pending.values()].map((approval) => this.#card(approval)),
    );
  }

  #card({ id, request }) {
    const errorEl = h("p", { class: "error", role: "alert", hidden: true });
    const resolve = async (decision) => {
      try {
        await this.connection.call("exec.approval.resolve", { id, decision });
        if (this.pending.delete(id)) this.#render();
      } catch (error) {
        errorEl.hidden = false;
        fill(errorEl, error.message);
      }
    };
    const where = request.sandbox ? "in the sandbox" : "on the host, with the gateway's own rights";
    const agent = h("strong", null, this.directory.agentName(request.agentId));
    const session = h(
      "a",
      { href: `#/s/${encodeURIComponent(request.sessionKey)}` },
      this.directory.sessionName(request.sessionKey),
    );
    const buttons = [
      h("button", { class: "primary", onclick: () => resolve("allow-once") }, "Allow once"),
      h("button", { class: "plain", onclick: () => resolve("deny") }, "Deny"),
    ];
    return h(
      "article",
      { class: "approval" },
      icon("warn"),
      h(
        "div",
        null,
        h("p", null, agent, " in ", session, ` asks to run a command ${where}:`),
        h("pre", null, request.command),
        request.asked ? h("p", { class: "muted" }, `In reply to: ${request.asked}`) : null,
        errorEl,
      ),
      this.connection.hasScope("operator.admin")
        ? h("div", { class: "approval-buttons" }, buttons)
        : h("p", { class: "muted" }, "Approving needs operator.admin."),
    );
  }
}
