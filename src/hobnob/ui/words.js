// Numbers, times and names, as people read them.

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

const clockFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const exactFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const secondsFormat = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});
const dayFormat = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short" });
const dateFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
const numberFormat = new Intl.NumberFormat();

export const clock = (ms) => clockFormat.format(ms);
export const seconds = (ms) => secondsFormat.format(ms);
export const exact = (ms) => exactFormat.format(ms);
export const number = (value) => numberFormat.format(value);

/** `1 message`, `2 messages`. */
export const many = (value, one) => `${number(value)} ${one}${value === 1 ? "" : "s"}`;

/** 1,234 as 1.2k. */
export function count(value) {
  if (value < 1000) return String(value);
  if (value < 1e6) return `${trimmed(value / 1e3)}k`;
  return `${trimmed(value / 1e6)}M`;
}

const trimmed = (value) => (value < 100 ? value.toFixed(1).replace(/\.0$/, "") : Math.round(value));

/** Money with as many digits as say something. */
export function money(usd) {
  if (!usd) return "$0";
  if (usd < 0.0001) return "<$0.0001";
  return `$${usd < 0.01 ? usd.toFixed(4) : usd < 100 ? usd.toFixed(2) : Math.round(usd)}`;
}

export function duration(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < MINUTE) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  if (ms < HOUR) return `${Math.floor(ms / MINUTE)} min ${Math.round((ms % MINUTE) / 1000)} s`;
  return `${Math.floor(ms / HOUR)} h ${Math.round((ms % HOUR) / MINUTE)} min`;
}

export function bytes(value) {
  if (value < 1024) return `${value} B`;
  if (value < 1024 * 1024) return `${trimmed(value / 1024)} KB`;
  return `${trimmed(value / 1024 / 1024)} MB`;
}

/** How long ago, in a word; a date when that says more. */
export function ago(ms, now = Date.now()) {
  const past = now - ms;
  if (past < 10_000) return "now";
  if (past < MINUTE) return `${Math.floor(past / 1000)} s`;
  if (past < HOUR) return `${Math.floor(past / MINUTE)} min`;
  if (past < DAY) return `${Math.floor(past / HOUR)} h`;
  if (past < 7 * DAY) return `${Math.floor(past / DAY)} d`;
  return dateFormat.format(ms);
}

/** The day of a message, for the line above the first of it. */
export function day(ms, now = Date.now()) {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  if (ms >= midnight) return "Today";
  if (ms >= midnight - DAY) return "Yesterday";
  return now - ms < 300 * DAY ? dayFormat.format(ms) : dateFormat.format(ms);
}

export function oneLine(text, most = 140) {
  const flat = String(text ?? "")
    .replace(/\s+/g, " ")
    .trim();
  return flat.length > most ? `${flat.slice(0, most - 1)}…` : flat;
}

/** The agents by name. Sessions are called after them. */
export class People {
  constructor() {
    this.names = new Map();
    this.labels = new Map(); // of sessions, by key
    this.agents = [];
    this.commands = []; // what can be said instead of a message
    this.levels = []; // of thinking
  }

  learn(agents, { commands, thinkingLevels }) {
    this.agents = agents;
    this.commands = commands;
    this.levels = thinkingLevels;
    this.names = new Map(agents.map((agent) => [agent.id, agent.name || agent.id]));
  }

  agent(id) {
    return this.names.get(id) ?? id;
  }

  /** What to call a session: its label, its agent for a main session, else what sets it apart. */
  session(key, row) {
    const label = row?.label ?? row?.displayName ?? this.labels.get(key);
    const { agent, rest } = split(key);
    if (label) return label;
    if (!rest) return key;
    if (rest === "main") return this.agent(agent);
    const [kind, ...more] = rest.split(":");
    if (kind === "subagent") return `${this.agent(agent)} · sub-agent ${more.join(":").slice(0, 6)}`;
    return `${this.agent(agent)} · ${rest.length > 40 ? `${rest.slice(0, 39)}…` : rest}`;
  }

  remember(row) {
    const label = row.label ?? row.displayName;
    if (label) this.labels.set(row.key, label);
    else this.labels.delete(row.key);
  }
}

export function split(key) {
  const found = /^agent:([^:]+):(.+)$/.exec(key);
  return found ? { agent: found[1], rest: found[2] } : { agent: "", rest: "" };
}

/** One of eight colours, the same for the same name. */
export function tone(name) {
  let sum = 7;
  for (const letter of name) sum = (sum * 31 + letter.codePointAt(0)) >>> 0;
  return `tone-${sum % 8}`;
}

const DONE = { failed: "failed", timeout: "timed out", killed: "stopped" };

/** How a session is doing, as a word and a class. */
export function standing(row, people) {
  if (row.archivedAt) return { word: "archived", kind: "idle" };
  if (row.waitsFor?.length) {
    const names = row.waitsFor.map((key) => people.session(key)).join(", ");
    return { word: `waiting for ${names}`, kind: "waiting" };
  }
  if (row.status === "running") return { word: "running", kind: "running" };
  if (row.openTurns) return { word: "queued", kind: "running" };
  if (row.status in DONE)
    return { word: DONE[row.status], kind: row.status === "killed" ? "idle" : "failed" };
  return { word: "idle", kind: "idle" };
}
