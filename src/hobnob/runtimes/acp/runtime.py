"""A turn of an external harness, over the Agent Client Protocol.

A process lives as long as its turn. A later turn of the same session takes up the harness's own session where
the harness can do that, else it is told what was said before. A prompt is sent once: when Hobnob dies while a
harness works on it, the turn is lost, for what the harness did by then cannot be taken back.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from hobnob import briefings, crashpoints, keys, statedir
from hobnob.config import Config
from hobnob.config.acp import Harness
from hobnob.errors import HarnessFailed, unwrap_exception_group
from hobnob.runtimes import Ended, Message, TurnContext
from hobnob.runtimes.acp.client import PACKAGE, HarnessClient
from hobnob.runtimes.acp.options import What
from hobnob.runtimes.acp.process import INHERITED, HarnessCommand, open_harness
from hobnob.runtimes.acp.updates import UPDATES, UpdateHandler
from hobnob.store import Store, Tx, idempotency, turns
from hobnob.types import Entry, Session, Turn, text_of

LOST = (
    "Hobnob was stopped while the harness worked on this. What it had done by then stands. It was not asked "
    "again, so that nothing is done twice: look what is there first."
)
_SCOPE = "acp"  # of what is remembered: the turns whose prompt was sent
_SECRET_CHARS = 8  # what is shorter is no secret, and may be part of any word
_BEFORE_CHARS = 20_000  # of what was said before, for a harness that does not remember it
# Why a harness stopped, when that is not the end of its work.
_CUT_SHORT = {
    "max_tokens": "it ran out of tokens (max_tokens)",
    "max_turn_requests": "it made as many model calls as it may in one turn (max_turn_requests)",
    "refusal": "it refused to go on (refusal)",
    "cancelled": "it gave up by itself (cancelled)",
}


class AcpRuntime:
    """Runs the turns of sessions `agent:<harness>:acp:<id>`.

    `env` is what harnesses get a little of, `records` the folder that says which are at work.
    """

    def __init__(self, config: Config, store: Store, env: Mapping[str, str], records: Path) -> None:
        self._config = config
        self._store = store
        self._env = env
        self._records = records

    async def __call__(self, running: TurnContext) -> Ended:
        session, turn, acp = running.session, running.turn, self._config.settings.acp
        harness = acp.harnesses.get(session.agent_id) if acp.enabled else None
        if harness is None:
            why = f"There is no harness {session.agent_id!r} any more (acp.enabled, acp.harnesses)."
            return Ended("failed", error=why)
        if await self._store.read_small(idempotency.recall, _SCOPE, turn.turn_id) is not None:
            return Ended("lost", error=LOST)
        sdk = await _sdk()
        launch = self._launch(session, harness)
        async with open_harness(launch, self._records) as process:
            talk = HarnessClient(session.agent_id, sdk, process)
            listener = UpdateHandler(running.emit, acp.permission_mode, talk.stamp)
            try:
                with unwrap_exception_group():
                    async with asyncio.TaskGroup() as group:
                        talk.connect(listener, group)
                        hearing = group.create_task(listener.run(), name=f"hearing {session.agent_id}")
                        ended = await self._run(talk, listener, running, harness, str(launch.cwd))
                        hearing.cancel()
                        return ended
            finally:
                await process.end()  # first, so that nothing waits for a process that does not listen
                await talk.close()

    async def _run(
        self, talk: HarnessClient, listener: UpdateHandler, running: TurnContext, harness: Harness, cwd: str
    ) -> Ended:
        """From the first words to the outcome."""
        session, turn = running.session, running.turn
        options = orjson.loads(turn.options)
        loaded = await talk.open_session(cwd, _earlier_session(running.recent))
        model = options.get("model") or session.model_override or ""
        wanted: list[tuple[What, str | None]] = [
            ("mode", harness.mode),
            ("model", model.removeprefix(f"{session.agent_id}/")),
            ("thinking level", options.get("thinking") or session.thinking_level),
        ]
        for what, asked in wanted:
            if asked:
                await talk.choose(what, asked)
        prompt = _prompt(running, options.get("extra_system") or "", loaded=loaded)
        await self._store.write(_begin, turn, talk.session_id)
        crashpoints.point("before-model")
        listener.listening = True
        try:
            answer = await talk.prompt(prompt)
        except HarnessFailed:
            await listener.done()
            raise
        await listener.done()
        crashpoints.point("after-model")
        message, reply = listener.last()
        if usage := _usage(answer.usage, listener):
            message["usage"] = usage
        if answer.stop_reason not in _CUT_SHORT:
            return Ended("ok" if reply else "no_output", reply=reply or None, message=message)
        why = _CUT_SHORT[answer.stop_reason]
        if listener.was_refused:  # some harnesses give up then
            why += f", after a tool was not allowed (acp.permissionMode is {listener.mode})"
        message["stopReason"] = "length" if answer.stop_reason == "max_tokens" else "error"
        error = f"The harness {session.agent_id!r} stopped before it was done: {why}."
        return Ended("failed", reply=reply or None, error=error, message=message)

    def _launch(self, session: Session, harness: Harness) -> HarnessCommand:
        env = {name: self._env[name] for name in INHERITED if name in self._env}
        if harness.home:
            env["HOME"] = str(Path(harness.home).expanduser().absolute())
            statedir.private_dir(Path(env["HOME"]))
        secrets = {name: secret.get_secret_value() for name, secret in harness.env.items()}
        return HarnessCommand(
            name=session.agent_id,
            command=harness.command,
            env=env | secrets,
            cwd=statedir.private_dir(self._workspace(session, harness)),
            secrets=[secret for secret in secrets.values() if len(secret) >= _SECRET_CHARS],
            accepts=_is_known,
        )

    def _workspace(self, session: Session, harness: Harness) -> Path:
        if harness.workspace:
            return Path(harness.workspace).expanduser().absolute()
        requester = keys.parse(session.spawned_by or session.key).agent
        return self._config.workspace(requester).absolute()


async def _sdk() -> Any:
    """The protocol's package. Importing it takes a second: that is done at first use, beside the loop."""
    try:
        return await asyncio.to_thread(importlib.import_module, "acp")
    except ImportError as missing:
        raise HarnessFailed(
            f"External harnesses need the package {PACKAGE}, which is not installed.",
            fix="Install it: pip install 'hobnob[acp]'.",
        ) from missing


