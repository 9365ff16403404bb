// The traffic graph: sessions on a ring, an arrow per pair, its width by the number of messages.

import { parseKey, toneClass } from "./directory.js";
import { h, svg } from "./dom.js";
import { formatMoney, plural } from "./format.js";

const SIZE = 320;
const RING_RADIUS = 108;
const MAX_NODES = 12;
const NODE_RADIUS = 17;

export class Graph {
  constructor({ directory, onPair, onSession }) {
    Object.assign(this, { directory, onPair, onSession });
    this.note = h("p", { class: "muted" });
    this.drawing = svg("svg", {
      viewBox: `0 0 ${SIZE} ${SIZE}`,
      class: "graph",
      role: "group",
      "aria-label": "Graph of who talks to whom",
    });
    this.el = h("div", { class: "graph-box" }, this.drawing, this.note);
  }

  render(edges, pair) {
    const counts = new Map(); // messages by session key
    for (const { from, to, messages } of edges)
      for (const key of [from, to]) counts.set(key, (counts.get(key) ?? 0) + messages);
    const busiest = [...counts].sort((one, other) => other[1] - one[1]);
    const keys = busiest
      .slice(0, MAX_NODES)
      .map(([key]) => key)
      .sort();
    const renderKey = JSON.stringify([
      edges.map((edge) => [edge.from, edge.to, edge.kind, edge.messages]),
      pair,
      keys.map((key) => this.directory.sessionName(key)),
    ]);
    if (renderKey === this.renderKey) return;
    this.renderKey = renderKey;
    this.el.hidden = !keys.length;
    if (!keys.length) return;
    this.note.textContent =
      busiest.length > MAX_NODES ? `The ${MAX_NODES} busiest of ${busiest.length} sessions.` : "";
    const positions = new Map(keys.map((key, index) => [key, this.#nodePosition(index, keys.length)]));
    const maxMessages = Math.max(...edges.map((edge) => edge.messages), 1);
    const visible = edges.filter((edge) => positions.has(edge.from) && positions.has(edge.to));
    const heights = [...positions.values()].map((position) => position.y);
    const top = Math.min(...heights) - (edges.some((edge) => edge.from === edge.to) ? 76 : 46);
    this.drawing.setAttribute("viewBox", `0 ${top} ${SIZE} ${Math.max(...heights) + 46 - top}`);
    this.drawing.replaceChildren(
      ...visible.map((edge) => this.#edge(edge, positions, maxMessages, pair)),
      ...keys.map((key) => this.#node(key, positions.get(key), pair)),
    );
  }

  #nodePosition(index, total) {
    if (total === 1) return { x: SIZE / 2, y: SIZE / 2 };
    const angle = (total === 2 ? Math.PI : -Math.PI / 2) + (index / total) * 2 * Math.PI;
    return { x: SIZE / 2 + RING_RADIUS * Math.cos(angle), y: SIZE / 2 + RING_RADIUS * Math.sin(angle) };
  }

  #edge(edge, positions, maxMessages, pair) {
    const from = positions.get(edge.from);
    const to = positions.get(edge.to);
    const width = 1.5 + 4.5 * Math.sqrt(edge.messages / maxMessages);
    const { path, tip, labelAt } = edge.from === edge.to ? selfLoop(from) : curve(from, to, width);
    const selected = pair?.[0] === edge.from && pair?.[1] === edge.to;
    const amounts = [
      plural(edge.messages, "message"),
      edge.costUsd ? formatMoney(edge.costUsd) : null,
      edge.failed ? `${edge.failed} failed` : null,
    ];
    const pairNames = `${this.directory.sessionName(edge.from)} to ${this.directory.sessionName(edge.to)}`;
    const label = `${pairNames}: ${amounts.filter(Boolean).join(", ")}`;
    const choose = () => this.onPair(edge.from, edge.to);
    const emphasis = selected ? "selected" : pair ? "faint" : "";
    const classes = `edge ${edge.kind} ${toneClass(parseKey(edge.from).agent)} ${emphasis}`;
    return svg(
      "g",
      {
        class: classes,
        tabindex: "0",
        role: "button",
        "aria-label": label,
        "aria-pressed": String(selected),
        onclick: choose,
        onkeydown: (event) =>
          (event.key === "Enter" || event.key === " ") && (event.preventDefault(), choose()),
      },
      svg("title", null, label),
      svg("path", { d: path, class: "hit-area" }),
      svg("path", { d: path, class: "stroke", "stroke-width": width.toFixed(1) }),
      svg("path", { d: tip, class: "arrowhead" }),
      svg(
        "text",
        { x: labelAt.x.toFixed(1), y: (labelAt.y + 4).toFixed(1), class: "edge-count" },
        edge.costUsd ? `${edge.messages} · ${formatMoney(edge.costUsd)}` : edge.messages,
      ),
    );
  }

  #node(key, { x, y }, pair) {
    const { agent } = parseKey(key);
    const name = this.directory.sessionName(key);
    const faint = pair && !pair.includes(key);
    const open = () => this.onSession(key);
    const below = y >= SIZE / 2 - 1 ? NODE_RADIUS + 15 : -NODE_RADIUS - 7;
    return svg(
      "g",
      {
        class: `node ${toneClass(agent)} ${faint ? "faint" : ""}`,
        tabindex: "0",
        role: "link",
        "aria-label": `Open ${name}`,
        onclick: open,
        onkeydown: (event) => event.key === "Enter" && open(),
      },
      svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: NODE_RADIUS }),
      svg(
        "text",
        { x: x.toFixed(1), y: (y + 5).toFixed(1), class: "initial", "aria-hidden": "true" },
        ([...this.directory.agentName(agent)][0] ?? "?").toUpperCase(),
      ),
      svg(
        "text",
        { x: x.toFixed(1), y: (y + below).toFixed(1), class: "name" },
        name.length > 18 ? `${name.slice(0, 17)}…` : name,
      ),
    );
  }
}

/** A curve bent to one side, so that the opposite direction does not overlap. */
function curve(from, to, width) {
  const dx = to.x - from.x;
  const dy = to.y - from.y;
  const length = Math.hypot(dx, dy) || 1;
  const bend = Math.min(34, length * 0.18);
  const control = {
    x: (from.x + to.x) / 2 - (dy / length) * bend,
    y: (from.y + to.y) / 2 + (dx / length) * bend,
  };
  const start = towards(from, control, NODE_RADIUS + 3);
  const head = towards(to, control, NODE_RADIUS + 4);
  const tail = towards(to, control, NODE_RADIUS + 11 + width);
  const path = `M${point(start)} Q${point(control)} ${point(tail)}`;
  const labelAt = { x: (from.x + 2 * control.x + to.x) / 4, y: (from.y + 2 * control.y + to.y) / 4 };
  return { path, tip: arrowhead(tail, head, 3.5 + width), labelAt };
}

function selfLoop(at) {
  const head = { x: at.x + 8, y: at.y - NODE_RADIUS - 3 };
  const start = { x: at.x - 8, y: at.y - NODE_RADIUS };
  const [left, right] = [at.x - 34, at.x + 34].map((x) => point({ x, y: at.y - 62 }));
  const path = `M${point(start)} C${left} ${right} ${point(head)}`;
  return {
    path,
    tip: arrowhead({ x: head.x + 2, y: head.y - 7 }, head, 5),
    labelAt: { x: at.x, y: at.y - 56 },
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
