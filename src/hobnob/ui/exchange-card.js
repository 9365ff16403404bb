// One exchange on the timeline: a card with a column per session and an arrow per step.

import { parseKey, toneClass } from "./directory.js";
import { fill, h } from "./dom.js";
import { exchangeCost, exchangeOutcome, exchangeRows } from "./exchange-rows.js";
import { formatDateTime, formatDuration, formatTimeWithSeconds } from "./format.js";
import { preview } from "./markdown.js";
import { avatar } from "./message.js";

/** The head of a column; an empty key stands for the user. */
export function columnHead(key, directory) {
  if (!key)
    return h(
      "span",
      { class: "column-head" },
      h("span", { class: "avatar person", "aria-hidden": "true" }, "●"),
      "You",
    );
  const { agent } = parseKey(key);
  return h(
    "a",
    { class: "column-head", href: `#/s/${encodeURIComponent(key)}`, title: key },
    avatar(directory.agentName(agent), agent),
    h("span", null, directory.sessionName(key)),
  );
}

/** Changes whenever the card has to be rendered again. */
export function cardRenderKey({ updatedAt, state, steps }, columns) {
  return JSON.stringify([
    updatedAt,
    state,
    steps.map((step) => [step.status, step.text?.length]),
    [...columns.keys()],
  ]);
}

/** Render an exchange into `el`; `columns` maps session keys to column indexes. */
export function renderCard(el, exchange, columns, directory, { maxHops, nearHopLimit }) {
  const rows = exchangeRows(exchange);
  const outcome = exchangeOutcome(exchange);
  const { kind, hop, createdAt } = exchange;
  const title = `${participant(exchange.requester, directory)} → ${directory.sessionName(exchange.target)}`;
  const time = { datetime: new Date(createdAt).toISOString(), title: formatDateTime(createdAt) };
  const hops =
    nearHopLimit || hop > 1
      ? h("span", { class: `badge ${nearHopLimit ? "warn" : "system"}` }, `hop ${hop} of ${maxHops}`)
      : null;
  el.dataset.state = exchange.state;
  fill(
    el,
    h(
      "header",
      null,
      h("span", { class: `badge kind-${kind}` }, kind),
      h("h3", null, title),
      h("time", time, formatTimeWithSeconds(createdAt)),
      hops,
      h("span", { class: "card-cost" }, exchangeCost(exchange)),
    ),
    h(
      "div",
      { class: "exchange-rows" },
      guides(exchange, columns),
      activityBars(rows, columns),
      rows.map((row, index) => rowButton(exchange, row, index, columns, directory)),
    ),
    h(
      "footer",
      { class: `outcome ${outcome.kind}` },
      outcome.text,
      " ",
      outcome.code ? h("code", null, outcome.code) : null,
    ),
  );
}

const participant = (key, directory) => (key ? directory.sessionName(key) : "You");

function guides(exchange, columns) {
  const own = new Set([exchange.requester ?? "", exchange.target]);
  return [...columns].map(([key, column]) =>
    withVariables(h("i", { class: own.has(key) ? "guide own" : "guide" }), { "--column": column }),
  );
}

/** Bars for the time a session was running or waiting, from row to row. */
function activityBars(rows, columns) {
  const bar = ({ key, kind, title, from, to }, index) =>
    withVariables(h("i", { class: `activity ${kind} ${toneClass(parseKey(key).agent)}`, title }), {
      "--column": columns.get(key),
      "--from": index + from,
      "--to": index + to,
    });
  return rows.flatMap((row, index) => (row.bars ?? []).map((each) => bar(each, index)));
}

function rowButton(exchange, row, index, columns, directory) {
  const from = columns.get(row.from ?? "");
  const to = row.to === undefined ? from : columns.get(row.to ?? "");
  const direction = from === to ? "self" : from < to ? "right" : "left";
  const flip = direction === "self" && from >= columns.size / 2 ? "flip" : ""; // no room to the right
  const quote = row.text ? `“${preview(row.text, 160)}”` : "";
  const elapsed = `+${formatDuration(row.at - exchange.createdAt)}`;
  const meta = [elapsed, row.verb, row.usage, row.error].filter(Boolean).join(" · ");
  const recipient = direction === "self" ? "" : ` to ${participant(row.to, directory)}`;
  const sender = participant(row.from, directory);
  const label = `${sender} ${row.verb}${recipient}. ${quote} ${meta}. Opens both transcripts.`;
  const open = () => (location.hash = `#/exchanges/${exchange.id}/${index}`);
  const tone = toneClass(parseKey(row.from ?? "").agent);
  const classes = ["exchange-row", row.kind, tone, row.failed ? "bad" : "", flip].join(" ");
  const button = h(
    "button",
    { class: classes, "aria-label": label, onclick: open },
    h("span", { class: "exchange-row-text" }, h("span", null, quote || row.placeholder || row.verb)),
    h("span", { class: `arrow ${direction} ${row.kind}` }),
    h("span", { class: "exchange-row-meta" }, h("span", null, meta)),
  );
  return withVariables(button, { "--first": Math.min(from, to), "--last": Math.max(from, to) });
}

function withVariables(element, variables) {
  for (const [name, value] of Object.entries(variables)) element.style.setProperty(name, value);
  return element;
}
