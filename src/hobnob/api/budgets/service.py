"""The budgets of one gateway."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from hobnob.api.auth import bucket
from hobnob.api.budgets.accounts import RESOURCES, Account, Resource
from hobnob.api.budgets.connections import Slot, Strangers
from hobnob.config.gateway import GatewayLimits
from hobnob.policy import Operator


class Budgets:
    """One account for each credential, and the connections that have not signed in."""

    def __init__(
        self, limits: Callable[[], GatewayLimits], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._accounts: dict[tuple[str, bool], Account] = {}
        self.strangers = Strangers(limits, clock)
        self.refused: Counter[str] = Counter()

    @property
    def limits(self) -> GatewayLimits:
        return self._limits()

    def connect(self, address: str, abort: Callable[[], None]) -> Slot:
        """The slot of a new connection. It may close an older one."""
        return self.strangers.admit(bucket(address), abort)

    def account(self, operator: Operator) -> Account:
        """The account of a credential. A client that claims less than an owner's rights has another."""
        key = operator.name, operator.is_owner
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(operator.name, self._limits, owner=operator.is_owner)
            account.on_refusal = self._count_refusal
        return account

    def usage(self) -> Iterator[tuple[str, Resource, int]]:
        """What each credential uses, by name and resource."""
        totals: Counter[tuple[str, Resource]] = Counter()
        for account in self._accounts.values():
            for resource in RESOURCES:
                totals[account.name, resource] += account.used[resource]
        return ((name, resource, used) for (name, resource), used in totals.items())

    def _count_refusal(self, limit: str) -> None:
        self.refused[limit] += 1
