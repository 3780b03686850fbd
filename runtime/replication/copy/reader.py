"""Reads and classifies stored copies.

``judge/copies.py`` has the classification rule. A registered bookie that does not answer is asked again. One that does
not accept this client has not looked at the request: it counts as one that does not answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from bkctl.runtime.client.metadata_update import back_off_s
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials
from bkctl.runtime.errors import (
    SILENCE,
    AuthenticationRequiredError,
    BookieError,
    BookieIOError,
    BookieTimeoutError,
    BookieUnavailableError,
    EntryDigestError,
    NoSuchEntryError,
    NoSuchLedgerError,
    TooManyRequestsError,
)
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ports import BodyOrStatus, Clock
from bkctl.runtime.protocol.entry_list import EntryList
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.limits import Windows
from bkctl.runtime.replication.judge.copies import Copy, CopyState
from bkctl.storage.ids import INVALID_ENTRY_ID

T = TypeVar("T")
ENTRY_BYTES_ASSUMED = 64 * 1024
"""Assumed size of an entry until the true size is known."""
OVERLOAD = frozenset({Status.TOO_MANY_REQUESTS, Status.TIMEOUT, Status.UNAVAILABLE})
"""No real answer, because the bookie is overloaded or down: ask later, or read the entry alone, which waits for it."""
_UNANSWERED = OVERLOAD | {Status.AUTHENTICATION_REQUIRED}
BATCH_BYTES = 1024 * 1024
BATCH_ENTRIES = 64
"""A batch of entries ends at the first of these two limits; it has at least one entry."""
REQUEST_COST_BYTES = 1024
"""What an entry counts in a window in addition to its size, because small ones have a cost too."""
UNAVAILABLE_MAX_NS = 10 * 10**9
"""A bookie that accepts no connection is not asked again after this time. One attempt may take as long."""


class RequestTimes:
    """Requests of one piece of work, by bookie: lists of entries, and reads of one or some entries."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.requests: Counter[str] = Counter()
        self.waited_ns: Counter[str] = Counter()
        """The sum of the times of all requests, of which some run at the same time."""

    def rows(self) -> Iterator[tuple[str, int, int]]:
        """Each bookie with its requests, and the sum of their times in microseconds."""
        for bookie_id, count in self.requests.items():
            yield bookie_id, count, self.waited_ns[bookie_id] // 1000

    async def of(self, bookie_id: str, answer: Awaitable[T]) -> T:
        """Wait for the answer to a request, which may be an error, and note how long that took."""
        began_ns = self._clock.monotonic_ns()
        try:
            return await answer
        finally:
            self.requests[bookie_id] += 1
            self.waited_ns[bookie_id] += self._clock.monotonic_ns() - began_ns


def entry_bytes_estimate(metadata: LedgerMetadata) -> int:
    """Average body size of the ledger's entries by its metadata; never negative, even if that is invalid."""
    if metadata.is_closed and metadata.last_entry_id >= 0:
        return max(0, metadata.length) // (metadata.last_entry_id + 1) + 64
    return ENTRY_BYTES_ASSUMED


