// Search and filters of the session list.

import { fill, h, icon, throttled } from "./dom.js";

const KINDS = ["main", "group", "cron", "hook", "node", "other"];
const SEARCH_DELAY_MS = 180;

/**
 * `onChange()` fires when a filter changes, `onTree(on)` when the tree view is switched, `onNew()` when a
 * session is to be created, `onEnterList(open)` when the keyboard moves from the search into the list.
 */
export class Filters {
  constructor({ directory, onChange, onTree, onNew, onEnterList }) {
    Object.assign(this, { directory, onChange, onTree, onNew, onEnterList });
    this.searchChanged = throttled(onChange, SEARCH_DELAY_MS);
    this.search = h("input", {
      type: "search",
      placeholder: "Search sessions",
      "aria-label": "Search sessions by key, label or name",
      "aria-keyshortcuts": "/",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.searchChanged(),
      onkeydown: (event) => this.#onKeydown(event),
    });
    this.kind = h(
      "select",
      { "aria-label": "Kind", onchange: onChange },
      ["", ...KINDS].map((kind) => h("option", { value: kind }, kind || "All kinds")),
    );
    this.agent = h("select", { "aria-label": "Agent", onchange: onChange });
    this.tree = toggle("Show sub-agents below their parent", onTree, icon("tree"), h("span", null, "Tree"));
    this.archived = toggle("Show archived sessions", onChange, "Archived");
    const newButton = h(
      "button",
      { class: "ghost", "aria-label": "New session", title: "New session (n)", onclick: onNew },
      icon("plus"),
    );
    this.el = h(
      "div",
      null,
      h("div", { class: "search" }, icon("search"), this.search, newButton),
      h(
        "div",
        { class: "filters", role: "group", "aria-label": "Filter" },
        this.kind,
        this.agent,
        this.tree,
        this.archived,
      ),
    );
  }

  /** Called once the agents are loaded. */
  open() {
    fill(
      this.agent,
      h("option", { value: "" }, "All agents"),
      this.directory.agents.map(({ id }) => h("option", { value: id }, this.directory.agentName(id))),
    );
  }

  /** Filter parameters of `sessions.list`. */
  params() {
    const params = { archived: isPressed(this.archived) };
    if (this.kind.value) params.kinds = [this.kind.value];
    if (this.agent.value) params.agentId = this.agent.value;
    if (this.search.value.trim()) params.search = this.search.value.trim();
    return params;
  }

  get isActive() {
    return isPressed(this.archived) || Object.keys(this.params()).length > 1;
  }

  clear() {
    this.search.value = this.kind.value = this.agent.value = "";
    this.archived.setAttribute("aria-pressed", "false");
    this.onChange();
  }

  #onKeydown(event) {
    if (event.key === "Escape") {
      if (!this.search.value) this.search.blur();
      this.search.value = "";
      this.searchChanged();
      event.stopPropagation();
    }
    if (event.key === "Enter" || event.key === "ArrowDown") {
      event.preventDefault();
      this.onEnterList(event.key === "Enter");
    }
  }
}

const isPressed = (button) => button.getAttribute("aria-pressed") === "true";

function toggle(title, onChange, ...content) {
  const toggleButton = () => {
    button.setAttribute("aria-pressed", String(!isPressed(button)));
    onChange(isPressed(button));
  };
  const button = h(
    "button",
    { class: "ghost toggle", "aria-pressed": "false", title, onclick: toggleButton },
    ...content,
  );
  return button;
}
