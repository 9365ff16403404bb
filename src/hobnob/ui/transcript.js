// A window onto a transcript of any length. What is not near the screen is neither kept nor drawn.

import { h, icon, oncePerFrame } from "./dom.js";
import { messageElement } from "./message.js";
import { day, many, number } from "./words.js";

const PAGE = 60; // messages asked for at a time
const MOST = 240; // messages in the window
const NEAR_PX = 600; // of an end, when more is fetched
const STUCK_PX = 60; // of the bottom, when new messages are followed
const READS = 12; // of one stretch: a page holds as much as fits its bytes

/** `read(before, limit)` gives a page of messages, those just before a number, the newest without one. */
export class Transcript {
  constructor({ name, read, context, empty }) {
    this.name = name;
    this.read = read;
    this.context = context;
    this.empty = empty;
    this.items = []; // {seq, message, el}, in order; el is null for a result shown within its call
    this.total = 0;
    this.calls = new Map(); // call id: Tool
    this.orphans = new Map(); // call id: item whose call is not in the window
    this.older = new Map(); // call id: Tool, of the page that is being put before the window
    this.arrived = [];
    this.unread = 0;
    this.following = true;
    this.busy = false;
    this.generation = 0;
    this.top = 0; // where the reader was last
    this.#build();
    this.flush = oncePerFrame(() => this.#flush());
    this.looked = oncePerFrame(() => this.#looked());
  }

  #build() {
    this.list = h("div", {
      class: "messages",
      role: "log",
      "aria-live": "off",
      "aria-label": `What was said in ${this.name}`,
    });
    this.tail = h("div", { class: "tail" });
    this.scroller = h(
      "div",
      { class: "scroller", tabindex: "0", "aria-label": `Transcript of ${this.name}`, role: "region" },
      this.list,
      this.tail,
    );
    this.scroller.addEventListener("scroll", () => this.looked(), { passive: true });
    this.newer = h("button", { class: "pill newest", hidden: true, onclick: () => this.newest() }, "");
    this.rail = h("input", {
      type: "range",
      class: "rail",
      min: "1",
      step: "1",
      "aria-label": "Jump to a message",
      hidden: true,
      oninput: () => this.#railMoved(),
      onchange: () => this.around(Number(this.rail.value)),
    });
    this.place = h("output", { class: "place", hidden: true });
    this.el = h(
      "div",
      { class: "transcript" },
      this.scroller,
      this.newer,
      h("div", { class: "rail-box" }, this.rail, this.place),
    );
    // What grows above or below (a folded tool, a picture, the keyboard) must not lose the end.
    this.watcher = new ResizeObserver(() => {
      if (this.following) this.#toEnd();
    });
    this.watcher.observe(this.scroller);
    this.watcher.observe(this.list);
    this.watcher.observe(this.tail);
  }

  close() {
    this.generation += 1;
    this.watcher.disconnect();
  }

  get first() {
    return this.items[0]?.seq ?? 1;
  }

  get last() {
    return this.items.at(-1)?.seq ?? 0;
  }

  get attached() {
    return this.last >= this.total;
  }

  /** Show the end, and follow it. */
  async newest() {
    await this.#load(async () => this.read(null, PAGE));
    this.following = true;
    this.unread = 0;
    this.#marks();
    this.#toEnd();
  }

  /** Show the messages around one, and point at it: at the next that is `about` something, or at its answer. */
  async around(seq, { about = null, answer = false } = {}) {
    this.following = false;
    const before = Math.min(seq + PAGE / 2, Math.max(this.total, seq) + 1);
    await this.#load(() => this.#stretch(Math.max(1, seq - PAGE / 2), before));
    const later = this.items.filter((item) => item.seq >= seq);
    const related = answer
      ? later.find(
          (item) =>
            item.seq > seq && item.message.role === "assistant" && item.message.stopReason !== "toolUse",
        )
      : about && later.find((item) => JSON.stringify(item.message).includes(about));
    this.#pointAt(related?.seq ?? seq);
    this.looked();
  }

  #pointAt(seq) {
    const target = this.#elementOf(seq);
    if (!target) return;
    target.scrollIntoView({ block: "center" });
    target.classList.add("pointed");
    setTimeout(() => target.classList.remove("pointed"), 2500);
  }

