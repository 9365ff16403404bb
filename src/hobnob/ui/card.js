// One exchange on the timeline: who says what to whom, between lanes.

import { beats, cost, ending } from "./beats.js";
import { fill, h } from "./dom.js";
import { mark } from "./message.js";
import { duration, exact, oneLine, seconds, split, tone } from "./words.js";

/** The head of a lane. */
export function lane(key, people) {
  if (!key) return h("span", { class: "lane" }, mark("●", ""), "a person");
  const { agent } = split(key);
  return h(
    "a",
    { class: "lane", href: `#/s/${encodeURIComponent(key)}`, title: key },
    mark(people.agent(agent), agent),
    h("span", null, people.session(key)),
  );
}

/** What a card is drawn from, so that it is drawn again only when that changes. */
export function cardStamp({ updatedAt, state, steps }, lanes) {
  return JSON.stringify([
    updatedAt,
    state,
    steps.map((step) => [step.status, step.text?.length]),
    [...lanes.keys()],
  ]);
}

/** Draw an exchange; `lanes` says which session has which place, `near` that the hop limit is near. */
export function fillCard(el, exchange, lanes, people, { most, near }) {
  const rows = beats(exchange);
  const end = ending(exchange);
  const { kind, hop, createdAt } = exchange;
  const title = `${named(exchange.requester, people)} → ${people.session(exchange.target)}`;
  const at = { datetime: new Date(createdAt).toISOString(), title: exact(createdAt) };
  const hops =
    near || hop > 1
      ? h("span", { class: `badge ${near ? "warn" : "system"}` }, `hop ${hop} of ${most}`)
      : null;
  el.dataset.state = exchange.state;
  fill(
    el,
    h(
      "header",
      null,
      h("span", { class: `badge kind-${kind}` }, kind),
      h("h3", null, title),
      h("time", at, seconds(createdAt)),
      hops,
      h("span", { class: "card-cost" }, cost(exchange)),
    ),
    h(
      "div",
      { class: "beats" },
      guides(exchange, lanes),
      spans(rows, lanes),
      rows.map((row, index) => beat(exchange, row, index, lanes, people)),
    ),
    h("footer", { class: `end ${end.kind}` }, end.text, " ", end.code ? h("code", null, end.code) : null),
  );
}

const named = (key, people) => (key ? people.session(key) : "a person");

function guides(exchange, lanes) {
  const own = new Set([exchange.requester ?? "", exchange.target]);
  return [...lanes].map(([key, at]) =>
    placed(h("i", { class: own.has(key) ? "guide own" : "guide" }), { "--at": at }),
  );
}

/** Who was at work, and who waited, from which row to which. */
function spans(rows, lanes) {
  const drawn = (bar, index) =>
    placed(h("i", { class: `span ${bar.kind} ${tone(split(bar.key).agent)}`, title: bar.title }), {
      "--at": lanes.get(bar.key),
      "--from": index + bar.from,
      "--to": index + bar.to,
    });
  return rows.flatMap((row, index) => (row.bars ?? []).map((bar) => drawn(bar, index)));
}

function beat(exchange, row, index, lanes, people) {
  const from = lanes.get(row.from ?? "");
  const to = row.to === undefined ? from : lanes.get(row.to ?? "");
  const way = from === to ? "self" : from < to ? "right" : "left";
  const flip = way === "self" && from >= lanes.size / 2 ? "flip" : ""; // its words would not fit at the right
  const said = row.text ? `“${oneLine(row.text, 160)}”` : "";
  const after = `+${duration(row.at - exchange.createdAt)}`;
  const meta = [after, row.verb, row.used, row.problem].filter(Boolean).join(" · ");
  const whom = way === "self" ? "" : ` to ${named(row.to, people)}`;
  const label = `${named(row.from, people)} ${row.verb}${whom}. ${said} ${meta}. Opens both transcripts.`;
  const open = () => (location.hash = `#/exchanges/${exchange.id}/${index}`);
  const classes = ["beat", row.kind, tone(split(row.from ?? "").agent), row.bad ? "bad" : "", flip].join(" ");
  const button = h(
    "button",
    { class: classes, "aria-label": label, onclick: open },
    h("span", { class: "beat-text" }, h("span", null, said || row.instead || row.verb)),
    h("span", { class: `arrow ${way} ${row.kind}` }),
    h("span", { class: "beat-meta" }, h("span", null, meta)),
  );
  return placed(button, { "--a": Math.min(from, to), "--b": Math.max(from, to) });
}

function placed(element, variables) {
  for (const [name, value] of Object.entries(variables)) element.style.setProperty(name, value);
  return element;
}
