// The session list: filtered by the gateway, updated by events, with only the visible rows in the DOM.

import { fill, h, notifyScreenReader, oncePerFrame, throttled } from "./dom.js";
import { Filters } from "./filters.js";
import { formatAge, plural } from "./format.js";
import { newSessionDialog } from "./new-session.js";
import { problem } from "./problem.js";
import { renderRow, rowRenderKey } from "./session-row.js";

const ROW_PX = 74;
const PAGE_SIZE = 100;
const OVERSCAN_ROWS = 6;
const REFRESH_MS = 250;
const REFRESH_BATCH = 60; // sessions per refresh

/** `onOpen(key)` fires when a session is chosen. */
export class SessionList {
  constructor({ connection, directory, onOpen }) {
    Object.assign(this, { connection, directory, onOpen });
    this.rows = []; // newest first
    this.byKey = new Map();
    this.items = []; // in display order: {row, level, childCount, open}
    this.tree = false;
    this.foldedKeys = new Set(); // parents whose children are hidden
    this.rendered = new Map(); // key: {el, renderKey}
    this.staleKeys = new Set();
    this.selected = null;
    this.active = -1;
    this.cursor = null;
    this.hasMore = false;
    this.loadId = 0;
    this.render = oncePerFrame(() => this.#render());
    this.refresh = throttled(() => this.#refresh(), REFRESH_MS);
    this.#build();
  }

  #build() {
    this.filters = new Filters({
      directory: this.directory,
      onChange: () => this.#onFilterChange(),
      onTree: (on) => this.#setTree(on),
      onNew: () => this.startSession(),
      onEnterList: (open) => this.#focusList(open),
    });
    this.spacer = h("div", { class: "spacer" });
    this.emptyState = h("div", { class: "empty", hidden: true });
    this.rowsEl = h(
      "div",
      {
        class: "rows",
        tabindex: "0",
        role: "listbox",
        "aria-label": "Sessions",
        onscroll: () => this.render(),
        onkeydown: (event) => this.#onKeydown(event),
        onclick: (event) => this.#onClick(event),
      },
      this.spacer,
    );
    this.footer = h("p", { class: "list-foot", role: "status" });
    this.el = h(
      "aside",
      { class: "list", "aria-label": "Sessions" },
      this.filters.el,
      this.emptyState,
      this.rowsEl,
      this.footer,
    );
    this.resizeObserver = new ResizeObserver(() => this.render());
    this.resizeObserver.observe(this.rowsEl);
  }

  open() {
    this.filters.open();
    this.unsubscribers = [
      this.connection.on("sessions.changed", (change) => this.#onSessionChanged(change)),
      this.connection.on("exchange.changed", (exchange) => this.#onExchangeChanged(exchange)),
      this.connection.on("reconnected", () => this.#onReconnected()),
      this.directory.approvals.onChange(() => this.render()),
    ];
    this.ageTimer = setInterval(() => this.#updateAges(), 20_000);
    return this.reload();
  }

  select(key) {
    this.selected = key;
    this.render();
  }

  // -- loading

  #params() {
    return { ...this.filters.params(), includeLastMessage: true, includeStanding: true };
  }

  async reload() {
    const loadId = ++this.loadId;
    this.loading = true;
    this.error = null;
    try {
      const page = await this.connection.query("sessions.list", { ...this.#params(), limit: PAGE_SIZE });
      if (loadId !== this.loadId) return;
      this.rows = [];
      this.byKey.clear();
      this.#addPage(page);
    } catch (error) {
      this.error = error;
    } finally {
      if (loadId === this.loadId) this.loading = false;
    }
    this.#layout();
  }

  /** Read the newest page and the rows on the screen again, without moving the scroll position. */
  async #onReconnected() {
    for (const key of this.rendered.keys()) this.staleKeys.add(key);
    this.refresh();
    const loadId = this.loadId;
    const page = await this.connection.query("sessions.list", { ...this.#params(), limit: PAGE_SIZE });
    if (loadId !== this.loadId) return;
    const anchor = this.#anchor();
    for (const row of page.sessions) this.#upsert(row);
    this.#layout(anchor);
  }

  async #loadNextPage() {
    if (this.loading || !this.hasMore) return;
    const loadId = this.loadId;
    this.loading = true;
    try {
      const page = await this.connection.query("sessions.list", {
        ...this.#params(),
        limit: PAGE_SIZE,
        cursor: this.cursor,
      });
      if (loadId === this.loadId) this.#addPage(page);
    } finally {
      if (loadId === this.loadId) this.loading = false;
    }
    this.#layout();
  }

  #addPage(page) {
    for (const row of page.sessions) this.#upsert(row);
    this.cursor = page.nextCursor ?? null;
    this.hasMore = page.hasMore;
  }

  #upsert(row) {
    this.directory.rememberLabel(row);
    const known = this.byKey.get(row.key);
    // A message that only calls tools has no text: keep the previous preview.
    if (known?.sessionId === row.sessionId) row.lastMessagePreview ||= known.lastMessagePreview;
    if (known) this.rows.splice(this.rows.indexOf(known), 1);
    this.byKey.set(row.key, row);
    let low = 0;
    let high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sortsBefore(this.rows[middle], row)) low = middle + 1;
      else high = middle;
    }
    this.rows.splice(low, 0, row);
  }

  #remove(key) {
    const row = this.byKey.get(key);
    if (!row) return;
    this.byKey.delete(key);
    this.rows.splice(this.rows.indexOf(row), 1);
  }

  // -- events

  #onSessionChanged(change) {
    if (change.reason === "delete") {
      this.#remove(change.sessionKey);
      this.#layout();
      return;
    }
    const row = this.byKey.get(change.sessionKey);
    if (row && change.hasActiveRun !== undefined) {
      row.status = change.hasActiveRun ? "running" : row.status === "running" ? "idle" : row.status;
      row.revision = (row.revision ?? 0) + 1;
      this.render();
    }
    this.staleKeys.add(change.sessionKey);
    this.refresh();
  }

