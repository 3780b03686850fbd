"""Finds marked ledgers for a worker, and their order: fewest live copies first, then the oldest mark.

All workers list the ids of the marked ledgers, which costs few operations. But each reads only its share of the marks
and of the metadata, so that the cost does not grow with the number of workers. A worker whose share is empty helps
with that of others.

Why a ledger could not be repaired, and when any worker may try again, is in ZooKeeper. The pause doubles with each
attempt. A ledger that only an event can help, for example the return of a bookie, is tried rarely, and once after each
event.
"""

from __future__ import annotations

import dataclasses
import heapq
import zlib
from collections.abc import AsyncGenerator, Callable, Container, Iterable
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from bkctl.runtime.autorecovery.config import AutorecoveryConfig, AutorecoveryRole
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import LedgerNotFoundError, MetadataFormatError
from bkctl.runtime.metadata.pipeline import pipelined
from bkctl.runtime.metadata.replication.recovery_notes import FailedLedgerNote, RecoveryNotes, daemon_key
from bkctl.runtime.metadata.replication.work import ReplicationWork
from bkctl.runtime.metadata.store import MetadataStore, Versioned
from bkctl.runtime.replication.judge.verdict import live_copies
from bkctl.runtime.replication.turn.bookies import LiveBookies

EVENT_PAUSE_FACTOR = 12
"""A ledger that only an event can help is tried after this many times the longest pause."""
DETAIL_CHARS_MAX = 2000
CLOCK_DIFFERENCE_MS_MAX = 60_000
"""Clocks of hosts may differ by this much before a note is not believed."""
CANDIDATES_MAX = 100_000
_COPIES_MAX = 255
_ID_BITS = 63
_ID_MASK = (1 << _ID_BITS) - 1
_TIME_MAX = (1 << 48) - 1
READS_IN_FLIGHT_MAX = 64
FIRST_COUNT = 1000
"""So many ledgers are compared before the first one is taken; the others follow while the first are repaired."""
FULL_INTERVAL_S = 600.0
"""About how often a worker that has candidates lists again, because their order may have changed."""
IDLE_INTERVAL_S = 60.0
"""About how often a worker without candidates lists again without a change."""
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0
"""Pause after a listing if something has changed. It doubles while changes bring no work."""
HELP_MAX = 64
"""Most candidates of others' shares that a worker without work takes at once."""


class RepairFailure(NamedTuple):
    """Why a marked ledger is not repaired. ``needs_event``: another try helps only after an event."""

    reason: str
    detail: str
    needs_event: bool = False


def combined(failures: Iterable[RepairFailure]) -> RepairFailure:
    """One for all failures of a ledger: the first reason that another try can help, else the first."""
    ordered = sorted(failures, key=lambda failure: failure.needs_event)
    return ordered[0]._replace(detail="; ".join(dict.fromkeys(failure.detail for failure in ordered)))


def note_of(
    failure: RepairFailure, former: FailedLedgerNote | None, now_ms: int, config: AutorecoveryConfig, worker: str
) -> FailedLedgerNote:
    """The note about a failed attempt, after the one about the ``former``."""
    attempts = 1 if former is None else former.attempts + 1
    return FailedLedgerNote(
        worker=worker,
        attempts=attempts,
        first_ms=now_ms if former is None else former.first_ms,
        last_ms=now_ms,
        retry_ms=now_ms + int(pause_s(config, attempts, needs_event=failure.needs_event) * 1000),
        reason=failure.reason,
        detail=failure.detail[:DETAIL_CHARS_MAX],
    )


def needs_event(note: FailedLedgerNote, config: AutorecoveryConfig) -> bool:
    """Whether another try can help only after an event."""
    return note.retry_ms - note.last_ms >= int(1000 * pause_s(config, 1, needs_event=True))


def believed(note: FailedLedgerNote, now_ms: int, config: AutorecoveryConfig) -> FailedLedgerNote:
    """The note with times that a right clock could have written.

    A note from the future is due now, and none is due later than the longest pause after its last attempt.
    """
    if note.last_ms > now_ms + CLOCK_DIFFERENCE_MS_MAX:
        return msgspec.structs.replace(note, last_ms=now_ms, retry_ms=now_ms)
    longest_ms = int(1000 * pause_s(config, 1, needs_event=True))
    return msgspec.structs.replace(note, retry_ms=min(note.retry_ms, note.last_ms + longest_ms))


def pause_s(config: AutorecoveryConfig, attempts: int, *, needs_event: bool) -> float:
    """Pause after this many failed attempts."""
    if needs_event:
        return EVENT_PAUSE_FACTOR * config.failed_ledger_pause_max_s
    first_s, max_s = config.failed_ledger_pause_first_s, config.failed_ledger_pause_max_s
    return float(min(first_s * 2 ** min(attempts - 1, 60), max_s))


