// A scrolling window over a transcript: holds at most 240 messages and loads more near its edges.

import { h, icon, oncePerFrame } from "./dom.js";
import { formatDay, formatNumber, plural } from "./format.js";
import { messageElement } from "./message.js";

const PAGE_SIZE = 60; // messages per request
const WINDOW_SIZE = 240; // messages kept
const LOAD_MORE_PX = 600; // distance to an end at which more is loaded
const FOLLOW_PX = 60; // distance to the bottom within which the view follows new messages
const MAX_READS = 12; // per range: a page is also limited by bytes

/** `read(before, limit)` returns the page of messages just before a seq, or the newest page for null. */
export class Transcript {
  constructor({ name, read, context, renderEmptyState }) {
    this.name = name;
    this.read = read;
    this.context = context;
    this.renderEmptyState = renderEmptyState;
    this.items = []; // {seq, message, el} by seq; el is null for a tool result shown inside its call
    this.total = 0;
    this.calls = new Map(); // call id: ToolCall
    this.orphans = new Map(); // call id: tool result whose call is not in the window
    this.prependedCalls = new Map(); // call id: ToolCall, of the page that is being prepended
    this.incoming = [];
    this.unread = 0;
    this.following = true;
    this.loading = false;
    this.generation = 0;
    this.lastScrollTop = 0;
    this.#build();
    this.flush = oncePerFrame(() => this.#flush());
    this.onScroll = oncePerFrame(() => this.#onScroll());
  }

  #build() {
    this.list = h("div", {
      class: "messages",
      role: "log",
      "aria-live": "off",
      "aria-label": `Messages in ${this.name}`,
    });
    this.tail = h("div", { class: "tail" });
    this.scroller = h(
      "div",
      { class: "scroller", tabindex: "0", "aria-label": `Transcript of ${this.name}`, role: "region" },
      this.list,
      this.tail,
    );
    this.scroller.addEventListener("scroll", () => this.onScroll(), { passive: true });
    const showNewest = () => this.showNewest();
    this.newestButton = h("button", { class: "pill newest", hidden: true, onclick: showNewest }, "");
    this.slider = h("input", {
      type: "range",
      class: "slider",
      min: "1",
      step: "1",
      "aria-label": "Jump to a message",
      hidden: true,
      oninput: () => this.#onSliderInput(),
      onchange: () => this.showMessage(Number(this.slider.value)),
    });
    this.position = h("output", { class: "position", hidden: true });
    this.el = h(
      "div",
      { class: "transcript" },
      this.scroller,
      this.newestButton,
      h("div", { class: "slider-box" }, this.slider, this.position),
    );
    // Keep the end in view when content or the viewport resizes (unfolded tool call, on-screen keyboard).
    this.resizeObserver = new ResizeObserver(() => {
      if (this.following) this.#scrollToEnd();
    });
    this.resizeObserver.observe(this.scroller);
    this.resizeObserver.observe(this.list);
    this.resizeObserver.observe(this.tail);
  }

  close() {
    this.generation += 1;
    this.resizeObserver.disconnect();
  }

  get first() {
    return this.items[0]?.seq ?? 1;
  }

  get last() {
    return this.items.at(-1)?.seq ?? 0;
  }

  /** Whether the window reaches the end of the transcript. */
  get hasNewest() {
    return this.last >= this.total;
  }

  /** Jump to the end and follow new messages. */
  async showNewest() {
    await this.#load(async () => this.read(null, PAGE_SIZE));
    this.following = true;
    this.unread = 0;
    this.#updateControls();
    this.#scrollToEnd();
  }

  /**
   * Show a message and highlight it; or the next message that contains a string; or, with `findAnswer`, the
   * final answer after it.
   */
  async showMessage(seq, { containing = null, findAnswer = false } = {}) {
    this.following = false;
    const before = Math.min(seq + PAGE_SIZE / 2, Math.max(this.total, seq) + 1);
    await this.#load(() => this.#readRange(Math.max(1, seq - PAGE_SIZE / 2), before));
    const later = this.items.filter((item) => item.seq >= seq);
    const related = findAnswer
      ? later.find(
          (item) =>
            item.seq > seq && item.message.role === "assistant" && item.message.stopReason !== "toolUse",
        )
      : containing && later.find((item) => JSON.stringify(item.message).includes(containing));
    this.#highlight(related?.seq ?? seq);
    this.onScroll();
  }

  #highlight(seq) {
    const target = this.#elementOf(seq);
    if (!target) return;
    target.scrollIntoView({ block: "center" });
    target.classList.add("highlighted");
    setTimeout(() => target.classList.remove("highlighted"), 2500);
  }

