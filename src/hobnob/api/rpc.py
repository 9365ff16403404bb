"""RPC methods, independent of the transport: a request in, responses out.

`@method` registers a function: its parameters are validated against its signature, its scope against the
caller's credential.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from hobnob import parameters
from hobnob.api import Services
from hobnob.api.budgets import NO_TICKET, Ticket
from hobnob.api.presence import ClientConnection
from hobnob.config.fields import Scope
from hobnob.errors import (
    BadInput,
    HobnobError,
    LimitReached,
    MissingScope,
    NodeFailed,
    NotAllowed,
    NotFound,
    StoreError,
)
from hobnob.policy import Operator
from hobnob.records import Struct

_NAME_CHARS = 100  # of an unknown method, in its error
_log = logging.getLogger(__name__)
Payload = dict[str, Any]  # a few methods of the protocol answer with a list


@dataclass(slots=True)
class Call:
    """One request.

    `respond_early` sends a response before the last one. `given` are the parameters the caller named, for
    methods that tell null from absent. `connection` is the caller's WebSocket, if it has one. `ticket`
    counts the request: pause it before waiting for a turn to end.
    """

    services: Services
    operator: Operator
    respond_early: Callable[[Payload], Awaitable[None]]
    given: Collection[str] = ()
    connection: ClientConnection | None = None
    ticket: Ticket = NO_TICKET

    def require_all_agents(self) -> None:
        """Refuse a credential that is limited to some agents. Raises NotAllowed."""
        if self.operator.agents is not None:
            raise NotAllowed(
                "This needs a credential for all agents.",
                rule="scope.agents",
                fix="Use a token without a list of agents (gateway.auth.tokens[].agents).",
            )

    def follow_runs(self, session_key: str) -> None:
        """Send events of a session the caller has put to work."""
        if self.connection is not None:
            self.connection.follow_runs(session_key)


Role = Literal["operator", "node"]


class Method(Struct, frozen=True):
    """A method for operators who hold its scope, for nodes, or for both."""

    name: str
    scope: Scope | None
    function: Callable[..., Awaitable[Payload]]
    roles: tuple[Role, ...] = ("operator",)

    @property
    def parameters(self) -> type[BaseModel]:
        return parameters.model_of(self.function)


METHODS: dict[str, Method] = {}


def method(
    name: str, *, scope: Scope | None, roles: tuple[Role, ...] = ("operator",)
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as an RPC method. One for nodes alone has no scope: nodes hold none."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        assert name not in METHODS, f"the method {name} is defined twice"
        METHODS[name] = Method(name, scope, function, roles)
        return function

    return register


def names_for(role: Role) -> list[str]:
    """The methods that a client of this role may call, if it holds their scopes."""
    return sorted(name for name, found in METHODS.items() if role in found.roles)


async def dispatch(call: Call, name: str, params: Any) -> Payload:
    """The last response to a request: `{ok: true, payload}` or `{ok: false, error}`. Never raises."""
    try:
        return {"ok": True, "payload": await invoke(call, name, params)}
    except HobnobError as error:
        return failure(error)
    except Exception:  # the request boundary: the caller gets an error response, the log the traceback
        _log.exception("method %s failed", name)
        return error_response("UNAVAILABLE", f"{name} failed; the gateway's log says why")


async def invoke(call: Call, name: str, params: Any) -> Payload:
    """Run a method and return its payload. Raises HobnobError, and what the method itself raises."""
    found = METHODS.get(name)
    if found is None:
        near = difflib.get_close_matches(name[:_NAME_CHARS], METHODS, 1)
        fix = f"Did you mean {near[0]}?" if near else "The reference and hello-ok list the methods."
        raise NotFound(f"unknown method: {name[:_NAME_CHARS]}", fix=fix)
    _check_role(call, found)
    if problem := parameters.too_long(params):
        raise BadInput(f"invalid {name} params: {problem}")
    try:
        checked = parameters.validate(found.parameters, {} if params is None else params)
    except ValidationError as error:
        problem = parameters.explain(found.parameters, error)
        raise BadInput(f"invalid {name} params: {problem}") from None
    call.given = checked.model_fields_set
    payload: Payload = await found.function(call, **parameters.arguments(checked))
    return payload


def _check_role(call: Call, found: Method) -> None:
    """Raises NotAllowed or MissingScope."""
    role: Role = "node" if call.operator.node is not None else "operator"
    if role not in found.roles:
        raise NotAllowed(f"unauthorized role: {role}", rule="role.wrong")
    if role == "operator" and found.scope is not None and not call.operator.holds(found.scope):
        raise MissingScope(found.scope)


def failure(error: HobnobError) -> Payload:
    """An error response for one of our errors."""
    details: Payload = {"code": error.reported_code} | ({"fix": error.fix} if error.fix else {})
    if isinstance(error, MissingScope):
        # The names that clients of the protocol know.
        details |= {"code": "MISSING_SCOPE", "missingScope": error.scope}
    code = "INVALID_REQUEST"
    if isinstance(error, NotAllowed):
        code = "FORBIDDEN"
    elif isinstance(error, StoreError | LimitReached):
        code = "UNAVAILABLE"
    elif isinstance(error, NodeFailed):
        code = "UNAVAILABLE"
        node_error = {"code": error.reason, "message": error.message}
        details |= {"nodeError": node_error, "nodeCommandDispatched": error.dispatched}
        if error.reason == "PAIRING_CHANGED":
            details["code"] = error.reason
    response = error_response(code, error.message, details=details)
    if isinstance(error, LimitReached):
        response["error"] |= {"retryable": True, "retryAfterMs": int(error.wait_s * 1000)}
    return response


def error_response(code: str, message: str, *, details: Payload | None = None) -> Payload:
    error: Payload = {"code": code, "message": message} | ({"details": details} if details else {})
    return {"ok": False, "error": error}
