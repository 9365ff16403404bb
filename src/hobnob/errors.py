"""Every failure that has a name.

The docstring of a class is its default message. `code` is stable and goes over the wire, `http_status` and
`exit_code` say how the HTTP surface and the command line report it, `fix` tells what to change.

    HobnobError
    ├── BadInput                the input is invalid
    │   ├── BadKey              a session key outside the grammar
    │   ├── BadConfig           the configuration, with all its problems
    │   ├── BadTools            a file with tools of the user cannot be used
    │   ├── UnknownModel        no provider offers a model of this name
    │   ├── ModelKeyMissing     the provider of the model needs a key
    │   └── BadAttachment       an attachment is malformed
    │       ├── BadAttachmentName
    │       └── BadAttachmentContent
    ├── NotAllowed              a rule says no; carries the rule's code
    │   └── MissingScope        the credential lacks the scope of a method or route
    ├── BudgetExceeded          a budget has not enough left (in `spending`)
    ├── Unauthenticated         the credential is wrong or missing
    │   ├── NotPaired           the device has not been approved
    │   └── TooManyAttempts     too many wrong secrets from one address
    ├── NodeFailed              a node could not run a command, or did not answer
    ├── ToolRefused             the arguments of a tool call are invalid
    ├── ToolFailed              a tool call failed
    ├── TurnFailed              a turn that was waited for failed
    ├── TooLarge                a request exceeds its size limit
    ├── LimitReached            the credential uses as much at a time as it may
    ├── RequestTimeout          a request did not arrive in time
    ├── MethodNotAllowed        the address exists, the HTTP method does not
    ├── UnknownAgent            no agent with this id is configured
    ├── NotFound                it does not exist
    │   ├── SessionNotFound
    │   └── Gone                it was removed, and is not done again
    ├── Conflict                it conflicts with the current state
    │   ├── LabelTaken
    │   ├── LabelAmbiguous      several sessions have the label
    │   ├── SessionExists
    │   ├── SessionArchived
    │   └── Fenced              a newer claim owns this turn
    ├── UnsupportedVersion      a package that Hobnob needs has an unsupported version
    ├── StateUnsafe             other users can change the state directory
    ├── AttachmentsUnwritable   attachments cannot be written to the workspace
    ├── FileError               a workspace file cannot be used
    ├── FetchFailed             a web page could not be fetched
    ├── McpFailed               an MCP server failed
    ├── McpUnavailable          the MCP server needs a package that is not installed
    ├── HarnessFailed           an external harness failed
    ├── GatewayUnreachable      no gateway answers at the address
    ├── GatewayLost             the connection to the gateway broke
    ├── ClientClosed            the client was closed by its owner
    ├── RpcFailed               the gateway refused a request
    └── StoreError              the database failed
        ├── StoreInUse          another process has it open
        ├── StoreTooNew         written by a newer Hobnob
        ├── StoreCorrupt
        ├── StoreFull           no room on the disk
        ├── StoreUnwritable     no right to write there
        └── StoreClosed
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar


@contextmanager
def unwrap_exception_group(*expected: type[BaseException]) -> Iterator[None]:
    """Raise the only error of an exception group itself, so that callers can catch it by its type.

    Of several `expected` errors the first is raised, and only if there is no other error.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        first, others = group.split(expected)
        error: BaseException = others or first or group
        while isinstance(error, BaseExceptionGroup) and (len(error.exceptions) == 1 or others is None):
            error = error.exceptions[0]
        raise error from None


class HobnobError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str | None = None, *, fix: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        self.fix = fix
        super().__init__(self.message)

    @property
    def reported_code(self) -> str:
        """The code callers see: of a refusal, that of the rule."""
        return self.code


class BadInput(HobnobError):
    """The input is invalid."""

    code = "input.bad"
    http_status = 400
    exit_code = 2


