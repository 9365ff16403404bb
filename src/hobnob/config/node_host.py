"""Settings of `hobnob node run`: what a gateway may do on this machine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hobnob.config.fields import Section, section


class NodeExec(Section):
    security: Literal["deny", "allowlist", "full"] = "full"
    """Which commands run here: none, only programs of `allow` without a shell, or all."""
    allow: list[str] = []
    """For `allowlist`: names or paths of programs; may contain `*`."""
    host: Literal["sandbox", "host"] = "sandbox"
    """Where they run: in a sandbox that sees only `nodeHost.workspace`, or with your own rights."""
    network: bool = False
    """Whether commands in the sandbox reach the network."""
    timeout_sec: int = Field(1800, ge=1, le=86_400)
    """Time limit of a command when the gateway sets none; it cannot set a longer one."""
    max_running: int = Field(8, ge=1, le=100)
    """Maximum number of commands at the same time."""


class NodeHost(Section):
    workspace: str | None = None
    """The folder commands work in; unset means `node/workspace` in the state directory."""
    exec: NodeExec = section(NodeExec)
    """Commands that a gateway asks for."""
