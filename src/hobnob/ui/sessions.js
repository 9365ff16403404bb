// The list of sessions: live, filtered by the gateway, drawn only where one looks.

import { announce, fill, h, icon, oncePerFrame, throttled } from "./dom.js";
import { mark } from "./message.js";
import { ago, count, exact, many, money, oneLine, split, standing } from "./words.js";

const ROW_PX = 74;
const PAGE = 100;
const AHEAD = 6; // rows drawn beyond the screen
const REFRESH_MS = 250;
const ASKED = 60; // sessions asked after at a time
export const KINDS = ["main", "group", "cron", "hook", "node", "other"];

/** `onOpen(key)` is called for the session to show. */
export class SessionList {
  constructor({ wire, people, onOpen }) {
    Object.assign(this, { wire, people, onOpen });
    this.filter = { kind: "", agent: "", search: "", archived: false };
    this.rows = []; // newest first
    this.byKey = new Map();
    this.shown = []; // as drawn: {row, level, open}
    this.tree = false;
    this.unfolded = new Set();
    this.drawn = new Map(); // key: {el, stamp}
    this.changed = new Set();
    this.selected = null;
    this.active = -1;
    this.cursor = null;
    this.more = false;
    this.asking = 0;
    this.draw = oncePerFrame(() => this.#draw());
    this.refresh = throttled(() => this.#refresh(), REFRESH_MS);
    this.#build();
  }

  #build() {
    this.search = h("input", {
      type: "search",
      placeholder: "Find a session",
      "aria-label": "Find a session by key, label or name",
      "aria-keyshortcuts": "/",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.#searched(),
      onkeydown: (event) => this.#searchKey(event),
    });
    this.searched = throttled(() => this.reload(), 180);
    this.kind = this.#choice("Kind", "kind", ["", ...KINDS], (kind) => kind || "All kinds");
    this.agent = h("select", { "aria-label": "Agent", onchange: () => this.#filtered("agent", this.agent.value) });
    this.treeButton = h("button", { class: "ghost toggle", "aria-pressed": "false", title: "Children below their parents", onclick: () => this.#asTree() }, icon("tree"), h("span", null, "Tree"));
    this.archived = h("button", { class: "ghost toggle", "aria-pressed": "false", onclick: () => this.#showArchived() }, "Archived");
    this.begin = h("button", { class: "ghost", "aria-label": "Write to an agent", title: "Write to an agent", "aria-haspopup": "menu", onclick: () => this.#choose() }, icon("plus"));
    const bar = h("div", { class: "filters", role: "group", "aria-label": "Filter" }, this.kind, this.agent, this.treeButton, this.archived);
    this.space = h("div", { class: "space" });
    this.nothing = h("div", { class: "empty", hidden: true });
    this.box = h("div", { class: "rows", tabindex: "0", role: "listbox", "aria-label": "Sessions", onscroll: () => this.draw(), onkeydown: (event) => this.#key(event), onclick: (event) => this.#clicked(event) }, this.space);
    this.foot = h("p", { class: "list-foot", role: "status" });
    this.people_menu = h("div", { class: "menu begin", role: "menu", hidden: true });
    const top = h("div", { class: "search" }, icon("search"), this.search, this.begin, this.people_menu);
    this.el = h("aside", { class: "list", "aria-label": "Sessions" }, top, bar, this.nothing, this.box, this.foot);
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.box);
  }

  #choice(name, field, values, text) {
    return h("select", { "aria-label": name, onchange: (event) => this.#filtered(field, event.target.value) }, values.map((value) => h("option", { value }, text(value))));
  }

  open() {
    fill(this.agent, h("option", { value: "" }, "All agents"), this.people.agents.map((agent) => h("option", { value: agent.id }, agent.name || agent.id)));
    this.agent.value = this.filter.agent;
    this.stops = [
      this.wire.on("sessions.changed", (news) => this.#heard(news)),
      this.wire.on("exchange.changed", (exchange) => this.#exchange(exchange)),
      this.wire.on("again", () => this.#again()),
    ];
    this.clock = setInterval(() => this.#tick(), 20_000);
    return this.reload();
  }

  select(key) {
    this.selected = key;
    this.draw();
  }

  // -- reading

  #params() {
    const { kind, agent, search, archived } = this.filter;
    const params = { includeLastMessage: true, includeStanding: true, archived };
    if (kind) params.kinds = [kind];
    if (agent) params.agentId = agent;
    if (search) params.search = search;
    return params;
  }

  async reload() {
    const mine = ++this.asking;
    this.loading = true;
    try {
      const page = await this.wire.ask("sessions.list", { ...this.#params(), limit: PAGE });
      if (mine !== this.asking) return;
      this.rows = [];
      this.byKey.clear();
      this.#take(page);
    } catch (problem) {
      this.#say(problem.message);
    } finally {
      if (mine === this.asking) this.loading = false;
    }
    this.#arrange();
  }

  /** After a break: what is new at the top, and how those on the screen are now. Nobody loses their place. */
  async #again() {
    for (const key of this.drawn.keys()) this.changed.add(key);
    this.refresh();
    const mine = this.asking;
    const page = await this.wire.ask("sessions.list", { ...this.#params(), limit: PAGE });
    if (mine !== this.asking) return;
    const anchor = this.#anchor();
    for (const row of page.sessions) this.#put(row);
    this.#arrange(anchor);
  }

  async #next() {
    if (this.loading || !this.more) return;
    const mine = this.asking;
    this.loading = true;
    try {
      const page = await this.wire.ask("sessions.list", { ...this.#params(), limit: PAGE, cursor: this.cursor });
      if (mine === this.asking) this.#take(page);
    } finally {
      if (mine === this.asking) this.loading = false;
    }
    this.#arrange();
  }

  #take(page) {
    for (const row of page.sessions) this.#put(row);
    this.cursor = page.nextCursor ?? null;
    this.more = page.hasMore;
  }

  #put(row) {
    this.people.remember(row);
    const known = this.byKey.get(row.key);
    // A message that only calls tools has no words; those before it say more than none.
    if (known?.sessionId === row.sessionId) row.lastMessagePreview ||= known.lastMessagePreview;
    if (known) this.rows.splice(this.rows.indexOf(known), 1);
    this.byKey.set(row.key, row);
    let low = 0;
    let high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (before(this.rows[middle], row)) low = middle + 1;
      else high = middle;
    }
    this.rows.splice(low, 0, row);
  }

  #drop(key) {
    const row = this.byKey.get(key);
    if (!row) return;
    this.byKey.delete(key);
    this.rows.splice(this.rows.indexOf(row), 1);
  }

  // -- what happens

  #heard(news) {
    if (news.reason === "delete") {
      this.#drop(news.sessionKey);
      this.#arrange();
      return;
    }
    const row = this.byKey.get(news.sessionKey);
    if (row && news.hasActiveRun !== undefined) {
      row.status = news.hasActiveRun ? "running" : row.status === "running" ? "idle" : row.status;
      row.stamp = (row.stamp ?? 0) + 1;
      this.draw();
    }
    this.changed.add(news.sessionKey);
    this.refresh();
  }

  #exchange(exchange) {
    for (const key of [exchange.requester, exchange.target]) if (key) this.changed.add(key);
    this.refresh();
  }

  async #refresh() {
    const asked = [...this.changed].slice(0, ASKED);
    if (!asked.length) return;
    for (const key of asked) this.changed.delete(key);
    const mine = this.asking;
    try {
      const page = await this.wire.ask("sessions.list", { ...this.#params(), keysOnly: asked, limit: 200 });
      if (mine !== this.asking) return;
      const found = new Set(page.sessions.map((row) => row.key));
      const anchor = this.#anchor();
      for (const row of page.sessions) this.#put(row);
      const missing = asked.filter((key) => !found.has(key));
      // A page is cut by its bytes too: what is missing from a cut one is asked for again.
      for (const key of missing) if (page.hasMore) this.changed.add(key); else this.#drop(key);
      this.#arrange(anchor);
    } catch {
      // The next change asks again.
    }
    if (this.changed.size) this.refresh();
  }

  #tick() {
    for (const { el } of this.drawn.values()) {
      const time = el.querySelector("time");
      if (time) time.textContent = ago(Number(time.dataset.at));
    }
  }

  // -- arranging

  /** The first row on the screen and where it is, so that it stays there when others move. */
  #anchor() {
    if (this.box.scrollTop < 4) return null;
    const index = Math.floor(this.box.scrollTop / ROW_PX);
    const shown = this.shown[index];
    return shown && { key: shown.row.key, offset: this.box.scrollTop - index * ROW_PX };
  }

  #arrange(anchor = null) {
    this.shown = this.tree ? this.#family() : this.rows.map((row) => ({ row, level: 0 }));
    this.space.style.height = `${this.shown.length * ROW_PX}px`;
    if (anchor) {
      const index = this.shown.findIndex(({ row }) => row.key === anchor.key);
      if (index > 2) this.box.scrollTop = index * ROW_PX + anchor.offset;
    }
    const empty = !this.shown.length && !this.loading && !this.more;
    this.nothing.hidden = !empty;
    this.box.hidden = empty;
    if (empty) this.#emptiness();
    this.foot.textContent = this.shown.length ? `${many(this.rows.length, "session")}${this.more ? " so far, more below" : ""}` : "";
    this.draw();
  }

  #family() {
    const children = new Map();
    const roots = [];
    for (const row of this.rows) {
      if (row.spawnedBy && this.byKey.has(row.spawnedBy)) {
        if (!children.has(row.spawnedBy)) children.set(row.spawnedBy, []);
        children.get(row.spawnedBy).push(row);
      } else roots.push(row);
    }
    const shown = [];
    const walk = (row, level) => {
      const below = children.get(row.key) ?? [];
      const open = !this.unfolded.has(row.key);
      shown.push({ row, level, below: Math.max(below.length, row.childSessions?.length ?? 0), open });
      if (open) for (const child of below) walk(child, level + 1);
    };
    for (const row of roots) walk(row, 0);
    return shown;
  }

  #emptiness() {
    const { kind, agent, search, archived } = this.filter;
    if (kind || agent || search || archived) {
      const clear = h("button", { class: "plain", onclick: () => this.#clear() }, "Show all sessions");
      fill(this.nothing, h("h3", null, archived ? "Nothing is archived" : "No session fits"), h("p", null, clear));
    } else {
      const first = this.people.agents.slice(0, 4).map((agent) => h("button", { class: "plain", onclick: () => this.onOpen(`agent:${agent.id}:main`) }, `Write to ${agent.name || agent.id}`));
      fill(this.nothing, h("h3", null, "No sessions yet"), h("p", null, "A session begins with the first message to an agent."), h("p", null, first), h("p", { class: "quiet" }, "From a terminal: ", h("code", null, 'hobnob agent -m "what is 6 * 7?"')));
    }
  }

  #say(text) {
    this.foot.textContent = text;
  }

  // -- drawing

  #draw() {
    const top = this.box.scrollTop;
    const height = this.box.clientHeight;
    const first = Math.max(0, Math.floor(top / ROW_PX) - AHEAD);
    const last = Math.min(this.shown.length, Math.ceil((top + height) / ROW_PX) + AHEAD);
    const wanted = new Set();
    for (let index = first; index < last; index += 1) {
      const shown = this.shown[index];
      wanted.add(shown.row.key);
      this.#drawRow(shown, index);
    }
    for (const [key, { el }] of this.drawn) {
      if (wanted.has(key)) continue;
      el.remove();
      this.drawn.delete(key);
    }
    const current = this.shown[this.active];
    if (current && wanted.has(current.row.key)) this.box.setAttribute("aria-activedescendant", this.drawn.get(current.row.key).el.id);
    else this.box.removeAttribute("aria-activedescendant");
    if (last >= this.shown.length - 20) this.#next();
  }

  #drawRow(shown, index) {
    const { row, level } = shown;
    const stamp = [row.updatedAt, row.stamp, row.status, row.openTurns, row.label, row.lastMessagePreview, row.waitsFor?.join(), row.totalTokens, level, shown.below, shown.open].join("|");
    let drawn = this.drawn.get(row.key);
    if (!drawn) {
      drawn = { el: h("div", { class: "row", role: this.tree ? "treeitem" : "option", id: `row-${row.key.replace(/[^\w-]/g, "_")}`, "data-key": row.key }), stamp: null };
      this.drawn.set(row.key, drawn);
      this.space.append(drawn.el);
    }
    const { el } = drawn;
    if (drawn.stamp !== stamp) {
      drawn.stamp = stamp;
      this.#fillRow(el, shown);
    }
    el.style.transform = `translateY(${index * ROW_PX}px)`;
    el.setAttribute("aria-selected", String(row.key === this.selected));
    el.setAttribute("aria-posinset", index + 1);
    el.setAttribute("aria-setsize", this.more ? -1 : this.shown.length);
    el.classList.toggle("active", index === this.active);
    if (this.tree) {
      el.setAttribute("aria-level", level + 1);
      if (shown.below) el.setAttribute("aria-expanded", String(shown.open));
    }
  }

  #fillRow(el, { row, level, below, open }) {
    const { agent } = split(row.key);
    const how = standing(row, this.people);
    const name = this.people.session(row.key, row);
    const kind = row.spawnedBy ? "sub-agent" : row.kind;
    const channel = row.channel && !["unknown", "internal"].includes(row.channel) ? row.channel : null;
    const who = name === this.people.agent(agent) ? null : this.people.agent(agent);
    const amounts = [row.totalTokens ? `${count(row.totalTokens)} tok` : null, row.costUsd ? money(row.costUsd) : null];
    el.style.setProperty("--level", level);
    el.dataset.state = how.kind;
    const fold = below && this.tree ? h("button", { class: `twist ${open ? "open" : ""}`, tabindex: "-1", "aria-hidden": "true", "data-fold": row.key }, icon("down")) : null;
    fill(
      el,
      fold,
      mark(this.people.agent(agent), agent),
      h(
        "div",
        { class: "row-text" },
        h("div", { class: "row-top" }, h("b", null, name), h("span", { class: `state ${how.kind}` }, how.word), h("time", { "data-at": row.updatedAt, title: exact(row.updatedAt) }, ago(row.updatedAt))),
        h("p", { class: "row-last" }, oneLine(row.lastMessagePreview) || (row.totalTokens || row.openTurns ? "at work with its tools" : "nothing said yet")),
        h("p", { class: "row-facts" }, [who, kind, channel, ...amounts].filter(Boolean).join(" · ")),
      ),
    );
  }

  // -- what people do

  #searched() {
    this.filter.search = this.search.value.trim();
    this.searched();
  }

  #searchKey(event) {
    if (event.key === "Escape") {
      if (!this.search.value) this.search.blur();
      this.search.value = "";
      this.#searched();
      event.stopPropagation();
    }
    if (event.key === "Enter" || event.key === "ArrowDown") {
      event.preventDefault();
      this.box.focus();
      this.move(this.active < 0 ? 1 : 0);
      if (event.key === "Enter" && this.shown.length) this.openActive();
    }
  }

  #filtered(field, value) {
    this.filter[field] = value;
    this.box.scrollTop = 0;
    this.active = -1;
    this.reload();
  }

  #clear() {
    this.filter = { kind: "", agent: "", search: "", archived: false };
    this.search.value = this.kind.value = this.agent.value = "";
    this.archived.setAttribute("aria-pressed", "false");
    this.reload();
  }

  #asTree() {
    this.tree = !this.tree;
    this.treeButton.setAttribute("aria-pressed", String(this.tree));
    this.box.setAttribute("role", this.tree ? "tree" : "listbox");
    for (const { el } of this.drawn.values()) el.remove();
    this.drawn.clear();
    this.#arrange();
    announce(this.tree ? "Tree view." : "List view.");
  }

  #showArchived() {
    this.archived.setAttribute("aria-pressed", String(!this.filter.archived));
    this.#filtered("archived", !this.filter.archived);
  }

