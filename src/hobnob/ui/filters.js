// What narrows the list of sessions, and where a new conversation begins.

import { fill, h, icon, throttled } from "./dom.js";
import { mark } from "./message.js";

const KINDS = ["main", "group", "cron", "hook", "node", "other"];
const PAUSE_MS = 180; // of typing, before the gateway is asked

/**
 * `onChange()` is called when other sessions are wanted, `onTree(on)` for the tree, `onBegin(key)` to write to
 * an agent, `onDown(open)` when the keys lead from the search into the list.
 */
export class Filters {
  constructor({ people, onChange, onTree, onBegin, onDown }) {
    Object.assign(this, { people, onChange, onTree, onBegin, onDown });
    this.typed = throttled(onChange, PAUSE_MS);
    this.search = h("input", {
      type: "search",
      placeholder: "Find a session",
      "aria-label": "Find a session by key, label or name",
      "aria-keyshortcuts": "/",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.typed(),
      onkeydown: (event) => this.#key(event),
    });
    this.kind = h(
      "select",
      { "aria-label": "Kind", onchange: onChange },
      ["", ...KINDS].map((kind) => h("option", { value: kind }, kind || "All kinds")),
    );
    this.agent = h("select", { "aria-label": "Agent", onchange: onChange });
    this.tree = toggle("Children below their parents", onTree, icon("tree"), h("span", null, "Tree"));
    this.archived = toggle("Those that were put away", onChange, "Archived");
    this.#buildMenu();
    this.el = h(
      "div",
      null,
      h("div", { class: "search" }, icon("search"), this.search, this.begin, this.menu),
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

  #buildMenu() {
    const name = "Write to an agent";
    this.begin = h(
      "button",
      {
        class: "ghost",
        "aria-label": name,
        title: name,
        "aria-haspopup": "menu",
        onclick: () => this.#choose(),
      },
      icon("plus"),
    );
    this.menu = h("div", { class: "menu begin", role: "menu", hidden: true });
    this.menu.addEventListener("focusout", (event) => {
      if (!this.menu.contains(event.relatedTarget) && event.relatedTarget !== this.begin) this.#shut();
    });
    this.menu.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.#shut();
      this.begin.focus();
    });
  }

  /** Once the agents are known. */
  open() {
    fill(
      this.agent,
      h("option", { value: "" }, "All agents"),
      this.people.agents.map((agent) => h("option", { value: agent.id }, this.people.agent(agent.id))),
    );
  }

  /** What the gateway is asked for. */
  params() {
    const params = { archived: pressed(this.archived) };
    if (this.kind.value) params.kinds = [this.kind.value];
    if (this.agent.value) params.agentId = this.agent.value;
    if (this.search.value.trim()) params.search = this.search.value.trim();
    return params;
  }

  get narrowed() {
    return pressed(this.archived) || Object.keys(this.params()).length > 1;
  }

  clear() {
    this.search.value = this.kind.value = this.agent.value = "";
    this.archived.setAttribute("aria-pressed", "false");
    this.onChange();
  }

  #key(event) {
    if (event.key === "Escape") {
      if (!this.search.value) this.search.blur();
      this.search.value = "";
      this.typed();
      event.stopPropagation();
    }
    if (event.key === "Enter" || event.key === "ArrowDown") {
      event.preventDefault();
      this.onDown(event.key === "Enter");
    }
  }

  #choose() {
    fill(
      this.menu,
      this.people.agents.map(({ id }) =>
        h(
          "button",
          { role: "menuitem", onclick: () => this.#chosen(id) },
          mark(this.people.agent(id), id),
          this.people.agent(id),
        ),
      ),
    );
    this.menu.hidden = !this.menu.hidden;
    if (!this.menu.hidden) this.menu.firstChild?.focus();
  }

  #chosen(id) {
    this.#shut();
    this.onBegin(`agent:${id}:main`);
  }

  #shut() {
    this.menu.hidden = true;
  }
}

const pressed = (button) => button.getAttribute("aria-pressed") === "true";

function toggle(title, onChange, ...content) {
  const press = () => {
    button.setAttribute("aria-pressed", String(!pressed(button)));
    onChange(pressed(button));
  };
  const button = h(
    "button",
    { class: "ghost toggle", "aria-pressed": "false", title, onclick: press },
    ...content,
  );
  return button;
}
