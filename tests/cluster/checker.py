"""What must hold when a load is over, whatever happened to the gateways: one list of problems.

It reads the database, the record of the clients, what arrived outside, and the processes of the machine.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster.harness import Cluster
from tests.cluster.load import Load
from tests.waiting import LIMIT_S

from hobnob.processes.records import MARK, all_pids

# What is still to be done, by a name for people.
OPEN = {
    "turn": "select turn_id || ' of ' || session_key || ' is ' || status from turns where status <> 'ended'",
    "exchange": "select exchange_id || ' in ' || phase from exchanges where state = 'open'",
    "wait": "select wait_id from waits w where state = 'open' and not (kind = 'join'"
    " and exists (select 1 from turns t where t.turn_id = w.turn_id and t.status = 'ended'))",
    "delivery": "select delivery_id || ' is ' || state from deliveries where state in ('pending', 'sending')",
    "job": "select job_id || ' is due at ' || next_run_at_ms from jobs where enabled = 1 and turn_id is null"
    " and next_run_at_ms < extract(epoch from clock_timestamp() + interval '1 minute') * 1000",
    "run of a job": "select run_id from job_runs where ended_at_ms is null",
    "reservation": "select r.turn_id || ' of ' || accounts || ', of a turn ' || coalesce(step, '')"
    " || ' that ended as ' || coalesce(outcome, merged_into, status, 'none') || coalesce(': ' || error, '')"
    " from reservations r left join turns t on t.turn_id = r.turn_id",
}
_GAPS = """
  select t.session_key, count(*), min(seq), max(seq)
  from entries e join transcripts t on t.number = e.transcript
  group by t.number, t.session_key having min(seq) <> 1 or max(seq) <> count(*)"""
_ORPHANS = """
  select turn_id || ' is claimed by ' || coalesce(claimed_by, 'nobody') from turns where status = 'running'
  and not exists (select 1 from gateways g where g.gateway_id = turns.claimed_by)"""


async def idle(cluster: Cluster, limit_s: float = LIMIT_S / 2) -> None:
    """Wait until nothing is left to do. Whoever waited in vain learns from `problems` what is left."""
    deadline = time.monotonic() + limit_s
    while any(cluster.rows(statement) for statement in OPEN.values()) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    while programs_left(cluster) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)


async def assert_sound(cluster: Cluster, load: Load) -> None:
    """Fail if anything that must hold does not."""
    await idle(cluster)
    found = [f"gateway {gateway.number} has ended" for gateway in cluster.gateways if not gateway.running]
    found += problems(cluster, load)
    logs = "".join(f"\n{g.log}: {_tail(g.log)}" for g in cluster.gateways) if found else ""
    assert not found, f"seed {load.seed}: {json.dumps(found[:40], indent=1)}{logs}"


def problems(cluster: Cluster, load: Load) -> list[str]:
    return [
        *_left_open(cluster),
        *_acknowledged(cluster, load),
        *_transcripts(cluster),
        *_order(cluster),
        *_effects(cluster),
        *_deliveries(cluster, load),
        *_chats(cluster),
        *_webhooks(cluster),
        *(f"process {pid} was left running: {name}" for pid, name in programs_left(cluster)),
    ]


def _left_open(cluster: Cluster) -> Iterator[str]:
    for name, statement in OPEN.items():
        for (row,) in cluster.rows(statement):
            yield f"{name} left open: {row}"
    if cluster.rows("select 1 where to_regclass('gateways') is not null"):
        for (row,) in cluster.rows(_ORPHANS):
            yield f"claim of a gateway that is gone: {row}"


def _acknowledged(cluster: Cluster, load: Load) -> Iterator[str]:
    """Each acknowledged turn has one outcome, the one that clients saw, and its input is there once."""
    rows = cluster.rows("select turn_id, outcome, merged_into, reply, error from turns")
    turns = {row[0]: row[1:] for row in rows}
    inputs = _inputs(cluster)
    answers = Counter(
        turn_id
        for turn_id, body in cluster.rows("select turn_id, body from entries where role = 'assistant'")
        if (answer := json.loads(body)).get("stopReason") == "stop" and "compaction" not in answer
    )
    for turn_id, sent in load.accepted.items():
        if turn_id not in turns:
            yield f"acknowledged turn {turn_id} does not exist"
            continue
        outcome, merged_into, reply, error = turns[turn_id]
        if (outcome is None) == (merged_into is None):
            yield f"turn {turn_id} has the outcome {outcome} and was merged into {merged_into}"
        if outcome not in (None, "ok") and "killed 2 times" not in (error or ""):
            yield f"turn {turn_id} ended as {outcome}: {error}"
        if (times := inputs[sent.session_key, sent.marker]) != 1:
            yield f"input of {turn_id} is {times} times in the transcript"
        if outcome == "ok" and answers[turn_id] != 1:
            yield f"turn {turn_id} has {answers[turn_id]} final answers"
        if merged_into is None and load.outcomes.get(turn_id, set()) - {(outcome, reply or "")}:
            yield f"turn {turn_id} ended with {outcome}, {reply}; clients saw {load.outcomes[turn_id]}"


def _inputs(cluster: Cluster) -> Counter[tuple[str, str]]:
    """How often the input with a marker is in a session's transcripts."""
    found: Counter[tuple[str, str]] = Counter()
    rows = cluster.rows(
        "select t.session_key, e.body from entries e join transcripts t on t.number = e.transcript"
        " where e.role = 'user'"
    )
    for session_key, body in rows:
        text = _text(json.loads(body))
        found[session_key, text.split(maxsplit=1)[0] if text else ""] += 1
    return found


