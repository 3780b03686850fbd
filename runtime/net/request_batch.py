"""The requests of one ``read_many`` or ``add_many``: one future for all of them, and no object for each."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from runtime.protocol.messages import AddAnswer, Answer, ReadAnswer
from runtime.protocol.status import Status
from runtime.protocol.v3_batches import AddAnswerForm, ReadAnswerForm

OutcomeT = TypeVar("OutcomeT")


class RequestBatch(Generic[OutcomeT]):
    """Requests with consecutive transaction ids. The future ends with their outcomes, in order, after the last one.

    An outcome may come when the future was cancelled; it is then of no use to the caller.
    """

    def __init__(
        self, first_txn_id: int, entry_ids: Sequence[int], future: asyncio.Future[list[OutcomeT | Status]]
    ) -> None:
        self._future = future
        self.first_txn_id = first_txn_id
        self._entry_ids = entry_ids
        self._outcomes: list[OutcomeT | Status] = [Status.UNAVAILABLE] * len(entry_ids)
        self._left = len(entry_ids)

    def note(self, txn_id: int, outcome: OutcomeT | Status) -> None:
        """Record the outcome of a request; call it once for each."""
        self._outcomes[txn_id - self.first_txn_id] = outcome
        self._left -= 1
        if self._left == 0 and not self._future.done():
            self._future.set_result(self._outcomes)

    @abstractmethod
    def take_plain(self, txn_id: int, payload: bytes) -> bool:
        """Record the outcome if the payload is the positive answer to this request, in its usual form."""

    @abstractmethod
    def take(self, answer: Answer) -> bool:
        """Record the outcome if the answer has the right type."""


class AddBatch(RequestBatch[Status]):
    """Adds of one ledger."""

    def __init__(
        self, first_txn_id: int, ledger_id: int, entry_ids: Sequence[int], future: asyncio.Future[list[Status]]
    ) -> None:
        super().__init__(first_txn_id, entry_ids, future)
        self._form = AddAnswerForm(ledger_id)

    def take_plain(self, txn_id: int, payload: bytes) -> bool:
        """Record OK if the payload is the positive answer to this request, in its usual form."""
        if not self._form.matches(payload, txn_id, self._entry_ids[txn_id - self.first_txn_id]):
            return False
        self.note(txn_id, Status.OK)
        return True

    def take(self, answer: Answer) -> bool:
        """Record the outcome if the answer has the right type."""
        if not isinstance(answer, AddAnswer):
            return False
        self.note(answer.txn_id, answer.status)
        return True


class ReadBatch(RequestBatch[bytes]):
    """Reads of one ledger."""

    def __init__(
        self, first_txn_id: int, ledger_id: int, entry_ids: Sequence[int], future: asyncio.Future[list[bytes | Status]]
    ) -> None:
        super().__init__(first_txn_id, entry_ids, future)
        self._form = ReadAnswerForm(ledger_id)

    def take_plain(self, txn_id: int, payload: bytes) -> bool:
        """Record the body if the payload is the positive answer to this request, in its usual form."""
        body = self._form.body(payload, txn_id, self._entry_ids[txn_id - self.first_txn_id])
        if body is None:
            return False
        self.note(txn_id, body)
        return True

    def take(self, answer: Answer) -> bool:
        """Record the outcome if the answer has the right type."""
        if not isinstance(answer, ReadAnswer):
            return False
        self._form.expect_lac(answer.max_last_add_confirmed)
        if answer.status is not Status.OK:
            self.note(answer.txn_id, answer.status)
        else:
            self.note(answer.txn_id, Status.IO_ERROR if answer.body is None else answer.body)
        return True
