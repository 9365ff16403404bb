// The agents view: each agent with its tools, the rule that allows or refuses each, and what would change it.

import { fill, h } from "./dom.js";
import { avatar, sessionLink } from "./message.js";
import { assignment, problem } from "./problem.js";

export class View {
  constructor({ connection, directory }) {
    Object.assign(this, { connection, directory });
    this.list = h("ul", { class: "agent-list", "aria-label": "Agents" });
    this.detail = h("section", {
      class: "agent-detail",
      "aria-label": "Tools of the agent",
      "aria-live": "polite",
    });
    this.el = h(
      "div",
      { class: "inspect-view" },
      h("h2", null, "Agents"),
      h(
        "p",
        { class: "muted" },
        "Which tools an agent has, and by which rule: the same as ",
        h("code", null, "hobnob explain KEY --tools"),
        ".",
      ),
      this.list,
      this.detail,
    );
  }

  open(rest) {
    this.route(rest);
  }

  close() {}

  /** `#/agents/<agent>` shows its main session, `#/agents/<agent>/<key>` another session of it. */
  route([agent = this.directory.defaultAgent, key = `agent:${agent}:main`]) {
    fill(
      this.list,
      this.directory.agents.map((each) => this.#agentItem(each, each.id === agent)),
    );
    this.#load(key);
  }

  #agentItem({ id, model }, selected) {
    const name = this.directory.agentName(id);
    const isDefault = id === this.directory.defaultAgent;
    return h(
      "li",
      null,
      h(
        "a",
        {
          class: "agent-item",
          href: `#/agents/${encodeURIComponent(id)}`,
          "aria-current": selected ? "true" : null,
        },
        avatar(name, id),
        h(
          "span",
          null,
          h("b", null, name),
          isDefault ? [" ", h("span", { class: "badge system" }, "default")] : null,
          h("small", null, model?.primary ?? ""),
        ),
      ),
    );
  }

  async #load(key) {
    const request = (this.request = (this.request ?? 0) + 1);
    let content;
    try {
      content = this.#tools(await this.connection.query("tools.effective", { sessionKey: key }));
    } catch (error) {
      content = h("p", { class: "error", role: "alert" }, problem(error));
    }
    if (request === this.request) fill(this.detail, content);
  }

  #tools({ sessionKey, profile, sandbox, groups }) {
    const tools = groups.flatMap((group) => group.tools);
    const allowed = tools.filter((tool) => tool.allowed).length;
    const required = sandbox.sandboxed ? "must run in a sandbox" : "need not run in a sandbox";
    const where =
      sandbox.commands === "sandbox"
        ? "its commands run in one"
        : "its commands run on this machine with the gateway's rights";
    return [
      h("h3", null, sessionLink(this.directory, sessionKey), ` has ${allowed} of ${tools.length} tools`),
      h(
        "p",
        { class: "muted" },
        h("code", { class: "key" }, sessionKey),
        ` ${required}; ${where}; profile ${profile}.`,
      ),
      sandbox.works ? null : h("p", { class: "error" }, `No sandbox works here: ${sandbox.problem}`),
      groups.map((group) => [
        h("h4", null, group.id.replace(/^group:/, "")),
        h("ul", { class: "tool-list" }, group.tools.map(toolItem)),
      ]),
    ];
  }
}

function toolItem({ id, description, allowed, why, rule, fix = [] }) {
  const sign = h(
    "span",
    { class: "sign", role: "img", "aria-label": allowed ? "allowed" : "refused" },
    allowed ? "✓" : "✗",
  );
  return h(
    "li",
    { class: allowed ? "yes" : "no" },
    sign,
    h("code", { class: "tool-id" }, id),
    h(
      "span",
      null,
      h("span", null, description),
      h("small", null, why, " ", h("code", null, rule)),
      allowed ? null : fix.map((each) => h("code", { class: "fix-line" }, assignment(each))),
    ),
  );
}
