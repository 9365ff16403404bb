// Commands that wait for approval: which sessions have some, and the card that shows and answers one.

import { fill, h, icon, notifyScreenReader } from "./dom.js";
import { formatTime } from "./format.js";
import { preview } from "./markdown.js";
import { problem } from "./problem.js";

const ASKERS = { hook: "From outside, the hook", node: "The node", session: "The session", person: "A person, signed in as" };

export class Approvals {
  constructor({ connection, directory }) {
    this.connection = connection;
    this.directory = directory;
    this.pending = new Map(); // by approval id
    this.listeners = new Set();
    connection.on("exec.approval.requested", (approval) => {
      this.pending.set(approval.id, approval);
      notifyScreenReader(`${this.directory.agentName(approval.request.agentId)} asks to run a command.`);
      this.#changed();
    });
    connection.on("exec.approval.resolved", ({ id }) => this.#remove(id));
    connection.on("reconnected", () => this.load());
  }

  async load() {
    const { approvals } = await this.connection.query("exec.approval.list");
    this.pending = new Map(approvals.map((approval) => [approval.id, approval]));
    this.#changed();
  }

  /** Call `listener` after each change; returns a function that removes it. */
  onChange(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** The waiting commands of a session, oldest first. */
  of(key) {
    return [...this.pending.values()].filter(({ request }) => request.sessionKey === key);
  }

  /** The oldest waiting command, or undefined. */
  get first() {
    return this.pending.values().next().value;
  }

  #remove(id) {
    if (this.pending.delete(id)) this.#changed();
  }

  #changed() {
    for (const listener of this.listeners) listener();
  }

  /** A waiting command: who asks to run what, where, and the buttons that answer. */
  card({ id, request, expiresAtMs }) {
    const errorEl = h("p", { class: "error", role: "alert", hidden: true });
    const resolve = async (decision) => {
      try {
        await this.connection.call("exec.approval.resolve", { id, decision });
        this.#remove(id);
      } catch (error) {
        errorEl.hidden = false;
        fill(errorEl, problem(error));
      }
    };
    const agent = this.directory.agentName(request.agentId);
    const elsewhere = request.host === "node" ? `on the node “${request.node}”` : null;
    const where = elsewhere ?? (request.sandbox ? "in the sandbox" : "on the host, with the gateway's own rights");
    const buttons = [
      h("button", { class: "primary", onclick: () => resolve("allow-once") }, "Allow once"),
      h("button", { class: "plain", onclick: () => resolve("deny") }, "Deny"),
      h("span", { class: "muted" }, `denied at ${formatTime(expiresAtMs)} if nobody answers`),
    ];
    return h(
      "article",
      { class: "approval", "data-id": id, "aria-label": `${agent} asks to run a command` },
      icon("warn"),
      h(
        "div",
        { class: "approval-body" },
        h("p", null, h("b", null, agent), ` asks to run a command ${where}:`),
        h("pre", { class: "code", tabindex: "0" }, request.command),
        h("dl", { class: "facts" }, this.#facts(request)),
        errorEl,
        this.connection.hasScope("operator.approvals")
          ? h("div", { class: "approval-buttons" }, buttons)
          : h("p", { class: "muted" }, "Approving needs operator.approvals."),
      ),
    );
  }

  #facts({ askedBy, asked, workdir, env, spawnedBy, plan }) {
    const facts = [
      ["Asked by", askedBy && `${ASKERS[askedBy.kind] ?? askedBy.kind} “${this.#askerName(askedBy)}”`],
      ["Message", asked && `“${preview(asked, 200)}”`],
      ["The node will run", plan && h("code", null, plan.argv.map((word) => JSON.stringify(word)).join(" "))],
      ["Folder", workdir === "." ? null : workdir],
      [
        "With",
        env &&
          Object.entries(env)
            .map(([name, value]) => `${name}=${value}`)
            .join(" "),
      ],
      ["Spawned by", spawnedBy && this.directory.sessionName(spawnedBy)],
    ];
    return facts
      .filter(([, value]) => value)
      .map(([name, value]) => [h("dt", null, name), h("dd", null, value)]);
  }

  #askerName({ kind, name }) {
    return kind === "session" ? this.directory.sessionName(name) : name;
  }
}