  #elementOf(seq) {
    let found = null;
    for (const item of this.items) {
      if (item.seq > seq && found) break;
      if (item.el) found = item.el;
    }
    return found;
  }

  /** Add a new message; rendered in the next frame. */
  add(message) {
    if (message.seq <= this.total && message.seq <= this.last) return;
    this.total = Math.max(this.total, message.seq);
    this.incoming.push(message);
    // Only the newest can stay in the window.
    if (this.incoming.length > WINDOW_SIZE) this.incoming.splice(0, this.incoming.length - WINDOW_SIZE);
    this.flush();
  }

  /** Clear everything: the session has a new transcript. */
  reset() {
    this.total = 0;
    this.#clear();
    this.#updateControls();
  }

  /** Show tool calls without a result as running. */
  markCallsRunning() {
    for (const call of this.calls.values()) call.markRunning();
  }

  /** Show which tool calls wait for approval. */
  markCallsWaiting(callIds) {
    for (const [id, call] of this.calls) call.setWaiting(callIds.includes(id));
  }

  toolCall(callId) {
    return this.calls.get(callId);
  }

  // -- loading

  async #load(fetch) {
    const generation = ++this.generation;
    this.loading = true;
    try {
      const messages = await fetch();
      if (generation !== this.generation) return;
      this.#clear();
      this.total = Math.max(this.total, messages.at(-1)?.seq ?? 0);
      this.#append(messages);
    } finally {
      if (generation === this.generation) this.loading = false;
    }
    this.flush();
  }

  /** Read the messages from `from` up to, not including, `before`, in as many pages as needed. */
  async #readRange(from, before) {
    let found = [];
    for (let reads = 0; before > from && reads < MAX_READS; reads += 1) {
      const page = await this.read(before, Math.min(PAGE_SIZE, before - from));
      if (!page.length) break;
      found = [...page.filter((message) => message.seq >= from), ...found];
      before = page[0].seq;
    }
    return found;
  }

  async #loadOlder() {
    const generation = this.generation;
    this.loading = true;
    try {
      const messages = await this.read(this.first, PAGE_SIZE);
      if (generation !== this.generation) return;
      const height = this.scroller.scrollHeight;
      const top = this.scroller.scrollTop;
      this.#prepend(messages.filter((message) => message.seq < this.first));
      this.scroller.scrollTop = top + this.scroller.scrollHeight - height;
      while (this.items.length > WINDOW_SIZE) this.#discard(this.items.pop());
    } finally {
      if (generation === this.generation) this.loading = false;
    }
    this.onScroll();
  }

  async #loadNewer() {
    const generation = this.generation;
    this.loading = true;
    try {
      const messages = await this.#readRange(this.last + 1, Math.min(this.last + PAGE_SIZE, this.total) + 1);
      if (generation !== this.generation) return;
      this.#append(messages.filter((message) => message.seq > this.last));
      this.#trimStart();
    } finally {
      if (generation === this.generation) this.loading = false;
    }
    this.onScroll();
  }

  #trimStart() {
    if (this.items.length <= WINDOW_SIZE) return;
    const top = this.scroller.scrollTop;
    const height = this.scroller.scrollHeight;
    while (this.items.length > WINDOW_SIZE) this.#discard(this.items.shift());
    if (!this.following) this.scroller.scrollTop = top - (height - this.scroller.scrollHeight);
  }

  // -- rendering

  #flush() {
    if (this.loading) return;
    const incoming = this.incoming.filter((message) => message.seq > this.last);
    this.incoming = [];
    const next = incoming[0]?.seq;
    const fits = next === undefined || next === this.last + 1;
    if (incoming.length && this.following && !fits) {
      // There is a gap: replace the window by the newest messages.
      this.#clear();
      this.#append(incoming);
      if (this.first > 1 && this.items.length < PAGE_SIZE) this.#loadOlder();
    } else if (incoming.length && fits && (this.following || this.items.length < WINDOW_SIZE)) {
      this.#append(incoming);
      if (this.following) this.#trimStart();
      else this.unread += incoming.length;
    } else this.unread += incoming.length;
    if (this.following) this.#scrollToEnd();
    this.#updateControls();
  }

  #append(messages) {
    const fragment = document.createDocumentFragment();
    let previous = this.items.at(-1)?.message;
    for (const message of messages) {
      const item = this.#createItem(message, previous, false);
      if (item.el) fragment.append(item.el);
      this.items.push(item);
      previous = message;
    }
    this.list.append(fragment);
    this.list.classList.toggle("none", !this.items.length);
    this.#updateEmptyState();
  }

  #prepend(messages) {
    const fragment = document.createDocumentFragment();
    const items = [];
    let previous = null;
    this.prependedCalls = new Map();
    for (const message of messages) {
      const item = this.#createItem(message, previous, true);
      if (item.el) fragment.append(item.el);
      items.push(item);
      previous = message;
    }
    this.list.prepend(fragment);
    this.items.unshift(...items);
  }

  #createItem(message, previous, prepending) {
    if (message.role === "toolResult") {
      const call = this.calls.get(message.toolCallId);
      if (call && !prepending) {
        call.setResult(message);
        return { seq: message.seq, message, el: null };
      }
    }
    const item = { seq: message.seq, message, el: null };
    item.el = messageElement(message, this.context, (id, call) => this.#registerCall(id, call, prepending));
    if (message.role === "toolResult") {
      const call = prepending ? this.prependedCalls.get(message.toolCallId) : null;
      if (call) {
        call.setResult(message);
        item.el = null;
      } else this.orphans.set(message.toolCallId, item);
    }
    if (item.el && message.timestamp && this.#newDay(message, previous))
      item.el.dataset.day = formatDay(message.timestamp);
    if (item.el && previous && continuesPrevious(message, previous)) item.el.classList.add("continued");
    return item;
  }

  #registerCall(id, call, prepending) {
    const orphan = this.orphans.get(id);
    if (prepending) {
      // Results follow their calls, so a result on this page finds its call here.
      this.prependedCalls.set(id, call);
      if (!this.calls.has(id)) this.calls.set(id, call);
    } else this.calls.set(id, call);
    const { directory, key } = this.context;
    call.setWaiting(directory.approvals.of(key).some(({ request }) => request.toolCallId === id));
    if (orphan) {
      call.setResult(orphan.message);
      orphan.el?.remove();
      orphan.el = null;
      this.orphans.delete(id);
    }
  }

  #newDay(message, previous) {
    if (!previous?.timestamp) return message.seq === 1;
    return new Date(message.timestamp).toDateString() !== new Date(previous.timestamp).toDateString();
  }

  #discard(item) {
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
    this.#updateEmptyState();
  }

  #updateEmptyState() {
    if (this.items.length) this.emptyState?.remove();
    else if (!this.emptyState?.isConnected) {
      this.emptyState = this.renderEmptyState();
      this.list.append(this.emptyState);
    }
  }

  // -- scrolling

  #scrollToEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.lastScrollTop = this.scroller.scrollTop;
  }

  #onScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const below = scrollHeight - clientHeight - scrollTop;
    // Only scrolling up stops following; content that grows below does not.
    const stillFollowing = this.following && scrollTop >= this.lastScrollTop - 1;
    this.following = this.hasNewest && (below < FOLLOW_PX || stillFollowing);
    this.lastScrollTop = scrollTop;
    if (this.following) this.unread = 0;
    if (!this.loading && this.items.length) {
      if (scrollTop < LOAD_MORE_PX && this.first > 1) this.#loadOlder();
      else if (below < LOAD_MORE_PX && !this.hasNewest) this.#loadNewer();
    }
    this.#updateControls();
  }

  #updateControls() {
    const detached = !this.following && this.total > 0;
    this.newestButton.hidden = !detached;
    const label = this.unread ? plural(this.unread, "new message") : "Newest";
    if (detached) this.newestButton.replaceChildren(icon("down"), label);
    const isLong = this.total > PAGE_SIZE;
    this.slider.hidden = this.position.hidden = !isLong;
    if (!isLong || this.slider.matches(":active")) return;
    const seq = this.following ? this.total : this.#seqAtCenter();
    this.slider.max = this.total;
    this.slider.value = seq;
    this.slider.setAttribute("aria-valuetext", `message ${formatNumber(seq)} of ${formatNumber(this.total)}`);
    this.position.textContent = `${formatNumber(seq)} / ${formatNumber(this.total)}`;
  }

  #onSliderInput() {
    this.position.textContent = `${formatNumber(Number(this.slider.value))} / ${formatNumber(this.total)}`;
  }

  /** The seq of the message in the middle of the viewport. */
  #seqAtCenter() {
    const middle = this.scroller.scrollTop + this.scroller.clientHeight / 2;
    const rendered = this.items.filter((item) => item.el);
    let low = 0;
    let high = rendered.length - 1;
    while (low < high) {
      const between = (low + high + 1) >> 1;
      if (rendered[between].el.offsetTop <= middle) low = between;
      else high = between - 1;
    }
    return rendered[low]?.seq ?? 1;
  }
}

/** Whether a message continues the one before: same agent, less than two minutes apart. */
function continuesPrevious(message, previous) {
  if (previous.role === "toolResult") return message.role === "assistant";
  if (message.role !== previous.role || message.provenance || previous.provenance) return false;
  return (
    message.role === "assistant" && Math.abs((message.timestamp ?? 0) - (previous.timestamp ?? 0)) < 120_000
  );
}