  #onExchangeChanged(exchange) {
    for (const key of [exchange.requester, exchange.target]) if (key) this.staleKeys.add(key);
    this.refresh();
  }

  async #refresh() {
    const keys = [...this.staleKeys].slice(0, REFRESH_BATCH);
    if (!keys.length) return;
    for (const key of keys) this.staleKeys.delete(key);
    const loadId = this.loadId;
    try {
      const params = { ...this.#params(), keysOnly: keys, limit: 200 };
      const page = await this.connection.query("sessions.list", params);
      if (loadId !== this.loadId) return;
      const found = new Set(page.sessions.map((row) => row.key));
      const anchor = this.#anchor();
      for (const row of page.sessions) this.#upsert(row);
      const missing = keys.filter((key) => !found.has(key));
      // A page is also limited by bytes: keys missing from a truncated page are requested again.
      for (const key of missing)
        if (page.hasMore) this.staleKeys.add(key);
        else this.#remove(key);
      this.#layout(anchor);
    } catch {
      // The next change triggers another refresh.
    }
    if (this.staleKeys.size) this.refresh();
  }

  #updateAges() {
    for (const { el } of this.rendered.values()) {
      const time = el.querySelector("time");
      if (time) time.textContent = formatAge(Number(time.dataset.at));
    }
  }

  // -- layout

  /** The first row on the screen and its offset, so that it stays in place when other rows move. */
  #anchor() {
    if (this.rowsEl.scrollTop < 4) return null;
    const index = Math.floor(this.rowsEl.scrollTop / ROW_PX);
    const item = this.items[index];
    return item && { key: item.row.key, offset: this.rowsEl.scrollTop - index * ROW_PX };
  }

  #layout(anchor = null) {
    this.items = this.tree ? this.#treeItems() : this.rows.map((row) => ({ row, level: 0 }));
    this.spacer.style.height = `${this.items.length * ROW_PX}px`;
    if (anchor) {
      const index = this.items.findIndex(({ row }) => row.key === anchor.key);
      if (index > 2) this.rowsEl.scrollTop = index * ROW_PX + anchor.offset;
    }
    const empty = !this.items.length && !this.loading && !this.hasMore;
    this.emptyState.hidden = !empty;
    this.rowsEl.hidden = empty;
    if (empty) this.#renderEmptyState();
    this.footer.textContent = this.items.length
      ? `${plural(this.rows.length, "session")}${this.hasMore ? " loaded, scroll for more" : ""}`
      : "";
    this.render();
  }

  #treeItems() {
    const children = new Map();
    const roots = [];
    for (const row of this.rows) {
      if (row.spawnedBy && this.byKey.has(row.spawnedBy)) {
        if (!children.has(row.spawnedBy)) children.set(row.spawnedBy, []);
        children.get(row.spawnedBy).push(row);
      } else roots.push(row);
    }
    const items = [];
    const walk = (row, level) => {
      const loaded = children.get(row.key) ?? [];
      const open = !this.foldedKeys.has(row.key);
      const childCount = Math.max(loaded.length, row.childSessions?.length ?? 0);
      items.push({ row, level, childCount, open });
      if (open) for (const child of loaded) walk(child, level + 1);
    };
    for (const row of roots) walk(row, 0);
    return items;
  }

  #renderEmptyState() {
    if (this.error) fill(this.emptyState, h("p", { class: "error", role: "alert" }, problem(this.error)));
    else if (this.filters.isActive) {
      const clear = h("button", { class: "plain", onclick: () => this.filters.clear() }, "Show all sessions");
      const title = this.filters.params().archived ? "No archived sessions" : "No matching sessions";
      fill(this.emptyState, h("h3", null, title), h("p", null, clear));
    } else {
      const buttons = this.directory.agents
        .slice(0, 4)
        .map((agent) =>
          h(
            "button",
            { class: "plain", onclick: () => this.onOpen(`agent:${agent.id}:main`) },
            `Write to ${agent.name || agent.id}`,
          ),
        );
      fill(
        this.emptyState,
        h("h3", null, "No sessions yet"),
        h("p", null, "Send a message to an agent to start one."),
        h("p", null, buttons),
        h("p", { class: "muted" }, "In a terminal: ", h("code", null, 'hobnob agent -m "what is 6 * 7?"')),
      );
    }
  }

  // -- rendering

  #render() {
    const top = this.rowsEl.scrollTop;
    const height = this.rowsEl.clientHeight;
    const first = Math.max(0, Math.floor(top / ROW_PX) - OVERSCAN_ROWS);
    const last = Math.min(this.items.length, Math.ceil((top + height) / ROW_PX) + OVERSCAN_ROWS);
    const visible = new Set();
    for (let index = first; index < last; index += 1) {
      const item = this.items[index];
      visible.add(item.row.key);
      this.#renderRow(item, index);
    }
    for (const [key, { el }] of this.rendered) {
      if (visible.has(key)) continue;
      el.remove();
      this.rendered.delete(key);
    }
    const current = this.items[this.active];
    if (current && visible.has(current.row.key))
      this.rowsEl.setAttribute("aria-activedescendant", this.rendered.get(current.row.key).el.id);
    else this.rowsEl.removeAttribute("aria-activedescendant");
    if (last >= this.items.length - 20) this.#loadNextPage();
  }

  #renderRow(item, index) {
    const { row, level } = item;
    const renderKey = rowRenderKey(item, this.directory);
    let rendered = this.rendered.get(row.key);
    if (!rendered) {
      rendered = {
        el: h("div", {
          class: "row",
          role: this.tree ? "treeitem" : "option",
          id: `row-${row.key.replace(/[^\w-]/g, "_")}`,
          "data-key": row.key,
        }),
        renderKey: null,
      };
      this.rendered.set(row.key, rendered);
      this.spacer.append(rendered.el);
    }
    const { el } = rendered;
    if (rendered.renderKey !== renderKey) {
      rendered.renderKey = renderKey;
      renderRow(el, item, this.directory);
    }
    el.style.transform = `translateY(${index * ROW_PX}px)`;
    el.setAttribute("aria-selected", String(row.key === this.selected));
    el.setAttribute("aria-posinset", index + 1);
    el.setAttribute("aria-setsize", this.hasMore ? -1 : this.items.length);
    el.classList.toggle("active", index === this.active);
    if (this.tree) {
      el.setAttribute("aria-level", level + 1);
      if (item.childCount) el.setAttribute("aria-expanded", String(item.open));
    }
  }

  // -- user input

  startSession() {
    const { connection, directory, onOpen } = this;
    newSessionDialog({ connection, directory, onOpen });
  }

  #onFilterChange() {
    this.rowsEl.scrollTop = 0;
    this.active = -1;
    this.reload();
  }

  /** Move the focus from the search into the list. */
  #focusList(open) {
    this.rowsEl.focus();
    this.move(this.active < 0 ? 1 : 0);
    if (open) this.openActive();
  }

  #setTree(on) {
    this.tree = on;
    this.rowsEl.setAttribute("role", on ? "tree" : "listbox");
    for (const { el } of this.rendered.values()) el.remove();
    this.rendered.clear();
    this.#layout();
    notifyScreenReader(on ? "Tree view." : "List view.");
  }

  #onClick(event) {
    const fold = event.target.closest("[data-fold]");
    if (fold) {
      this.#toggleFold(fold.dataset.fold);
      return;
    }
    const row = event.target.closest("[data-key]");
    if (!row) return;
    this.active = this.items.findIndex((item) => item.row.key === row.dataset.key);
    this.onOpen(row.dataset.key);
  }

  async #toggleFold(key) {
    if (this.foldedKeys.has(key)) this.foldedKeys.delete(key);
    else this.foldedKeys.add(key);
    const row = this.byKey.get(key);
    const notLoaded = (row.childSessions ?? []).filter((child) => !this.byKey.has(child));
    if (!this.foldedKeys.has(key)) for (const child of notLoaded) this.staleKeys.add(child);
    this.#layout();
    this.refresh();
  }

  #onKeydown(event) {
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
      const item = this.items[this.active];
      if (item?.childCount && item.open === (event.key === "ArrowLeft")) this.#toggleFold(item.row.key);
    }
  }

  /** Move the active row by `by` rows. */
  move(by) {
    if (!this.items.length) return;
    const from = this.active < 0 ? this.items.findIndex(({ row }) => row.key === this.selected) : this.active;
    this.active = Math.min(Math.max(from + by, 0), this.items.length - 1);
    const top = this.active * ROW_PX;
    if (top < this.rowsEl.scrollTop) this.rowsEl.scrollTop = top;
    else if (top + ROW_PX > this.rowsEl.scrollTop + this.rowsEl.clientHeight)
      this.rowsEl.scrollTop = top + ROW_PX - this.rowsEl.clientHeight;
    this.render();
  }

  openActive() {
    const item = this.items[this.active];
    if (item) this.onOpen(item.row.key);
  }
}

/** Sort order: newest first, ties by key. */
const sortsBefore = (one, other) =>
  one.updatedAt > other.updatedAt || (one.updatedAt === other.updatedAt && one.key < other.key);
