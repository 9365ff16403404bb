"""A turn of an external harness, over the Agent Client Protocol.

A process lives as long as its turn. A later turn of the same session takes up the harness's own session where
the harness can do that, else it is told what was said before. A prompt is sent once: when Hobnob dies while a
harness works on it, the turn is lost, for what the harness did by then cannot be taken back.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from hobnob import briefings, crash, keys, statedir
from hobnob.config import Config
from hobnob.config.acp import Harness
from hobnob.errors import HarnessFailed, unwrapped
from hobnob.runtimes import Ended, Message, RunningTurn, acp_choices
from hobnob.runtimes.acp_choices import What
from hobnob.runtimes.acp_listening import Listener
from hobnob.runtimes.harness import INHERITED, Launch, Process, started
from hobnob.store import Store, Tx, ledger, turns
from hobnob.types import Entry, Outcome, Session, Turn, text_of

RECORDS = "harnesses"  # the folder in the state directory that says what is at work
PACKAGE = "agent-client-protocol"
LOST = (
    "Hobnob was stopped while the harness worked on this. What it had done by then stands. It was not asked "
    "again, so that nothing is done twice: look what is there first."
)
_SCOPE = "acp"  # of what is remembered: the turns whose prompt was sent
_ANSWER_S = 90.0  # for anything but the prompt
_LAST_WORDS_S = 0.5  # of a process that is gone
_CALL_OFF_S = 2.0
_BEFORE_CHARS = 20_000  # of what was said before, for a harness that does not remember it
# Why a harness stopped, when that is not the end of its work.
_CUT_SHORT: dict[str, tuple[Outcome, str]] = {
    "max_tokens": ("failed", "it ran out of tokens (max_tokens)"),
    "max_turn_requests": ("failed", "it made as many model calls as it may in one turn (max_turn_requests)"),
    "refusal": ("failed", "it refused to go on (refusal)"),
    "cancelled": ("cancelled", "it was cancelled from within (cancelled)"),
}


class AcpRuntime:
    """Runs the turns of sessions `agent:<harness>:acp:<id>`. `env` is what harnesses get a little of."""

    def __init__(self, config: Config, store: Store, env: Mapping[str, str]) -> None:
        self._config = config
        self._store = store
        self._env = env

    async def __call__(self, running: RunningTurn) -> Ended:
        session, turn, acp = running.session, running.turn, self._config.settings.acp
        harness = acp.harnesses.get(session.agent_id) if acp.enabled else None
        if harness is None:
            why = f"There is no harness {session.agent_id!r} any more (acp.enabled, acp.harnesses)."
            return Ended("failed", error=why)
        if await self._store.read(ledger.recall, _SCOPE, turn.turn_id) is not None:
            return Ended("lost", error=LOST)
        sdk = await _sdk()
        launch = self._launch(session, harness)
        async with started(launch, self._config.home / RECORDS) as process:
            talk = _Talk(session.agent_id, sdk, process)
            listener = Listener(running.emit, acp.permission_mode, talk.stamp)
            try:
                with unwrapped():
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
        self, talk: _Talk, listener: Listener, running: RunningTurn, harness: Harness, cwd: str
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
        crash.point("before-model")
        listener.listening = True
        try:
            answer = await talk.prompt(prompt)
        except HarnessFailed:
            await listener.done()
            raise
        await listener.done()
        crash.point("after-model")
        message, reply = listener.last()
        if usage := _usage(answer.usage, listener):
            message["usage"] = usage
        if answer.stop_reason not in _CUT_SHORT:
            return Ended("ok" if reply else "no_output", reply=reply or None, message=message)
        outcome, why = _CUT_SHORT[answer.stop_reason]
        message["stopReason"] = "length" if answer.stop_reason == "max_tokens" else "error"
        error = f"The harness {session.agent_id!r} stopped before it was done: {why}."
        return Ended(outcome, reply=reply or None, error=error, message=message)

    def _launch(self, session: Session, harness: Harness) -> Launch:
        env = {name: self._env[name] for name in INHERITED if name in self._env}
        if harness.home:
            env["HOME"] = str(Path(harness.home).expanduser())
            statedir.private_dir(Path(env["HOME"]))
        secrets = {name: secret.get_secret_value() for name, secret in harness.env.items()}
        return Launch(
            name=session.agent_id,
            command=harness.command,
            env=env | secrets,
            cwd=statedir.private_dir(self._workspace(session, harness)),
            secrets=[secret for secret in secrets.values() if len(secret) >= 8],
        )

    def _workspace(self, session: Session, harness: Harness) -> Path:
        if harness.workspace:
            return Path(harness.workspace).expanduser().absolute()
        requester = keys.parse(session.spawned_by or session.key).agent
        return self._config.workspace(requester).absolute()


@dataclass(slots=True)
class _Talk:
    """The conversation with one process."""

    harness: str
    sdk: Any
    process: Process
    session_id: str = ""
    _session: Any = None
    _connection: Any = None
    _group: asyncio.TaskGroup | None = None

    def connect(self, listener: Listener, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._connection = self.sdk.connect_to_agent(listener, self.process.writer, self.process.reader)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    def stamp(self) -> dict[str, Any]:
        """What messages are marked with: who speaks, and which session that is for the harness."""
        model = acp_choices.model_of(self._session.config_options) if self._session else None
        return {
            "api": "acp",
            "provider": self.harness,
            "model": model or "default",
            "harnessSession": self.session_id,
        }

    async def open_session(self, cwd: str, earlier: str | None) -> bool:
        """Take up the harness's earlier session, or begin one. Returns whether it was taken up."""
        hello = await self._ask(
            "was greeted",
            self._connection.initialize(
                protocol_version=self.sdk.PROTOCOL_VERSION,
                client_capabilities=self.sdk.schema.ClientCapabilities(),
                client_info=self.sdk.schema.Implementation(name="hobnob", version=_version()),
            ),
        )
        if hello.protocol_version != self.sdk.PROTOCOL_VERSION:
            raise HarnessFailed(
                f"The harness {self.harness!r} speaks version {hello.protocol_version} of the protocol, "
                f"not {self.sdk.PROTOCOL_VERSION}.",
                fix=f"Install another version of it, or of {PACKAGE}.",
            )
        if earlier and hello.agent_capabilities and hello.agent_capabilities.load_session:
            with suppress(HarnessFailed):  # that it could is no promise: it begins anew, and is told
                loading = self._connection.load_session(cwd=cwd, session_id=earlier, mcp_servers=[])
                self._session = await self._ask("was given its session", loading)
                self.session_id = earlier
                return True
        opening = self._connection.new_session(cwd=cwd, mcp_servers=[])
        self._session = await self._ask("was asked for a session", opening)
        self.session_id = self._session.session_id
        return False

    async def choose(self, what: What, asked: str) -> None:
        choice = acp_choices.choose(self.harness, self._session, what, asked)
        if choice is None:
            return
        if choice.option_id is None:
            setting = self._connection.set_session_mode(session_id=self.session_id, mode_id=choice.value)
            await self._ask(f"was given the {what} {asked!r}", setting)
            return
        setting = self._connection.set_config_option(
            config_id=choice.option_id, session_id=self.session_id, value=choice.value
        )
        answer = await self._ask(f"was given the {what} {asked!r}", setting)
        self._session.config_options = answer.config_options

    async def prompt(self, text: str) -> Any:
        """Send the prompt and wait for the end of the work. Whoever stops waiting calls it off."""
        asked = self._connection.prompt(session_id=self.session_id, prompt=[self.sdk.text_block(text)])
        return await self._ask("worked", asked, limit_s=None)

    async def _ask(self, when: str, work: Coroutine[Any, Any, Any], limit_s: float | None = _ANSWER_S) -> Any:
        """What the harness answers. Raises HarnessFailed when it does not, or is gone before it could.

        What may take as long as it likes is called off when nobody waits for it any more.
        """
        assert self._group is not None
        answer = _Answer()
        asking = self._group.create_task(answer.of(work), name=f"asking {self.harness}")
        gone = self._group.create_task(self.process.gone.wait(), name=f"watching {self.harness}")
        try:
            await asyncio.wait({asking, gone}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                await asyncio.wait({asking}, timeout=_LAST_WORDS_S)
            if not asking.done():
                slow = f"did not answer within {limit_s:g} seconds" if limit_s else "did not answer"
                raise self.process.failure(f"{'died' if gone.done() else slow} when it {when}")
        except asyncio.CancelledError:
            if limit_s is None:
                await self._call_off({asking, gone})
            raise
        finally:
            asking.cancel()
            gone.cancel()
        fault = answer.fault
        if isinstance(fault, self.sdk.RequestError):
            raise self.process.failure(f"said no when it {when}: {_refusal(fault)}")
        if isinstance(fault, OSError):
            await self.process.settle()
            raise self.process.failure(f"ended the conversation when it {when}")
        if fault is not None:
            raise self.process.failure(f"gave an answer outside the protocol when it {when}")
        return answer.value

    async def _call_off(self, until: set[asyncio.Task[Any]]) -> None:
        """Ask the harness to stop, and give it a moment to."""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(_CALL_OFF_S):
                await self._connection.cancel(session_id=self.session_id)
                await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)


