"""`AcpRuntime`: runs turns in external harnesses over the Agent Client Protocol (ACP).

Each turn starts its own process. A later turn of the session loads the harness's own session if the harness
supports that, else the prompt repeats the earlier messages. A prompt is sent at most once: if Hobnob stops
while the harness works, the turn ends as `lost`, because the work so far cannot be undone.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from hobnob import briefings, crashpoints, keys, statedir
from hobnob.config import Config
from hobnob.config.external import Harness
from hobnob.errors import HarnessFailed, unwrap_exception_group
from hobnob.mcp_grants import McpGrants, TurnGrant
from hobnob.runtimes import Ended, Message, TurnContext
from hobnob.runtimes.acp import permissions
from hobnob.runtimes.acp.client import PACKAGE, HarnessClient
from hobnob.runtimes.acp.options import OptionKind
from hobnob.runtimes.acp.process import INHERITED, HarnessCommand, HarnessProcess, open_harness
from hobnob.runtimes.acp.updates import UPDATES, UpdateHandler
from hobnob.store import Store, Tx, idempotency, turns
from hobnob.types import Entry, Session, Turn, text_of

LOST = (
    "Hobnob stopped while the harness worked on this. Changes made until then remain. The harness was not "
    "asked again, so that nothing is done twice: check what is there first."
)
_log = logging.getLogger(__name__)
_SCOPE = "acp"  # of the ledger entries for turns whose prompt was sent
_MIN_SECRET_CHARS = 8  # shorter values are not masked: they may occur in any word
_EARLIER_CHARS = 20_000  # of earlier messages, for a harness that cannot load its session
# Stop reasons of turns that did not finish.
_EARLY_STOPS = {
    "max_tokens": "it reached its token limit (max_tokens)",
    "max_turn_requests": "it reached its limit of model calls per turn (max_turn_requests)",
    "refusal": "it refused to continue (refusal)",
    "cancelled": "it cancelled the turn by itself (cancelled)",
}


class AcpRuntime:
    """Runs the turns of sessions `agent:<harness>:acp:<id>`.

    Harnesses inherit a few variables of `env`; `records` is the folder for process records.
    """

    def __init__(
        self, config: Config, store: Store, env: Mapping[str, str], records: Path, grants: McpGrants
    ) -> None:
        self._grants = grants
        self._config = config
        self._store = store
        self._env = env
        self._records = records
        self._running: set[HarnessProcess] = set()

    def kill_all(self) -> None:
        """Kill the harnesses that run, without the time that a cancelled one gets."""
        for process in self._running:
            process.kill()

    async def __call__(self, running: TurnContext) -> Ended:
        session, turn, acp = running.session, running.turn, self._config.settings.acp
        harness = acp.harnesses.get(session.agent_id) if acp.enabled else None
        if harness is None:
            error = f"There is no harness {session.agent_id!r} any more (acp.enabled, acp.harnesses)."
            return Ended("failed", error=error)
        if await self._store.read_small(idempotency.recall, _SCOPE, turn.turn_id) is not None:
            return Ended("lost", error=LOST)
        sdk = await _import_sdk()
        async with self._session_tools(running, harness) as grant:
            return await self._in_harness(running, harness, sdk, grant)

    async def _in_harness(
        self, running: TurnContext, harness: Harness, sdk: Any, grant: TurnGrant | None
    ) -> Ended:
        session, acp = running.session, self._config.settings.acp
        command = self._command(session, harness, grant)
        async with open_harness(command, self._records) as process:
            self._running.add(process)
            client = HarnessClient(session.agent_id, sdk, process, grant)
            handler = UpdateHandler(
                running.emit, acp.permission_mode, client.message_fields, own_tools=grant is not None
            )
            try:
                with unwrap_exception_group():
                    async with asyncio.TaskGroup() as group:
                        client.connect(handler, group)
                        handling = group.create_task(handler.run(), name=f"updates of {session.agent_id}")
                        ended = await self._run(client, handler, running, harness, str(command.cwd))
                        handling.cancel()
                        return ended
            finally:
                await process.end()  # first: closing would wait for a process that does not read
                self._running.discard(process)
                await client.close()

    async def _run(
        self, client: HarnessClient, handler: UpdateHandler, running: TurnContext, harness: Harness, cwd: str
    ) -> Ended:
        """From the handshake to the outcome."""
        session, turn = running.session, running.turn
        options = orjson.loads(turn.options)
        loaded = await client.open_session(cwd, _earlier_session(running.recent))
        model = options.get("model") or session.model_override or ""
        requested: list[tuple[OptionKind, str | None]] = [
            ("mode", harness.mode),
            ("model", model.removeprefix(f"{session.agent_id}/")),
            ("thinking level", options.get("thinking") or session.thinking_level),
        ]
        for kind, value in requested:
            if value:
                await client.choose(kind, value)
        prompt = _prompt(running, options.get("extra_system") or "", loaded=loaded)
        await self._store.write(_mark_prompt_sent, turn, client.session_id)
        crashpoints.point("before-model")
        handler.active = True
        try:
            response = await client.prompt(prompt)
        except HarnessFailed:
            await handler.finish()
            raise
        await handler.finish()
        crashpoints.point("after-model")
        return _ended(session.agent_id, response, handler)

    @asynccontextmanager
    async def _session_tools(self, running: TurnContext, harness: Harness) -> AsyncIterator[TurnGrant | None]:
        """The grant with which the harness acts as its session, if it gets the session tools."""
        if not harness.session_tools:
            yield None
            return
        if importlib.util.find_spec("mcp") is None:
            raise HarnessFailed(
                "The session tools of a harness need the package mcp, which is not installed.",
                fix="Install it: pip install 'hobnob[mcp]'.",
            )
        async with self._grants.of_turn(running.session, running.turn, running.waiting) as grant:
            if grant is None:
                _log.warning("harness %s has no session tools: no gateway listens", running.session.agent_id)
            yield grant

    def _command(self, session: Session, harness: Harness, grant: TurnGrant | None) -> HarnessCommand:
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
            secrets=[
                secret
                for secret in (*secrets.values(), *([grant.token] if grant else ()))
                if len(secret) >= _MIN_SECRET_CHARS
            ],
            adapt=_adapt,
        )

    def _workspace(self, session: Session, harness: Harness) -> Path:
        if harness.workspace:
            return Path(harness.workspace).expanduser().absolute()
        requester = keys.parse(session.spawned_by or session.key).agent
        return self._config.workspace(requester).absolute()


async def _import_sdk() -> Any:
    """Import the protocol package, on first use and in a thread: the import takes a second."""
    try:
        return await asyncio.to_thread(importlib.import_module, "acp")
    except ImportError as missing:
        raise HarnessFailed(
            f"External harnesses need the package {PACKAGE}, which is not installed.",
            fix="Install it: pip install 'hobnob[acp]'.",
        ) from missing


def _adapt(message: dict[str, Any]) -> dict[str, Any] | None:
    """None for updates that are not handled, which includes those of later protocol versions."""
    if message.get("method") == "session/update":
        params = message.get("params")
        update = params.get("update") if isinstance(params, dict) else None
        if not isinstance(update, dict) or update.get("sessionUpdate") not in UPDATES:
            return None
    return permissions.with_known_kind(message)


def _mark_prompt_sent(tx: Tx, turn: Turn, session_id: str) -> None:
    """Commit before the prompt is sent: a turn with this mark is never prompted again."""
    turns.check_claim(tx, turn)
    idempotency.remember(tx, _SCOPE, turn.turn_id, session_id)


def _earlier_session(recent: Iterable[Entry]) -> str | None:
    """The harness's session id of the previous turn."""
    ids = (entry.message.get("harnessSession") for entry in reversed(list(recent)))
    return next((str(session_id) for session_id in ids if session_id), None)


