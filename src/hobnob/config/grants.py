"""Settings of grants: rights of one agent to the sessions of another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field, model_validator

from hobnob import keys
from hobnob.config.fields import AgentIdOrAny, GrantVerb, KeyPattern, Section


class Grant(Section):
    from_agent: AgentIdOrAny = Field(alias="from")
    """The agent that gets the right; `*` means every agent."""
    to: AgentIdOrAny
    """The agent whose sessions it is for; `*` means every agent."""
    verbs: list[GrantVerb] = Field(min_length=1)
    """What it allows; each verb is for itself. `history` includes search, `control` stopping and changing."""
    sessions: list[KeyPattern] | None = None
    """Only these sessions: keys, or their beginning with `*`, with or without `agent:<id>:`."""

    authority: Literal["both", "target"] = "both"
    """`target`: turns that its messages start have all tools of the target, not only those both have."""

    @model_validator(mode="after")
    def _check_authority(self) -> Grant:
        if self.authority == "target" and "send" not in self.verbs:
            raise ValueError("authority is about messages: add send to verbs")
        return self

    @model_validator(mode="after")
    def _check_sessions(self) -> Grant:
        if self.sessions is not None and "spawn" in self.verbs:
            raise ValueError(
                "a spawn creates a new session: sessions cannot limit it, use a grant of its own"
            )
        return self


class GrantIndex:
    """The grants by agents and verb, so that looking one up does not depend on how many there are."""

    def __init__(self, grants: Iterable[Grant], main_key: str) -> None:
        self._found: dict[tuple[str, str, GrantVerb], _Granted] = {}
        self._authority: dict[tuple[str, str], _Granted] = {}
        self.clauses: list[str] = []
        for number, grant in enumerate(grants):
            self.clauses.append(_clause(number, grant))
            patterns = (
                grant.sessions
                if grant.sessions is None
                else [keys.canonical_prefix(pattern, main_key) for pattern in grant.sessions]
            )
            for verb in grant.verbs:
                granted = self._found.setdefault((grant.from_agent, grant.to, verb), _Granted())
                granted.add(number, patterns)
            if grant.authority == "target":
                pair = grant.from_agent, grant.to
                self._authority.setdefault(pair, _Granted()).add(number, patterns)

    def find(self, from_agent: str, to: str, verb: GrantVerb, key: str | None = None) -> int | None:
        """The number of a grant for a session of `to`, or for that agent as a whole without a key."""
        found = self._found
        for holder, owner in ((from_agent, to), (from_agent, "*"), ("*", to), ("*", "*")):
            granted = found.get((holder, owner, verb))
            if granted is not None and (number := granted.find(key)) is not None:
                return number
        return None

    def authority(self, from_agent: str, to: str, key: str) -> int | None:
        """The number of a grant by which messages to a session keep all of its tools."""
        found = self._authority
        for pair in ((from_agent, to), (from_agent, "*"), ("*", to), ("*", "*")) if found else ():
            granted = found.get(pair)
            if granted is not None and (number := granted.find(key)) is not None:
                return number
        return None

    def targets(self, from_agent: str, verb: GrantVerb) -> dict[str, Sequence[str] | None]:
        """The agents that an agent has grants for, each with the only keys they cover; None: any of its keys.

        `*` stands for every agent.
        """
        targets: dict[str, Sequence[str] | None] = {}
        for (holder, to, granted_verb), granted in self._found.items():
            if holder not in (from_agent, "*") or granted_verb != verb:
                continue
            exact, before = granted.exact_keys(to), targets.get(to, ())
            targets[to] = None if exact is None or before is None else [*before, *exact]
        return targets


def _clause(number: int, grant: Grant) -> str:
    """A grant as it is named in sentences: its setting, and what it says."""
    only = f"; only {', '.join(grant.sessions) or 'none'}" if grant.sessions is not None else ""
    if grant.authority == "target":
        only += "; authority target"
    return f"grants[{number}] (from {grant.from_agent} to {grant.to}: {', '.join(grant.verbs)}{only})"


class _Granted:
    """The sessions that the grants of one agent to another cover for one verb."""

    def __init__(self) -> None:
        self._any: int | None = None
        self._whole, self._rest = _Patterns(), _Patterns()  # with `agent:<id>:`, and without

    def add(self, number: int, patterns: Sequence[str] | None) -> None:
        if patterns is None:
            self._any = number if self._any is None else self._any
        for pattern in patterns or ():
            (self._whole if pattern.startswith("agent:") else self._rest).add(pattern, number)

    def find(self, key: str | None) -> int | None:
        if self._any is not None or key is None:
            return self._any
        number = self._rest.find(keys.rest_of(key)) if self._rest else None
        return self._whole.find(key) if number is None and self._whole else number

    def exact_keys(self, agent: str) -> list[str] | None:
        """The full keys it covers, if these are all; None if it covers others too."""
        if self._any is not None or self._whole.prefixes or self._rest.prefixes or agent == "*":
            return None
        return [*self._whole.exact, *(f"agent:{agent}:{key}" for key in self._rest.exact)]


class _Patterns:
    """Texts and beginnings of texts, each with the number of a grant."""

    def __init__(self) -> None:
        self.exact: dict[str, int] = {}
        self.prefixes: dict[str, int] = {}
        self._lengths: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self.exact or self.prefixes)

    def add(self, pattern: str, number: int) -> None:
        if pattern.endswith("*"):
            self.prefixes.setdefault(pattern[:-1], number)
            self._lengths.add(len(pattern) - 1)
        else:
            self.exact.setdefault(pattern, number)

    def find(self, text: str) -> int | None:
        if (number := self.exact.get(text)) is not None:
            return number
        prefixes, size = self.prefixes, len(text)
        for length in self._lengths:
            if length <= size and (number := prefixes.get(text[:length])) is not None:
                return number
        return None
