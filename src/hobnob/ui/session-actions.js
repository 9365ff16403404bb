// The actions menu of a session and its dialogs. Lists only what the token allows.

import { parseKey } from "./directory.js";
import { dialog, field, select } from "./dialog.js";
import { h, icon, notifyScreenReader } from "./dom.js";

/** The actions the token allows. */
export function actionsMenu(conversation) {
  const { connection, row } = conversation;
  const admin = connection.hasScope("operator.admin");
  const write = connection.hasScope("operator.write");
  const items = [["Tools", () => (location.hash = toolsHash(conversation.key))]];
  if (write) items.push(["Settings…", () => settings(conversation)]);
  if (write && row.childSessions?.length) items.push(["Cancel sub-agents", () => cancelTree(conversation)]);
  if (write && row.spawnedBy && row.openTurns)
    items.push(["Cancel this sub-agent", () => cancelTree(conversation)]);
  if (admin && !row.archivedAt) items.push(["Reset…", () => reset(conversation)]);
  if (write && !row.archivedAt) items.push(["Archive", () => archive(conversation)]);
  if (write && row.archivedAt) items.push(["Restore", () => restore(conversation)]);
  if (admin && row.kind !== "main") items.push(["Delete…", () => remove(conversation), "danger"]);
  return menu(items);
}

const toolsHash = (key) => `#/agents/${[parseKey(key).agent, key].map(encodeURIComponent).join("/")}`;

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
  for (const [name, action, kind] of items) {
    const run = () => {
      show(false);
      action();
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

async function settings(conversation) {
  const { connection, row, key } = conversation;
  const { models } = await connection.query("models.list");
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
    placeholder: row.model ? `current: ${row.model}` : "default",
  });
  const known = h(
    "datalist",
    { id: "models" },
    models.map((each) => h("option", { value: each.name })),
  );
  const thinking = select(
    "thinkingLevel",
    [["", "default"], ...conversation.directory.thinkingLevels.map((level) => [level, level])],
    row.thinkingLevel ?? "",
  );
  const policy = select(
    "sendPolicy",
    [
      ["", "inherit"],
      ["allow", "allow"],
      ["deny", "deny"],
    ],
    row.sendPolicy ?? "",
  );
  const verbose = select(
    "verboseLevel",
    [
      ["", "default"],
      ["off", "off"],
      ["on", "on"],
      ["full", "full"],
    ],
    row.verboseLevel ?? "",
  );
  const action = async () => {
    const values = {
      label: label.value.trim(),
      thinkingLevel: thinking.value,
      sendPolicy: policy.value,
      verboseLevel: verbose.value,
    };
    const changes = {};
    for (const [name, value] of Object.entries(values))
      if (value !== (row[name] ?? "")) changes[name] = value || null;
    if (model.value.trim()) changes.model = model.value.trim() === "default" ? null : model.value.trim();
    if (Object.keys(changes).length) await connection.call("sessions.patch", { key, ...changes });
    notifyScreenReader("Saved.");
    conversation.refresh();
  };
  const fields = [
    field("Label", label, "A short name, unique among sessions."),
    field("Model", model, "provider/model, or “default” for the configured model."),
    field("Thinking", thinking),
    connection.hasScope("operator.admin")
      ? field("Send policy", policy, "Deny blocks all senders, including other agents.")
      : null,
    field("Verbose", verbose),
  ];
  dialog("Session settings", [h("p", { class: "muted" }, h("code", { class: "key" }, key)), known, fields], {
    confirmLabel: "Save",
    action,
  });
}

function reset(conversation) {
  const { connection, key } = conversation;
  const text =
    "A new, empty transcript starts. The old one stays readable by its id; the agent no longer sees it.";
  dialog("Reset this session?", h("p", null, text), {
    confirmLabel: "Reset",
    action: () => connection.call("sessions.reset", { key }),
  });
}

async function archive(conversation) {
  await runAction(
    conversation,
    () => conversation.connection.call("sessions.archive", { key: conversation.key }),
    "Archived.",
  );
}

async function restore(conversation) {
  await runAction(
    conversation,
    () => conversation.connection.call("sessions.restore", { key: conversation.key }),
    "Restored.",
  );
}

async function cancelTree(conversation) {
  const { connection, key } = conversation;
  const abort = () => connection.call("sessions.abort", { key, descendants: true });
  await runAction(conversation, abort, "Cancelled.");
}

function remove(conversation) {
  const { connection, key } = conversation;
  const text =
    "This deletes the session and its transcripts and cannot be undone. To keep them, archive it instead.";
  dialog("Delete this session?", [h("p", null, text), h("p", null, h("code", { class: "key" }, key))], {
    confirmLabel: "Delete",
    danger: true,
    action: () => connection.call("sessions.delete", { key }),
  });
}

async function runAction(conversation, action, done) {
  try {
    await action();
    notifyScreenReader(done);
    conversation.refresh();
  } catch (error) {
    conversation.showError(error);
  }
}
