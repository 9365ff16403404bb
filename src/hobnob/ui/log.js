// The log view: the last lines of the gateway's log, with new ones as they come.

import { fill, h } from "./dom.js";
import { formatDateTime, formatTimeWithSeconds } from "./format.js";
import { sessionLink } from "./message.js";
import { problem } from "./problem.js";

const POLL_MS = 1500;
const MAX_LINES = 1000;
const LEVELS = ["debug", "info", "warning", "error", "critical"];
const FOLLOW_PX = 40;

export class View {
  constructor({ connection, directory }) {
    Object.assign(this, { connection, directory });
    this.cursor = null;
    this.level = h(
      "select",
      { "aria-label": "Lowest level", onchange: () => this.#filter() },
      LEVELS.slice(0, 4).map((level) =>
        h("option", { value: level }, level === "debug" ? "All levels" : level),
      ),
    );
    this.search = h("input", {
      type: "search",
      placeholder: "Search the log",
      "aria-label": "Search the log",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.#filter(),
    });
    this.empty = h("p", { class: "muted" }, "No lines yet.");
    this.list = h("ol", { class: "log-lines" });
    this.scroller = h(
      "div",
      { class: "log-scroller", tabindex: "0", role: "log", "aria-label": "Log lines", "aria-live": "off" },
      this.empty,
      this.list,
    );
    this.errorEl = h("p", { class: "error", role: "alert", hidden: true });
    this.el = h(
      "div",
      { class: "inspect-view log-view" },
      h("h2", null, "Log"),
      h("div", { class: "inspect-filters" }, this.search, this.level),
      this.errorEl,
      this.scroller,
    );
  }

  open() {
    this.timer = setInterval(() => this.#poll(), POLL_MS);
    return this.#poll();
  }

  route() {}

  close() {
    clearInterval(this.timer);
    this.closed = true;
  }

  async #poll() {
    if (this.polling || (document.hidden && this.cursor !== null)) return;
    this.polling = true;
    try {
      const page = await this.connection.query("logs.tail", {
        limit: MAX_LINES,
        ...(this.cursor === null ? {} : { cursor: this.cursor }),
      });
      if (this.closed) return;
      // After a restart of the gateway its lines are counted anew.
      this.cursor = this.cursor !== null && page.size < this.cursor ? null : page.cursor;
      this.#append(page.lines.map((line) => this.#line(line)));
      this.errorEl.hidden = true;
    } catch (error) {
      this.errorEl.hidden = false;
      fill(this.errorEl, problem(error));
      if (error.code !== "gateway.lost") clearInterval(this.timer);
    } finally {
      this.polling = false;
    }
  }

  #append(lines) {
    if (!lines.length) return;
    const { scrollHeight, clientHeight, scrollTop } = this.scroller;
    const follows = scrollHeight - clientHeight - scrollTop < FOLLOW_PX;
    this.empty.hidden = true;
    this.list.append(...lines);
    while (this.list.children.length > MAX_LINES) this.list.firstChild.remove();
    if (follows) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  #line(text) {
    let record = null;
    try {
      record = JSON.parse(text);
    } catch {
      // Shown as it is.
    }
    const { timestamp, level = "info", event = text, logger, ...fields } = record ?? {};
    const at = Date.parse(timestamp);
    const time = Number.isNaN(at)
      ? h("time")
      : h("time", { datetime: timestamp, title: formatDateTime(at) }, formatTimeWithSeconds(at));
    const line = h(
      "li",
      { "data-level": level },
      time,
      h("span", { class: `log-level ${level}` }, level),
      h(
        "span",
        { class: "log-text" },
        h("b", null, event),
        Object.entries(fields).map(([name, value]) => [" ", this.#field(name, value)]),
      ),
    );
    line.dataset.text = text.toLowerCase();
    line.hidden = !this.#matches(line);
    return line;
  }

  #field(name, value) {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    const isSession = typeof value === "string" && /^agent:[^:]+:/.test(value);
    const shown = isSession ? sessionLink(this.directory, value) : text;
    return h(
      "span",
      { class: name === "error" || name === "exception" ? "log-field bad" : "log-field" },
      `${name}=`,
      shown,
    );
  }

  #matches(line) {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const highEnough = LEVELS.indexOf(line.dataset.level) >= LEVELS.indexOf(this.level.value);
    return highEnough && words.every((word) => line.dataset.text.includes(word));
  }

  #filter() {
    for (const line of this.list.children) line.hidden = !this.#matches(line);
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }
}
