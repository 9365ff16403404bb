// What agents tell each other: a graph of who talks to whom, and each exchange step by step between lanes.

import { Conversation } from "./conversation.js";
import { announce, fill, h, icon, throttled } from "./dom.js";
import { Graph } from "./graph.js";
import { beats } from "./beats.js";
import { cardStamp, fillCard, lane } from "./card.js";
import { ago, count, many, money, oneLine, split, tone } from "./words.js";

const PAGE = 30;
const RELOAD_MS = 400;
const LANE_PX = 116;
const SPANS = [
  [60, "last hour"],
  [24 * 60, "last 24 hours"],
  [7 * 24 * 60, "last 7 days"],
];

export class View {
  constructor({ wire, people }) {
    Object.assign(this, { wire, people });
    this.exchanges = new Map();
    this.cards = new Map(); // id: {el, stamp}
    this.pair = null; // [from, to], when only these are shown
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
      people: this.people,
      onPair: (from, to) => this.#choose(from, to),
      onSession: (key) => (location.hash = `#/s/${encodeURIComponent(key)}`),
    });
    const span = h(
      "select",
      { "aria-label": "Time span", onchange: (event) => this.#span(Number(event.target.value)) },
      SPANS.map(([minutes, text]) => h("option", { value: minutes }, text)),
    );
    this.sums = h("p", { class: "quiet sums" });
    this.pairs = h("ul", { class: "pairs" });
    this.warnings = h("div", { class: "warnings" });
    this.aside = h(
      "aside",
      { class: "talk", "aria-label": "Who talks to whom" },
      h("div", { class: "talk-head" }, h("h2", null, "Who talks to whom"), span),
      this.sums,
      this.graph.el,
      this.pairs,
      this.warnings,
    );
    this.lanes = h("div", { class: "lanes" });
    this.list = h("ol", { class: "cards" });
    this.older = h(
      "button",
      { class: "plain", hidden: true, onclick: () => this.#older() },
      "Earlier exchanges",
    );
    this.only = h("div", { class: "only", hidden: true });
    this.nothing = h("div", { class: "empty", hidden: true });
    this.timeline = h(
      "section",
      { class: "timeline", "aria-label": "Exchanges", tabindex: "0" },
      this.only,
      this.nothing,
      h("div", { class: "field-of-lanes" }, this.lanes, this.list, this.older),
    );
    this.split = h("section", { class: "split", hidden: true, "aria-label": "Both transcripts" });
    this.el = h("div", { class: "exchange-view" }, this.aside, this.timeline, this.split);
  }

  async open(rest) {
    this.stops = [
      this.wire.on("exchange.changed", () => this.reload()),
      this.wire.on("again", () => this.reload()),
      this.wire.on(
        "sessions.changed",
        (news) => (news.reason || news.phase === "end" || news.phase === "message") && this.glance(),
      ),
    ];
    this.glance = throttled(() => this.#traffic(), 1500);
    await this.#reload();
    this.route(rest);
  }

  close() {
    for (const stop of this.stops ?? []) stop();
    this.#shut();
  }

  route([id, step]) {
    if (id) this.#show(id, step === undefined ? null : Number(step));
    else this.#shut();
  }

  /** Esc: from the transcripts back to the timeline, then from a pair to all. */
  escape() {
    if (!this.split.hidden) location.hash = "#/exchanges";
    else if (this.pair) this.#choose(null);
  }

  move(by) {
    const all = [...this.list.querySelectorAll("button.beat")];
    const at = all.indexOf(document.activeElement);
    all[Math.min(Math.max(at + by, 0), all.length - 1)]?.focus();
  }

  // -- reading

  async #reload() {
    const [page] = await Promise.all([this.wire.ask("exchanges.timeline", { limit: PAGE }), this.#traffic()]);
    if (this.cursor === null) this.cursor = page.nextCursor ?? "";
    this.#take(page);
  }

  async #older() {
    const page = await this.wire.ask("exchanges.timeline", { limit: PAGE, cursor: this.cursor });
    this.cursor = page.nextCursor ?? "";
    this.#take(page);
  }

  #take(page) {
    this.maxHops = page.maxHops;
    for (const exchange of page.exchanges) {
      this.exchanges.set(exchange.id, exchange);
      if (exchange.label) this.people.labels.set(exchange.target, exchange.label);
    }
    this.#draw();
  }

  async #traffic() {
    this.traffic = await this.wire.ask("exchanges.traffic", { minutes: this.minutes });
    this.maxHops = this.traffic.maxHops;
    this.#drawTraffic();
  }

  #span(minutes) {
    this.minutes = minutes;
    this.#traffic();
  }

  #choose(from, to) {
    this.pair = from && !(this.pair?.[0] === from && this.pair?.[1] === to) ? [from, to] : null;
    announce(this.pair ? "Only this pair is shown." : "All exchanges are shown.");
    this.#drawTraffic();
    this.#draw();
  }

  // -- who talks to whom

  #drawTraffic() {
    const { edges } = this.traffic;
    const total = edges.reduce(
      (sum, edge) => ({
        messages: sum.messages + edge.messages,
        costUsd: sum.costUsd + edge.costUsd,
        tokens: sum.tokens + edge.tokens,
      }),
      { messages: 0, costUsd: 0, tokens: 0 },
    );
    this.sums.textContent = edges.length
      ? [
          many(total.messages, "message"),
          `${count(total.tokens)} tokens`,
          total.costUsd ? money(total.costUsd) : null,
        ]
          .filter(Boolean)
          .join(", ")
      : "Nobody has in this time.";
    this.graph.draw(edges, this.pair);
    fill(
      this.pairs,
      edges.slice(0, 30).map((edge) => this.#pairItem(edge)),
    );
    fill(this.warnings, this.#warned());
  }

  #pairItem(edge) {
    const chosen = this.pair?.[0] === edge.from && this.pair?.[1] === edge.to;
    const amounts = [
      many(edge.messages, "message"),
      `${count(edge.tokens)} tok`,
      edge.costUsd ? money(edge.costUsd) : null,
      edge.failed ? `${edge.failed} failed` : null,
    ];
    return h(
      "li",
      null,
      h(
        "button",
        { "aria-pressed": String(chosen), onclick: () => this.#choose(edge.from, edge.to) },
        h(
          "span",
          { class: "pair-names" },
          h("b", { class: tone(split(edge.from).agent) }, this.people.session(edge.from)),
          edge.kind === "spawn" ? " spawns " : " → ",
          h("b", { class: tone(split(edge.to).agent) }, this.people.session(edge.to)),
        ),
        h("span", { class: "quiet" }, amounts.filter(Boolean).join(" · ")),
      ),
    );
  }

  #warned() {
    const near = [...this.exchanges.values()].filter((exchange) => this.#nearsLimit(exchange)).slice(0, 5);
    const said = near.map((exchange) => [
      `${this.people.session(exchange.target)} is at hop ${exchange.hop} of ${this.maxHops}.`,
      "Longer chains of agents that cause each other to act are refused: session.agentToAgent.maxHops.",
      exchange.createdAt,
      `#/exchanges/${exchange.id}`,
    ]);
    for (const refusal of this.traffic.refusals.slice(0, 5)) {
      said.push([
        `${this.people.session(refusal.sessionKey)} was refused: ${refusal.why}`,
        `${refusal.fix ?? ""} (${refusal.code})`,
        refusal.at,
        `#/s/${encodeURIComponent(refusal.sessionKey)}`,
      ]);
    }
    return said.map(([what, fix, at, href]) =>
      h(
        "a",
        { class: "warning", href },
        icon("warn"),
        h("span", null, what, " ", h("span", { class: "quiet" }, fix, ` · ${ago(at)}`)),
      ),
    );
  }

  #nearsLimit(exchange) {
    return exchange.hop >= Math.max(2, this.maxHops - 1);
  }

  // -- the timeline

  #shown() {
    const newest = [...this.exchanges.values()].sort(
      (one, other) => other.createdAt - one.createdAt || (one.id < other.id ? 1 : -1),
    );
    if (!this.pair) return newest;
    const [from, to] = this.pair;
    return newest.filter((exchange) => exchange.requester === from && exchange.target === to);
  }

  #draw() {
    const shown = this.#shown();
    const lanes = new Map();
    for (const exchange of shown)
      for (const key of [exchange.requester ?? "", exchange.target])
        if (!lanes.has(key)) lanes.set(key, lanes.size);
    const keys = [...lanes.keys()];
    this.list.parentElement.style.setProperty("--lanes", Math.max(keys.length, 2));
    this.list.parentElement.style.minWidth = `${keys.length * LANE_PX}px`;
    fill(
      this.lanes,
      keys.map((key) => lane(key, this.people)),
    );
    const wanted = new Set();
    let previous = null;
    for (const exchange of shown) {
      wanted.add(exchange.id);
      const el = this.#card(exchange, lanes);
      const place = previous ? previous.nextSibling : this.list.firstChild;
      if (place !== el) this.list.insertBefore(el, place);
      previous = el;
    }
    for (const [id, { el }] of this.cards) {
      if (wanted.has(id)) continue;
      el.remove();
      this.cards.delete(id);
    }
    this.older.hidden = !this.cursor;
    this.nothing.hidden = shown.length > 0;
    this.lanes.hidden = !shown.length;
    if (!shown.length) this.#emptiness();
    this.only.hidden = !this.pair;
    if (this.pair)
      fill(
        this.only,
        h(
          "span",
          null,
          "Only ",
          h("b", null, this.people.session(this.pair[0])),
          " → ",
          h("b", null, this.people.session(this.pair[1])),
        ),
        h("button", { class: "plain", onclick: () => this.#choose(null) }, "Show all"),
      );
    if (this.split.hidden) fill(this.warnings, this.#warned());
  }

  #card(exchange, lanes) {
    const stamp = cardStamp(exchange, lanes);
    let card = this.cards.get(exchange.id);
    if (!card) {
      card = { el: h("li", { class: "card" }), stamp: null };
      this.cards.set(exchange.id, card);
    }
    if (card.stamp !== stamp) {
      card.stamp = stamp;
      fillCard(card.el, exchange, lanes, this.people, {
        most: this.maxHops,
        near: this.#nearsLimit(exchange),
      });
    }
    return card.el;
  }

  #emptiness() {
    fill(
      this.nothing,
      h(
        "h3",
        null,
        this.pair ? "This pair has had no exchange lately" : "No agent has written to another yet",
      ),
      h(
        "p",
        null,
        "Exchanges appear here as they happen. Let agents reach each other with ",
        h("code", null, "tools.agentToAgent.enabled"),
        " and ask one of them: “ask helper: what is 6 * 7?”",
      ),
      h("p", null, "See it without a set-up of your own: ", h("code", null, "hobnob demo")),
    );
  }

  // -- both transcripts

  async #show(id, index) {
    let exchange = this.exchanges.get(id);
    if (!exchange) {
      for (let pages = 0; !exchange && this.cursor && pages < 10; pages += 1) {
        await this.#older();
        exchange = this.exchanges.get(id);
      }
    }
    if (!exchange) {
      this.#shut();
      return;
    }
    if (index === null) {
      this.#shut();
      this.cards.get(id)?.el.scrollIntoView({ block: "center" });
      this.cards.get(id)?.el.classList.add("pointed");
      return;
    }
    const row = beats(exchange)[Math.min(index, beats(exchange).length - 1)];
    this.#shut();
    const places = [row.here, row.there].filter((place) => place?.key);
    if (places.length === 2 && places[0].key === places[1].key) places.pop();
    this.panes = places.map(
      (place) =>
        new Conversation({
          wire: this.wire,
          people: this.people,
          key: place.key,
          at: place.seq ?? null,
          transcript: place.transcript ?? null,
          about: exchange.id,
          answer: place.answer,
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
    const head = h(
      "header",
      { class: "split-head" },
      back,
      h(
        "h2",
        null,
        `${exchange.requester ? this.people.session(exchange.requester) : "A person"} → ${this.people.session(exchange.target)}`,
      ),
      h("span", { class: "quiet" }, oneLine(exchange.request, 120)),
    );
    fill(
      this.split,
      head,
      h(
        "div",
        { class: "two" },
        this.panes.map((pane) => pane.el),
      ),
    );
    this.split.hidden = false;
    this.timeline.hidden = this.aside.hidden = true;
    for (const pane of this.panes) pane.open();
  }

  #shut() {
    for (const pane of this.panes) pane.close();
    this.panes = [];
    this.split.hidden = true;
    this.timeline.hidden = this.aside.hidden = false;
  }
}
