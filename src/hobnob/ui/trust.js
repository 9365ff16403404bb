// The trust view: who may do what to whom as a matrix of agents, grants, budgets, and what was refused lately.

import { fill, h } from "./dom.js";
import { formatAge, formatMoney, formatNumber, plural } from "./format.js";
import { avatar, sessionLink } from "./message.js";
import { assignment, problem } from "./problem.js";

const WORDS = { list: "list", history: "read", send: "send to", spawn: "spawn", control: "control" };
const BUDGETS_SHOWN = 20;
const LETTERS = { list: "L", history: "R", send: "S", spawn: "P", control: "C" };

const mainOf = (agent) => `agent:${agent}:main`;
const explainHash = (from, verb, to) =>
  `#/explain/${[mainOf(from), verb, verb === "spawn" ? to : mainOf(to)].map(encodeURIComponent).join("/")}`;

export class View {
  constructor({ connection, directory }) {
    Object.assign(this, { connection, directory });
    this.content = h("div", { class: "trust-content" });
    this.el = h(
      "div",
      { class: "inspect-view trust-view" },
      h("h2", null, "Trust"),
      h(
        "p",
        { class: "muted" },
        "Who may do what to whom, between the main sessions of the agents. A row may act on a column. The same as ",
        h("code", null, "hobnob explain FROM ACTION TO"),
        ".",
      ),
      this.content,
    );
  }

  open(rest) {
    this.unsubscribe = this.connection.on("reconnected", () => this.#load());
    this.route(rest);
  }

  close() {
    this.unsubscribe?.();
  }

  /** `#/trust/<from>/<to>` shows one pair with its rules. */
  route([from = null, to = null]) {
    this.selected = from && to ? { from, to } : null;
    this.#load();
  }

  async #load() {
    const request = (this.request = (this.request ?? 0) + 1);
    let shown;
    try {
      const [found, { budgets }, costs] = await Promise.all([
        this.connection.query("policy.matrix"),
        this.connection.query("budgets.list"),
        this.connection.query("costs", { by: "agent" }),
      ]);
      shown = this.#all(found, budgets, costs.rows);
    } catch (error) {
      shown = h("p", { class: "error", role: "alert" }, problem(error));
    }
    if (request !== this.request) return;
    fill(this.content, shown);
    if (this.selected) this.#showPair(request);
  }

  #all(found, budgets, costs) {
    this.detail = h("section", { class: "trust-pair", "aria-label": "Rules of the pair", "aria-live": "polite" });
    const single = found.agents.length < 2;
    return [
      single
        ? h("p", { class: "muted" }, "There is one agent: nobody else to trust. Add agents in agents.list.")
        : [this.#legend(found.verbs), this.#table(found)],
      found.more ? h("p", { class: "muted" }, `${found.more} more agents are not shown.`) : null,
      this.detail,
      h(
        "section",
        { "aria-label": "Grants" },
        h("h3", null, "Grants"),
        found.grants.length
          ? h(
              "ul",
              { class: "trust-grants" },
              found.grants.map((text) => h("li", null, h("code", null, text))),
              found.moreGrants ? h("li", { class: "muted" }, `and ${found.moreGrants} more`) : null,
            )
          : h("p", { class: "muted" }, "None: agents have what their visibility gives them."),
      ),
      this.#budgets(budgets),
      this.#costs(costs),
      this.#refusals(found.refusals),
    ];
  }

