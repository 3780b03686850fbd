"""Reads entries from their replicas. Source: protocol sections 7.4 and 7.5."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials
from bkctl.runtime.errors import (
    BookieError,
    BookieUnavailableError,
    DigestMismatchError,
    EntryDigestError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.ports import BodyOrStatus, Clock, ReadReply
from bkctl.runtime.protocol.entry_body import DecodedEntry
from bkctl.runtime.protocol.status import Status
from bkctl.storage.errors import BkctlError
from bkctl.storage.ids import INVALID_ENTRY_ID

K = TypeVar("K")
R = TypeVar("R")

RUN_BYTES: Final = 64 * 1024
"""Expected size of the entries of one request; larger ones gain nothing from sharing it."""

_RUN_BYTES_MAX: Final = 2 * RUN_BYTES
"""Largest answer to a request for several entries."""

_PROBE_SHARE: Final = 0.05
"""When a slow bookie is suspected, as a share of the time after which every read asks the next one."""


class Replies(Generic[K, R]):
    """Collects the answers to requests; ``outstanding`` counts those not yet returned by ``next``.

    Late answers are dropped silently, so asyncio does not report their errors as unhandled.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._arrived: deque[tuple[K, R | BaseException]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.outstanding = 0

    def expect(self, key: K, future: asyncio.Future[Any]) -> None:
        """Wait for one more answer, identified by ``key``. The future returns an R; its type is Any because futures are
        invariant and a caller may mix several kinds of answers."""
        self.outstanding += 1
        future.add_done_callback(partial(self._on_arrival, key))

    async def next(self, timeout_s: float | None = None) -> tuple[K, R | BookieError] | None:
        """The next answer, or None after ``timeout_s``. Without ``timeout_s`` the port's own timeout applies."""
        if not self._arrived:
            assert self.outstanding > 0, "there is at least one bookie to ask"
            await self._wait(timeout_s)
            if not self._arrived:
                return None
        key, outcome = self._arrived.popleft()
        self.outstanding -= 1
        if isinstance(outcome, BaseException) and not isinstance(outcome, BookieError):
            raise outcome
        return key, outcome

    async def _wait(self, timeout_s: float | None) -> None:
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        timer = None if timeout_s is None else self._clock.call_later(timeout_s, self._wake)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _on_arrival(self, key: K, future: asyncio.Future[Any]) -> None:
        error = future.exception()  # marks the exception as retrieved
        self._arrived.append((key, future.result() if error is None else error))
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def prevailing_error(first: BkctlError | None, later: BkctlError) -> BkctlError:
    """The more meaningful of two replicas' errors; ``first`` is the earlier one.

    "No such entry" prevails only if all replicas report it; any other error overrides "no connection".
    """
    if first is None or isinstance(first, NoSuchEntryError | NoSuchLedgerError):
        return later
    if isinstance(first, BookieUnavailableError) and not isinstance(later, NoSuchEntryError | NoSuchLedgerError):
        return later
    return first


class EntryReader:
    """Reads entries of one ledger, trying the replicas in turn.

    If every bookie has every entry, all reads begin with the same one, which then reads its disk in order; readers
    begin with different ones. A bookie that fails or is slow is asked last for a while (``SuspectBookies``), and
    another takes its place.

    Asks the next replica if one failed and no request is outstanding, or if it does not answer in time. The first copy
    with a correct digest wins. ``last_add_confirmed`` is the highest that any answer reported.
    """

    def __init__(
        self,
        ports: ClientPorts,
        credentials: LedgerCredentials,
        decode: Callable[[int, bytes], DecodedEntry] | None = None,
    ) -> None:
        """``decode``: verifies a copy; None: checks only the digest."""
        self._ports = ports
        self._credentials = credentials
        self._decode = decode or credentials.codec.decode
        self._first_index = ports.clock.random.getrandbits(16)
        """Of the bookie that is asked first, modulo the size of the ensemble."""
        self._is_probing = False
        self.last_add_confirmed = INVALID_ENTRY_ID

    async def read(self, metadata: LedgerMetadata, entry_id: int) -> DecodedEntry:
        """Read the entry from its write set according to ``metadata``.

        If every replica failed, raises the BookieError or DigestMismatchError that prevails.
        """
        return (await self.read_run(metadata, range(entry_id, entry_id + 1)))[0]

    async def read_run(self, metadata: LedgerMetadata, entry_ids: range) -> list[DecodedEntry]:
        """The first of consecutive entries of one segment, at least one. Several only if every bookie has every entry.

        If every replica failed to return the first one, raises the BookieError or DigestMismatchError that prevails.
        """
        replicas = self._replicas(metadata, entry_ids[0])
        not_asked = deque(self._ports.suspects.last(replicas))
        asked = _AskedReplicas(Replies(self._ports.clock), self._ports.clock.monotonic_ns)
        failures: list[BkctlError] = []
        self._ask(asked, not_asked, entry_ids)
        try:
            while asked.replies.outstanding:
                answer = await asked.replies.next(self._probe_s if not_asked else None)
                if answer is None:
                    if self._is_time_for_next(asked, not_asked[0]):
                        self._ask(asked, not_asked, entry_ids)
                    continue
                bookie_id, outcome = answer
                result = self._judge(bookie_id, entry_ids, outcome)
                overtaken = asked.end(bookie_id)
                if isinstance(result, list):
                    self._prefer(bookie_id, overtaken, metadata.segment_of(entry_ids[0]).ensemble)
                    return result
                failures.append(result)
                if not asked.replies.outstanding and not_asked:
                    self._ask(asked, not_asked, entry_ids)
        finally:
            if asked.is_probing:
                self._is_probing = False
        raise self._summary(entry_ids[0], failures)

    @property
    def _probe_s(self) -> float:
        return _PROBE_SHARE * self._ports.config.speculative_read_timeout_s

    def _replicas(self, metadata: LedgerMetadata, entry_id: int) -> Sequence[str]:
        ensemble = metadata.segment_of(entry_id).ensemble
        if metadata.ensemble_size == metadata.write_quorum_size:
            first = self._first_index % len(ensemble)
            return (*ensemble[first:], *ensemble[:first])
        return [ensemble[i] for i in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)]

    def _is_time_for_next(self, asked: _AskedReplicas, next_id: str) -> bool:
        """Whether to ask another replica, because no answer has come for ``_probe_s``.

        Not all reads that wait ask another: all bookies may just be busy. One does, as a probe. If another bookie
        answers it sooner, the slow one is a suspect, and the other reads ask other bookies too.
        """
        asked_id, waited_s = asked.last_asked()
        suspects = self._ports.suspects.current()
        if waited_s >= self._ports.config.speculative_read_timeout_s:
            self._ports.suspects.add(asked_id)
        elif asked_id not in suspects or next_id in suspects:
            if self._is_probing:
                return False
            self._is_probing = asked.is_probing = True
        return True

    def _prefer(self, bookie_id: str, overtaken: Sequence[str], ensemble: Sequence[str]) -> None:
        """A bookie has answered sooner than others that were asked before it."""
        for slow_id in overtaken:
            self._ports.suspects.add(slow_id)
        first_id = ensemble[self._first_index % len(ensemble)]
        if bookie_id != first_id and first_id in self._ports.suspects.current():
            self._first_index = ensemble.index(bookie_id)

    def _ask(self, asked: _AskedReplicas, not_asked: deque[str], entry_ids: range) -> None:
        bookie_id, bookies, ledger_id = not_asked.popleft(), self._ports.bookies, self._credentials.ledger_id
        if len(entry_ids) == 1:
            asked.begin(bookie_id, bookies.read(bookie_id, ledger_id, entry_ids[0]))
        else:
            asked.begin(bookie_id, bookies.read_many(bookie_id, ledger_id, entry_ids, bytes_max=_RUN_BYTES_MAX))

    def _summary(self, entry_id: int, failures: list[BkctlError]) -> BkctlError:
        """The error that prevails. For damage, adds the other replicas' errors: one may just be unreachable."""
        error: BkctlError | None = None
        for failure in failures:
            error = prevailing_error(error, failure)
        assert error is not None, "a write set has at least one member"
        if not isinstance(error, DigestMismatchError) or len(failures) == 1:
            return error
        sentences = [str(failure).removeprefix(f"ledger {error.ledger_id}: ") for failure in failures]
        each = "; ".join(sentence.removeprefix(f"entry {entry_id}: ") for sentence in sentences)
        return DigestMismatchError(error.ledger_id, f"entry {entry_id}: no bookie has a good copy: {each}")

    def _judge(
        self, bookie_id: str, entry_ids: range, outcome: ReadReply | list[BodyOrStatus] | BkctlError
    ) -> list[DecodedEntry] | BkctlError:
        """The good entries that an answer begins with, or why it does not begin with one."""
        if isinstance(outcome, BkctlError):
            return self._note_failure(bookie_id, outcome)
        bodies = [outcome.body] if isinstance(outcome, ReadReply) else outcome
        found: list[DecodedEntry] = []
        failure: BkctlError | None = None
        for entry_id, body in zip(entry_ids, bodies, strict=False):
            if isinstance(body, Status):
                failure = self._ports.bookies.error_of(body, bookie_id)
                break
            try:
                found.append(self._decode(entry_id, body))
            except EntryDigestError as damage:
                failure = damaged_copy(self._credentials.ledger_id, entry_id, bookie_id, damage)
                break
        if not found:
            assert failure is not None, "an answer is not empty"
            return self._note_failure(bookie_id, failure)
        told = found[-1].credible_last_add_confirmed
        if isinstance(outcome, ReadReply) and outcome.max_last_add_confirmed is not None:
            told = max(told, outcome.max_last_add_confirmed)
        self.last_add_confirmed = max(self.last_add_confirmed, told)
        return found

    def _note_failure(self, bookie_id: str, failure: BkctlError) -> BkctlError:
        if not isinstance(failure, NoSuchEntryError | NoSuchLedgerError | DigestMismatchError):
            self._ports.suspects.add(bookie_id)
        return failure


