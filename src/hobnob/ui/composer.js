// The message box of a conversation: command completion and the send policy.

import { newId } from "./connection.js";
import { h, icon, notifyScreenReader } from "./dom.js";
import { assignment } from "./problem.js";

/** `send(text, id)` sends a message; `id` is its idempotency key. */
export class Composer {
  constructor({ name, commands, send, canSend }) {
    this.commands = commands;
    this.send = send;
    this.canSend = canSend;
    this.list = h("ul", {
      class: "commands",
      role: "listbox",
      id: `commands-${newId()}`,
      "aria-label": "Commands",
      hidden: true,
    });
    this.input = h("textarea", {
      rows: "1",
      placeholder: `Write to ${name}…`,
      "aria-label": `Message to ${name}`,
      "aria-controls": this.list.id,
      autocomplete: "off",
      oninput: () => this.#onInput(),
      onkeydown: (event) => this.#onKeydown(event),
    });
    this.button = h(
      "button",
      { class: "primary round", type: "submit", "aria-label": "Send", title: "Send (Enter)" },
      icon("send"),
    );
    this.note = h("p", { class: "policy" });
    const box = h(
      "form",
      { class: "box", onsubmit: (event) => this.#submit(event) },
      this.input,
      this.button,
    );
    this.el = h("div", { class: "composer" }, this.list, box, this.note);
    this.activeIndex = -1;
    this.#updateEnabled();
  }

  focus() {
    this.input.focus();
  }

  /** Show whether the send policy allows messages into the session, and why. */
  showPolicy(verdict) {
    const reasons = verdict.rules
      .map((rule) => rule.why)
      .filter((why) => !why.startsWith("The token"))
      .join(" ");
    const fix = verdict.fix.map(assignment).join("; ");
    this.note.classList.toggle("denied", !verdict.allowed);
    const text = verdict.allowed ? reasons : [reasons, fix && ` To allow it: ${fix}.`];
    this.note.replaceChildren(...[text].flat().filter(Boolean));
    this.#updateEnabled();
  }

  #updateEnabled() {
    this.el.hidden = false;
    this.input.disabled = !this.canSend;
    this.button.disabled = !this.canSend || !this.input.value.trim();
    if (!this.canSend) this.input.placeholder = "This token is read-only.";
  }

  #onInput() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight, 220)}px`;
    this.#updateEnabled();
    const text = this.input.value;
    const isCommand = /^\/\S*$/.test(text);
    const matches = isCommand ? this.commands.filter(({ name }) => `/${name}`.startsWith(text)) : [];
    this.activeIndex = matches.length ? 0 : -1;
    this.list.hidden = !matches.length;
    this.list.replaceChildren(...matches.map((command, index) => this.#option(command, index)));
    this.#highlightOption();
  }

  #option({ name, args, description }, index) {
    const accept = (event) => {
      event.preventDefault();
      this.#acceptCommand(index);
    };
    const id = `${this.list.id}-${index}`;
    return h(
      "li",
      { role: "option", id, onmousedown: accept },
      h("code", null, `/${name} ${args}`.trim()),
      h("span", null, description),
    );
  }

  #highlightOption() {
    const options = [...this.list.children];
    options.forEach((option, index) =>
      option.setAttribute("aria-selected", String(index === this.activeIndex)),
    );
    const current = options[this.activeIndex];
    if (current) this.input.setAttribute("aria-activedescendant", current.id);
    else this.input.removeAttribute("aria-activedescendant");
  }

  #acceptCommand(index) {
    const command = this.list.children[index].firstChild.textContent;
    this.input.value = command.split(" ")[0] + (command.includes(" ") ? " " : "");
    this.list.hidden = true;
    this.input.focus();
    this.#updateEnabled();
  }

  #onKeydown(event) {
    if (!this.list.hidden && this.list.children.length) {
      const optionCount = this.list.children.length;
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        const step = event.key === "ArrowDown" ? 1 : optionCount - 1;
        this.activeIndex = (this.activeIndex + step) % optionCount;
        this.#highlightOption();
        return;
      }
      if (event.key === "Escape") {
        event.stopPropagation();
        this.list.hidden = true;
        return;
      }
      const command = this.list.children[this.activeIndex].firstChild.textContent;
      const isComplete = command.split(" ")[0] === this.input.value;
      if (event.key === "Tab" || (event.key === "Enter" && !isComplete)) {
        event.preventDefault();
        this.#acceptCommand(this.activeIndex);
        return;
      }
    }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) this.#submit(event);
    if (event.key === "Escape") this.input.blur();
  }

  #submit(event) {
    event.preventDefault();
    const text = this.input.value.trim();
    if (!text || !this.canSend) return;
    this.input.value = "";
    this.#onInput();
    notifyScreenReader("Sent.");
    this.send(text, newId());
  }
}
