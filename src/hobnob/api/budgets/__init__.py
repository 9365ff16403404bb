"""Budgets: how much of the gateway an address or a credential may use at a time. Pure accounting, no I/O.

A connection is charged to its address until it signs in (`strangers`), then to its credential (`accounts`).
Owners have no limits except on bytes, and whatever the others do, a new connection gets in to sign in.
"""

from hobnob.api.budgets.accounts import COUNTED_BYTES, NO_TICKET, Account, Ticket
from hobnob.api.budgets.connections import Slot
from hobnob.api.budgets.service import Budgets

__all__ = ["COUNTED_BYTES", "NO_TICKET", "Account", "Budgets", "Slot", "Ticket"]