class _AskedReplicas:
    """The replicas that one read has asked, and when."""

    def __init__(self, replies: Replies[str, ReadReply | list[BodyOrStatus]], now_ns: Callable[[], int]) -> None:
        self.replies = replies
        self.is_probing = False
        """Whether it has asked another replica on behalf of all reads."""
        self._now_ns = now_ns
        self._waiting: dict[str, int] = {}
        """Bookies that have not answered, in the order of the requests, and when each was asked."""

    def begin(self, bookie_id: str, future: asyncio.Future[Any]) -> None:
        """A request has been sent."""
        self._waiting[bookie_id] = self._now_ns()
        self.replies.expect(bookie_id, future)

    def end(self, bookie_id: str) -> list[str]:
        """A bookie has answered; returns those that were asked before it and have not."""
        order = list(self._waiting)
        del self._waiting[bookie_id]
        return order[: order.index(bookie_id)]

    def last_asked(self) -> tuple[str, float]:
        """The bookie that was asked last of those that have not answered, and seconds since then."""
        bookie_id, asked_ns = next(reversed(self._waiting.items()))
        return bookie_id, (self._now_ns() - asked_ns) / 1e9


def damaged_copy(ledger_id: int, entry_id: int, bookie_id: str, damage: Exception) -> DigestMismatchError:
    """The error for a copy with a wrong digest: it proves nothing, unlike "no such entry"."""
    name = "last entry" if entry_id == INVALID_ENTRY_ID else f"entry {entry_id}"
    return DigestMismatchError(ledger_id, f"{name}: the copy on bookie {bookie_id} is damaged ({damage})")
