"""The Bookies port on a function: every request is answered, after a moment, with what the function says."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from bkctl.runtime.errors import BookieError
from bkctl.runtime.ports import AddDone, BodyOrStatus, BookieInfo, Clock, LacReply, PollReply, ReadReply
from bkctl.runtime.protocol.entry_list import EntryList, EntryListBuilder
from bkctl.runtime.protocol.status import Status, error_of

OutcomeT = TypeVar("OutcomeT")

_DELAY_S = (0.000_1, 0.01)


@dataclasses.dataclass(frozen=True)
class BookieRequest:
    """One request. ``kind``: add, force, read, read_lac or list."""

    kind: str
    bookie_id: str
    ledger_id: int
    entry_id: int = -1
    body: bytes = b""
    is_fencing: bool = False
    is_recovery_add: bool = False
    is_deferred_sync: bool = False


Answer = Callable[[BookieRequest], ReadReply | LacReply | EntryList | Status]
"""What a bookie says: a reply that fits the request, or a status; a status alone for an add or a force."""


class ModelBookies:
    """All bookies of a cluster. Answers to one request after another come in any order, and those to adds and forces
    not at all if the connection is lost meanwhile."""

    def __init__(self, clock: Clock, answer: Answer, is_running: Callable[[str], bool] = lambda _: True) -> None:
        self._clock = clock
        self._answer = answer
        self._is_running = is_running
        self._losses: Counter[str] = Counter()

    def lose_connection(self, bookie_id: str) -> None:
        self._losses[bookie_id] += 1

    def losses(self, bookie_id: str) -> int:
        return self._losses[bookie_id]

    def force(self, bookie_id: str, ledger_id: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(status: Status) -> None:
            if future.done():
                return
            if status is Status.OK:
                future.set_result(None)
            else:
                future.set_exception(_error(status, bookie_id))

        self._write(BookieRequest("force", bookie_id, ledger_id), done)
        return future

    def _write(self, request: BookieRequest, done: AddDone) -> None:
        outcome, before = self._answer(request), self._losses[request.bookie_id]
        assert isinstance(outcome, Status)
        self._later(lambda: done(outcome if self._losses[request.bookie_id] == before else Status.UNAVAILABLE))

    def add(
        self,
        bookie_id: str,
        ledger_id: int,
        entry_id: int,
        master_key: bytes,
        body: bytes,
        done: AddDone,
        *,
        is_recovery_add: bool = False,
        is_high_priority: bool = False,
        is_deferred_sync: bool = False,
    ) -> None:
        assert 0 <= entry_id < 2**63
        flags = {"is_recovery_add": is_recovery_add, "is_deferred_sync": is_deferred_sync}
        self._write(BookieRequest("add", bookie_id, ledger_id, entry_id, body, **flags), done)

    def read(
        self,
        bookie_id: str,
        ledger_id: int,
        entry_id: int,
        *,
        fence_with: bytes | None = None,
        is_high_priority: bool = False,
    ) -> asyncio.Future[ReadReply]:
        assert -1 <= entry_id < 2**63, "no request can hold it"
        return self._ask(BookieRequest("read", bookie_id, ledger_id, entry_id, is_fencing=fence_with is not None))

    def read_lac(self, bookie_id: str, ledger_id: int) -> asyncio.Future[LacReply]:
        return self._ask(BookieRequest("read_lac", bookie_id, ledger_id))

    def write_lac(
        self, bookie_id: str, ledger_id: int, master_key: bytes, lac: int, lac_body: bytes
    ) -> asyncio.Future[None]:
        """Stores nothing: followers in the simulation learn of entries by the next one, or the close."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._later(lambda: None if future.done() else future.set_result(None))
        return future

    def poll(self, bookie_id: str, ledger_id: int, previous_lac: int, timeout_s: float) -> asyncio.Future[PollReply]:
        """Answers at once with the last entry, as a bookie without long polls."""
        future: asyncio.Future[PollReply] = asyncio.get_running_loop().create_future()
        outcome = self._answer(BookieRequest("read", bookie_id, ledger_id))

        def finish() -> None:
            if future.done():
                return
            if isinstance(outcome, ReadReply):
                future.set_result(PollReply(outcome.max_last_add_confirmed, outcome.body))
            else:
                assert isinstance(outcome, Status)
                future.set_exception(_error(outcome, bookie_id))

        self._later(finish)
        return future

    def list_entries(self, bookie_id: str, ledger_id: int) -> asyncio.Future[EntryList]:
        return self._ask(BookieRequest("list", bookie_id, ledger_id))

    def read_many(
        self, bookie_id: str, ledger_id: int, entry_ids: Sequence[int], *, bytes_max: int
    ) -> asyncio.Future[list[BodyOrStatus]]:
        """Answers any number of the first ids."""
        assert entry_ids, "a batch of no requests"
        outcomes: list[BodyOrStatus] = []
        for entry_id in entry_ids[: self._clock.random.randint(1, len(entry_ids))]:
            assert 0 <= entry_id < 2**63
            reply = self._answer(BookieRequest("read", bookie_id, ledger_id, entry_id))
            assert isinstance(reply, ReadReply | Status)
            outcomes.append(reply.body if isinstance(reply, ReadReply) else reply)
        return self._answer_many(outcomes)

    def add_many(
        self,
        bookie_id: str,
        ledger_id: int,
        master_key: bytes,
        adds: Sequence[tuple[int, bytes]],
        *,
        is_recovery_add: bool = False,
    ) -> asyncio.Future[list[Status]]:
        assert adds, "a batch of no requests"
        outcomes: list[Status] = []
        for entry_id, body in adds:
            assert 0 <= entry_id < 2**63
            request = BookieRequest("add", bookie_id, ledger_id, entry_id, body, is_recovery_add=is_recovery_add)
            outcome = self._answer(request)
            assert isinstance(outcome, Status)
            outcomes.append(outcome)
        return self._answer_many(outcomes)

    async def info(self, bookie_id: str) -> BookieInfo:
        if not self._is_running(bookie_id):
            raise _error(Status.UNAVAILABLE, bookie_id)
        return BookieInfo(2, 1)

    def error_of(self, status: Status, bookie_id: str, detail: str = "") -> BookieError:
        return error_of(status, bookie_id, detail)

    async def close(self) -> None:
        """There is nothing to close."""

    def _ask(self, request: BookieRequest) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        outcome = self._answer(request)

        def finish() -> None:
            if future.done():
                return
            if isinstance(outcome, Status):
                future.set_exception(_error(outcome, request.bookie_id))
            else:
                future.set_result(outcome)

        self._later(finish)
        return future

    def _answer_many(self, outcomes: list[OutcomeT]) -> asyncio.Future[list[OutcomeT]]:
        future: asyncio.Future[list[OutcomeT]] = asyncio.get_running_loop().create_future()
        self._later(lambda: None if future.done() else future.set_result(outcomes))
        return future

    def _later(self, call: Callable[[], None]) -> None:
        self._clock.call_later(self._clock.random.uniform(*_DELAY_S), call)


def _error(status: Status, bookie_id: str) -> BookieError:
    return error_of(status, bookie_id)


def entry_list(entry_ids: Iterable[int]) -> EntryList:
    builder = EntryListBuilder()
    builder.extend(sorted(entry_ids))
    return builder.finish()
