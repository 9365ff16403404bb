// The header of a conversation: name, status, facts, the sessions around it, and the actions.

import { parseKey, sessionStatus } from "./directory.js";
import { fill, h, icon } from "./dom.js";
import { formatCount, formatMoney } from "./format.js";
import { avatar, sessionLink } from "./message.js";
import { actionsMenu } from "./session-actions.js";
import { sessionKind } from "./session-row.js";

/** Render the header of a conversation into `el`; `row` is null until the session exists. */
export function renderHead(el, conversation, onStop) {
  const { key, row, directory, compact, onBack } = conversation;
  const { agent } = parseKey(key);
  const name = directory.sessionName(key, row);
  const status = row ? sessionStatus(row, directory) : withoutSession(conversation);
  const state = h("span", { class: `state ${status.kind}`, title: row?.lastError }, status.label);
  const back = { class: "ghost back", "aria-label": "Back to the list", onclick: onBack };
  fill(
    el,
    onBack ? h("button", back, icon("back")) : null,
    avatar(directory.agentName(agent), agent),
    h(
      "div",
      { class: "titles" },
      h("h2", null, name, state),
      h(
        "p",
        { class: "facts-line" },
        h("code", { class: "key", title: "Session key" }, key),
        row ? facts(row, name, directory.agentName(agent)).map((fact) => h("span", null, fact)) : null,
      ),
      row?.spawnedBy || row?.childSessions ? treeLinks(row, directory) : null,
    ),
    h(
      "div",
      { class: "head-actions" },
      mayStop(conversation) ? stopButton(onStop) : null,
      row && !compact ? actionsMenu(conversation) : null,
      compact ? openLink(key, name) : null,
    ),
  );
}

function withoutSession({ known, loadError }) {
  if (loadError) return { label: "not loaded", kind: "failed" };
  return { label: known ? "no messages yet" : "loading …", kind: "idle" };
}

function facts(row, name, agentName) {
  return [
    name === agentName ? null : agentName,
    sessionKind(row),
    row.channel === "unknown" ? null : row.channel,
    row.model,
    row.totalTokens ? `${formatCount(row.totalTokens)} tokens` : null,
    row.costUsd ? formatMoney(row.costUsd) : null,
    row.thinkingLevel ? `thinking ${row.thinkingLevel}` : null,
    row.sendPolicy ? `send policy ${row.sendPolicy}` : null,
    row.home ? `home ${row.home}${["gone", "drained"].includes(row.homeState) ? ` (${row.homeState})` : ""}` : null,
  ].filter(Boolean);
}

function treeLinks(row, directory) {
  const parts = [];
  if (row.spawnedBy) parts.push("spawned by ", sessionLink(directory, row.spawnedBy));
  for (const child of row.childSessions ?? [])
    parts.push(parts.length ? " · " : "", sessionLink(directory, child));
  return h("p", { class: "tree-links" }, row.spawnedBy ? null : "children: ", parts);
}

function mayStop({ row, connection, oldTranscriptId }) {
  const running = row && (row.openTurns > 0 || row.status === "running");
  return running && connection.hasScope("operator.write") && !oldTranscriptId;
}

const stopButton = (onclick) =>
  h("button", { class: "stop", onclick, title: "Stop the running turn" }, icon("stop"), "Stop");

function openLink(key, name) {
  const label = { "aria-label": `Open session ${name}`, title: "Open session" };
  return h("a", { class: "ghost", href: `#/s/${encodeURIComponent(key)}`, ...label }, icon("send"));
}