  #legend(verbs) {
    return h(
      "ul",
      { class: "trust-legend", "aria-hidden": "true" },
      verbs.map((verb) => h("li", null, h("b", { class: "verb yes" }, LETTERS[verb]), WORDS[verb])),
      h("li", null, h("b", { class: "verb granted" }, "S"), "by a grant"),
      h("li", null, h("b", { class: "verb no" }, "S"), "refused"),
      h("li", null, h("span", { class: "withheld" }, "−3"), "tools withheld"),
    );
  }

  #table({ agents, pairs }) {
    const pairOf = new Map(pairs.map((pair) => [`${pair.from} ${pair.to}`, pair]));
    const name = ({ id }) => [avatar(this.directory.agentName(id), id), this.directory.agentName(id)];
    return h(
      "div",
      { class: "trust-scroller", tabindex: "0", role: "region", "aria-label": "Matrix of agents" },
      h(
        "table",
        { class: "trust-table" },
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            h("td", null),
            agents.map((agent) => h("th", { scope: "col" }, h("span", { class: "trust-name" }, name(agent)))),
          ),
        ),
        h(
          "tbody",
          null,
          agents.map((from) =>
            h(
              "tr",
              null,
              h(
                "th",
                { scope: "row" },
                h("span", { class: "trust-name" }, name(from)),
                h("small", null, `sees ${from.visibility}${from.sandboxed ? ", sandboxed" : ""}`),
              ),
              agents.map((to) => this.#cell(pairOf.get(`${from.id} ${to.id}`))),
            ),
          ),
        ),
      ),
    );
  }

  #cell(pair) {
    if (!pair) return h("td", { class: "self" }, h("span", { "aria-label": "itself" }, "·"));
    const { from, to, verbs, authority } = pair;
    const allowed = Object.keys(verbs).filter((verb) => verbs[verb].allowed);
    const names = [from, to].map((id) => this.directory.agentName(id));
    const may = allowed.length ? `may ${allowed.map((verb) => WORDS[verb]).join(", ")}` : "may do nothing to";
    const withheld = authority?.withheld.length ?? 0;
    const label = `${names[0]} ${may} ${names[1]}${withheld ? `, ${withheld} tools withheld` : ""}`;
    const isSelected = this.selected?.from === from && this.selected?.to === to;
    return h(
      "td",
      null,
      h(
        "a",
        {
          class: "trust-cell",
          href: `#/trust/${encodeURIComponent(from)}/${encodeURIComponent(to)}`,
          "aria-label": label,
          "aria-current": isSelected ? "true" : null,
          title: label,
        },
        Object.entries(verbs).map(([verb, { allowed: is, code }]) =>
          h("b", { class: `verb ${is ? (code === "grant" ? "granted" : "yes") : "no"}` }, LETTERS[verb]),
        ),
        withheld ? h("span", { class: "withheld" }, `−${withheld}`) : null,
      ),
    );
  }

  /** The rules of one pair, each as `explain` has it. */
  async #showPair(request) {
    const { from, to } = this.selected;
    const names = [from, to].map((id) => this.directory.agentName(id));
    const ask = async (verb) => {
      const target = verb === "spawn" ? to : mainOf(to);
      return [verb, await this.connection.query("policy.explain", { action: verb, source: mainOf(from), target })];
    };
    let content;
    try {
      const answers = await Promise.all(Object.keys(WORDS).map(ask));
      content = h(
        "ul",
        { class: "tool-list" },
        answers.map(([verb, answer]) => verdictItem(from, verb, to, answer)),
      );
    } catch (error) {
      content = h("p", { class: "error", role: "alert" }, problem(error));
    }
    if (request === this.request) fill(this.detail, h("h3", null, `${names[0]} → ${names[1]}`), content);
  }

  /** What agents, sessions and exchanges may still spend. */
  #budgets(budgets) {
    const name = ({ kind, owner }) => {
      if (kind === "agent") return [h("b", null, this.directory.agentName(owner)), " today"];
      return kind === "session" ? sessionLink(this.directory, owner) : ["exchange ", h("code", null, owner.slice(0, 13))];
    };
    return h(
      "section",
      { "aria-label": "Budgets" },
      h("h3", null, "Budgets"),
      budgets.length
        ? h(
            "ul",
            { class: "trust-budgets" },
            budgets.slice(0, BUDGETS_SHOWN).map((budget) => h("li", null, h("span", null, name(budget)), measures(budget))),
          )
        : h("p", { class: "muted" }, "None in use."),
    );
  }

  /** What each agent spent in the last 30 days. */
  #costs(rows) {
    const item = ({ name, costUsd, priceUnknown, totalTokens, calls }) =>
      h(
        "li",
        null,
        h("b", null, this.directory.agentName(name)),
        ` ${formatMoney(costUsd)}`,
        h(
          "small",
          null,
          ` ${formatNumber(totalTokens)} tokens in ${formatNumber(calls)} model calls`,
          priceUnknown ? ", some at an unknown price" : "",
        ),
      );
    return h(
      "section",
      { "aria-label": "Costs" },
      h("h3", null, "Costs of 30 days"),
      rows.length ? h("ul", { class: "trust-costs" }, rows.map(item)) : h("p", { class: "muted" }, "None."),
      h("p", { class: "muted" }, "By session, tree, model or day: ", h("code", null, "hobnob costs --by tree"), "."),
    );
  }

  #refusals(refusals) {
    return h(
      "section",
      { "aria-label": "Refused lately" },
      h("h3", null, "Refused lately"),
      refusals.length
        ? h(
            "ul",
            { class: "trust-refusals" },
            refusals.map(({ sessionKey, verb, code, why, at }) =>
              h(
                "li",
                null,
                h("span", null, sessionLink(this.directory, sessionKey), ` ${verb} `, h("code", null, code)),
                h("small", null, formatAge(at)),
                h("p", null, why),
              ),
            ),
          )
        : h("p", { class: "muted" }, "Nothing since the gateway was started."),
    );
  }
}

/** Each measure of a budget as a bar: what is spent and reserved of its limit. */
function measures({ measures }) {
  return Object.entries(measures).map(([unit, { limit, spent, reserved, left }]) => {
    const text = (value) => (unit === "usd" ? formatMoney(value) : plural(Math.round(value), unit.slice(0, -1)));
    const used = `${text(spent)} spent${reserved ? `, ${text(reserved)} reserved` : ""} of ${text(limit)}`;
    return h(
      "span",
      { class: left > 0 ? "" : "exceeded" },
      h("meter", { min: 0, max: limit, value: spent + reserved, "aria-label": used }),
      h("small", null, used),
    );
  });
}

function verdictItem(from, verb, to, { allowed, rules, fix, grant }) {
  return h(
    "li",
    { class: allowed ? "yes" : "no" },
    h("span", { class: "sign", role: "img", "aria-label": allowed ? "allowed" : "refused" }, allowed ? "✓" : "✗"),
    h("a", { class: "tool-id", href: explainHash(from, verb, to) }, WORDS[verb]),
    h(
      "span",
      null,
      rules.filter((rule) => allowed || !rule.allowed).map((rule) => h("span", { class: "trust-rule" }, rule.why)),
      grant
        ? h("code", { class: "fix-line" }, `grants: + ${JSON.stringify(grant)}`)
        : fix.map((each) => h("code", { class: "fix-line" }, assignment(each))),
    ),
  );
}
