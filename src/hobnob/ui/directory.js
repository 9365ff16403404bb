// Display names of agents and sessions, the colour of an agent, the status of a session.

/** Agents and session labels by id and key, plus the chat commands and thinking levels of the gateway. */
export class Directory {
  constructor() {
    this.agents = [];
    this.defaultAgent = "";
    this.commands = []; // chat commands, such as /reset
    this.thinkingLevels = [];
    this.agentNames = new Map(); // by agent id
    this.labels = new Map(); // by session key
    this.approvals = null; // the commands that wait for approval
  }

  load({ agents, defaultId }, { commands, thinkingLevels }) {
    this.agents = agents;
    this.defaultAgent = defaultId;
    this.commands = commands;
    this.thinkingLevels = thinkingLevels;
    this.agentNames = new Map(agents.map((agent) => [agent.id, agent.name || agent.id]));
  }

  agentName(id) {
    return this.agentNames.get(id) ?? id;
  }

  /** The label; else the agent's name for a main session; else the hook, peer, job or group of the key. */
  sessionName(key, row) {
    const label = row?.label ?? row?.displayName ?? this.labels.get(key);
    const { agent, rest } = parseKey(key);
    if (label) return label;
    if (!rest) return key;
    if (rest === "main") return this.agentName(agent);
    const { shape, name, thread } = parseRest(rest);
    if (shape === "subagent") return `${this.agentName(agent)} · sub-agent ${name.slice(0, 6)}`;
    const shown = shape && UUID.test(name) ? `${shape} ${name.slice(0, 6)}` : cut(name);
    return thread ? `${shown} · ${cut(thread)}` : shown;
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

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const CHATS = ["direct", "dm", "group", "channel"];
const cut = (text) => (text.length > 40 ? `${text.slice(0, 39)}…` : text);

/**
 * The parts of a key after its agent: `shape` is `direct`, `group`, `hook`, `cron`, … or "" for a custom key,
 * `name` what it is about (the peer, the hook, the job), `thread` the last thread in it.
 */
export function parseRest(rest) {
  const [base, ...threads] = rest.split(/:(?:thread|topic):/);
  const thread = threads.at(-1) ?? "";
  const words = base.split(":");
  const chat = words.findIndex((word, index) => index < 3 && CHATS.includes(word));
  if (chat >= 0 && words.length > chat + 1) {
    const shape = words[chat] === "dm" ? "direct" : words[chat];
    return { shape, name: words.slice(chat + 1).join(":"), thread };
  }
  if (base.startsWith("node-")) return { shape: "node", name: base.slice("node-".length), thread };
  const [shape, ...more] = words;
  if (!["hook", "cron", "subagent", "acp", "dashboard"].includes(shape) || !more.length)
    return { shape: "", name: base, thread };
  return { shape, name: more.join(":").replace(/:run:.*$/, ""), thread };
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
  if (directory.approvals?.of(row.key).length) return { label: "needs approval", kind: "waiting" };
  if (row.waitsFor?.length) {
    const names = row.waitsFor.map((key) => directory.sessionName(key)).join(", ");
    return { label: `waiting for ${names}`, kind: "waiting" };
  }
  if (row.openTurns && ["gone", "drained"].includes(row.homeState))
    return { label: `waiting for gateway ${row.home}`, kind: "waiting" };
  if (row.status === "running") return { label: "running", kind: "running" };
  if (row.openTurns) return { label: "queued", kind: "running" };
  if (row.status in FINAL_STATUS)
    return { label: FINAL_STATUS[row.status], kind: row.status === "killed" ? "idle" : "failed" };
  return { label: "idle", kind: "idle" };
}
