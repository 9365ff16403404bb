// The nodes view: machines and devices that offer commands, and those that wait for approval.

import { dialog } from "./dialog.js";
import { fill, h } from "./dom.js";
import { formatAge } from "./format.js";
import { problem } from "./problem.js";

const REFRESH_MS = 5_000;

export class View {
  constructor({ connection }) {
    this.connection = connection;
    this.error = h("p", { class: "error", role: "alert", hidden: true });
    this.asking = h("section", { "aria-label": "Waiting for approval" });
    this.known = h("section", { "aria-label": "Nodes" });
    this.el = h(
      "div",
      { class: "inspect-view" },
      h("h2", null, "Nodes"),
      h("p", { class: "muted" }, "Other machines and devices that offer commands to the agents."),
      this.error,
      this.asking,
      this.known,
    );
    for (const event of ["node.pair.requested", "node.pair.resolved"])
      connection.on(event, () => this.timer && this.#load());
  }

  open() {
    this.#load();
    this.timer = setInterval(() => this.#load(), REFRESH_MS);
  }

  route() {}

  close() {
    clearInterval(this.timer);
    this.timer = null;
  }

  async #load() {
    try {
      this.#renderNodes((await this.connection.query("node.list")).nodes);
      this.error.hidden = true;
    } catch (error) {
      fill(this.error, problem(error)).hidden = false;
      return;
    }
    try {
      this.#renderAsking((await this.connection.query("node.pair.list")).pending);
    } catch {
      fill(this.asking); // it needs the scope operator.pairing
    }
  }

  #renderAsking(pending) {
    if (!pending.length) {
      fill(this.asking);
      return;
    }
    const cards = pending.map((each) =>
      h(
        "article",
        { class: "node-request", "aria-label": `${each.displayName} asks` },
        h(
          "p",
          null,
          h("b", null, each.displayName),
          each.newCommands ? " offers more than before" : " asks to be a node",
          `, ${each.platform ?? "unknown platform"}, from ${each.remoteIp ?? "unknown"}, ${ago(each.ts)}`,
        ),
        h("p", null, "Commands: ", each.commands.length ? words(each.newCommands ?? each.commands) : "none"),
        each.requiredApproveScopes.includes("operator.admin")
          ? h("p", { class: "muted" }, "Once approved, it can be asked to run programs.")
          : null,
        h("p", { class: "muted" }, "Id ", h("code", null, each.nodeId.slice(0, 12))),
        h(
          "div",
          { class: "approval-buttons" },
          this.#button("Approve", "node.pair.approve", { requestId: each.requestId }, "primary"),
          this.#button("Reject", "node.pair.reject", { requestId: each.requestId }),
        ),
      ),
    );
    fill(this.asking, h("h3", null, "Waiting for approval"), cards);
  }

  #renderNodes(nodes) {
    const approved = nodes.filter((node) => node.paired);
    if (!nodes.length) {
      const run = h("code", null, "hobnob node run --url URL --name NAME");
      fill(this.known, h("p", { class: "muted" }, "No node yet. On another machine: ", run));
      return;
    }
    const rows = approved.map((node) =>
      h(
        "tr",
        { class: node.connected ? "changed" : "default" },
        h("td", null, h("b", null, node.displayName), " ", h("code", null, node.nodeId.slice(0, 12))),
        h("td", null, node.connected ? "connected" : `away, seen ${ago(node.lastSeenAtMs)}`),
        h("td", null, node.platform ?? ""),
        h("td", null, node.commands.length ? words(node.commands) : "none"),
        h("td", null, this.#remove(node)),
      ),
    );
    fill(
      this.known,
      rows.length
        ? h(
            "table",
            { class: "settings-table" },
            h(
              "thead",
              null,
              h("tr", null, ["Node", "State", "Platform", "Commands", ""].map((name) => h("th", null, name))),
            ),
            h("tbody", null, rows),
          )
        : h("p", { class: "muted" }, "No node is approved yet."),
    );
  }

  #remove(node) {
    const text = h("p", null, "It is disconnected, and has to be approved again before it can be used.");
    const action = async () => {
      await this.connection.call("node.pair.remove", { nodeId: node.nodeId });
      await this.#load();
    };
    const ask = () =>
      dialog(`Remove ${node.displayName}?`, text, { confirmLabel: "Remove", danger: true, action });
    return h("button", { type: "button", class: "plain", onclick: ask }, "Remove");
  }

  #button(label, method, params, kind = "plain") {
    const act = async () => {
      try {
        await this.connection.call(method, params);
      } catch (error) {
        fill(this.error, problem(error)).hidden = false;
        return;
      }
      this.#load();
    };
    return h("button", { type: "button", class: kind, onclick: act }, label);
  }
}

/** Names of commands, each as code. */
function words(names) {
  return names.flatMap((name, index) => [index ? ", " : "", h("code", null, name)]);
}

function ago(time) {
  const age = formatAge(time);
  return /^\d+ (s|min|h|d)$/.test(age) ? `${age} ago` : age;
}
