// Who talks to whom: sessions on a ring, an arrow for each pair, as thick as the traffic.

import { h, svg } from "./dom.js";
import { many, money, split, tone } from "./words.js";

const SIZE = 320;
const RING = 108;
const MOST = 12;
const NODE = 17;

export class Graph {
  constructor({ people, onPair, onSession }) {
    Object.assign(this, { people, onPair, onSession });
    this.note = h("p", { class: "quiet" });
    this.drawing = svg("svg", {
      viewBox: `0 0 ${SIZE} ${SIZE}`,
      class: "graph",
      role: "group",
      "aria-label": "Graph of who talks to whom",
    });
    this.el = h("div", { class: "graph-box" }, this.drawing, this.note);
  }

  draw(edges, pair) {
    const weight = new Map();
    for (const edge of edges)
      for (const key of [edge.from, edge.to]) weight.set(key, (weight.get(key) ?? 0) + edge.messages);
    const busiest = [...weight].sort((one, other) => other[1] - one[1]);
    const keys = busiest
      .slice(0, MOST)
      .map(([key]) => key)
      .sort();
    const stamp = JSON.stringify([
      edges.map((edge) => [edge.from, edge.to, edge.kind, edge.messages]),
      pair,
      keys.map((key) => this.people.session(key)),
    ]);
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    this.el.hidden = !keys.length;
    if (!keys.length) return;
    this.note.textContent = busiest.length > MOST ? `The ${MOST} busiest of ${busiest.length} sessions.` : "";
    const places = new Map(keys.map((key, index) => [key, this.#place(index, keys.length)]));
    const most = Math.max(...edges.map((edge) => edge.messages), 1);
    const shown = edges.filter((edge) => places.has(edge.from) && places.has(edge.to));
    const heights = [...places.values()].map((place) => place.y);
    const top = Math.min(...heights) - (edges.some((edge) => edge.from === edge.to) ? 76 : 46);
    this.drawing.setAttribute("viewBox", `0 ${top} ${SIZE} ${Math.max(...heights) + 46 - top}`);
    this.drawing.replaceChildren(
      ...shown.map((edge) => this.#edge(edge, places, most, pair)),
      ...keys.map((key) => this.#node(key, places.get(key), pair)),
    );
  }

  #place(index, total) {
    if (total === 1) return { x: SIZE / 2, y: SIZE / 2 };
    const angle = (total === 2 ? Math.PI : -Math.PI / 2) + (index / total) * 2 * Math.PI;
    return { x: SIZE / 2 + RING * Math.cos(angle), y: SIZE / 2 + RING * Math.sin(angle) };
  }

  #edge(edge, places, most, pair) {
    const from = places.get(edge.from);
    const to = places.get(edge.to);
    const width = 1.5 + 4.5 * Math.sqrt(edge.messages / most);
    const { path, tip, label } = edge.from === edge.to ? loop(from) : curve(from, to, width);
    const chosen = pair?.[0] === edge.from && pair?.[1] === edge.to;
    const amounts = [
      many(edge.messages, "message"),
      edge.costUsd ? money(edge.costUsd) : null,
      edge.failed ? `${edge.failed} failed` : null,
    ];
    const pairNames = `${this.people.session(edge.from)} to ${this.people.session(edge.to)}`;
    const said = `${pairNames}: ${amounts.filter(Boolean).join(", ")}`;
    const choose = () => this.onPair(edge.from, edge.to);
    const standing = chosen ? "chosen" : pair ? "faint" : "";
    const classes = `edge ${edge.kind} ${tone(split(edge.from).agent)} ${standing}`;
    return svg(
      "g",
      {
        class: classes,
        tabindex: "0",
        role: "button",
        "aria-label": said,
        "aria-pressed": String(chosen),
        onclick: choose,
        onkeydown: (event) =>
          (event.key === "Enter" || event.key === " ") && (event.preventDefault(), choose()),
      },
      svg("title", null, said),
      svg("path", { d: path, class: "reach" }),
      svg("path", { d: path, class: "stroke", "stroke-width": width.toFixed(1) }),
      svg("path", { d: tip, class: "tip" }),
      svg(
        "text",
        { x: label.x.toFixed(1), y: (label.y + 4).toFixed(1), class: "edge-count" },
        edge.costUsd ? `${edge.messages} · ${money(edge.costUsd)}` : edge.messages,
      ),
    );
  }

  #node(key, { x, y }, pair) {
    const { agent } = split(key);
    const name = this.people.session(key);
    const faint = pair && !pair.includes(key);
    const open = () => this.onSession(key);
    const below = y >= SIZE / 2 - 1 ? NODE + 15 : -NODE - 7;
    return svg(
      "g",
      {
        class: `node ${tone(agent)} ${faint ? "faint" : ""}`,
        tabindex: "0",
        role: "link",
        "aria-label": `Open ${name}`,
        onclick: open,
        onkeydown: (event) => event.key === "Enter" && open(),
      },
      svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: NODE }),
      svg(
        "text",
        { x: x.toFixed(1), y: (y + 5).toFixed(1), class: "initial", "aria-hidden": "true" },
        ([...this.people.agent(agent)][0] ?? "?").toUpperCase(),
      ),
      svg(
        "text",
        { x: x.toFixed(1), y: (y + below).toFixed(1), class: "name" },
        name.length > 18 ? `${name.slice(0, 17)}…` : name,
      ),
    );
  }
}

/** A curve that leaves room for the one in the other direction. */
function curve(from, to, width) {
  const dx = to.x - from.x;
  const dy = to.y - from.y;
  const length = Math.hypot(dx, dy) || 1;
  const bend = Math.min(34, length * 0.18);
  const control = {
    x: (from.x + to.x) / 2 - (dy / length) * bend,
    y: (from.y + to.y) / 2 + (dx / length) * bend,
  };
  const start = towards(from, control, NODE + 3);
  const head = towards(to, control, NODE + 4);
  const tail = towards(to, control, NODE + 11 + width);
  const path = `M${point(start)} Q${point(control)} ${point(tail)}`;
  const label = { x: (from.x + 2 * control.x + to.x) / 4, y: (from.y + 2 * control.y + to.y) / 4 };
  return { path, tip: arrowhead(tail, head, 3.5 + width), label };
}

function loop(at) {
  const head = { x: at.x + 8, y: at.y - NODE - 3 };
  const start = { x: at.x - 8, y: at.y - NODE };
  const [left, right] = [at.x - 34, at.x + 34].map((x) => point({ x, y: at.y - 62 }));
  const path = `M${point(start)} C${left} ${right} ${point(head)}`;
  return {
    path,
    tip: arrowhead({ x: head.x + 2, y: head.y - 7 }, head, 5),
    label: { x: at.x, y: at.y - 56 },
  };
}

function towards(from, to, by) {
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  return { x: from.x + ((to.x - from.x) * by) / length, y: from.y + ((to.y - from.y) * by) / length };
}

function arrowhead(tail, head, half) {
  const length = Math.hypot(head.x - tail.x, head.y - tail.y) || 1;
  const side = { x: (-(head.y - tail.y) / length) * half, y: ((head.x - tail.x) / length) * half };
  const one = { x: tail.x + side.x, y: tail.y + side.y };
  const other = { x: tail.x - side.x, y: tail.y - side.y };
  return `M${point(head)} L${point(one)} L${point(other)} Z`;
}

const point = ({ x, y }) => `${x.toFixed(1)},${y.toFixed(1)}`;
