// What an operator can do to a session. Only what the credential allows is offered.

import { announce, fill, h, icon } from "./dom.js";

/** The menu of a conversation. */
export function actions(conversation) {
  const { wire, row } = conversation;
  const admin = wire.holds("operator.admin");
  const write = wire.holds("operator.write");
  const items = [];
  if (admin) items.push(["Settings…", () => settings(conversation)]);
  if (write && row.childSessions?.length) items.push(["Cancel sub-agents", () => cancelTree(conversation)]);
  if (write && row.spawnedBy && row.openTurns)
    items.push(["Cancel this sub-agent", () => cancelTree(conversation)]);
  if (admin && !row.archivedAt)
    items.push(["Reset…", () => reset(conversation)], ["Archive", () => archive(conversation)]);
  if (admin && row.archivedAt) items.push(["Restore", () => restore(conversation)]);
  if (admin) items.push(["Delete…", () => remove(conversation), "danger"]);
  return items.length ? menu(items) : null;
}

function menu(items) {
  const list = h("div", { class: "menu", role: "menu", hidden: true });
  const button = h(
    "button",
    {
      class: "ghost",
      "aria-haspopup": "menu",
      "aria-expanded": "false",
      "aria-label": "More actions",
      title: "More actions",
    },
    icon("more"),
  );
  const show = (on) => {
    list.hidden = !on;
    button.setAttribute("aria-expanded", String(on));
    if (on) list.firstChild.focus();
  };
  button.addEventListener("click", () => show(list.hidden));
  for (const [name, act, kind] of items) {
    const run = () => {
      show(false);
      act();
    };
    list.append(h("button", { role: "menuitem", class: kind, onclick: run }, name));
  }
  const box = h("div", { class: "menu-box" }, button, list);
  box.addEventListener("keydown", (event) => {
    const at = [...list.children].indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && at >= 0) {
      event.preventDefault();
      list.children[(at + step + list.children.length) % list.children.length].focus();
    }
    if (event.key === "Escape" && !list.hidden) {
      event.stopPropagation();
      show(false);
      button.focus();
    }
  });
  box.addEventListener("focusout", (event) => {
    if (!box.contains(event.relatedTarget)) show(false);
  });
  return box;
}

/** A dialog that closes itself. `act` may fail: then it stays and says why. */
export function dialog(title, content, { yes, danger = false, act }) {
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const confirm = h("button", { class: danger ? "primary danger" : "primary", type: "submit" }, yes);
  const cancel = h("button", { type: "button", class: "plain", onclick: () => box.close() }, "Cancel");
  const submit = async (event) => {
    event.preventDefault();
    confirm.disabled = true;
    try {
      await act();
      box.close();
    } catch (failure) {
      problem.hidden = false;
      fill(problem, failure.message, failure.fix ? ` ${failure.fix}` : "");
    }
    confirm.disabled = false;
  };
  const form = h(
    "form",
    { onsubmit: submit },
    h("h3", { id: "dialog-title" }, title),
    content,
    problem,
    h("div", { class: "buttons" }, cancel, confirm),
  );
  const box = h("dialog", { "aria-labelledby": "dialog-title", onclose: () => box.remove() }, form);
  document.body.append(box);
  box.showModal();
  return box;
}

async function settings(conversation) {
  const { wire, row, key } = conversation;
  const { models } = await wire.ask("models.list");
  const label = h("input", {
    name: "label",
    value: row.label ?? "",
    maxlength: "512",
    autocomplete: "off",
    placeholder: "none",
  });
  const model = h("input", {
    name: "model",
    list: "models",
    value: "",
    autocomplete: "off",
    placeholder: row.model ? `now ${row.model}` : "as configured",
  });
  const known = h(
    "datalist",
    { id: "models" },
    models.map((each) => h("option", { value: each.name })),
  );
  const thinking = select(
    "thinkingLevel",
    [["", "as configured"], ...conversation.people.levels.map((level) => [level, level])],
    row.thinkingLevel ?? "",
  );
  const policy = select(
    "sendPolicy",
    [
      ["", "inherit the rules"],
      ["allow", "allow"],
      ["deny", "deny"],
    ],
    row.sendPolicy ?? "",
  );
  const verbose = select(
    "verboseLevel",
    [
      ["", "as configured"],
      ["off", "off"],
      ["on", "on"],
      ["full", "full"],
    ],
    row.verboseLevel ?? "",
  );
  const act = async () => {
    const wanted = {
      label: label.value.trim(),
      thinkingLevel: thinking.value,
      sendPolicy: policy.value,
      verboseLevel: verbose.value,
    };
    const changes = {};
    for (const [name, value] of Object.entries(wanted))
      if (value !== (row[name] ?? "")) changes[name] = value || null;
    if (model.value.trim()) changes.model = model.value.trim() === "default" ? null : model.value.trim();
    if (Object.keys(changes).length) await wire.act("sessions.patch", { key, ...changes });
    announce("Saved.");
    conversation.refresh();
  };
  const fields = [
    field("Label", label, "A short name, unique among sessions."),
    field("Model", model, "provider/model, or “default” to go back to what is configured."),
    field("Thinking", thinking),
    field("Messages into this session", policy, "Deny stops everybody, also other agents."),
    field("Verbose", verbose),
  ];
  dialog(
    "Settings of this session",
    [h("p", { class: "quiet" }, h("code", { class: "key" }, key)), known, fields],
    { yes: "Save", act },
  );
}

function field(name, input, hint) {
  return h("label", { class: "field" }, h("span", null, name), input, hint ? h("small", null, hint) : null);
}

function select(name, choices, value) {
  const box = h(
    "select",
    { name },
    choices.map(([own, text]) => h("option", { value: own }, text)),
  );
  box.value = value;
  return box;
}

function reset(conversation) {
  const { wire, key } = conversation;
  const text =
    "A new, empty transcript begins. What was said so far stays readable by its id, and the agent no longer sees it.";
  dialog("Reset this session?", h("p", null, text), {
    yes: "Reset",
    act: () => wire.act("sessions.reset", { key }),
  });
}

async function archive(conversation) {
  await tried(
    conversation,
    () => conversation.wire.act("sessions.archive", { key: conversation.key }),
    "Archived.",
  );
}

async function restore(conversation) {
  await tried(
    conversation,
    () => conversation.wire.act("sessions.restore", { key: conversation.key }),
    "Restored.",
  );
}

async function cancelTree(conversation) {
  const { wire, key } = conversation;
  await tried(conversation, () => wire.act("sessions.abort", { key, descendants: true }), "Cancelled.");
}

function remove(conversation) {
  const { wire, key } = conversation;
  const text =
    "The session and everything said in it are removed. This cannot be undone. Archive it instead to keep the transcript.";
  dialog("Delete this session?", [h("p", null, text), h("p", null, h("code", { class: "key" }, key))], {
    yes: "Delete",
    danger: true,
    act: () => wire.act("sessions.delete", { key }),
  });
}

async function tried(conversation, act, done) {
  try {
    await act();
    announce(done);
    conversation.refresh();
  } catch (problem) {
    conversation.problem(problem);
  }
}