def _transcripts(cluster: Cluster) -> Iterator[str]:
    for key, count, first, last in cluster.rows(_GAPS):
        yield f"transcript of {key} has {count} entries, numbered {first} to {last}"
    calls: Counter[tuple[str, str]] = Counter()
    results: Counter[tuple[str, str]] = Counter()
    for turn_id, body in cluster.rows("select turn_id, body from entries where turn_id is not null"):
        message = json.loads(body)
        if message["role"] == "toolResult":
            results[turn_id, message["toolCallId"]] += 1
        elif message["role"] == "assistant" and isinstance(message["content"], list):
            calls.update((turn_id, p["id"]) for p in message["content"] if p["type"] == "toolCall")
    failed = {row[0] for row in cluster.rows("select turn_id from turns where outcome <> 'ok'")}
    for call in calls.keys() | results.keys():
        found = calls[call], results[call]
        if found != (1, 1) and not (found == (1, 0) and call[0] in failed):
            yield f"tool call {call} is {found[0]} times in the transcript, its result {found[1]} times"


def _order(cluster: Cluster) -> Iterator[str]:
    """Turns of a session run one after the other, in the order accepted."""
    rows = cluster.rows(
        "select session_key, turn_id, started_at_ms, ended_at_ms from turns"
        " where started_at_ms is not null and merged_into is null order by session_key, position"
    )
    before: dict[str, tuple[str, int]] = {}
    for key, turn_id, started, ended in rows:
        previous, previous_end = before.get(key, ("", 0))
        if started < previous_end:
            yield f"turn {turn_id} of {key} began {previous_end - started} ms before {previous} ended"
        before[key] = (turn_id, ended or started)


def _effects(cluster: Cluster) -> Iterator[str]:
    lines = cluster.effects.read_text().splitlines() if cluster.effects.exists() else []
    for line, times in Counter(lines).items():
        if times > 1 and line.startswith("stamp "):
            yield f"an effect that must not happen twice happened {times} times: {line}"


def _deliveries(cluster: Cluster, load: Load) -> Iterator[str]:
    """What was delivered arrived once; what is ambiguous may have. Each chat got its messages in order."""
    arrived = Counter(post["key"].partition(":")[0] for post in cluster.outside.posts)
    rows = cluster.rows("select delivery_id, text, state from deliveries where channel = 'pager'")
    for delivery_id, text, state in rows:
        if (state, arrived[delivery_id]) not in (("delivered", 1), ("ambiguous", 0), ("ambiguous", 1)):
            yield f"delivery {delivery_id} ({text}) is {state} and arrived {arrived[delivery_id]} times"
    stored = {row[0] for row in rows}
    for delivery_id in load.posts.keys() - stored:
        yield f"acknowledged delivery {delivery_id} does not exist"
    for delivery_id in arrived.keys() - stored:
        yield f"delivery {delivery_id} arrived and is not stored"
    by_chat: dict[str, list[int]] = defaultdict(list)
    for post in cluster.outside.posts:
        if post["text"].startswith(f"{post['to']}-"):
            by_chat[post["to"]].append(int(post["text"].rpartition("-")[2]))
    for chat, numbers in by_chat.items():
        if numbers != sorted(numbers):
            yield f"chat {chat} got its messages in the order {numbers}"


def _chats(cluster: Cluster) -> Iterator[str]:
    """What a person wrote is stored once, and the turn that it is in was answered by one delivery."""
    rows = cluster.rows(
        "select i.event_id, (select count(*) from deliveries d"
        " where d.turn_id = coalesce(t.merged_into, t.turn_id))"
        " from inbox i left join turns t on t.turn_id = i.turn_id"
    )
    answers = {int(event_id): count for event_id, count in rows}
    for number, said in enumerate(cluster.outside.said):
        if answers.get(number) != 1:
            yield f"message {said} is answered by {answers.get(number)} deliveries"


def _webhooks(cluster: Cluster) -> Iterator[str]:
    """Each run of a job has one delivery. It may be posted again, under its key, if the store says so."""
    posted = Counter(key for key, _ in cluster.outside.webhooks)
    rows = cluster.rows("select delivery_id, state, attempts from deliveries where channel = 'webhook'")
    for delivery_id, state, attempts in rows:
        times = posted[delivery_id]
        if state != "delivered" or not 1 <= times <= attempts:
            yield f"webhook {delivery_id} is {state} after {attempts} attempts, posted {times} times"
    keys = defaultdict(set)
    for key, body in cluster.outside.webhooks:
        keys[body["runId"]].add(key)
    for run_id, used in keys.items():
        if len(used) > 1:
            yield f"run {run_id} was posted under {len(used)} keys"


def programs_left(cluster: Cluster) -> list[tuple[int, str]]:
    """Processes that agents of this test started and that still run."""
    ours = f"TMPDIR={cluster.folder / 'tmp'}".encode()
    found = []
    for pid in all_pids():
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if ours in environment and any(line.startswith(f"{MARK}=".encode()) for line in environment):
                found.append((pid, Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()))
    return found


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(p.get("text", "") for p in content)


def _tail(log: Path) -> str:
    """The last lines that are not just what happens all the time."""
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(
        [line for line in lines if line.startswith(("timestamp", " ")) and "level=info" not in line][-15:]
    )