@dataclass(slots=True)
class _Answer:
    """An answer or the fault in its place: what goes wrong in a conversation ends no task group."""

    value: Any = None
    fault: Exception | None = None

    async def of(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self.value = await work
        except Exception as fault:  # the edge to somebody else's package and process
            self.fault = fault


async def _sdk() -> Any:
    """The protocol's package. It takes a second to import, so it is, once, and beside the loop."""
    try:
        return await asyncio.to_thread(importlib.import_module, "acp")
    except ImportError as missing:
        raise HarnessFailed(
            f"External harnesses need the package {PACKAGE}, which is not installed.",
            fix="Install it: pip install 'hobnob[acp]'.",
        ) from missing


def _version() -> str:
    from hobnob import __version__

    return __version__


def _begin(tx: Tx, turn: Turn, session_id: str) -> None:
    """Note that the prompt of a turn is about to be sent."""
    turns.check_claim(tx, turn)
    ledger.remember(tx, _SCOPE, turn.turn_id, session_id)


def _earlier_session(recent: Iterable[Entry]) -> str | None:
    """The harness's own session that the turn before this one used."""
    found = (entry.message.get("harnessSession") for entry in reversed(list(recent)))
    return next((str(session_id) for session_id in found if session_id), None)


def _prompt(running: RunningTurn, told: str, *, loaded: bool) -> str:
    """What the harness is asked: what it should know, what was said before, and the input of this turn."""
    inputs = [e.message for e in running.recent if e.turn_id == running.turn.turn_id and e.role == "user"]
    before = [e.message for e in running.recent if e.turn_id != running.turn.turn_id]
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
    return "\n\n".join(["What was said in this session before:", *reversed(kept)]) if kept else ""


def _usage(counted: Any, listener: Listener) -> dict[str, Any]:
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


def _refusal(fault: Any) -> str:
    detail = fault.data.get("details") or fault.data.get("message") if isinstance(fault.data, dict) else None
    hint = " Log in with its own command first, or give it a key in env." if fault.code == -32000 else ""
    return f"{fault}{f' ({detail})' if detail else ''}.{hint}"[:1000]