def _is_known(message: dict[str, Any]) -> bool:
    """Whether a message is of use to us: of the updates there are, and there will be more, only some are."""
    if message.get("method") != "session/update":
        return True
    params = message.get("params")
    update = params.get("update") if isinstance(params, dict) else None
    return isinstance(update, dict) and update.get("sessionUpdate") in UPDATES


def _begin(tx: Tx, turn: Turn, session_id: str) -> None:
    """Note that the prompt of a turn is about to be sent."""
    turns.check_claim(tx, turn)
    idempotency.remember(tx, _SCOPE, turn.turn_id, session_id)


def _earlier_session(recent: Iterable[Entry]) -> str | None:
    """The harness's own session that the turn before this one used."""
    found = (entry.message.get("harnessSession") for entry in reversed(list(recent)))
    return next((str(session_id) for session_id in found if session_id), None)


def _prompt(running: TurnContext, told: str, *, loaded: bool) -> str:
    """What the harness is asked: what it should know, what was said before, and the input of this turn."""
    inputs = [e.message for e in running.recent if e.turn_id == running.turn.turn_id and e.role == "user"]
    before = [e.message for e in running.recent if e.turn_id != running.turn.turn_id]
    inputs = inputs or [orjson.loads(running.turn.input)]
    texts = [text_of(m if _is_task(m) else briefings.marked(m)) for m in inputs]
    return "\n\n".join(filter(None, [told, "" if loaded else _said_before(before), *texts]))


def _is_task(message: Message) -> bool:
    """A spawn's task is an order: running it is what the harness was started for."""
    return (message.get("provenance") or {}).get("sourceTool") == "sessions_spawn"


def _said_before(messages: list[Message]) -> str:
    kept: list[str] = []
    left = _BEFORE_CHARS
    for message in reversed(messages):
        text = text_of(message).strip() if message["role"] in ("user", "assistant") else ""
        if not text:
            continue
        line = f"{'You' if message['role'] == 'assistant' else 'Input'}: {text}"
        if len(line) > left:
            break
        left -= len(line)
        kept.append(line)
    if not kept:
        return ""
    return "\n\n".join(["What was said in this session before:", *reversed(kept), "What is asked now:"])


def _usage(counted: Any, listener: UpdateHandler) -> dict[str, Any]:
    """Tokens and cost, as far as the harness tells them."""
    usage: dict[str, Any] = {}
    if counted is not None:
        cache_read, cache_write = counted.cached_read_tokens or 0, counted.cached_write_tokens or 0
        usage = {
            "input": counted.input_tokens,
            "output": counted.output_tokens,
            "cacheRead": cache_read,
            "cacheWrite": cache_write,
            "totalTokens": counted.total_tokens,
        }
    if listener.usage is not None:
        usage["totalTokens"] = listener.usage.used
        cost = _dollars(listener.usage) - _dollars(listener.usage_before)
        usage |= {"cost": {"total": cost}} if cost > 0 else {}
    return usage


def _dollars(update: Any) -> float:
    """What a session cost by then. Other currencies are not counted: nobody tells us their rate."""
    cost = update.cost if update is not None else None
    return float(cost.amount) if cost is not None and cost.currency.upper() == "USD" else 0.0
