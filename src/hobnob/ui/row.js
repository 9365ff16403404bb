// One row of the list of sessions.

import { fill, h, icon } from "./dom.js";
import { mark } from "./message.js";
import { ago, count, exact, money, oneLine, split, standing } from "./words.js";

const NOWHERE = ["unknown", "internal"]; // channels that say nothing to people

/** What a row is drawn from, so that it is drawn again only when that changes. */
export function stampOf({ row, level, below, open }) {
  const { updatedAt, stamp, status, openTurns, label, lastMessagePreview, waitsFor, totalTokens } = row;
  return JSON.stringify([
    updatedAt,
    stamp,
    status,
    openTurns,
    label,
    lastMessagePreview,
    waitsFor,
    totalTokens,
    level,
    below,
    open,
  ]);
}

/** Draw a session into its row; `below` is how many children it has, where a tree is shown. */
export function fillRow(el, { row, level, below, open }, people) {
  const { agent } = split(row.key);
  const how = standing(row, people);
  el.style.setProperty("--level", level);
  el.dataset.state = how.kind;
  fill(
    el,
    below ? twist(row.key, open) : null,
    mark(people.agent(agent), agent),
    h(
      "div",
      { class: "row-text" },
      h(
        "div",
        { class: "row-top" },
        h("b", null, people.session(row.key, row)),
        h("span", { class: `state ${how.kind}` }, how.word),
        h("time", { "data-at": row.updatedAt, title: exact(row.updatedAt) }, ago(row.updatedAt)),
      ),
      h("p", { class: "row-last" }, oneLine(row.lastMessagePreview) || silence(row)),
      h("p", { class: "row-facts" }, facts(row, people).filter(Boolean).join(" · ")),
    ),
  );
}

const silence = (row) => (row.totalTokens || row.openTurns ? "at work with its tools" : "nothing said yet");

function facts(row, people) {
  const agent = people.agent(split(row.key).agent);
  return [
    people.session(row.key, row) === agent ? null : agent,
    row.spawnedBy ? "sub-agent" : row.kind,
    NOWHERE.includes(row.channel) ? null : row.channel,
    row.totalTokens ? `${count(row.totalTokens)} tok` : null,
    row.costUsd ? money(row.costUsd) : null,
  ];
}

function twist(key, open) {
  const props = {
    class: `twist ${open ? "open" : ""}`,
    tabindex: "-1",
    "aria-hidden": "true",
    "data-fold": key,
  };
  return h("button", props, icon("down"));
}
