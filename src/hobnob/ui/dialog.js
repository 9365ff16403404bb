// Modal dialogs with a form.

import { fill, h } from "./dom.js";
import { problem } from "./problem.js";

/** Open a dialog that runs `action` on confirm: closes on success, shows the error on failure. */
export function dialog(title, content, { confirmLabel, danger = false, action }) {
  const errorEl = h("p", { class: "error", role: "alert", hidden: true });
  const confirm = h("button", { class: danger ? "primary danger" : "primary", type: "submit" }, confirmLabel);
  const cancel = h("button", { type: "button", class: "plain", onclick: () => box.close() }, "Cancel");
  const submit = async (event) => {
    event.preventDefault();
    confirm.disabled = true;
    try {
      await action();
      box.close();
    } catch (error) {
      errorEl.hidden = false;
      fill(errorEl, problem(error));
    }
    confirm.disabled = false;
  };
  const form = h(
    "form",
    { onsubmit: submit },
    h("h3", { id: "dialog-title" }, title),
    content,
    errorEl,
    h("div", { class: "buttons" }, cancel, confirm),
  );
  const box = h("dialog", { "aria-labelledby": "dialog-title", onclose: () => box.remove() }, form);
  document.body.append(box);
  box.showModal();
  return box;
}

/** A labelled field, with a hint below it. */
export function field(name, input, hint) {
  return h("label", { class: "field" }, h("span", null, name), input, hint ? h("small", null, hint) : null);
}

export function select(name, choices, value) {
  const box = h(
    "select",
    { name },
    choices.map(([own, text]) => h("option", { value: own }, text)),
  );
  box.value = value;
  return box;
}
