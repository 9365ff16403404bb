// Display names of agents and sessions, the colour of an agent, the status of a session.

/** Agents and session labels by id and key, plus the chat commands and thinking levels of the gateway. */
export class Directory {
  constructor() {
    this.agents = [];
    this.commands = []; // chat commands, such as /reset
    this.thinkingLevels = [];
    this.agentNames = new Map(); // by agent id
    this.labels = new Map(); // by session key
  }

  load(agents, { commands, thinkingLevels }) {
    this.agents = agents;
    this.commands = commands;
    this.thinkingLevels = thinkingLevels;
    this.agentNames = new Map(agents.map((agent) => [agent.id, agent.name || agent.id]));
  }

  agentName(id) {
    return this.agentNames.get(id) ?? id;
  }

  /** The label; else the agent's name for a main session; else the agent's name and the rest of the key. */
  sessionName(key, row) {
    const label = row?.label ?? row?.displayName ?? this.labels.get(key);
    const { agent, rest } = parseKey(key);
    if (label) return label;
    if (!rest) return key;
    if (rest === "main") return this.agentName(agent);
    const [kind, ...more] = rest.split(":");
    if (kind === "subagent") return `${this.agentName(agent)} · sub-agent ${more.join(":").slice(0, 6)}`;
    return `${this.agentName(agent)} · ${rest.length > 40 ? `${rest.slice(0, 39)}…` : rest}`;
  }

  rememberLabel(row) {
    const label = row.label ?? row.displayName;
    if (label) this.labels.set(row.key, label);
    else this.labels.delete(row.key);
  }
}

export function parseKey(key) {
  const match = /^agent:([^:]+):(.+)$/.exec(key);
  return match ? { agent: match[1], rest: match[2] } : { agent: "", rest: "" };
}

/** One of eight colour classes, always the same for the same name. */
export function toneClass(name) {
  let hash = 7;
  for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)) >>> 0;
  return `tone-${hash % 8}`;
}

const FINAL_STATUS = { failed: "failed", timeout: "timed out", killed: "stopped" };

/** The status of a session: `label` is the text, `kind` the CSS class. */
export function sessionStatus(row, directory) {
  if (row.archivedAt) return { label: "archived", kind: "idle" };
  if (row.waitsFor?.length) {
    const names = row.waitsFor.map((key) => directory.sessionName(key)).join(", ");
    return { label: `waiting for ${names}`, kind: "waiting" };
  }
  if (row.status === "running") return { label: "running", kind: "running" };
  if (row.openTurns) return { label: "queued", kind: "running" };
  if (row.status in FINAL_STATUS)
    return { label: FINAL_STATUS[row.status], kind: row.status === "killed" ? "idle" : "failed" };
  return { label: "idle", kind: "idle" };
}
