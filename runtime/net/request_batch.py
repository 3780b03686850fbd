"""The requests of one ``read_many`` or ``add_many``: one future for all of them, and no object for each."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from bkctl.runtime.protocol.messages import AddAnswer, Answer, ReadAnswer
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v3_batches import AddAnswerForm, BatchIds, ReadAnswerForm

OutcomeT = TypeVar("OutcomeT")


class RequestBatch(Generic[OutcomeT]):
    """Requests with consecutive transaction ids. The future ends with their outcomes, in order, after the last one.

    An outcome may come when the future was cancelled; it is then of no use to the caller.
    """

    def __init__(self, first_txn_id: int, ids: BatchIds, future: asyncio.Future[list[OutcomeT | Status]]) -> None:
        self._future = future
        self.first_txn_id = first_txn_id
        self._ids = ids
        self._outcomes: list[OutcomeT | Status] = [Status.UNAVAILABLE] * len(ids.txns)
        self._left = len(ids.txns)
        self._next = 0
        """While the outcomes come in order: where the next one belongs."""
        self._is_ordered = True

    def note(self, txn_id: int, outcome: OutcomeT | Status) -> None:
        """Record the outcome of a request; call it once for each."""
        self._note_run(txn_id - self.first_txn_id, [outcome])

    def take_run(self, payloads: Sequence[bytes], start: int, txn_id: int) -> int:
        """Record the outcomes of payloads from index ``start`` on; returns how many it took.

        They are the positive answers, in their usual form, to this request, and to those after it if outcomes came in
        order so far.
        """
        place = txn_id - self.first_txn_id
        count_max = len(payloads) - start if self._is_ordered and place == self._next else 1
        ids = self._ids.part(place, count_max)
        outcomes = self._outcomes_of(payloads[start : start + len(ids.txns)], ids)
        if outcomes:
            self._note_run(place, outcomes)
        return len(outcomes)

    def _note_run(self, place: int, outcomes: list[OutcomeT | Status]) -> None:
        self._outcomes[place : place + len(outcomes)] = outcomes
        if place == self._next:
            self._next += len(outcomes)
        else:
            self._is_ordered = False
        self._left -= len(outcomes)
        if self._left == 0 and not self._future.done():
            self._future.set_result(self._outcomes)

    @abstractmethod
    def take(self, answer: Answer) -> bool:
        """Record the outcome if the answer has the right type."""

    @abstractmethod
    def _outcomes_of(self, payloads: Sequence[bytes], ids: BatchIds) -> list[OutcomeT | Status]:
        """The outcomes of the first payloads that are positive answers in their usual form."""


class AddBatch(RequestBatch[Status]):
    """Adds of one ledger."""

    def __init__(self, first_txn_id: int, ids: BatchIds, future: asyncio.Future[list[Status]]) -> None:
        super().__init__(first_txn_id, ids, future)
        self._form = AddAnswerForm(ids.ledger_id)

    def take(self, answer: Answer) -> bool:
        """Record the outcome if the answer has the right type."""
        if not isinstance(answer, AddAnswer):
            return False
        self.note(answer.txn_id, answer.status)
        return True

    def _outcomes_of(self, payloads: Sequence[bytes], ids: BatchIds) -> list[Status]:
        return [Status.OK] * self._form.count(payloads, ids)


class ReadBatch(RequestBatch[bytes]):
    """Reads of one ledger."""

    def __init__(self, first_txn_id: int, ids: BatchIds, future: asyncio.Future[list[bytes | Status]]) -> None:
        super().__init__(first_txn_id, ids, future)
        self._form = ReadAnswerForm(ids.ledger_id)

    def take(self, answer: Answer) -> bool:
        """Record the outcome if the answer has the right type."""
        if not isinstance(answer, ReadAnswer):
            return False
        self._form.expect_lac(answer.max_last_add_confirmed)
        if answer.entry_status is not Status.OK:
            self.note(answer.txn_id, answer.entry_status)
        else:
            self.note(answer.txn_id, Status.IO_ERROR if answer.body is None else answer.body)
        return True

    def _outcomes_of(self, payloads: Sequence[bytes], ids: BatchIds) -> list[bytes | Status]:
        return list(self._form.bodies(payloads, ids))