def _prompt(running: TurnContext, instructions: str, *, loaded: bool) -> str:
    """The prompt: instructions, the earlier messages unless the session is loaded, the input of this turn."""
    inputs = [e.message for e in running.recent if e.turn_id == running.turn.turn_id and e.role == "user"]
    earlier = [e.message for e in running.recent if e.turn_id != running.turn.turn_id]
    inputs = inputs or [orjson.loads(running.turn.input)]
    texts = [text_of(m if _is_task(m) else briefings.marked(m)) for m in inputs]
    return "\n\n".join(filter(None, [instructions, "" if loaded else _earlier_messages(earlier), *texts]))


def _is_task(message: Message) -> bool:
    """The task of a spawn is not marked as foreign input: the harness was started to do it."""
    return (message.get("provenance") or {}).get("sourceTool") == "sessions_spawn"


def _earlier_messages(messages: list[Message]) -> str:
    """The newest messages that fit the limit, as text."""
    lines: list[str] = []
    left = _EARLIER_CHARS
    for message in reversed(messages):
        text = text_of(message).strip() if message["role"] in ("user", "assistant") else ""
        if not text:
            continue
        line = f"{'You' if message['role'] == 'assistant' else 'Input'}: {text}"
        if len(line) > left:
            break
        left -= len(line)
        lines.append(line)
    if not lines:
        return ""
    return "\n\n".join(["Earlier messages of this session:", *reversed(lines), "The current request:"])


def _ended(harness: str, response: Any, handler: UpdateHandler) -> Ended:
    """The outcome of the turn, from the response to the prompt."""
    message, reply = handler.final_message()
    if usage := _usage(response.usage, handler):
        message["usage"] = usage
    if response.stop_reason not in _EARLY_STOPS:
        return Ended("ok" if reply else "no_output", reply=reply or None, message=message)
    reason = _EARLY_STOPS[response.stop_reason]
    if handler.denied_a_tool:  # some harnesses give up then
        reason += f", after a tool was not allowed (acp.permissionMode is {handler.mode})"
    message["stopReason"] = "length" if response.stop_reason == "max_tokens" else "error"
    error = f"The harness {harness!r} stopped before it was done: {reason}."
    return Ended("failed", reply=reply or None, error=error, message=message)


def _usage(reported: Any, handler: UpdateHandler) -> dict[str, Any]:
    """Tokens and cost, as far as the harness reports them."""
    usage: dict[str, Any] = {}
    if reported is not None:
        cache_read, cache_write = reported.cached_read_tokens or 0, reported.cached_write_tokens or 0
        usage = {
            "input": reported.input_tokens,
            "output": reported.output_tokens,
            "cacheRead": cache_read,
            "cacheWrite": cache_write,
            "totalTokens": reported.total_tokens,
        }
    if handler.usage is not None:
        usage["totalTokens"] = handler.usage.used
        cost = _dollars(handler.usage) - _dollars(handler.usage_before)
        usage |= {"cost": {"total": cost}} if cost > 0 else {}
    return usage


def _dollars(update: Any) -> float:
    """The cost of the session at this update; zero for currencies other than US dollars."""
    cost = update.cost if update is not None else None
    return float(cost.amount) if cost is not None and cost.currency.upper() == "USD" else 0.0