  #choose() {
    const list = this.people_menu;
    const shut = () => (list.hidden = true);
    fill(list, this.people.agents.map((agent) => h("button", { role: "menuitem", onclick: () => (shut(), this.onOpen(`agent:${agent.id}:main`)) }, mark(agent.name || agent.id, agent.id), agent.name || agent.id)));
    list.hidden = !list.hidden;
    list.onkeydown = (event) => event.key === "Escape" && (event.stopPropagation(), shut(), this.begin.focus());
    list.addEventListener("focusout", (event) => list.contains(event.relatedTarget) || event.relatedTarget === this.begin || shut());
    if (!list.hidden) list.firstChild?.focus();
  }

  #clicked(event) {
    const fold = event.target.closest("[data-fold]");
    if (fold) {
      this.#fold(fold.dataset.fold);
      return;
    }
    const row = event.target.closest("[data-key]");
    if (!row) return;
    this.active = this.shown.findIndex((shown) => shown.row.key === row.dataset.key);
    this.onOpen(row.dataset.key);
  }

  async #fold(key) {
    if (this.unfolded.has(key)) this.unfolded.delete(key);
    else this.unfolded.add(key);
    const row = this.byKey.get(key);
    const away = (row.childSessions ?? []).filter((child) => !this.byKey.has(child));
    if (away.length && !this.unfolded.has(key)) for (const child of away) this.changed.add(child);
    this.#arrange();
    this.refresh();
  }

  #key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 };
    if (event.key in steps) {
      event.preventDefault();
      this.move(steps[event.key]);
    } else if (event.key === "Home" || event.key === "End") {
      event.preventDefault();
      this.move(event.key === "Home" ? -Infinity : Infinity);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.openActive();
    } else if (this.tree && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      const shown = this.shown[this.active];
      if (shown?.below && shown.open === (event.key === "ArrowLeft")) this.#fold(shown.row.key);
    }
  }

  /** Move the mark by so many rows. */
  move(by) {
    if (!this.shown.length) return;
    const from = this.active < 0 ? this.shown.findIndex(({ row }) => row.key === this.selected) : this.active;
    this.active = Math.min(Math.max(from + by, 0), this.shown.length - 1);
    const top = this.active * ROW_PX;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + ROW_PX > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + ROW_PX - this.box.clientHeight;
    this.draw();
  }

  openActive() {
    const shown = this.shown[this.active];
    if (shown) this.onOpen(shown.row.key);
  }
}

/** The order of a list: newest first, ties by key. */
const before = (one, other) => one.updatedAt > other.updatedAt || (one.updatedAt === other.updatedAt && one.key < other.key);
