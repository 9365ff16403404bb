// One row of the session list.

import { parseKey, parseRest, sessionStatus } from "./directory.js";
import { fill, h, icon } from "./dom.js";
import { formatAge, formatCount, formatDateTime, formatMoney } from "./format.js";
import { preview } from "./markdown.js";
import { avatar, SKIP_REPLIES } from "./message.js";

const HIDDEN_CHANNELS = ["unknown", "internal"];

/** Changes whenever the row has to be rendered again. */
export function rowRenderKey({ row, level, childCount, open }, directory) {
  const { updatedAt, revision, label, lastMessagePreview, lastError, totalTokens } = row;
  return JSON.stringify([
    updatedAt,
    revision,
    sessionStatus(row, directory).label,
    label,
    lastMessagePreview,
    lastError,
    totalTokens,
    level,
    childCount,
    open,
  ]);
}

/** Render a session into `el`; `childCount` and `open` are set in the tree view only. */
export function renderRow(el, { row, level, childCount, open }, directory) {
  const { agent } = parseKey(row.key);
  const status = sessionStatus(row, directory);
  el.style.setProperty("--level", level);
  el.dataset.state = status.kind;
  fill(
    el,
    childCount ? foldButton(row.key, open) : null,
    avatar(directory.agentName(agent), agent),
    h(
      "div",
      { class: "row-text" },
      h(
        "div",
        { class: "row-top" },
        h("b", null, directory.sessionName(row.key, row)),
        h("span", { class: `state ${status.kind}` }, status.label),
        h(
          "time",
          { "data-at": row.updatedAt, title: formatDateTime(row.updatedAt) },
          formatAge(row.updatedAt),
        ),
      ),
      status.kind === "failed" && row.lastError
        ? h("p", { class: "row-last bad" }, preview(row.lastError, 140))
        : h("p", { class: "row-last" }, lastMessage(row.lastMessagePreview) || emptyPreview(row)),
      h("p", { class: "row-facts" }, facts(row, directory).filter(Boolean).join(" · ")),
    ),
  );
}

const lastMessage = (text) => SKIP_REPLIES[text?.trim()] ?? preview(text, 140);

const emptyPreview = (row) => (row.totalTokens || row.openTurns ? "using tools" : "no messages yet");

function facts(row, directory) {
  const agent = directory.agentName(parseKey(row.key).agent);
  return [
    directory.sessionName(row.key, row) === agent ? null : agent,
    row.spawnedBy ? "sub-agent" : sessionKind(row),
    HIDDEN_CHANNELS.includes(row.channel) ? null : row.channel,
    row.totalTokens ? `${formatCount(row.totalTokens)} tok` : null,
    row.costUsd ? formatMoney(row.costUsd) : null,
  ];
}

/** The kind of a session; a direct chat is one, although the gateway counts it among the others. */
export function sessionKind(row) {
  return row.kind === "other" ? parseRest(parseKey(row.key).rest).shape || "other" : row.kind;
}

function foldButton(key, open) {
  const props = {
    class: `fold-button ${open ? "open" : ""}`,
    tabindex: "-1",
    "aria-hidden": "true",
    "data-fold": key,
  };
  return h("button", props, icon("down"));
}