  #elementOf(seq) {
    let found = null;
    for (const item of this.items) {
      if (item.seq > seq && found) break;
      if (item.el) found = item.el;
    }
    return found;
  }

  /** A message that was just said. Drawn with the next frame. */
  add(message) {
    if (message.seq <= this.total && message.seq <= this.last) return;
    this.total = Math.max(this.total, message.seq);
    this.arrived.push(message);
    // Nobody can read so many at once: only the last are drawn.
    if (this.arrived.length > MOST) this.arrived.splice(0, this.arrived.length - MOST);
    this.flush();
  }

  /** Begin anew: the session has another transcript. */
  restart() {
    this.total = 0;
    this.#clear();
    this.#marks();
  }

  /** Calls that have no result yet are under way, when anything is. */
  atWork() {
    for (const tool of this.calls.values()) tool.started();
  }

  tool(callId) {
    return this.calls.get(callId);
  }

  // -- loading

  async #load(fetch) {
    const mine = ++this.generation;
    this.busy = true;
    try {
      const messages = await fetch();
      if (mine !== this.generation) return;
      this.#clear();
      this.total = Math.max(this.total, messages.at(-1)?.seq ?? 0);
      this.#append(messages);
    } finally {
      if (mine === this.generation) this.busy = false;
    }
    this.flush();
  }

  /** Messages `from` up to `before`, however many pages it takes. */
  async #stretch(from, before) {
    let found = [];
    for (let reads = 0; before > from && reads < READS; reads += 1) {
      const page = await this.read(before, Math.min(PAGE, before - from));
      if (!page.length) break;
      found = [...page.filter((message) => message.seq >= from), ...found];
      before = page[0].seq;
    }
    return found;
  }

  async #older() {
    const mine = this.generation;
    this.busy = true;
    try {
      const messages = await this.read(this.first, PAGE);
      if (mine !== this.generation) return;
      const height = this.scroller.scrollHeight;
      const top = this.scroller.scrollTop;
      this.#prepend(messages.filter((message) => message.seq < this.first));
      this.scroller.scrollTop = top + this.scroller.scrollHeight - height;
      while (this.items.length > MOST) this.#drop(this.items.pop());
    } finally {
      if (mine === this.generation) this.busy = false;
    }
    this.looked();
  }

  async #newerPage() {
    const mine = this.generation;
    this.busy = true;
    try {
      const messages = await this.#stretch(this.last + 1, Math.min(this.last + PAGE, this.total) + 1);
      if (mine !== this.generation) return;
      this.#append(messages.filter((message) => message.seq > this.last));
      this.#trimStart();
    } finally {
      if (mine === this.generation) this.busy = false;
    }
    this.looked();
  }

  #trimStart() {
    if (this.items.length <= MOST) return;
    const top = this.scroller.scrollTop;
    const height = this.scroller.scrollHeight;
    while (this.items.length > MOST) this.#drop(this.items.shift());
    if (!this.following) this.scroller.scrollTop = top - (height - this.scroller.scrollHeight);
  }

  // -- drawing

  #flush() {
    if (this.busy) return;
    const arrived = this.arrived.filter((message) => message.seq > this.last);
    this.arrived = [];
    const next = arrived[0]?.seq;
    const fits = next === undefined || next === this.last + 1;
    if (arrived.length && this.following && !fits) {
      // Some were left out: what is on the screen is replaced by the end.
      this.#clear();
      this.#append(arrived);
      if (this.first > 1 && this.items.length < PAGE) this.#older();
    } else if (arrived.length && fits && (this.following || this.items.length < MOST)) {
      this.#append(arrived);
      if (this.following) this.#trimStart();
      else this.unread += arrived.length;
    } else this.unread += arrived.length;
    if (this.following) this.#toEnd();
    this.#marks();
  }

  #append(messages) {
    const piece = document.createDocumentFragment();
    let previous = this.items.at(-1)?.message;
    for (const message of messages) {
      const item = this.#item(message, previous, false);
      if (item.el) piece.append(item.el);
      this.items.push(item);
      previous = message;
    }
    this.list.append(piece);
    this.list.classList.toggle("none", !this.items.length);
    this.#emptiness();
  }

  #prepend(messages) {
    const piece = document.createDocumentFragment();
    const items = [];
    let previous = null;
    this.older = new Map();
    for (const message of messages) {
      const item = this.#item(message, previous, true);
      if (item.el) piece.append(item.el);
      items.push(item);
      previous = message;
    }
    this.list.prepend(piece);
    this.items.unshift(...items);
  }

  #item(message, previous, older) {
    if (message.role === "toolResult") {
      const call = this.calls.get(message.toolCallId);
      if (call && !older) {
        call.answered(message);
        return { seq: message.seq, message, el: null };
      }
    }
    const item = { seq: message.seq, message, el: null };
    item.el = messageElement(message, this.context, (id, tool) => this.#called(id, tool, older));
    if (message.role === "toolResult") {
      const call = older ? this.older.get(message.toolCallId) : null;
      if (call) {
        call.answered(message);
        item.el = null;
      } else this.orphans.set(message.toolCallId, item);
    }
    if (item.el && message.timestamp && this.#newDay(message, previous))
      item.el.dataset.day = day(message.timestamp);
    if (item.el && previous && sameVoice(message, previous)) item.el.classList.add("on");
    return item;
  }

  #called(id, tool, older) {
    const orphan = this.orphans.get(id);
    if (older) {
      // Results come after their calls, so those of this page are found while it is being made.
      this.older.set(id, tool);
      if (!this.calls.has(id)) this.calls.set(id, tool);
    } else this.calls.set(id, tool);
    if (orphan) {
      tool.answered(orphan.message);
      orphan.el?.remove();
      orphan.el = null;
      this.orphans.delete(id);
    }
  }

  #newDay(message, previous) {
    if (!previous?.timestamp) return message.seq === 1;
    return new Date(message.timestamp).toDateString() !== new Date(previous.timestamp).toDateString();
  }

  #drop(item) {
    item.el?.remove();
    for (const part of Array.isArray(item.message.content) ? item.message.content : []) {
      if (part.type === "toolCall") this.calls.delete(part.id);
    }
    if (item.message.role === "toolResult") this.orphans.delete(item.message.toolCallId);
  }

  #clear() {
    this.items = [];
    this.calls.clear();
    this.orphans.clear();
    this.list.replaceChildren();
    this.#emptiness();
  }

  #emptiness() {
    if (this.items.length) this.nothing?.remove();
    else if (!this.nothing?.isConnected) {
      this.nothing = this.empty();
      this.list.append(this.nothing);
    }
  }

  // -- where the reader is

  #toEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.top = this.scroller.scrollTop;
  }

  #looked() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const below = scrollHeight - clientHeight - scrollTop;
    // Only going up leaves the end: that the text below grew is no reason to stay behind.
    const stayed = this.following && scrollTop >= this.top - 1;
    this.following = this.attached && (below < STUCK_PX || stayed);
    this.top = scrollTop;
    if (this.following) this.unread = 0;
    if (!this.busy && this.items.length) {
      if (scrollTop < NEAR_PX && this.first > 1) this.#older();
      else if (below < NEAR_PX && !this.attached) this.#newerPage();
    }
    this.#marks();
  }

  #marks() {
    const away = !this.following && this.total > 0;
    this.newer.hidden = !away;
    if (away)
      this.newer.replaceChildren(icon("down"), this.unread ? many(this.unread, "new message") : "Newest");
    const long = this.total > PAGE;
    this.rail.hidden = this.place.hidden = !long;
    if (!long || this.rail.matches(":active")) return;
    const at = this.following ? this.total : this.#atScreen();
    this.rail.max = this.total;
    this.rail.value = at;
    this.rail.setAttribute("aria-valuetext", `message ${number(at)} of ${number(this.total)}`);
    this.place.textContent = `${number(at)} / ${number(this.total)}`;
  }

  #railMoved() {
    this.place.textContent = `${number(Number(this.rail.value))} / ${number(this.total)}`;
  }

  /** The message in the middle of the screen. */
  #atScreen() {
    const middle = this.scroller.scrollTop + this.scroller.clientHeight / 2;
    const drawn = this.items.filter((item) => item.el);
    let low = 0;
    let high = drawn.length - 1;
    while (low < high) {
      const between = (low + high + 1) >> 1;
      if (drawn[between].el.offsetTop <= middle) low = between;
      else high = between - 1;
    }
    return drawn[low]?.seq ?? 1;
  }
}

/** Whether two messages are of the same person or agent and close together. */
function sameVoice(message, previous) {
  if (previous.role === "toolResult") return message.role === "assistant";
  if (message.role !== previous.role || message.provenance || previous.provenance) return false;
  return (
    message.role === "assistant" && Math.abs((message.timestamp ?? 0) - (previous.timestamp ?? 0)) < 120_000
  );
}
