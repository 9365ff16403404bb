// The list of sessions: live, filtered by the gateway, drawn only where one looks.

import { announce, fill, h, oncePerFrame, throttled } from "./dom.js";
import { Filters } from "./filters.js";
import { fillRow, stampOf } from "./row.js";
import { ago, many } from "./words.js";

const ROW_PX = 74;
const PAGE = 100;
const AHEAD = 6; // rows drawn beyond the screen
const REFRESH_MS = 250;
const ASKED = 60; // sessions asked after at a time

/** `onOpen(key)` is called for the session to show. */
export class SessionList {
  constructor({ wire, people, onOpen }) {
    Object.assign(this, { wire, people, onOpen });
    this.rows = []; // newest first
    this.byKey = new Map();
    this.shown = []; // as drawn: {row, level, open}
    this.tree = false;
    this.folded = new Set(); // keys of sessions whose children are not shown
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
    this.filters = new Filters({
      people: this.people,
      onChange: () => this.#filtered(),
      onTree: (on) => this.#asTree(on),
      onBegin: this.onOpen,
      onDown: (open) => this.#entered(open),
    });
    this.space = h("div", { class: "space" });
    this.nothing = h("div", { class: "empty", hidden: true });
    this.box = h(
      "div",
      {
        class: "rows",
        tabindex: "0",
        role: "listbox",
        "aria-label": "Sessions",
        onscroll: () => this.draw(),
        onkeydown: (event) => this.#key(event),
        onclick: (event) => this.#clicked(event),
      },
      this.space,
    );
    this.foot = h("p", { class: "list-foot", role: "status" });
    this.el = h(
      "aside",
      { class: "list", "aria-label": "Sessions" },
      this.filters.el,
      this.nothing,
      this.box,
      this.foot,
    );
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.box);
  }

  open() {
    this.filters.open();
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
    return { ...this.filters.params(), includeLastMessage: true, includeStanding: true };
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
      const page = await this.wire.ask("sessions.list", {
        ...this.#params(),
        limit: PAGE,
        cursor: this.cursor,
      });
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
      for (const key of missing)
        if (page.hasMore) this.changed.add(key);
        else this.#drop(key);
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
    this.foot.textContent = this.shown.length
      ? `${many(this.rows.length, "session")}${this.more ? " so far, more below" : ""}`
      : "";
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
      const open = !this.folded.has(row.key);
      shown.push({ row, level, below: Math.max(below.length, row.childSessions?.length ?? 0), open });
      if (open) for (const child of below) walk(child, level + 1);
    };
    for (const row of roots) walk(row, 0);
    return shown;
  }

  #emptiness() {
    if (this.filters.narrowed) {
      const clear = h("button", { class: "plain", onclick: () => this.filters.clear() }, "Show all sessions");
      const why = this.filters.params().archived ? "Nothing is archived" : "No session fits";
      fill(this.nothing, h("h3", null, why), h("p", null, clear));
    } else {
      const first = this.people.agents
        .slice(0, 4)
        .map((agent) =>
          h(
            "button",
            { class: "plain", onclick: () => this.onOpen(`agent:${agent.id}:main`) },
            `Write to ${agent.name || agent.id}`,
          ),
        );
      fill(
        this.nothing,
        h("h3", null, "No sessions yet"),
        h("p", null, "A session begins with the first message to an agent."),
        h("p", null, first),
        h("p", { class: "quiet" }, "From a terminal: ", h("code", null, 'hobnob agent -m "what is 6 * 7?"')),
      );
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
    if (current && wanted.has(current.row.key))
      this.box.setAttribute("aria-activedescendant", this.drawn.get(current.row.key).el.id);
    else this.box.removeAttribute("aria-activedescendant");
    if (last >= this.shown.length - 20) this.#next();
  }

  #drawRow(shown, index) {
    const { row, level } = shown;
    const stamp = stampOf(shown);
    let drawn = this.drawn.get(row.key);
    if (!drawn) {
      drawn = {
        el: h("div", {
          class: "row",
          role: this.tree ? "treeitem" : "option",
          id: `row-${row.key.replace(/[^\w-]/g, "_")}`,
          "data-key": row.key,
        }),
        stamp: null,
      };
      this.drawn.set(row.key, drawn);
      this.space.append(drawn.el);
    }
    const { el } = drawn;
    if (drawn.stamp !== stamp) {
      drawn.stamp = stamp;
      fillRow(el, shown, this.people);
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

  // -- what people do

  #filtered() {
    this.box.scrollTop = 0;
    this.active = -1;
    this.reload();
  }

  /** From the search into the list. */
  #entered(open) {
    this.box.focus();
    this.move(this.active < 0 ? 1 : 0);
    if (open) this.openActive();
  }

  #asTree(on) {
    this.tree = on;
    this.box.setAttribute("role", on ? "tree" : "listbox");
    for (const { el } of this.drawn.values()) el.remove();
    this.drawn.clear();
    this.#arrange();
    announce(on ? "Tree view." : "List view.");
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
    if (this.folded.has(key)) this.folded.delete(key);
    else this.folded.add(key);
    const row = this.byKey.get(key);
    const away = (row.childSessions ?? []).filter((child) => !this.byKey.has(child));
    if (away.length && !this.folded.has(key)) for (const child of away) this.changed.add(child);
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
    else if (top + ROW_PX > this.box.scrollTop + this.box.clientHeight)
      this.box.scrollTop = top + ROW_PX - this.box.clientHeight;
    this.draw();
  }

  openActive() {
    const shown = this.shown[this.active];
    if (shown) this.onOpen(shown.row.key);
  }
}

/** The order of a list: newest first, ties by key. */
const before = (one, other) =>
  one.updatedAt > other.updatedAt || (one.updatedAt === other.updatedAt && one.key < other.key);
