// Where people write: the send policy in view, commands explained, each message sent once.

import { announce, h, icon } from "./dom.js";
import { newId } from "./wire.js";

/** `send(text, id)` sends a message; the same id is the same message. */
export class Composer {
  constructor({ name, commands, send, may }) {
    this.all = commands;
    this.send = send;
    this.may = may;
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
      oninput: () => this.#typed(),
      onkeydown: (event) => this.#key(event),
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
    this.chosen = -1;
    this.#enabled();
  }

  focus() {
    this.input.focus();
  }

  /** Show whether the session takes messages, and why. */
  policy(verdict) {
    this.allowed = verdict.allowed;
    const said = verdict.rules
      .map((rule) => rule.why)
      .filter((why) => !why.startsWith("The token"))
      .join(" ");
    const fix = verdict.fix.map((each) => `${each.path} = ${JSON.stringify(each.value)}`).join("; ");
    this.note.classList.toggle("denied", !verdict.allowed);
    const text = verdict.allowed ? said : [said, fix && ` To allow it: ${fix}.`];
    this.note.replaceChildren(...[text].flat().filter(Boolean));
    this.#enabled();
  }

  #enabled() {
    const may = this.may;
    this.el.hidden = false;
    this.input.disabled = !may;
    this.button.disabled = !may || !this.input.value.trim();
    if (!may) this.input.placeholder = "This credential may read, not write.";
  }

  #typed() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight, 220)}px`;
    this.#enabled();
    const text = this.input.value;
    const begun = /^\/\S*$/.test(text) ? this.all.filter(({ name }) => `/${name}`.startsWith(text)) : [];
    this.chosen = begun.length ? 0 : -1;
    this.list.hidden = !begun.length;
    this.list.replaceChildren(...begun.map((command, index) => this.#option(command, index)));
    this.#mark();
  }

  #option({ name, args, description }, index) {
    const take = (event) => {
      event.preventDefault();
      this.#take(index);
    };
    const id = `${this.list.id}-${index}`;
    return h(
      "li",
      { role: "option", id, onmousedown: take },
      h("code", null, `/${name} ${args}`.trim()),
      h("span", null, description),
    );
  }

  #mark() {
    const options = [...this.list.children];
    options.forEach((option, index) => option.setAttribute("aria-selected", String(index === this.chosen)));
    const current = options[this.chosen];
    if (current) this.input.setAttribute("aria-activedescendant", current.id);
    else this.input.removeAttribute("aria-activedescendant");
  }

  #take(index) {
    const command = this.list.children[index].firstChild.textContent;
    this.input.value = command.split(" ")[0] + (command.includes(" ") ? " " : "");
    this.list.hidden = true;
    this.input.focus();
    this.#enabled();
  }

  #key(event) {
    if (!this.list.hidden && this.list.children.length) {
      const most = this.list.children.length;
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        this.chosen = (this.chosen + (event.key === "ArrowDown" ? 1 : most - 1)) % most;
        this.#mark();
        return;
      }
      if (event.key === "Escape") {
        event.stopPropagation();
        this.list.hidden = true;
        return;
      }
      const whole = this.list.children[this.chosen].firstChild.textContent.split(" ")[0] === this.input.value;
      if (event.key === "Tab" || (event.key === "Enter" && !whole)) {
        event.preventDefault();
        this.#take(this.chosen);
        return;
      }
    }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) this.#submit(event);
    if (event.key === "Escape") this.input.blur();
  }

  #submit(event) {
    event.preventDefault();
    const text = this.input.value.trim();
    if (!text || !this.may) return;
    this.input.value = "";
    this.#typed();
    announce("Sent.");
    this.send(text, newId());
  }
}
