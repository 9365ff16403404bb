"""Slash commands: a message that consists of nothing but a command is executed instead of queued.

The sender needs the right to do what the command does. From another agent, from a hook, or inside a longer
message a command is plain text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import orjson

from hobnob import keys, policy
from hobnob.config import Settings
from hobnob.config.fields import Thinking
from hobnob.delivery_routes import ReplyAddress
from hobnob.effects import Effects
from hobnob.errors import BadInput, NotFound
from hobnob.models.catalog import Catalog
from hobnob.models.choice import model_names
from hobnob.policy import Operator, Verb
from hobnob.records import Struct
from hobnob.requests import check_changes, check_thinking
from hobnob.sessions import resolve
from hobnob.store import Tx, approvals, turns
from hobnob.store import sessions as session_rows
from hobnob.store.chats import threads
from hobnob.types import Approval, ApprovalState, Session, Turn, new_id

_LINE = re.compile(r"/([a-z]+)(?:[ \t]+(\S.*))?", re.IGNORECASE)
FOCUS_CHARS = 800
_UNSET = ("default", "inherit", "reset")
_SEND_VALUES: dict[str, Literal["allow", "deny"] | None] = {
    "on": "allow",
    "allow": "allow",
    "off": "deny",
    "deny": "deny",
}
_SEND_VALUES |= dict.fromkeys(_UNSET)
_LEVELS = ("off", "on", "full")
_ID_CHARS = 6  # minimum length of an id prefix
_SEND_ANSWERS = {
    "allow": "This session now takes messages, whatever the rules say.",
    "deny": "This session now takes no messages. `/send on` or `/send inherit` changes that.",
    None: "This session follows the rules of session.sendPolicy again.",
}


class CommandContext(Struct, frozen=True):
    """What a command may read and change."""

    tx: Tx
    settings: Settings
    models: Catalog
    effects: Effects
    session: Session
    caller: Operator


class Command(Struct, frozen=True):
    name: str
    usage: str  # its argument, for help
    help: str
    needs: Verb
    run: Callable[[CommandContext, str], str]
    accepts: Callable[[str], bool]

    @property
    def immediate(self) -> bool:
        """Whether it is answered while a turn runs: queries, and answers a running turn waits for."""
        return self.name in ("status", "help", "allow", "deny")

    @property
    def takes_text(self) -> bool:
        """Whether its argument may have several words."""
        return self.name == "compact"


class ParsedCommand(Struct, frozen=True):
    """A command with its argument."""

    command: Command
    argument: str


def parse(text: str) -> ParsedCommand | None:
    """The command, if the message is nothing but one."""
    found = _LINE.fullmatch(text.strip())
    command = COMMANDS.get(found[1].lower()) if found else None
    if found is None or command is None or not command.accepts((found[2] or "").lower()):
        return None
    if len((found[2] or "").split()) > 1 and not command.takes_text:
        return None
    return ParsedCommand(command, found[2] or "")


def execute(
    context: CommandContext,
    parsed: ParsedCommand,
    text: str,
    *,
    turn_id: str,
    reply: ReplyAddress | None = None,
) -> Turn:
    """Run a command. Its answer is that of a turn, without a model call. Raises NotAllowed.

    An immediate answer does not enter the transcript: a turn may be running there. `reply` is the chat it was
    given in, where its answer goes.
    """
    command = parsed.command
    resolve.require(policy.may(context.settings, context.caller, command.needs, context.session))
    answer = command.run(context, parsed.argument)
    session = session_rows.get(context.tx, context.session.key)  # the command may have changed it
    address = {"reply": reply.json()} if reply else {}
    if command.name == "compact":
        focus = parsed.argument[:FOCUS_CHARS]
        return turns.accept(context.tx, compaction(session, focus, turn_id=turn_id, options=address))
    encoded = orjson.dumps({"answer": answer} | address).decode()
    turn = Turn.of(session, text.strip(), turn_id=turn_id, step="command", options=encoded)
    turn = turns.accept(context.tx, turn)
    if not command.immediate:
        return turn
    return context.effects.deliver_reply(context.tx, turns.answer(context.tx, turn, answer))


def compaction(
    session: Session, focus: str = "", *, turn_id: str | None = None, options: dict[str, Any] | None = None
) -> Turn:
    """A turn that only summarises. A model works on it, so it waits for its place in the lane."""
    if session.is_external:
        raise BadInput("The conversation belongs to its harness, which compacts it itself.")
    encoded = orjson.dumps({"focus": focus} | (options or {})).decode()
    text = f"/compact {focus}".strip()
    return Turn.of(session, text, turn_id=turn_id or new_id(), step="compact", options=encoded)


def _send(context: CommandContext, argument: str) -> str:
    chosen = _SEND_VALUES[argument.lower()]
    session_rows.patch(context.tx, context.session.key, send_policy=chosen)
    return _SEND_ANSWERS[chosen]


def _stop(context: CommandContext, argument: str) -> str:
    stopped = [
        context.effects.abort_turn(context.tx, turn.turn_id, "stopped")
        for turn in turns.open_of(context.tx, context.session.key)
    ]
    return f"Stopped: {_turns(len(stopped))}." if stopped else "Nothing was running."


def reset(context: CommandContext) -> None:
    """Stop what is running and begin a new transcript."""
    _stop(context, "")
    session_rows.reset(context.tx, context.session.key)


def _reset(context: CommandContext, argument: str) -> str:
    reset(context)
    return f"A new conversation begins. The old one stays readable as {context.session.session_id}."


def _compact(context: CommandContext, argument: str) -> str:
    return ""  # answered by its turn


def _model(context: CommandContext, argument: str) -> str:
    if context.session.is_external and not argument:
        return f"The model is {_model_of(context, context.session)}."
    check_changes(context.session, ("model_override",))
    if argument.lower() in _UNSET:
        session = session_rows.patch(context.tx, context.session.key, model_override=None)
    elif argument:
        chosen = context.models.info(argument).name
        session = session_rows.patch(context.tx, context.session.key, model_override=chosen)
    else:
        known = ", ".join(info.name for info in context.models.known())
        return f"The model is {_model_of(context, context.session)}. `/model NAME` takes another: {known}."
    return f"The model is {_model_of(context, session)} from now on."


def _think(context: CommandContext, argument: str) -> str:
    default = context.settings.agents.defaults.thinking_default
    if not argument:
        level = context.session.thinking_level or default
        return f"The thinking level is {level}. Levels: {', '.join(Thinking.__args__)}."  # type: ignore[attr-defined]
    chosen = None if argument.lower() in _UNSET else check_thinking(argument)
    session_rows.patch(context.tx, context.session.key, thinking_level=chosen)
    return f"The thinking level is {chosen or default} from now on."


def _verbose(context: CommandContext, argument: str) -> str:
    if not argument:
        return f"Verbose is {context.session.verbose_level or 'off'}. Levels: {', '.join(_LEVELS)}."
    chosen = None if argument.lower() in _UNSET else argument.lower()
    if chosen not in (None, *_LEVELS):
        raise BadInput(f"There is no level {argument!r}. Levels: {', '.join(_LEVELS)}.")
    session_rows.patch(context.tx, context.session.key, verbose_level=chosen)
    return f"Verbose is {chosen or 'off'} from now on."


def _status(context: CommandContext, argument: str) -> str:
    session = context.session
    waiting = turns.open_of(context.tx, session.key)
    level = session.thinking_level or context.settings.agents.defaults.thinking_default
    sends = policy.send_policy(context.settings, session)
    lines = [
        f"Session {session.key}, agent {session.agent_id}.",
        f"Model {_model_of(context, session)}, thinking {level}, verbose {session.verbose_level or 'off'}.",
        f"{session.total_tokens:,} tokens, ${session.cost_usd:.4f}.",
        f"{len(waiting)} turn{'s' * (len(waiting) != 1)} running or queued."
        if waiting
        else "Nothing is running.",
        f"Messages are {'taken' if sends.allowed else 'not taken'}: {sends.why}",
    ]
    return "\n".join(lines)


def _allow(context: CommandContext, argument: str) -> str:
    return f"Yes: {_decide(context, argument, 'allowed')}"


def _deny(context: CommandContext, argument: str) -> str:
    return f"No: {_decide(context, argument, 'denied')}"


def _decide(context: CommandContext, argument: str, state: ApprovalState) -> str:
    """Decide the approval whose id starts with the argument. The caller must control its session."""
    fitting = [q for q in approvals.pending(context.tx) if q.approval_id.startswith(argument.lower())]
    fitting = [q for q in fitting if _may_answer(context, q)]
    if len(fitting) != 1:
        raise NotFound(f"There is no pending approval {argument}, or several start like that.")
    approvals.decide(context.tx, fitting[0].approval_id, state, context.caller.name)
    return fitting[0].command


def _may_answer(context: CommandContext, question: Approval) -> bool:
    session = Session.of(keys.parse(question.session_key))
    return policy.may(context.settings, context.caller, "control", session).allowed


def _unfocus(context: CommandContext, argument: str) -> str:
    thread = threads.of_session(context.tx, context.session.key)
    if thread is None:
        return "No thread belongs to this session."
    threads.close(context.tx, thread, "given back by an owner")
    return "This thread is no longer the sub-agent's. Messages in it are those of the chat again."


def _help(context: CommandContext, argument: str) -> str:
    return "\n".join(f"/{c.name} {c.usage}".rstrip() + f": {c.help}" for c in COMMANDS.values())


def _model_of(context: CommandContext, session: Session) -> str:
    if session.is_external:  # only its harness knows, and says so when it runs
        return session.model_override or session.model or session.agent_id
    agent = context.settings.agent(session.agent_id) or context.settings.default_agent
    return model_names(context.settings, agent, session)[0]


def _turns(count: int) -> str:
    return "1 turn" if count == 1 else f"{count} turns"


def _no_argument(argument: str) -> bool:
    return not argument


def _any_argument(argument: str) -> bool:
    return True


def _id_prefix(argument: str) -> bool:
    return len(argument) >= _ID_CHARS


COMMANDS = {
    command.name: command
    for command in (
        Command("status", "", "how this session is doing", "status", _status, _no_argument),
        Command("stop", "", "end what it is doing", "abort", _stop, _no_argument),
        Command("new", "", "begin a new conversation", "control", _reset, _no_argument),
        Command("reset", "", "the same as /new", "control", _reset, _no_argument),
        Command(
            "compact",
            "[FOCUS]",
            "summarise the older part of the conversation",
            "control",
            _compact,
            _any_argument,
        ),
        Command(
            "send", "on|off|inherit", "whether it takes messages", "control", _send, _SEND_VALUES.__contains__
        ),
        Command("model", "[NAME|default]", "show or choose the model", "control", _model, _any_argument),
        Command(
            "think", "[LEVEL|default]", "show or choose the thinking level", "control", _think, _any_argument
        ),
        Command(
            "verbose", "[off|on|full]", "how much is shown of its work", "control", _verbose, _any_argument
        ),
        Command("allow", "ID", "say yes to a command that waits", "control", _allow, _id_prefix),
        Command("deny", "ID", "say no to it", "control", _deny, _id_prefix),
        Command("unfocus", "", "give the thread of a sub-agent back", "control", _unfocus, _no_argument),
        Command("help", "", "these commands", "status", _help, _no_argument),
    )
}
