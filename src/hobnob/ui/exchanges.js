// The exchanges view: traffic graph, timeline of exchanges, both transcripts of a step side by side.

import { Conversation } from "./conversation.js";
import { parseKey, toneClass } from "./directory.js";
import { fill, h, icon, notifyScreenReader, throttled } from "./dom.js";
import { cardRenderKey, columnHead, renderCard } from "./exchange-card.js";
import { exchangeRows } from "./exchange-rows.js";
import { formatAge, formatCount, formatMoney, plural } from "./format.js";
import { Graph } from "./graph.js";
import { preview } from "./markdown.js";
import { avatar } from "./message.js";

const PAGE_SIZE = 30;
const RELOAD_MS = 400;
const COLUMN_PX = 116;
const PERIODS = [
  [60, "last hour"],
  [24 * 60, "last 24 hours"],
  [7 * 24 * 60, "last 7 days"],
];

export class View {
  constructor({ connection, directory }) {
    Object.assign(this, { connection, directory });
    this.exchanges = new Map();
    this.cards = new Map(); // id: {el, renderKey}
    this.pair = null; // [from, to] when filtered to one pair
    this.minutes = 60;
    this.maxHops = 8;
    this.cursor = null;
    this.traffic = { edges: [], refusals: [] };
    this.panes = [];
    this.reload = throttled(() => this.#reload(), RELOAD_MS);
    this.#build();
  }

  #build() {
    this.graph = new Graph({
      directory: this.directory,
      onPair: (from, to) => this.#selectPair(from, to),
      onSession: (key) => (location.hash = `#/s/${encodeURIComponent(key)}`),
    });
    const period = h(
      "select",
      { "aria-label": "Period", onchange: (event) => this.#setPeriod(Number(event.target.value)) },
      PERIODS.map(([minutes, text]) => h("option", { value: minutes }, text)),
    );
    this.totals = h("p", { class: "muted totals" });
    this.pairs = h("ul", { class: "pairs" });
    this.warnings = h("div", { class: "warnings" });
    this.aside = h(
      "aside",
      { class: "traffic", "aria-label": "Who talks to whom" },
      h("div", { class: "traffic-head" }, h("h2", null, "Who talks to whom"), period),
      this.totals,
      this.graph.el,
      this.pairs,
      this.warnings,
    );
    this.columnHeads = h("div", { class: "column-heads" });
    this.list = h("ol", { class: "cards" });
    this.olderButton = h(
      "button",
      { class: "plain", hidden: true, onclick: () => this.#loadOlder() },
      "Load older exchanges",
    );
    this.pairNotice = h("div", { class: "pair-notice", hidden: true });
    this.emptyState = h("div", { class: "empty", hidden: true });
    this.timeline = h(
      "section",
      { class: "timeline", "aria-label": "Exchanges", tabindex: "0" },
      this.pairNotice,
      this.emptyState,
      h("div", { class: "timeline-columns" }, this.columnHeads, this.list, this.olderButton),
    );
    this.split = h("section", { class: "split", hidden: true, "aria-label": "Both transcripts" });
    this.el = h("div", { class: "exchange-view" }, this.aside, this.timeline, this.split);
  }

  async open(rest) {
    this.unsubscribers = [
      this.connection.on("exchange.changed", () => this.reload()),
      this.connection.on("reconnected", () => this.reload()),
      this.connection.on(
        "sessions.changed",
        ({ reason, phase }) => (reason || phase === "end" || phase === "message") && this.reloadTraffic(),
      ),
    ];
    this.reloadTraffic = throttled(() => this.#loadTraffic(), 1500);
    await this.#reload();
    this.route(rest);
  }

  close() {
    for (const stop of this.unsubscribers ?? []) stop();
    this.#closeSplit();
  }

  route([id, step]) {
    if (id) this.#showExchange(id, step === undefined ? null : Number(step));
    else this.#closeSplit();
  }

  /** Esc: close the transcripts, then clear the pair filter. */
  escape() {
    if (!this.split.hidden) location.hash = "#/exchanges";
    else if (this.pair) this.#selectPair(null);
  }

  move(by) {
    const all = [...this.list.querySelectorAll("button.exchange-row")];
    const at = all.indexOf(document.activeElement);
    all[Math.min(Math.max(at + by, 0), all.length - 1)]?.focus();
  }

  // -- loading

  async #reload() {
    const [page] = await Promise.all([
      this.connection.query("exchanges.timeline", { limit: PAGE_SIZE }),
      this.#loadTraffic(),
    ]);
    if (this.cursor === null) this.cursor = page.nextCursor ?? "";
    this.#addPage(page);
  }

  async #loadOlder() {
    const page = await this.connection.query("exchanges.timeline", { limit: PAGE_SIZE, cursor: this.cursor });
    this.cursor = page.nextCursor ?? "";
    this.#addPage(page);
  }

  #addPage(page) {
    this.maxHops = page.maxHops;
    for (const exchange of page.exchanges) {
      this.exchanges.set(exchange.id, exchange);
      if (exchange.label) this.directory.labels.set(exchange.target, exchange.label);
    }
    this.#render();
  }