def urgency(ledger_id: int, live_copies: int, marked_ms: int) -> int:
    """Rank of a candidate; the smallest comes first. A ledger without a live copy comes last: it can only wait."""
    copies = min(live_copies, _COPIES_MAX - 1) if live_copies else _COPIES_MAX
    time_ms = min(max(marked_ms, 0), _TIME_MAX)
    return (copies * (_TIME_MAX + 1) + time_ms) << _ID_BITS | ledger_id


class WorkQueue:
    """Candidates that can be taken now, and ledgers that must not be taken before a time.

    A candidate is one number of 16 bytes, so 100,000 of them take about 6 MB. Beyond that the queue keeps the most
    urgent ones; the others come back with the next listing.
    """

    def __init__(self, size_max: int = CANDIDATES_MAX) -> None:
        self._size_max = size_max
        self._ranks: list[int] = []
        self._due_ms: dict[int, int] = {}
        self._postponed: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._ranks)

    @property
    def known_count(self) -> int:
        """Candidates and postponed ledgers; some may be done already."""
        return len(self._ranks) + len(self._due_ms)

    def offer(self, rank: int) -> None:
        """Add a candidate, unless its ledger is postponed. Each ledger once per listing."""
        if _ledger_id(rank) in self._due_ms:
            return
        heapq.heappush(self._ranks, rank)
        if len(self._ranks) >= 2 * self._size_max:
            self._ranks = heapq.nsmallest(self._size_max, self._ranks)

    def clear(self) -> None:
        """Forget the candidates; what is postponed stays so."""
        self._ranks.clear()

    def postpone(self, ledger_id: int, until_ms: int) -> None:
        """Take the ledger at this time, and not before. Beyond the limit it is left to the next listing."""
        if len(self._due_ms) < self._size_max or ledger_id in self._due_ms:
            self._due_ms[ledger_id] = until_ms
            heapq.heappush(self._postponed, (until_ms, ledger_id))

    def is_postponed(self, ledger_id: int) -> bool:
        """Whether the ledger must not be taken yet."""
        return ledger_id in self._due_ms

    def take(self, now_ms: int) -> int | None:
        """The next ledger: postponed ones that are due come first, because they waited longer. None: there is none."""
        due_ms = self.next_due_ms()
        if due_ms is not None and due_ms <= now_ms:
            _, ledger_id = heapq.heappop(self._postponed)
            del self._due_ms[ledger_id]
            return ledger_id
        while self._ranks:
            ledger_id = _ledger_id(heapq.heappop(self._ranks))
            if ledger_id not in self._due_ms:
                return ledger_id
        return None

    def next_due_ms(self) -> int | None:
        """When the next postponed ledger is due; None if there is none."""
        while self._postponed:
            due_ms, ledger_id = self._postponed[0]
            if self._due_ms.get(ledger_id) == due_ms:
                return due_ms
            heapq.heappop(self._postponed)  # postponed again, or not at all, since
        return None


def _ledger_id(rank: int) -> int:
    return rank & _ID_MASK