class BadKey(BadInput):
    """The session key does not follow the grammar."""

    code = "key.bad"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the configuration, at a dotted path."""

    path: str
    message: str


class BadConfig(BadInput):
    """The configuration has problems."""

    code = "config.bad"

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = problems
        listed = "".join(f"\n  {p.path}: {p.message}" if p.path else f"\n  {p.message}" for p in problems)
        super().__init__(f"{source} cannot be used:{listed}", fix="Correct it, then run `hobnob doctor`.")


class BadTools(BadInput):
    """A file with tools cannot be used."""

    code = "tools.bad"


class UnknownModel(BadInput):
    """No provider offers this model."""

    code = "model.unknown"


class ModelKeyMissing(BadInput):
    """The provider of the model needs a key."""

    code = "model.key_missing"


class BadAttachment(BadInput):
    """An attachment is malformed."""

    code = "attachment.bad"


class BadAttachmentName(BadAttachment):
    """The name of an attachment is not allowed."""

    code = "attachment.name"


class BadAttachmentContent(BadAttachment):
    """The content of an attachment cannot be decoded."""

    code = "attachment.content"


class NotAllowed(HobnobError):
    """A rule forbids it."""

    code = "not_allowed"

    http_status = 403

    def __init__(self, message: str, *, rule: str, fix: str | None = None) -> None:
        self.rule = rule
        super().__init__(message, fix=fix)

    @property
    def reported_code(self) -> str:
        return self.rule


class MissingScope(NotAllowed):
    """The credential lacks a scope."""

    code = "scope.missing"

    def __init__(self, scope: str) -> None:
        self.scope = scope
        super().__init__(f"missing scope: {scope}", rule=self.code, fix=f"Use a token with {scope}.")


class Unauthenticated(HobnobError):
    """The credential is wrong or missing."""

    code = "unauthorized"
    http_status = 401

    def __init__(self, message: str, *, reason: str, fix: str | None = None) -> None:
        self.reason = reason  # the code WebSocket clients know
        super().__init__(message, fix=fix)


class NotPaired(Unauthenticated):
    """The device has not been approved."""

    code = "device.not_paired"

    def __init__(self, request_id: str, *, noun: str = "device", command: str = "devices") -> None:
        self.request_id = request_id
        super().__init__(
            f"pairing required: this {noun} has not been approved.",
            reason="PAIRING_REQUIRED",
            fix=f"On the gateway's machine: hobnob {command} approve {request_id}",
        )


class TooManyAttempts(Unauthenticated):
    """Too many wrong secrets came from this address."""

    code = "rate_limited"
    http_status = 429

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        message = f"Too many wrong secrets came from this address; wait {wait_s:.0f} seconds."
        super().__init__(message, reason="AUTH_RATE_LIMITED")


class TooLarge(HobnobError):
    """The request exceeds its size limit."""

    code = "input.too_large"
    http_status = 413


class LimitReached(HobnobError):
    """The credential uses as much at a time as it may."""

    code = "limit"
    http_status = 429
    wait_s = 1.0

    def __init__(self, message: str, *, limit: str, fix: str) -> None:
        self.limit = limit
        super().__init__(message, fix=fix)

    @property
    def reported_code(self) -> str:
        return f"limit.{self.limit}"


class RequestTimeout(HobnobError):
    """The request did not arrive in time."""

    code = "input.too_slow"
    http_status = 408


class NodeFailed(HobnobError):
    """The node could not run the command."""

    code = "node.failed"

    def __init__(self, message: str, *, reason: str, dispatched: bool = True, fix: str | None = None) -> None:
        self.reason, self.dispatched = reason, dispatched  # the node's own code, or ours
        super().__init__(message, fix=fix)


class ToolRefused(HobnobError):
    """The arguments of the tool call are invalid."""

    code = "tool.refused"
    http_status = 400


class ToolFailed(HobnobError):
    """The tool call failed."""

    code = "tool.failed"
    http_status = 500


class TurnFailed(HobnobError):
    """The turn failed."""

    code = "turn.failed"
    http_status = 500


class MethodNotAllowed(HobnobError):
    """Method not allowed."""

    code = "input.verb"
    http_status = 405


class UnknownAgent(HobnobError):
    """No agent with this id is configured."""

    code = "agent.unknown"
    http_status = 404


class NotFound(HobnobError):
    """It does not exist."""

    code = "not_found"
    http_status = 404


class SessionNotFound(NotFound):
    """The session does not exist."""

    code = "session.not_found"


class Gone(NotFound):
    """What this idempotency key stands for was removed. It is not done a second time."""

    code = "gone"
    http_status = 410


class Conflict(HobnobError):
    """It conflicts with the current state."""

    code = "conflict"
    http_status = 409


class LabelTaken(Conflict):
    """Another session has this label."""

    code = "label.taken"


class LabelAmbiguous(Conflict):
    """Several sessions have this label."""

    code = "label.ambiguous"


class SessionExists(Conflict):
    """A session with this key exists."""

    code = "session.exists"


class SessionArchived(Conflict):
    """The session is archived."""

    code = "session.archived"


class Fenced(Conflict):
    """A newer claim owns this turn; this one may no longer write."""

    code = "turn.fenced"


class UnsupportedVersion(HobnobError):
    """A package that Hobnob needs has an unsupported version."""

    code = "dependency.version"


class StateUnsafe(HobnobError):
    """Other users can change the state directory."""

    code = "state.unsafe"


class AttachmentsUnwritable(HobnobError):
    """The folder for attachments in the workspace cannot be used."""

    code = "attachments.unwritable"


class FileError(HobnobError):
    """A workspace file cannot be used."""

    code = "file.trouble"
    http_status = 400


class FetchFailed(HobnobError):
    """A web page could not be fetched."""

    code = "web.failed"
    http_status = 502


class McpFailed(HobnobError):
    """An MCP server failed."""

    code = "mcp.failed"
    http_status = 502


class McpUnavailable(HobnobError):
    """The MCP server needs the package mcp, which is not installed."""

    code = "mcp.unavailable"
    http_status = 503


class HarnessFailed(HobnobError):
    """The external harness failed."""

    code = "harness.failed"
    http_status = 502


class GatewayUnreachable(HobnobError):
    """No gateway answers at the address."""

    code = "gateway.unreachable"
    http_status = 503


class GatewayLost(HobnobError):
    """The gateway closed the connection."""

    code = "gateway.lost"
    http_status = 503


class ClientClosed(HobnobError):
    """The client is closed."""

    code = "client.closed"


class RpcFailed(HobnobError):
    """The gateway refused the request."""

    code = "gateway.refused"
    http_status = 502

    def __init__(self, message: str, *, reason: str | None = None, fix: str | None = None) -> None:
        self.reason = reason  # the code the gateway reported
        super().__init__(message, fix=fix)


class StoreError(HobnobError):
    """The database failed."""

    code = "store.failed"
    http_status = 503


class StoreInUse(StoreError):
    """Another process has the database open."""

    code = "store.in_use"

    def __init__(self, path: str, pid: int | None, place: str = "") -> None:
        self.pid = pid
        super().__init__(
            f"{path} is in use by process {pid or 'unknown'}{place}.",
            fix="Stop that process, or give this one another HOBNOB_HOME.",
        )


class StoreTooNew(StoreError):
    """The database was written by a newer Hobnob."""

    code = "store.too_new"


class StoreCorrupt(StoreError):
    """The database file is damaged."""

    code = "store.corrupt"


class StoreFull(StoreError):
    """The disk is full."""

    code = "store.full"
    http_status = 507


class StoreUnwritable(StoreError):
    """The database file cannot be written."""

    code = "store.unwritable"


class StoreClosed(StoreError):
    """The store is closed."""

    code = "store.closed"