  async #loadTraffic() {
    this.traffic = await this.connection.query("exchanges.traffic", { minutes: this.minutes });
    this.maxHops = this.traffic.maxHops;
    this.#renderTraffic();
  }

  #setPeriod(minutes) {
    this.minutes = minutes;
    this.#loadTraffic();
  }

  #selectPair(from, to) {
    this.pair = from && !(this.pair?.[0] === from && this.pair?.[1] === to) ? [from, to] : null;
    notifyScreenReader(this.pair ? "Showing this pair only." : "Showing all exchanges.");
    this.#renderTraffic();
    this.#render();
  }

  // -- traffic

  #renderTraffic() {
    const { edges } = this.traffic;
    const total = edges.reduce(
      (sum, edge) => ({
        messages: sum.messages + edge.messages,
        costUsd: sum.costUsd + edge.costUsd,
        tokens: sum.tokens + edge.tokens,
      }),
      { messages: 0, costUsd: 0, tokens: 0 },
    );
    this.totals.textContent = edges.length
      ? [
          plural(total.messages, "message"),
          `${formatCount(total.tokens)} tokens`,
          total.costUsd ? formatMoney(total.costUsd) : null,
        ]
          .filter(Boolean)
          .join(", ")
      : "No messages in this period.";
    this.graph.render(edges, this.pair);
    fill(
      this.pairs,
      edges.slice(0, 30).map((edge) => this.#pairItem(edge)),
    );
    fill(this.warnings, this.#warnings());
  }

  #pairItem(edge) {
    const selected = this.pair?.[0] === edge.from && this.pair?.[1] === edge.to;
    const amounts = [
      plural(edge.messages, "message"),
      `${formatCount(edge.tokens)} tok`,
      edge.costUsd ? formatMoney(edge.costUsd) : null,
      edge.failed ? `${edge.failed} failed` : null,
    ];
    return h(
      "li",
      null,
      h(
        "button",
        { "aria-pressed": String(selected), onclick: () => this.#selectPair(edge.from, edge.to) },
        h(
          "span",
          { class: "pair-names" },
          h("b", { class: toneClass(parseKey(edge.from).agent) }, this.directory.sessionName(edge.from)),
          edge.kind === "spawn" ? " spawns " : " → ",
          h("b", { class: toneClass(parseKey(edge.to).agent) }, this.directory.sessionName(edge.to)),
        ),
        h("span", { class: "muted" }, amounts.filter(Boolean).join(" · ")),
      ),
    );
  }

  #warnings() {
    const near = [...this.exchanges.values()].filter((exchange) => this.#isNearHopLimit(exchange));
    const warnings = near
      .slice(0, 5)
      .map((exchange) => [
        `${this.directory.sessionName(exchange.target)} is at hop ${exchange.hop} of ${this.maxHops}.`,
        "Longer chains are refused: session.agentToAgent.maxHops.",
        exchange.createdAt,
        `#/exchanges/${exchange.id}`,
      ]);
    for (const refusal of this.traffic.refusals.slice(0, 5)) {
      warnings.push([
        `${this.directory.sessionName(refusal.sessionKey)} was refused: ${refusal.why}`,
        `${refusal.fix ?? ""} (${refusal.code})`,
        refusal.at,
        `#/s/${encodeURIComponent(refusal.sessionKey)}`,
      ]);
    }
    return warnings.map(([text, fix, at, href]) =>
      h(
        "a",
        { class: "warning", href },
        icon("warn"),
        h("span", null, text, " ", h("span", { class: "muted" }, fix, ` · ${formatAge(at)}`)),
      ),
    );
  }

  #isNearHopLimit(exchange) {
    return exchange.hop >= Math.max(2, this.maxHops - 1);
  }

  // -- timeline

  #visibleExchanges() {
    const newest = [...this.exchanges.values()].sort(
      (one, other) => other.createdAt - one.createdAt || (one.id < other.id ? 1 : -1),
    );
    if (!this.pair) return newest;
    const [from, to] = this.pair;
    return newest.filter((exchange) => exchange.requester === from && exchange.target === to);
  }

  #render() {
    const exchanges = this.#visibleExchanges();
    const columns = new Map();
    for (const exchange of exchanges)
      for (const key of [exchange.requester ?? "", exchange.target])
        if (!columns.has(key)) columns.set(key, columns.size);
    const keys = [...columns.keys()];
    this.list.parentElement.style.setProperty("--columns", Math.max(keys.length, 2));
    this.list.parentElement.style.minWidth = `${keys.length * COLUMN_PX}px`;
    fill(
      this.columnHeads,
      keys.map((key) => columnHead(key, this.directory)),
    );
    const visible = new Set();
    let previous = null;
    for (const exchange of exchanges) {
      visible.add(exchange.id);
      const el = this.#card(exchange, columns);
      const next = previous ? previous.nextSibling : this.list.firstChild;
      if (next !== el) this.list.insertBefore(el, next);
      previous = el;
    }
    for (const [id, { el }] of this.cards) {
      if (visible.has(id)) continue;
      el.remove();
      this.cards.delete(id);
    }
    this.olderButton.hidden = !this.cursor;
    this.emptyState.hidden = exchanges.length > 0;
    this.columnHeads.hidden = !exchanges.length;
    if (!exchanges.length) this.#renderEmptyState();
    this.pairNotice.hidden = !this.pair;
    if (this.pair)
      fill(
        this.pairNotice,
        h(
          "span",
          null,
          "Only ",
          h("b", null, this.directory.sessionName(this.pair[0])),
          " → ",
          h("b", null, this.directory.sessionName(this.pair[1])),
        ),
        h("button", { class: "plain", onclick: () => this.#selectPair(null) }, "Show all"),
      );
    if (this.split.hidden) fill(this.warnings, this.#warnings());
  }

  #card(exchange, columns) {
    const renderKey = cardRenderKey(exchange, columns);
    let card = this.cards.get(exchange.id);
    if (!card) {
      card = { el: h("li", { class: "card" }), renderKey: null };
      this.cards.set(exchange.id, card);
    }
    if (card.renderKey !== renderKey) {
      card.renderKey = renderKey;
      renderCard(card.el, exchange, columns, this.directory, {
        maxHops: this.maxHops,
        nearHopLimit: this.#isNearHopLimit(exchange),
      });
    }
    return card.el;
  }

  #renderEmptyState() {
    fill(
      this.emptyState,
      h("h3", null, this.pair ? "No recent exchanges for this pair" : "No exchanges yet"),
      h(
        "p",
        null,
        "An exchange appears here when one agent messages another. Allow it with ",
        h("code", null, "tools.agentToAgent.enabled"),
        ", then write to an agent: “ask helper: what is 6 * 7?”",
      ),
      h("p", null, "To try it without any configuration: ", h("code", null, "hobnob demo")),
    );
  }

  // -- transcripts side by side

  async #showExchange(id, index) {
    let exchange = this.exchanges.get(id);
    if (!exchange) {
      for (let pages = 0; !exchange && this.cursor && pages < 10; pages += 1) {
        await this.#loadOlder();
        exchange = this.exchanges.get(id);
      }
    }
    if (!exchange) {
      this.#closeSplit();
      return;
    }
    if (index === null) {
      this.#closeSplit();
      this.cards.get(id)?.el.scrollIntoView({ block: "center" });
      this.cards.get(id)?.el.classList.add("highlighted");
      return;
    }
    const rows = exchangeRows(exchange);
    const row = rows[Math.min(index, rows.length - 1)];
    this.#closeSplit();
    const positions = row.positions.filter((position) => position?.key);
    if (positions.length === 2 && positions[0].key === positions[1].key) positions.pop();
    this.panes = positions.map(
      (position) =>
        new Conversation({
          connection: this.connection,
          directory: this.directory,
          key: position.key,
          seq: position.seq ?? null,
          oldTranscriptId: position.transcript ?? null,
          containing: exchange.id,
          findAnswer: position.findAnswer,
          compact: true,
        }),
    );
    const back = h(
      "button",
      {
        class: "ghost",
        "aria-label": "Back to the timeline",
        onclick: () => (location.hash = "#/exchanges"),
      },
      icon("back"),
    );
    const requester = exchange.requester ? this.directory.sessionName(exchange.requester) : "You";
    const head = h(
      "header",
      { class: "split-head" },
      back,
      h("h2", null, `${requester} → ${this.directory.sessionName(exchange.target)}`),
      h("span", { class: "muted" }, preview(exchange.request, 120)),
    );
    const panes = h(
      "div",
      { class: "split-panes" },
      this.panes.map((pane) => pane.el),
    );
    fill(this.split, head, this.panes.length > 1 ? this.#paneTabs() : null, panes);
    this.split.hidden = false;
    this.timeline.hidden = this.aside.hidden = true;
    for (const pane of this.panes) pane.open();
  }

  /** On a phone one transcript is shown at a time, with its message box. */
  #paneTabs() {
    const show = (chosen) =>
      this.panes.forEach(({ el }, index) => {
        el.classList.toggle("chosen", index === chosen);
        tabs[index].setAttribute("aria-selected", String(index === chosen));
        tabs[index].tabIndex = index === chosen ? 0 : -1;
      });
    const move = (event, from) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      show(1 - from);
      tabs[1 - from].focus();
    };
    const tabs = this.panes.map(({ key }, index) => {
      const name = this.directory.sessionName(key);
      const { agent } = parseKey(key);
      return h(
        "button",
        { role: "tab", onclick: () => show(index), onkeydown: (event) => move(event, index) },
        avatar(this.directory.agentName(agent), agent),
        h("span", null, name),
      );
    });
    show(0);
    return h("div", { class: "split-tabs", role: "tablist", "aria-label": "Transcript" }, tabs);
  }

  #closeSplit() {
    for (const pane of this.panes) pane.close();
    this.panes = [];
    this.split.hidden = true;
    this.timeline.hidden = this.aside.hidden = false;
  }
}