@dataclasses.dataclass(eq=False)
class MarkListing:
    """Fills the queue of a worker."""

    ports: ClientPorts
    store: MetadataStore
    config: AutorecoveryConfig
    work: ReplicationWork
    notes: RecoveryNotes
    live_bookies: LiveBookies
    queue: WorkQueue

    def __post_init__(self) -> None:
        self._clock = self.ports.clock
        self._has_changed = True
        self._pause_s = PAUSE_S_MIN
        self._ended_ms = 0
        self._interval_s = 0.0
        self._offered = self._ranked = 0
        self._with_note: set[int] = set()
        self._needing_event: set[int] = set()
        """Postponed ledgers that another try can help only after an event."""
        self._live: frozenset[str] = frozenset()
        self._is_worker: dict[str, bool] = {}
        """Whether a running daemon is a worker, by its key."""
        self._gained_ms = 0
        """When a bookie registered."""

    @property
    def is_young(self) -> bool:
        """Whether a running listing has looked at too few ledgers to know which is the most urgent."""
        return self._ranked < FIRST_COUNT

    def note_change(self) -> None:
        """Something has changed since it was listed."""
        self._has_changed = True

    @property
    def due_ms(self) -> int:
        """When the next listing is due."""
        is_soon = self._has_changed and not len(self.queue)
        return self._ended_ms + int(1000 * (self._pause_s if is_soon else self._interval_s))

    def is_due(self, now_ms: int) -> bool:
        """Whether to list now."""
        return now_ms >= self.due_ms

    def may_take(self, ledger_id: int, note: FailedLedgerNote | None) -> bool:
        """Whether a ledger can be tried again that failed: its time has come, or a bookie that may help has registered.

        It is postponed if not. ``note``: None: it has not failed.
        """
        if note is None or note.retry_ms <= self._clock.now_ms():
            return True
        if needs_event(note, self.config) and note.last_ms < self._gained_ms:
            return True
        self.postpone(ledger_id, note)
        return False

    async def failure_of(self, ledger_id: int) -> FailedLedgerNote | None:
        """The note about a failed ledger; None if there is none, or if it cannot be read. One operation."""
        found = await self.notes.failures.find_or_problem(str(ledger_id))
        return believed(found.value, self._clock.now_ms(), self.config) if isinstance(found, Versioned) else None

    def postpone(self, ledger_id: int, note: FailedLedgerNote) -> None:
        """Take a failed ledger again when it is time."""
        self.queue.postpone(ledger_id, note.retry_ms)
        if needs_event(note, self.config):
            self._needing_event.add(ledger_id)

    async def run(self, at_work: Container[int], on_progress: Callable[[], None]) -> None:
        """List, leaving out ledgers that are ``at_work``."""
        has_changed, self._has_changed = self._has_changed, False
        self._offered = self._ranked = 0
        self.queue.clear()
        try:
            await self._note_registrations()
            self._with_note = await self.notes.failures.ledger_ids()
            unmarked = set(self._with_note)
            marked = await self._offer_all(await self._share(), at_work, on_progress, unmarked)
            if marked and not self._offered:
                help_share = min(1.0, HELP_MAX / marked)
                await self._offer_all(lambda _: self._clock.random.random() < help_share, at_work, on_progress)
            for ledger_id in unmarked:  # their notes were read before the marks, so these are cleared, not yet to come
                await self.notes.failures.remove(str(ledger_id))
        finally:
            self._ended_ms = self._clock.now_ms()
            is_in_vain = has_changed and not self._offered
            self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX) if is_in_vain else PAUSE_S_MIN
            interval_s = FULL_INTERVAL_S if self._offered else IDLE_INTERVAL_S
            self._interval_s = interval_s * self._clock.random.uniform(0.5, 1.5)
            on_progress()

    async def _offer_all(
        self,
        is_ours: Callable[[int], bool],
        at_work: Container[int],
        on_progress: Callable[[], None],
        unmarked: set[int] | None = None,
    ) -> int:
        """Offer the candidates of a share; returns how many ledgers are marked, all shares together.

        Those that are marked are removed from ``unmarked``.
        """
        marked = 0

        async def wanted() -> AsyncGenerator[int, None]:
            nonlocal marked
            async with aclosing(self.work.ids()) as ids:
                async for ledger_id in ids:
                    marked += 1
                    if unmarked:
                        unmarked.discard(ledger_id)
                    if is_ours(ledger_id) and ledger_id not in at_work and not self.queue.is_postponed(ledger_id):
                        yield ledger_id

        candidates = wanted()
        async with aclosing(candidates), aclosing(pipelined(candidates, self._rank, READS_IN_FLIGHT_MAX)) as ranks:
            async for rank in ranks:
                self._ranked += 1
                if rank is not None:
                    self.queue.offer(rank)
                    self._offered += 1
                    if not self.is_young:
                        on_progress()
        return marked

    async def _rank(self, ledger_id: int) -> int | None:
        """How urgent a ledger is; None if it must not be taken now."""
        mark = await self.work.read(ledger_id)
        if mark is None:
            return None
        if ledger_id in self._with_note and not self.may_take(ledger_id, await self.failure_of(ledger_id)):
            return None
        try:
            metadata = (await self.ports.ledgers.read(ledger_id)).value
        except (LedgerNotFoundError, MetadataFormatError):
            return urgency(ledger_id, 0, mark.marked_ms)
        registrations = await self.live_bookies.refresh()
        return urgency(ledger_id, live_copies(ledger_id, metadata, registrations.live), mark.marked_ms)

    async def _note_registrations(self) -> None:
        live = (await self.live_bookies.refresh()).live
        if self._live and not live <= self._live:
            self._gained_ms = self._clock.now_ms()
            for ledger_id in self._needing_event:
                if self.queue.is_postponed(ledger_id):
                    self.queue.postpone(ledger_id, self._gained_ms)
            self._needing_event.clear()
        self._live = live

    async def _share(self) -> Callable[[int], bool]:
        """Which ledgers are this worker's, as one of the running workers."""
        daemons = await self.notes.daemons.keys()
        self._is_worker = {key: self._is_worker[key] for key in daemons if key in self._is_worker}
        for key in daemons:
            if key not in self._is_worker:  # it never changes
                note = await self.notes.daemons.find_or_problem(key)
                self._is_worker[key] = isinstance(note, Versioned) and note.value.role != AutorecoveryRole.AUDITOR
        keys = sorted(key for key, is_worker in self._is_worker.items() if is_worker)
        own = daemon_key(self.store.session_id)
        count = len(keys)
        if count < 2:
            return lambda _: True
        if own not in keys:
            return lambda _: self._clock.random.random() * count < 1
        position = keys.index(own)
        return lambda ledger_id: zlib.crc32(ledger_id.to_bytes(8)) % count == position
