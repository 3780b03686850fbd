"""What the unanswered requests of one connection cost in memory, for its own limit and for the common budget."""

from __future__ import annotations

from typing import Protocol


class Account(Protocol):
    """What all connections have under way together."""

    def add_request(self, cost_bytes: int, /) -> None:
        """A request begins."""

    def end_request(self, cost_bytes: int, /) -> None:
        """A request was answered."""


class RequestsUnderWay:
    """Counts requests from their arrival to their answer, also when the connection ends before: the handler still holds
    them."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._cost_of: dict[int, int] = {}
        self._costs_of_repeated: dict[int, list[int]] = {}
        self.cost_bytes = 0
        """Of all together."""

    def begin(self, txn_id: int, cost_bytes: int) -> None:
        """A request came in."""
        if txn_id in self._cost_of:  # a peer may use an id twice
            self._costs_of_repeated.setdefault(txn_id, []).append(cost_bytes)
        else:
            self._cost_of[txn_id] = cost_bytes
        self.cost_bytes += cost_bytes
        self._account.add_request(cost_bytes)

    def end(self, txn_id: int) -> bool:
        """One request of this id was answered; False if there is none."""
        cost_bytes = self._cost_of.pop(txn_id, None)
        if cost_bytes is None:
            return False
        if txn_id in self._costs_of_repeated:
            costs = self._costs_of_repeated[txn_id]
            self._cost_of[txn_id] = costs.pop()
            if not costs:
                del self._costs_of_repeated[txn_id]
        self.cost_bytes -= cost_bytes
        self._account.end_request(cost_bytes)
        return True
