"""RPC without a wire: a request in, answers out.

`@method` above one function is all a method needs: its parameters are checked against its signature, its
scope against the caller's credential.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from hobnob import parameters
from hobnob.api import Services
from hobnob.api.presence import ClientConnection
from hobnob.config.fields import Scope
from hobnob.errors import BadInput, HobnobError, NotAllowed, StoreError
from hobnob.policy import Operator

_log = logging.getLogger(__name__)
Payload = dict[str, Any]  # a few old methods answer with a list


@dataclass(frozen=True, slots=True)
class Call:
    """One request: who asks, and `early` for an answer before the last one.

    `given` are the parameters the caller named, for methods to which null and nothing are not the same.
    `listener` is the connection that asks, where there is one that can be told of events.
    """

    services: Services
    operator: Operator
    early: Callable[[Payload], Awaitable[None]]
    given: frozenset[str] = frozenset()
    listener: ClientConnection | None = None

    def for_all_agents(self) -> None:
        """What is about the whole gateway is not for a credential of some agents. Raises NotAllowed."""
        if self.operator.agents is not None:
            raise NotAllowed(
                "This is for credentials of all agents.",
                rule="scope.agents",
                fix="Use a token without a list of agents (gateway.auth.tokens[].agents).",
            )

    def follow(self, session_key: str) -> None:
        """Whoever has a session do something hears of it."""
        if self.listener is not None:
            self.listener.follow(session_key)


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    scope: Scope
    function: Callable[..., Awaitable[Payload]]

    @property
    def parameters(self) -> type[BaseModel]:
        return parameters.model_of(self.function)


METHODS: dict[str, Method] = {}


def method(name: str, *, scope: Scope) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function an RPC method."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        assert name not in METHODS, f"two methods are called {name}"
        METHODS[name] = Method(name, scope, function)
        return function

    return register


async def dispatch(call: Call, name: str, params: Any) -> Payload:
    """The last answer to a request: `{ok: true, payload}` or `{ok: false, error}`. Never raises."""
    found = METHODS.get(name)
    if found is None:
        return refusal("INVALID_REQUEST", f"unknown method: {name}")
    if not call.operator.holds(found.scope):
        details = {"code": "MISSING_SCOPE", "missingScope": found.scope}
        return refusal("FORBIDDEN", f"missing scope: {found.scope}", details=details)
    try:
        checked = found.parameters.model_validate({} if params is None else params)
    except ValidationError as problem:
        said = parameters.explain(found.parameters, problem)
        details = {"code": BadInput.code}
        return refusal("INVALID_REQUEST", f"invalid {name} params: {said}", details=details)
    call = replace(call, given=frozenset(checked.model_fields_set))
    try:
        return {"ok": True, "payload": await found.function(call, **parameters.arguments(checked))}
    except HobnobError as problem:
        return failure(problem)
    except Exception:  # the boundary of a request: the caller gets a frame, we get the trace
        _log.exception("method %s failed", name)
        return refusal("UNAVAILABLE", f"{name} failed; the gateway's log says why")


def failure(problem: HobnobError) -> Payload:
    """An error of ours, as the wire carries it."""
    code = problem.rule if isinstance(problem, NotAllowed) else problem.code
    details = {"code": code} | ({"fix": problem.fix} if problem.fix else {})
    wire = "UNAVAILABLE" if isinstance(problem, StoreError) else "INVALID_REQUEST"
    return refusal("FORBIDDEN" if isinstance(problem, NotAllowed) else wire, problem.message, details=details)


def refusal(code: str, message: str, *, details: Payload | None = None) -> Payload:
    error: Payload = {"code": code, "message": message} | ({"details": details} if details else {})
    return {"ok": False, "error": error}
