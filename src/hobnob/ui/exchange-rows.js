// Turns an exchange into the rows of its timeline. Pure functions, no DOM.

import { formatCount, formatMoney } from "./format.js";

const STATES = { done: "Done", failed: "Failed", expired: "Expired" };
const REPLY_LOOP_END = {
  reply_skip: "no further reply",
  max_turns: "turn limit reached",
  empty: "empty reply",
  failed: "a turn failed",
  policy: "blocked by the send policy",
};
const END = {
  delivered: "announced",
  no_route: "no chat to announce to",
  collected: "result kept for its requester",
  quiet: "no report wanted",
  announce_skip: "announcement skipped",
  reply_skip: "answer skipped",
  empty: "empty answer",
  policy: "blocked by the send policy",
  failed: "a required turn failed",
  cancelled: "cancelled",
  undelivered: "announcement not delivered",
  ambiguous: "announcement may have been delivered; its receipt was lost",
  deleted: "a session was deleted",
  expired: "no activity for too long",
};

/**
 * Rows `{kind, verb, from, to, text, at, usage, positions, bars}`. A row without `to` stays in its column.
 * `positions` are the places of the row in the two transcripts, null where unknown.
 */
export function exchangeRows(exchange) {
  const { requester = null, target, steps, kind } = exchange;
  const requestPosition = transcriptPosition(exchange.asked, requester);
  const isSpawn = kind === "spawn";
  const rows = [
    {
      kind: isSpawn ? "spawn" : "send",
      verb: isSpawn ? "spawns" : exchange.waited ? "asks" : "sends, without waiting",
      from: requester,
      to: target,
      text: exchange.request,
      at: exchange.createdAt,
      positions: [requestPosition, transcriptPosition(steps[0], target)],
    },
  ];
  steps.forEach((step, index) => {
    const other = step.sessionKey === target ? requester : target;
    const next = steps.slice(index + 1).find((later) => later.sessionKey === other);
    const row = {
      ...stepKind(step, isSpawn),
      from: step.sessionKey,
      text: step.text,
      at: step.endedAt ?? step.startedAt ?? step.acceptedAt,
      usage: stepUsage(step.usage),
    };
    row.failed = !["ok", "no_output", "queued", "running"].includes(step.status);
    row.error = step.error;
    if (row.hasRecipient && other) row.to = other;
    const own = transcriptPosition(step, step.sessionKey);
    if (own && step.endedAt) own.findAnswer = true;
    const received = next
      ? transcriptPosition(next, other)
      : other === requester
        ? (transcriptPosition(exchange.report, requester) ?? requestPosition)
        : transcriptPosition(steps[0], target);
    row.positions = [own, received];
    row.bars = [{ key: step.sessionKey, kind: "work", from: -1, to: 0, title: "running" }];
    if (index === 0 && requester && exchange.waited)
      row.bars.push({ key: requester, kind: "wait", from: -1, to: 0, title: "waiting for the answer" });
    rows.push(row);
  });
  return rows;
}

function stepKind(step, isSpawn) {
  if (step.status === "queued" || step.status === "running")
    return { kind: "open", verb: step.status === "queued" ? "is queued" : "is running" };
  if (step.skipped) return { kind: "silent", verb: "sends nothing", placeholder: "(nothing to add)" };
  if (!["ok", "no_output"].includes(step.status))
    return { kind: "failed", verb: step.status.replace("_", " ") };
  if (step.step === "primary")
    return isSpawn
      ? { kind: "work", verb: "does the task" }
      : { kind: "answer", verb: "answers", hasRecipient: true };
  if (step.step === "reply") return { kind: "reply", verb: "replies back", hasRecipient: true };
  return isSpawn
    ? { kind: "announce", verb: "reports", hasRecipient: true }
    : { kind: "announce", verb: "announces in its chat" };
}

function transcriptPosition(entry, key) {
  return entry && key ? { key, seq: entry.seq, transcript: entry.sessionId } : null;
}

function stepUsage(usage) {
  if (!usage) return null;
  const cost = usage.costUsd ? `, ${formatMoney(usage.costUsd)}` : "";
  return `${formatCount(usage.input)} in, ${formatCount(usage.output)} out${cost}`;
}

export function exchangeCost(exchange) {
  const parts = [];
  if (exchange.tokens) parts.push(`${formatCount(exchange.tokens)} tokens`);
  if (exchange.costUsd) parts.push(formatMoney(exchange.costUsd));
  return parts.join(" · ");
}

/** The outcome of an exchange, or its current phase. */
export function exchangeOutcome(exchange) {
  if (exchange.state === "open") return { kind: "open", text: `In progress: ${exchange.phase}.` };
  const { state, end, loopEnd } = exchange;
  const replies = loopEnd ? `Reply turns ended: ${REPLY_LOOP_END[loopEnd] ?? loopEnd}. ` : "";
  return { kind: state, text: `${replies}${STATES[state]}: ${END[end] ?? end}.`, code: end };
}
