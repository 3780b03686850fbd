"""Outcomes of the requests of one ``read_many`` or ``add_many``: one future for all of them."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from runtime.protocol.status import Status

OutcomeT = TypeVar("OutcomeT")


class RequestBatch(Generic[OutcomeT]):
    """Requests with consecutive transaction ids. The future ends with their outcomes, in order, after the last one.

    An outcome may come when the future was cancelled; it is then of no use to the caller.
    """

    def __init__(self, first_txn_id: int, count: int) -> None:
        self.future: asyncio.Future[list[OutcomeT | Status]] = asyncio.get_running_loop().create_future()
        self._first_txn_id = first_txn_id
        self._outcomes: list[OutcomeT | Status] = [Status.UNAVAILABLE] * count
        self._left = count

    def note(self, txn_id: int, outcome: OutcomeT | Status) -> None:
        """Record the outcome of a request; call it once for each."""
        self._outcomes[txn_id - self._first_txn_id] = outcome
        self._left -= 1
        if self._left == 0 and not self.future.done():
            self.future.set_result(self._outcomes)
