"""What people can tell a session instead of its agent: a message that is nothing but a command.

Whoever sends one needs the right to do what it does. From another agent, from a hook, or within a longer
message it is text like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import orjson

from hobnob import keys, policy
from hobnob.config import Settings
from hobnob.config.fields import Thinking
from hobnob.effects import Effects
from hobnob.errors import BadInput, NotFound
from hobnob.models.catalog import Catalog
from hobnob.models.choice import model_names
from hobnob.policy import Operator, Verb
from hobnob.sessions import resolve
from hobnob.sessions.spawning import check_changes, check_thinking
from hobnob.store import Tx, approvals, turns
from hobnob.store import sessions as session_rows
from hobnob.types import Approval, ApprovalState, Session, Turn

_LINE = re.compile(r"/([a-z]+)(?:[ \t]+(\S+))?", re.IGNORECASE)
_BACK = ("default", "inherit", "reset")
_SENDING: dict[str, Literal["allow", "deny"] | None] = {
    "on": "allow",
    "allow": "allow",
    "off": "deny",
    "deny": "deny",
}
_SENDING |= dict.fromkeys(_BACK)
_LEVELS = ("off", "on", "full")
_LEAST = 6  # characters of an id that is meant
_SENDS = {
    "allow": "This session takes messages now, whatever the rules say.",
    "deny": "This session takes no messages now. `/send on` or `/send inherit` changes that.",
    None: "This session goes by the rules of session.sendPolicy again.",
}


@dataclass(frozen=True, slots=True)
class CommandContext:
    """What a command may look at and change."""

    tx: Tx
    settings: Settings
    models: Catalog
    effects: Effects
    session: Session
    caller: Operator


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    word: str  # what may stand behind it
    help: str
    needs: Verb
    run: Callable[[CommandContext, str], str]
    accepts: Callable[[str], bool]

    @property
    def at_once(self) -> bool:
        """Whether it is answered whatever runs: what asks, and what a running turn waits for."""
        return self.name in ("status", "help", "allow", "deny")


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """A command as somebody gave it."""

    command: Command
    word: str


def parse(text: str) -> ParsedCommand | None:
    """The command, when a message is nothing but one."""
    found = _LINE.fullmatch(text.strip())
    command = COMMANDS.get(found[1].lower()) if found else None
    if found is None or command is None or not command.accepts((found[2] or "").lower()):
        return None
    return ParsedCommand(command, found[2] or "")


def execute(
    around: CommandContext, caller: Operator, said: ParsedCommand, text: str, *, turn_id: str
) -> Turn:
    """Do what was said. It is answered as a turn is, without asking a model. Raises NotAllowed.

    What is answered at once does not stand in the transcript: a turn may be running there.
    """
    verdict = policy.may(around.settings, caller, said.command.needs, around.session)
    resolve.require(verdict)
    answer = said.command.run(around, said.word)
    session = session_rows.get(around.tx, around.session.key)  # as it is by now
    options = orjson.dumps({"answer": answer}).decode()
    turn = Turn.of(session, text.strip(), turn_id=turn_id, step="command", options=options)
    turn = turns.accept(around.tx, turn)
    return turns.answer(around.tx, turn, answer) if said.command.at_once else turn


def _send(around: CommandContext, word: str) -> str:
    chosen = _SENDING[word.lower()]
    session_rows.patch(around.tx, around.session.key, send_policy=chosen)
    return _SENDS[chosen]


def _stop(around: CommandContext, word: str) -> str:
    stopped = [
        around.effects.abort(around.tx, turn.turn_id, "stopped")
        for turn in turns.open_of(around.tx, around.session.key)
    ]
    return f"Stopped: {_turns(len(stopped))}." if stopped else "Nothing was running."


def _reset(around: CommandContext, word: str) -> str:
    _stop(around, "")
    session_rows.reset(around.tx, around.session.key)
    return f"A new conversation begins. The old one stays readable as {around.session.session_id}."


def _model(around: CommandContext, word: str) -> str:
    if around.session.is_external and not word:
        return f"The model is {_model_of(around, around.session)}."
    check_changes(around.session, ("model_override",))
    if word.lower() in _BACK:
        session = session_rows.patch(around.tx, around.session.key, model_override=None)
    elif word:
        chosen = around.models.info(word).name
        session = session_rows.patch(around.tx, around.session.key, model_override=chosen)
    else:
        known = ", ".join(info.name for info in around.models.known())
        return f"The model is {_model_of(around, around.session)}. `/model NAME` takes another: {known}."
    return f"The model is {_model_of(around, session)} from now on."


def _think(around: CommandContext, word: str) -> str:
    default = around.settings.agents.defaults.thinking_default
    if not word:
        level = around.session.thinking_level or default
        return f"The thinking level is {level}. Levels: {', '.join(Thinking.__args__)}."  # type: ignore[attr-defined]
    chosen = None if word.lower() in _BACK else check_thinking(word)
    session_rows.patch(around.tx, around.session.key, thinking_level=chosen)
    return f"The thinking level is {chosen or default} from now on."


def _verbose(around: CommandContext, word: str) -> str:
    if not word:
        return f"Verbose is {around.session.verbose_level or 'off'}. Levels: {', '.join(_LEVELS)}."
    chosen = None if word.lower() in _BACK else word.lower()
    if chosen not in (None, *_LEVELS):
        raise BadInput(f"There is no level {word!r}. Levels: {', '.join(_LEVELS)}.")
    session_rows.patch(around.tx, around.session.key, verbose_level=chosen)
    return f"Verbose is {chosen or 'off'} from now on."


def _status(around: CommandContext, word: str) -> str:
    session = around.session
    waiting = turns.open_of(around.tx, session.key)
    level = session.thinking_level or around.settings.agents.defaults.thinking_default
    sends = policy.send_policy(around.settings, session)
    lines = [
        f"Session {session.key}, agent {session.agent_id}.",
        f"Model {_model_of(around, session)}, thinking {level}, verbose {session.verbose_level or 'off'}.",
        f"{session.total_tokens:,} tokens, ${session.cost_usd:.4f}.",
        f"{len(waiting)} turn{'s' * (len(waiting) != 1)} running or waiting."
        if waiting
        else "Nothing is running.",
        f"Messages are {'taken' if sends.allowed else 'not taken'}: {sends.why}",
    ]
    return "\n".join(lines)


def _allow(around: CommandContext, word: str) -> str:
    return f"Yes: {_answered(around, word, 'allowed')}"


def _deny(around: CommandContext, word: str) -> str:
    return f"No: {_answered(around, word, 'denied')}"


def _answered(around: CommandContext, word: str, state: ApprovalState) -> str:
    """Answer the question whose id begins so. Whoever answers needs the right to control its session."""
    fitting = [q for q in approvals.pending(around.tx) if q.approval_id.startswith(word.lower())]
    fitting = [q for q in fitting if _may_answer(around, q)]
    if len(fitting) != 1:
        raise NotFound(f"There is no open question {word}, or more than one begins like that.")
    approvals.decide(around.tx, fitting[0].approval_id, state, around.caller.name)
    return fitting[0].command


def _may_answer(around: CommandContext, question: Approval) -> bool:
    session = Session.of(keys.parse(question.session_key))
    return policy.may(around.settings, around.caller, "control", session).allowed


def _help(around: CommandContext, word: str) -> str:
    return "\n".join(f"/{c.name} {c.word}".rstrip() + f": {c.help}" for c in COMMANDS.values())


def _model_of(around: CommandContext, session: Session) -> str:
    if session.is_external:  # only its harness knows, and says so when it runs
        return session.model_override or session.model or session.agent_id
    agent = around.settings.agent(session.agent_id) or around.settings.default_agent
    return model_names(around.settings, agent, session)[0]


def _turns(count: int) -> str:
    return "1 turn" if count == 1 else f"{count} turns"


def _alone(word: str) -> bool:
    return not word


def _any(word: str) -> bool:
    return True


def _named(word: str) -> bool:
    return len(word) >= _LEAST


COMMANDS = {
    command.name: command
    for command in (
        Command("status", "", "how this session is doing", "status", _status, _alone),
        Command("stop", "", "end what it is doing", "abort", _stop, _alone),
        Command("new", "", "begin a new conversation", "control", _reset, _alone),
        Command("reset", "", "the same as /new", "control", _reset, _alone),
        Command(
            "send", "on|off|inherit", "whether it takes messages", "control", _send, _SENDING.__contains__
        ),
        Command("model", "[NAME|default]", "show or choose the model", "control", _model, _any),
        Command("think", "[LEVEL|default]", "show or choose the thinking level", "control", _think, _any),
        Command("verbose", "[off|on|full]", "how much is shown of its work", "control", _verbose, _any),
        Command("allow", "ID", "say yes to a command that waits", "control", _allow, _named),
        Command("deny", "ID", "say no to it", "control", _deny, _named),
        Command("help", "", "these commands", "status", _help, _alone),
    )
}
