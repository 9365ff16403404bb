"""Authority along messages: which tools a turn has that another agent's message started. Pure functions.

A turn that a message caused has only the tools that both sides have, or an agent could use the tools of
another by asking for it. The limit is stored with the turn, and what the turn causes inherits it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from hobnob.config import Settings
from hobnob.policy import Verdict, grants
from hobnob.records import Struct
from hobnob.types import Session

OPTION = "authority"  # the name among the options of a turn
SETTING = "tools.agentToAgent.authority"
Stored = dict[str, Any]


class Authority(Struct, frozen=True):
    """Whose tools a turn has. `rule` is the grant or setting that leaves it those of the target."""

    mode: Literal["both", "target"]
    rule: str | None = None


def between(settings: Settings, sender: Session, target: Session) -> Authority:
    """The authority of a turn in `target` that a message of `sender` starts."""
    if sender.key == target.key or sender.spawned(target):
        # What a child has beyond its spawner, the setting `delegate` has given to it.
        return Authority("target", "the target is of the sender's own tree")
    rule = _lifted(settings, grants.holders(sender), target)
    return Authority("target", rule) if rule else Authority("both")


def stored(
    settings: Settings, sender: Session, target: Session, held: Collection[str], there: Collection[str]
) -> Stored | None:
    """What is stored with a turn of `target`: the tools both have. None if a message cannot add to them.

    `held` are the tools of the sender's turn, `there` those of the target.
    """
    found = between(settings, sender, target)
    if sender.key == target.key or sender.spawned(target):
        return None
    return {
        "mode": found.mode,
        "sender": sender.key,
        "holders": list(grants.holders(sender)),
        "tools": sorted(set(held) & set(there)),
        "withheld": sorted(set(there) - set(held)),
    } | ({"rule": found.rule} if found.rule else {})


def inherited(sender: Session, held: Collection[str], there: Collection[str] = ()) -> Stored:
    """What is stored with a turn that a limited turn causes: the tools of that turn, which no grant lifts.

    A grant is for the sender itself, and here somebody else speaks through it.
    """
    withheld = sorted(set(there) - set(held))
    return {"mode": "both", "sender": sender.key, "holders": [], "tools": sorted(held), "withheld": withheld}


def limits(settings: Settings, options: Mapping[str, Any], session: Session) -> list[Sequence[str]]:
    """Every list of tools that limits a turn by its options; a tool must be in all of them."""
    found = [options[name] for name in ("tools", "tools_allow") if options.get(name) is not None]
    if is_reduced(settings, options, session):
        found.append(options[OPTION]["tools"])
    return found


def is_reduced(settings: Settings, options: Mapping[str, Any], session: Session) -> bool:
    """Whether a turn is limited because of who caused it.

    A turn that was accepted with all tools is, too, if a reload withdrew that.
    """
    own: Stored | None = options.get(OPTION)
    if own is None:
        return False
    return own["mode"] == "both" or _lifted(settings, own["holders"], session) is None


def verdict(settings: Settings, sender: Session, target: Session, limit: Stored | None) -> Verdict | None:
    """The rule that `explain` shows beside the right to send; None if nothing is withheld or could be."""
    if limit is None or not limit["withheld"]:
        return None
    names = ", ".join(limit["withheld"])
    found = between(settings, sender, target)
    if found.mode == "target":
        why = f"By {found.rule} the turn it starts keeps what {sender.agent_id} does not have: {names}."
        return Verdict(True, "authority.target", why)
    why = f"The turn it starts has only the tools both have, so without: {names}."
    return Verdict(True, "authority.both", why)


def _lifted(settings: Settings, holders: Sequence[str], target: Session) -> str | None:
    """The setting or grant that leaves a turn all tools of its target."""
    if settings.tools.agent_to_agent.authority == "target":
        return SETTING
    numbers = [settings.grant_index.authority(each, target.agent_id, target.key) for each in holders]
    return f"grants[{numbers[0]}]" if numbers and None not in numbers else None
