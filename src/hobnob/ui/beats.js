// An exchange as rows between lanes: who says what to whom, where it stands in the transcripts. Pure.

import { count, money } from "./words.js";

const STATES = { done: "Done", failed: "Failed", expired: "Expired" };
const LOOP = {
  reply_skip: "one of them had nothing to add",
  max_turns: "the limit of reply-back turns was reached",
  empty: "one of them said nothing",
  failed: "a turn failed",
  policy: "the send policy forbids another turn",
};
const END = {
  delivered: "announced",
  no_route: "there was no chat to announce it to",
  announce_skip: "nothing was announced",
  reply_skip: "chose not to answer",
  empty: "said nothing",
  policy: "the send policy forbids what was next",
  failed: "a turn failed that the rest depends on",
  cancelled: "somebody stopped it",
  undelivered: "the chat did not take the announcement",
  ambiguous: "the announcement may have gone out; its receipt was lost",
  deleted: "one of the two sessions was deleted",
  expired: "nothing happened for too long",
};

/**
 * Rows `{kind, verb, from, to, text, at, used, here, there, bars}`. Without `to`, a row stays in its lane; `here`
 * and `there` are its places in the two transcripts.
 */
export function beats(exchange) {
  const { requester = null, target, steps, kind } = exchange;
  const asked = place(exchange.asked, requester);
  const spawned = kind === "spawn";
  const rows = [
    {
      kind: spawned ? "spawn" : "send",
      verb: spawned ? "spawns" : "asks",
      from: requester,
      to: target,
      text: exchange.request,
      at: exchange.createdAt,
      here: asked,
      there: place(steps[0], target),
    },
  ];
  steps.forEach((step, index) => {
    const other = step.sessionKey === target ? requester : target;
    const next = steps.slice(index + 1).find((later) => later.sessionKey === other);
    const row = {
      ...said(step, spawned),
      from: step.sessionKey,
      text: step.text,
      at: step.endedAt ?? step.startedAt ?? step.acceptedAt,
      used: used(step.usage),
    };
    row.bad = !["ok", "no_output", "queued", "running"].includes(step.status);
    row.problem = step.error;
    if (row.reaches && other) row.to = other;
    row.here = place(step, step.sessionKey);
    if (row.here && step.endedAt) row.here.answer = true;
    row.there = next
      ? place(next, other)
      : other === requester
        ? (place(exchange.report, requester) ?? asked)
        : place(steps[0], target);
    row.bars = [{ key: step.sessionKey, kind: "work", from: -1, to: 0, title: "at work" }];
    if (index === 0 && requester && waited(exchange, step))
      row.bars.push({ key: requester, kind: "wait", from: -1, to: 0, title: "waiting for the answer" });
    rows.push(row);
  });
  return rows;
}

function waited(exchange, first) {
  if (exchange.kind === "spawn") return false;
  if (exchange.waitUntil) return true;
  return Boolean(first.endedAt) && (exchange.asked?.endedAt ?? 0) >= first.endedAt;
}

function said(step, spawned) {
  if (step.status === "queued" || step.status === "running")
    return { kind: "open", verb: step.status === "queued" ? "is next" : "is at work" };
  if (step.skipped) return { kind: "silent", verb: "stays silent", instead: "(nothing to add)" };
  if (!["ok", "no_output"].includes(step.status))
    return { kind: "failed", verb: step.status.replace("_", " ") };
  if (step.step === "primary")
    return spawned ? { kind: "work", verb: "does it" } : { kind: "answer", verb: "answers", reaches: true };
  if (step.step === "reply") return { kind: "reply", verb: "replies back", reaches: true };
  return spawned
    ? { kind: "announce", verb: "reports", reaches: true }
    : { kind: "announce", verb: "announces in its chat" };
}

function place(found, key) {
  return found && key ? { key, seq: found.seq, transcript: found.sessionId } : null;
}

function used(usage) {
  if (!usage) return null;
  const spent = usage.costUsd ? `, ${money(usage.costUsd)}` : "";
  return `${count(usage.input)} in, ${count(usage.output)} out${spent}`;
}

export function cost(exchange) {
  const parts = [];
  if (exchange.tokens) parts.push(`${count(exchange.tokens)} tokens`);
  if (exchange.costUsd) parts.push(money(exchange.costUsd));
  return parts.join(" · ");
}

/** How it ended, or where it is. */
export function ending(exchange) {
  if (exchange.state === "open") return { kind: "open", text: `Under way: ${exchange.phase}.` };
  const loop = exchange.loopEnd ? `They stopped because ${LOOP[exchange.loopEnd] ?? exchange.loopEnd}. ` : "";
  const text = `${loop}${STATES[exchange.state]}: ${END[exchange.end] ?? exchange.end}.`;
  return { kind: exchange.state, text, code: exchange.end };
}
