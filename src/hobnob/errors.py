"""Every failure we name.

The docstring of a class is its default message. `code` is stable and goes over the wire,
`http_status` and `exit_code` say how the HTTP surface and the command line report it,
`fix` tells what to change.

    HobnobError
    ├── BadInput                what was given cannot be read
    │   ├── BadKey              a session key outside the grammar
    │   ├── BadConfig           the configuration, with all its problems
    │   ├── UnknownModel        no provider offers a model of this name
    │   ├── ModelKeyMissing     its provider wants a key and there is none
    │   └── BadAttachment       a file handed over has a wrong shape
    │       ├── BadAttachmentName
    │       └── BadAttachmentContent
    ├── NotAllowed              a rule says no; carries the rule's code
    ├── Unauthenticated             a wrong secret, or none
    │   ├── NotPaired           a device nobody has approved
    │   └── TooManyAttempts        too many wrong secrets from there
    ├── ToolRefused             a tool does not take these arguments
    ├── ToolFailed              a tool could not do it
    ├── TurnFailed              a turn that was waited for did not end well
    ├── TooLarge                a request is larger than it may be
    ├── RequestTimeout                 a request did not come in whole in time
    ├── MethodNotAllowed               the address is right, the verb of HTTP is not
    ├── UnknownAgent            nobody of that id is configured
    ├── NotFound                nothing is there
    │   └── SessionNotFound
    ├── Conflict                it clashes with what is there
    │   ├── LabelTaken
    │   ├── SessionExists
    │   ├── SessionArchived
    │   └── Fenced              a newer claim owns this turn
    ├── AttachmentsUnwritable   the workspace does not take the files
    ├── FileError             a file of the workspace cannot be used
    ├── FetchFailed             a page could not be read
    ├── McpFailed               an MCP server did not do what was asked
    ├── HarnessFailed           an external harness did not do its work
    ├── GatewayUnreachable      no gateway answers there
    ├── GatewayLost             the connection to it broke
    ├── ClientClosed            the client was closed by its owner
    ├── RpcFailed               the gateway refused a request
    └── StoreError              the database cannot do it
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
def unwrap_exception_group() -> Iterator[None]:
    """Raise the one error of a task group as it is, so that callers meet the error and not its wrapping."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
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


class BadInput(HobnobError):
    """The input cannot be read."""

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
        super().__init__(f"{source} cannot be used:{listed}", fix="Mend the file, then run `hobnob doctor`.")


class UnknownModel(BadInput):
    """There is no such model."""

    code = "model.unknown"


class ModelKeyMissing(BadInput):
    """The provider of the model needs a key."""

    code = "model.key_missing"


class BadAttachment(BadInput):
    """A file that is handed over cannot be read."""

    code = "attachment.bad"


class BadAttachmentName(BadAttachment):
    """A file that is handed over has a name it cannot have."""

    code = "attachment.name"


class BadAttachmentContent(BadAttachment):
    """The content of a file that is handed over cannot be decoded."""

    code = "attachment.content"


class NotAllowed(HobnobError):
    """A rule forbids it."""

    code = "not_allowed"

    http_status = 403

    def __init__(self, message: str, *, rule: str, fix: str | None = None) -> None:
        self.rule = rule
        super().__init__(message, fix=fix)


class Unauthenticated(HobnobError):
    """The gateway does not know who is calling."""

    code = "unauthorized"
    http_status = 401

    def __init__(self, message: str, *, reason: str, fix: str | None = None) -> None:
        self.reason = reason  # as clients of the wire know it
        super().__init__(message, fix=fix)


class NotPaired(Unauthenticated):
    """The device has to be approved first."""

    code = "device.not_paired"

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        super().__init__(
            "pairing required: this device has not been approved",
            reason="PAIRING_REQUIRED",
            fix=f"On the gateway's machine: hobnob devices approve {request_id}",
        )


class TooManyAttempts(Unauthenticated):
    """Too many wrong secrets came from this address."""

    code = "rate_limited"
    http_status = 429

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        said = f"Too many wrong secrets came from this address; wait {wait_s:.0f} seconds."
        super().__init__(said, reason="AUTH_RATE_LIMITED")


class TooLarge(HobnobError):
    """The request is too large."""

    code = "input.too_large"
    http_status = 413


class RequestTimeout(HobnobError):
    """The request did not come in whole in time."""

    code = "input.too_slow"
    http_status = 408


class ToolRefused(HobnobError):
    """The tool does not take these arguments."""

    code = "tool.refused"
    http_status = 400


class ToolFailed(HobnobError):
    """The tool could not do it."""

    code = "tool.failed"
    http_status = 500


class TurnFailed(HobnobError):
    """The turn did not end well."""

    code = "turn.failed"
    http_status = 500


class MethodNotAllowed(HobnobError):
    """That verb of HTTP does nothing at this address."""

    code = "input.verb"
    http_status = 405


class UnknownAgent(HobnobError):
    """No agent of that id is configured."""

    code = "agent.unknown"
    http_status = 404


class NotFound(HobnobError):
    """Nothing is there."""

    code = "not_found"
    http_status = 404


class SessionNotFound(NotFound):
    """There is no such session."""

    code = "session.not_found"


class Conflict(HobnobError):
    """It clashes with what is already there."""

    code = "conflict"
    http_status = 409


class LabelTaken(Conflict):
    """Another session has this label."""

    code = "label.taken"


class SessionExists(Conflict):
    """A session with this key exists."""

    code = "session.exists"


class SessionArchived(Conflict):
    """The session is archived."""

    code = "session.archived"


class Fenced(Conflict):
    """A newer claim owns this turn; this one may no longer write."""

    code = "turn.fenced"


class AttachmentsUnwritable(HobnobError):
    """The folder for attachments in the workspace cannot be used."""

    code = "attachments.unwritable"


class FileError(HobnobError):
    """A file of the workspace cannot be used."""

    code = "file.trouble"
    http_status = 400


class FetchFailed(HobnobError):
    """A page could not be read."""

    code = "web.failed"
    http_status = 502


class McpFailed(HobnobError):
    """An MCP server did not do what was asked."""

    code = "mcp.failed"
    http_status = 502


class HarnessFailed(HobnobError):
    """The external harness failed."""

    code = "harness.failed"
    http_status = 502


class GatewayUnreachable(HobnobError):
    """No gateway answers there."""

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
        self.reason = reason  # the code of the failure there, or of the rule that forbids it
        super().__init__(message, fix=fix)


class StoreError(HobnobError):
    """The database could not do it."""

    code = "store.failed"
    http_status = 503


class StoreInUse(StoreError):
    """Another process has the database open."""

    code = "store.in_use"

    def __init__(self, path: str, pid: int | None) -> None:
        self.pid = pid
        super().__init__(
            f"{path} is in use by process {pid or 'unknown'}.",
            fix="Stop that process, or give this one another HOBNOB_HOME.",
        )


class StoreTooNew(StoreError):
    """The database was written by a newer Hobnob."""

    code = "store.too_new"


class StoreCorrupt(StoreError):
    """The database file is damaged."""

    code = "store.corrupt"


class StoreFull(StoreError):
    """There is no room left on the disk."""

    code = "store.full"
    http_status = 507


class StoreUnwritable(StoreError):
    """The database cannot be written there."""

    code = "store.unwritable"


class StoreClosed(StoreError):
    """The store is closed."""

    code = "store.closed"
