// The gateways view: the gateways that share the database of this one, and draining them.

import { dialog } from "./dialog.js";
import { fill, h } from "./dom.js";
import { formatAge, plural } from "./format.js";
import { problem } from "./problem.js";

const REFRESH_MS = 2_000;
const MAX_COUNTED = 50; // clients of another gateway
const COLUMNS = ["Gateway", "State", "Turns", "Clients", "Does alone", "Started", ""];

export class View {
  constructor({ connection }) {
    this.connection = connection;
    this.error = h("p", { class: "error", role: "alert", hidden: true });
    this.known = h("section", { "aria-label": "Gateways" });
    this.el = h(
      "div",
      { class: "inspect-view" },
      h("h2", null, "Gateways"),
      h(
        "p",
        { class: "muted" },
        "The gateways that share this database. A drained one starts no new turns: the others do. The same as ",
        h("code", null, "hobnob nodes list"),
        ".",
      ),
      this.error,
      this.known,
    );
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
      const { gateways, shared } = await this.connection.query("gateways.list");
      this.#render(gateways, shared);
      this.error.hidden = true;
    } catch (error) {
      fill(this.error, problem(error)).hidden = false;
    }
  }

  #render(gateways, shared) {
    const mayDrain = shared && this.connection.hasScope("operator.admin");
    const shown = JSON.stringify([gateways.map(({ beatAt, ...rest }) => [rest, formatAge(rest.startedAt)]), mayDrain]);
    if (shown === this.shown) return; // a button that is replaced loses its focus
    this.shown = shown;
    fill(
      this.known,
      h(
        "table",
        { class: "settings-table" },
        h("thead", null, h("tr", null, COLUMNS.map((name) => h("th", { scope: "col" }, name)))),
        h(
          "tbody",
          null,
          gateways.map((gateway) => this.#row(gateway, mayDrain)),
        ),
      ),
      shared ? null : h("p", { class: "muted" }, "The store is an SQLite file: it has one gateway."),
    );
  }

  #row(gateway, mayDrain) {
    const many = !gateway.self && gateway.clients >= MAX_COUNTED;
    return h(
      "tr",
      { class: gateway.state === "draining" ? "default" : "changed", "data-gateway": gateway.name },
      h(
        "td",
        null,
        h("b", null, gateway.name),
        gateway.self ? " (this one)" : "",
        h("small", { class: "gateway-place" }, `${gateway.url ?? gateway.host}, ${gateway.version}`),
      ),
      h("td", null, gateway.state === "silent" ? h("span", { class: "state failed" }, stateOf(gateway)) : stateOf(gateway)),
      h("td", null, plural(gateway.runningTurns, "turn")),
      h("td", null, many ? `${MAX_COUNTED} clients or more` : plural(gateway.clients, "client")),
      h("td", null, gateway.roles.join(", ")),
      h("td", null, ago(gateway.startedAt)),
      h("td", null, mayDrain ? this.#button(gateway) : null),
    );
  }

  #button(gateway) {
    const { gatewayId, name, draining, runningTurns } = gateway;
    const drain = async (on) => {
      await this.connection.call("gateways.drain", { gatewayId, on });
      await this.#load();
    };
    const undo = async () => {
      try {
        await drain(false);
      } catch (error) {
        fill(this.error, problem(error)).hidden = false;
      }
    };
    const text = h(
      "p",
      null,
      "It starts no new turns, gives up what it does alone, and tells load balancers that it is not ready. ",
      runningTurns ? `${plural(runningTurns, "turn")} it runs now may end there.` : "It runs no turn now.",
    );
    const ask = () => dialog(`Drain ${name}?`, text, { confirmLabel: "Drain", action: () => drain(true) });
    return draining
      ? h("button", { type: "button", class: "plain", onclick: undo }, "Use again")
      : h("button", { type: "button", class: "plain", onclick: ask }, "Drain");
  }
}

function stateOf({ state, silentSeconds }) {
  return state === "silent" ? `silent for ${Math.round(silentSeconds)} s` : state;
}

function ago(time) {
  const age = formatAge(time);
  return /^\d+ (s|min|h|d)$/.test(age) ? `${age} ago` : age;
}
