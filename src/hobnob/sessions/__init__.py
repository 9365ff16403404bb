"""Sessions and everything one can do with them."""

from __future__ import annotations

from hobnob.sessions.presentation import Row
from hobnob.sessions.sending import Cause, InboundMessage, SendTarget, TurnOptions
from hobnob.sessions.service import Sessions
from hobnob.sessions.spawning import SpawnReceipt

__all__ = ["Cause", "InboundMessage", "Row", "SendTarget", "Sessions", "SpawnReceipt", "TurnOptions"]