def batch_entries_max(entry_bytes: int, entries_max: int = BATCH_ENTRIES) -> int:
    """Entries of a batch if each has about this size."""
    return max(1, min(entries_max, BATCH_BYTES // max(1, entry_bytes)))


class VerifiedBatch(msgspec.Struct, frozen=True):
    """What one bookie has of some entries: good bodies as stored, in the order of the request, and bad copies.

    ``unanswered``: entries without an answer because of an overload.
    """

    good: dict[int, bytes] = msgspec.field(default_factory=dict)
    bad: dict[int, Copy] = msgspec.field(default_factory=dict)
    unanswered: dict[int, Status] = msgspec.field(default_factory=dict)


class CopyReader:
    """Reads copies for all ledgers of a run.

    If a registered bookie does not answer, one read asks it again on behalf of all waiting reads. If it still does not
    answer, its copies count as unreachable without a request for ``silence_pause_s``; then one read asks again. So an
    unresponsive bookie costs two timeouts, regardless of the number of entries.
    """

    def __init__(
        self,
        ports: ClientPorts,
        config: ReplicationConfig,
        is_registered: Callable[[str], bool],
        *,
        items_max: int | None = None,
        times: RequestTimes | None = None,
    ) -> None:
        """``items_max``: limit of ``windows.items``; None: that of single entries. ``times``: also gets the reads of
        others; None: of this reader alone."""
        self._bookies = ports.bookies
        self._clock = ports.clock
        self._times = times or RequestTimes(ports.clock)
        self.windows = Windows(config.bytes_in_flight_max, items_max or config.entries_in_flight_max)
        self._config = config
        self._is_registered = is_registered
        self._silent_until_ns: dict[str, int] = {}
        """Bookies that do not answer, and when each may be asked again."""
        self._refusals: dict[str, str] = {}
        """Why those of them that do not accept this client do not."""
        self._asking_again: dict[str, asyncio.Future[None]] = {}
        """Bookies that are being asked again; the future ends when the outcome is known."""

    def note_outage(self) -> None:
        """Forget which bookies did not answer: their addresses were unavailable together with the metadata store."""
        self._silent_until_ns.clear()

    def is_responsive(self, bookie_id: str) -> bool:
        """Whether the bookie is registered and answered when it was last asked. Only ``read`` asks the others."""
        is_silent = bookie_id in self._silent_until_ns or bookie_id in self._asking_again
        return self._is_registered(bookie_id) and not is_silent

    def is_silent(self, bookie_id: str) -> bool:
        """Whether the bookie did not answer, and is not to be asked yet."""
        until_ns = self._silent_until_ns.get(bookie_id, 0)
        return bookie_id in self._asking_again or until_ns > self._clock.monotonic_ns()

    def is_absent(self, bookie_id: str) -> bool:
        """Whether the bookie is not registered, or gave no answer when it was last asked; a refusal is one."""
        is_silent = bookie_id in self._silent_until_ns and bookie_id not in self._refusals
        return is_silent or not self._is_registered(bookie_id)

    async def read_all(self, bookie_ids: Sequence[str], credentials: LedgerCredentials, entry_id: int) -> list[Copy]:
        """Read the copies of one entry from these bookies concurrently; results in the order of ``bookie_ids``."""
        return await asyncio.gather(*(self.read(bookie_id, credentials, entry_id) for bookie_id in bookie_ids))

    async def read_each(
        self, wanted: Mapping[int, Sequence[str]], credentials: LedgerCredentials
    ) -> dict[int, dict[str, Copy]]:
        """Read copies of several entries, with few requests per bookie. ``wanted``: the bookies to ask, by entry."""
        by_bookie: dict[str, list[int]] = {}
        for entry_id, bookie_ids in wanted.items():
            for bookie_id in bookie_ids:
                by_bookie.setdefault(bookie_id, []).append(entry_id)
        found: dict[int, dict[str, Copy]] = {entry_id: {} for entry_id in wanted}
        rows = await asyncio.gather(*(self.read_many(each, credentials, ids) for each, ids in by_bookie.items()))
        for (bookie_id, entry_ids), copies in zip(by_bookie.items(), rows, strict=True):
            for entry_id, copy in zip(entry_ids, copies, strict=True):
                found[entry_id][bookie_id] = copy
        return found

    async def read_many(self, bookie_id: str, credentials: LedgerCredentials, entry_ids: Sequence[int]) -> list[Copy]:
        """The copies of several entries on one bookie; those that a batch does not answer are read one by one."""
        copies: dict[int, Copy] = {}
        if len(entry_ids) > 1 and self.is_responsive(bookie_id):
            answers = await self.read_batch(bookie_id, credentials.ledger_id, entry_ids)
            for entry_id, answer in zip(entry_ids, answers, strict=True):
                if isinstance(answer, bytes):
                    copies[entry_id] = _verified(bookie_id, credentials, entry_id, answer)
                elif answer not in _UNANSWERED:
                    copies[entry_id] = bad_copy(self._bookies.error_of(answer, bookie_id))
        rest = [entry_id for entry_id in entry_ids if entry_id not in copies]
        found = await asyncio.gather(*(self.read(bookie_id, credentials, entry_id) for entry_id in rest))
        copies |= dict(zip(rest, found, strict=True))
        return [copies[entry_id] for entry_id in entry_ids]

    async def read_batch(
        self, bookie_id: str, ledger_id: int, entry_ids: Sequence[int], entry_bytes: int = ENTRY_BYTES_ASSUMED
    ) -> list[BodyOrStatus]:
        """One unverified answer for each entry, in order. After an overload the remaining entries are not asked for.

        ``entry_bytes``: expected size of an entry, for the window of the bookie.
        """
        window = self.windows.of(bookie_id)
        answers: list[BodyOrStatus] = []
        while True:
            rest = entry_ids[len(answers) :] if answers else entry_ids
            size_bytes = min(len(rest) * entry_bytes, max(BATCH_BYTES, entry_bytes))
            async with window.lease(size_bytes + len(rest) * REQUEST_COST_BYTES) as lease:
                asked = self._bookies.read_many(bookie_id, ledger_id, rest, bytes_max=BATCH_BYTES)
                found = await self._times.of(bookie_id, asked)
                overload = next((each for each in found if type(each) is not bytes and each in _UNANSWERED), None)
                lease.note_outcome(is_overloaded=overload is not None)
            answers = answers + found if answers else found
            if overload is not None:
                answers.extend([overload] * (len(entry_ids) - len(answers)))
            if len(answers) == len(entry_ids):
                return answers

    async def read_verified(
        self, bookie_id: str, credentials: LedgerCredentials, entry_ids: Sequence[int], entry_bytes: int
    ) -> VerifiedBatch:
        """Like ``read_batch``, and check the digests, without an object for each good copy."""
        answers = await self.read_batch(bookie_id, credentials.ledger_id, entry_ids, entry_bytes)
        bodies = [b"" if isinstance(answer, Status) else answer for answer in answers]
        errors = credentials.codec.verify_many(entry_ids, bodies)
        found = VerifiedBatch()
        for entry_id, answer, error in zip(entry_ids, answers, errors, strict=True):
            if isinstance(answer, bytes):
                if error is None:
                    found.good[entry_id] = answer
                else:
                    found.bad[entry_id] = Copy(bookie_id, CopyState.CORRUPT, str(error))
            elif answer in _UNANSWERED:
                found.unanswered[entry_id] = answer
            else:
                found.bad[entry_id] = bad_copy(self._bookies.error_of(answer, bookie_id))
        return found

    async def read(
        self, bookie_id: str, credentials: LedgerCredentials, entry_id: int, *, attempts_max: int | None = None
    ) -> Copy:
        """The copy of one entry on one bookie, of its last one for -1. A bookie that is not registered is not asked
        (replication section 3).

        A lower ``attempts_max`` than configured is for callers that can ask other bookies: with 1 this never waits for
        a bookie that did not answer another read.
        """
        attempts = self._config.attempts_max if attempts_max is None else attempts_max
        if not self._is_registered(bookie_id):
            return Copy(bookie_id, CopyState.UNREACHABLE, "not registered")
        if bookie_id in self._asking_again and attempts > 1:
            await self._wait_for_outcome(bookie_id)
        if bookie_id in self._asking_again or self._is_silent(bookie_id):
            refusal = self._refusals.get(bookie_id)
            reason = "it does not respond" if refusal is None else refusal
            return Copy(bookie_id, CopyState.UNREACHABLE, reason, is_refused=refusal is not None)
        return await self._ask(bookie_id, credentials, entry_id, attempts)

    async def _ask(self, bookie_id: str, credentials: LedgerCredentials, entry_id: int, attempts: int) -> Copy:
        window = self.windows.items
        attempt = 0
        while True:
            attempt += 1
            shrinks_seen = window.shrinks
            try:
                asked = self._bookies.read(bookie_id, credentials.ledger_id, entry_id)
                reply = await self._times.of(bookie_id, asked)
            except SILENCE as error:
                is_last = attempt >= attempts or bookie_id in self._silent_until_ns
                if is_last or not await self._answers_again(bookie_id, credentials.ledger_id, entry_id):
                    return Copy(bookie_id, CopyState.UNREACHABLE, reason_of(error))
                continue
            except AuthenticationRequiredError as error:  # it has not looked at the request
                self._begin_silence(bookie_id)
                self._refusals[bookie_id] = reason_of(error)
                return Copy(bookie_id, CopyState.UNREACHABLE, reason_of(error), is_refused=True)
            except BookieError as error:
                self._note_answer(bookie_id)
                if not isinstance(error, TooManyRequestsError):
                    return bad_copy(error)
                window.shrink(shrinks_seen)
                if attempt >= attempts:
                    return Copy(bookie_id, CopyState.UNREACHABLE, reason_of(error))
            else:
                self._note_answer(bookie_id)
                window.grow(len(reply.body) + REQUEST_COST_BYTES)
                return _verified(bookie_id, credentials, entry_id, reply.body)
            await self._clock.sleep(pause_s(attempt, self._config, self._clock))

    async def list_of(self, bookie_id: str, ledger_id: int) -> EntryList | None:
        """The entries of a ledger that a bookie lists, None if it gives no list."""
        try:
            return await self._bookies.list_entries(bookie_id, ledger_id)
        except NoSuchLedgerError:
            return EntryList()
        except BookieError:
            return None

    def _is_silent(self, bookie_id: str) -> bool:
        """Whether the bookie must not be asked now. After the pause, this is False for one read, which asks it."""
        until_ns = self._silent_until_ns.get(bookie_id)
        if until_ns is None:
            return False
        if self._clock.monotonic_ns() >= until_ns:
            self._begin_silence(bookie_id)  # a refusal stays the reason until this read knows better
            return False
        return True

    def _begin_silence(self, bookie_id: str) -> None:
        self._silent_until_ns[bookie_id] = self._clock.monotonic_ns() + int(self._config.silence_pause_s * 1e9)

    def _note_answer(self, bookie_id: str) -> None:
        self._refusals.pop(bookie_id, None)
        self._silent_until_ns.pop(bookie_id, None)

    async def _answers_again(self, bookie_id: str, ledger_id: int, entry_id: int) -> bool:
        """Whether a bookie that did not answer does now. The first caller asks, the others wait for the outcome."""
        if bookie_id in self._asking_again:
            await self._wait_for_outcome(bookie_id)
            return bookie_id not in self._silent_until_ns
        outcome = self._asking_again[bookie_id] = asyncio.get_running_loop().create_future()
        try:
            answers = await self._ask_again(bookie_id, ledger_id, entry_id)
            if not answers:
                self._refusals.pop(bookie_id, None)
                self._begin_silence(bookie_id)
            return answers
        finally:
            del self._asking_again[bookie_id]
            outcome.set_result(None)

    async def _ask_again(self, bookie_id: str, ledger_id: int, entry_id: int) -> bool:
        """Ask until there is any answer. Gives up at the second timeout. Retries a refused connection more often,
        because the bookie may be starting."""
        began_ns = self._clock.monotonic_ns()
        for attempt in range(1, self._config.attempts_max):
            await self._clock.sleep(pause_s(attempt, self._config, self._clock))
            try:
                await self._times.of(bookie_id, self._bookies.read(bookie_id, ledger_id, entry_id))
            except BookieUnavailableError:
                if self._clock.monotonic_ns() - began_ns >= UNAVAILABLE_MAX_NS:
                    return False
            except BookieTimeoutError:
                return False
            except BookieError:
                return True
            else:
                return True
        return False

    async def _wait_for_outcome(self, bookie_id: str) -> None:
        # Do not await the future itself: cancelling one waiter would cancel the future for all.
        await asyncio.wait([self._asking_again[bookie_id]])


def bad_copy(error: BookieError) -> Copy:
    """The copy of a bookie that answered with an error other than "too many requests"."""
    if isinstance(error, (NoSuchEntryError, NoSuchLedgerError)):
        return Copy(error.bookie_id, CopyState.MISSING, reason_of(error))
    is_damaged = isinstance(error, BookieIOError)
    return Copy(error.bookie_id, CopyState.FAILED, f"it answered: {reason_of(error)}", is_damaged=is_damaged)


def _verified(bookie_id: str, credentials: LedgerCredentials, entry_id: int, body: bytes) -> Copy:
    try:
        entry = credentials.codec.decode(None if entry_id == INVALID_ENTRY_ID else entry_id, body)
    except EntryDigestError as error:
        return Copy(bookie_id, CopyState.CORRUPT, str(error))
    return Copy(bookie_id, CopyState.PRESENT, body=body, entry=entry)


def reason_of(error: BookieError) -> str:
    """The error without the bookie that its sentence begins with."""
    return str(error).removeprefix(f"bookie {error.bookie_id}: ")


def pause_s(attempt: int, config: ReplicationConfig, clock: Clock) -> float:
    """Seconds to wait after the ``attempt``-th failure (from 1)."""
    return back_off_s(attempt - 1, config.backoff_first_s, config.backoff_max_s, clock)
