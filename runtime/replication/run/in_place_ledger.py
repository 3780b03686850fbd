"""Repair of the bad copies of one ledger: lock, read the metadata again, then batches of entries, then stripes.

A batch reads the planned copies again and, where one is bad, the copies of the whole write set. It writes the bytes of
a good copy to the bookies with bad ones, and reads these back. So a repeated repair writes only what is still bad.
Stripes with corrupt or unreadable copies on bookies that do not run bkctl move afterwards, like those of a leaving
bookie.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from runtime.client.ports import ClientPorts, LedgerCredentials, credentials_of
from runtime.errors import LedgerNotFoundError, MetadataFormatError, SessionExpiredError
from runtime.ledger.metadata import LedgerMetadata
from runtime.ledger.write_set import write_set
from runtime.metadata.outage import OutageWait
from runtime.metadata.replication.lock import ReplicationLock, ReplicationLocks
from runtime.protocol.status import Status, error_of
from runtime.replication.config import ReplicationConfig
from runtime.replication.copy.activity import LedgerActivity
from runtime.replication.copy.rate import CopyRate
from runtime.replication.copy.reader import BATCH_ENTRIES, CopyReader, batch_entries_max, entry_bytes_estimate, pause_s
from runtime.replication.copy.tasks import for_each_leased
from runtime.replication.copy.window import Lease, Window
from runtime.replication.judge.bad_copies import (
    BAD_STATES,
    LedgerInPlace,
    LedgerRewritten,
    LeftCopies,
    LeftReason,
    judge_entry,
)
from runtime.replication.judge.copies import Copy, CopyState
from runtime.replication.judge.fragments import (
    EntryRange,
    EntryRangeSet,
    batches,
    in_and_out_of,
    joined,
    segment_entries,
)
from runtime.replication.judge.ledger_result import FailureReason, LedgerResult
from runtime.replication.run.engine import Engine
from runtime.replication.turn.live_bookies import LiveBookies
from runtime.replication.turn.task import LedgerTask

LOCK_LOSSES_MAX = 5
"""Maximum restarts of a ledger after its lock was lost with the session."""


_REASONS = {
    FailureReason.LOST: LeftReason.STRIPE,
    FailureReason.UNREADABLE: LeftReason.UNREADABLE,
    FailureReason.NOT_ENOUGH_BOOKIES: LeftReason.NO_TARGET,
    FailureReason.PLACEMENT: LeftReason.NO_TARGET,
}


class _LockGoneError(Exception):
    """Another process may be copying now: stop writing."""


@dataclasses.dataclass(frozen=True)
class InPlaceTools:
    """What all ledgers of a run share. ``unusable``: bookies that stopped answering to adds, with the reason."""

    ports: ClientPorts
    locks: ReplicationLocks
    config: ReplicationConfig
    rate: CopyRate
    window: Window
    copies: CopyReader
    live_bookies: LiveBookies
    outage: OutageWait
    engine: Engine
    """Moves stripes."""
    unusable: dict[str, str]
    on_written: Callable[[int, int], None]
    """Called with copies and bytes when copies were written and read back."""


def in_place_tools(
    ports: ClientPorts,
    engine: Engine,
    locks: ReplicationLocks,
    config: ReplicationConfig,
    on_written: Callable[[int, int], None],
) -> InPlaceTools:
    """Tools that share rates, windows and the list of bookies with an engine."""
    return InPlaceTools(
        ports=ports,
        locks=locks,
        config=config,
        rate=engine.pacer.total,
        window=Window(config.bytes_in_flight_max, items_max=max(1, config.entries_in_flight_max // BATCH_ENTRIES)),
        copies=engine.copies,
        live_bookies=engine.live_bookies,
        outage=engine.outage,
        engine=engine,
        unusable={},
        on_written=on_written,
    )


class LedgerInPlaceRepair:
    """Repair of one ledger. ``run`` may be repeated: it counts each copy once."""

    def __init__(self, tools: InPlaceTools, planned: LedgerInPlace) -> None:
        self._tools = tools
        self._ports = tools.ports
        self._planned = planned
        self._ledger_id = planned.ledger_id
        ranges: dict[str, list[EntryRange]] = {}
        for each in planned.changes:
            ranges.setdefault(each.bookie_id, []).extend(each.entries)
        self._ranges = {bookie_id: joined(each) for bookie_id, each in ranges.items()}
        self._copies = 0
        self._copies_moved = 0
        self._stripes_moved = 0
        self._bytes_written = 0
        self._moving: dict[int, dict[str, EntryRangeSet]] = {}
        """Copies that must not be written over, by the first entry of their segment and their bookie."""
        self._left: dict[tuple[str, LeftReason], EntryRangeSet] = {}
        self._details: dict[tuple[str, LeftReason], str] = {}
        self._lock: ReplicationLock

    async def run(self) -> LedgerRewritten:
        """Lock, and repair; MetadataUnavailableError: call again."""
        locks = self._tools.locks
        for _ in range(LOCK_LOSSES_MAX):
            self._left.clear()
            try:
                lock = await self._acquire()
            except SessionExpiredError:
                self._tools.live_bookies.note_outage()
                continue
            if lock is None:
                return self._nothing(LeftReason.LOCKED, await self._holder())
            try:
                result = await self.run_locked(lock)
                if result is not None:
                    return result
            finally:
                if self._tools.outage.is_lasting:
                    locks.leave(lock)
                else:
                    await lock.release()
        return self._nothing(LeftReason.LOCKED, f"the lock was lost {LOCK_LOSSES_MAX} times in a row")

    async def run_locked(self, lock: ReplicationLock) -> LedgerRewritten | None:
        """Repair under a lock that the caller takes and releases; None if it was lost. MetadataUnavailableError."""
        self._lock = lock
        try:
            return await self._repair()
        except _LockGoneError:
            self._tools.live_bookies.note_outage()
            return None
        except LedgerNotFoundError:
            return self._result(was_deleted=True)
        except MetadataFormatError as error:
            return self._nothing(LeftReason.METADATA_UNREADABLE, str(error))

    async def _acquire(self) -> ReplicationLock | None:
        """The lock, or None if another process keeps it."""
        clock, config = self._ports.clock, self._tools.config
        deadline_ns = clock.monotonic_ns() + int(config.lock_wait_s * 1e9)
        while True:
            lock = await self._tools.locks.acquire(self._ledger_id)
            if lock is not None or clock.monotonic_ns() >= deadline_ns:
                return lock
            await clock.sleep(config.lock_poll_s)

    async def _holder(self) -> str:
        lock = await self._tools.locks.look_at(self._ledger_id)
        holder = "an unknown host" if lock is None or lock.holder is None else lock.holder
        return f"held by {holder}, gave up after {self._tools.config.lock_wait_s:g} s"

    async def _repair(self) -> LedgerRewritten:
        self._moving.clear()
        metadata = (await self._ports.ledgers.read(self._ledger_id)).value
        await self._tools.live_bookies.refresh()
        for index in range(len(metadata.segments)):
            if metadata.is_closed or index < len(metadata.segments) - 1:  # never the open last segment
                await self._repair_segment(metadata, index)
        for first_entry_id, corrupt in self._moving.items():
            await self._move(metadata, first_entry_id, corrupt)
        return self._result()

    async def _move(self, metadata: LedgerMetadata, first_entry_id: int, corrupt: dict[str, EntryRangeSet]) -> None:
        """Move the stripes that these bookies have in one segment to others."""
        unreachable = metadata.bookies() - (await self._tools.live_bookies.refresh()).live
        leaving = {first_entry_id: frozenset(corrupt)}
        task = LedgerTask(ledger_id=self._ledger_id, leaving_segments=leaving, unreachable=unreachable)
        activity = LedgerActivity(self._ledger_id, self._ports.clock.monotonic_ns())
        result = await self._tools.engine.repair_locked(self._lock, task, activity)
        if any(failure.reason is FailureReason.LOCK_LOST for failure in result.failures):
            raise _LockGoneError
        stored = (await self._ports.ledgers.read(self._ledger_id)).value
        self._bytes_written += result.bytes_copied
        for bookie_id, entries in corrupt.items():
            if bookie_id not in stored.segment_of(first_entry_id).ensemble:
                self._stripes_moved += 1
                self._copies_moved += entries.count
            else:
                reason, detail = _why_not_moved(result)
                for each in entries.ranges():
                    self._left.setdefault((bookie_id, reason), EntryRangeSet()).add_range(each)
                self._details.setdefault((bookie_id, reason), detail)

    async def _repair_segment(self, metadata: LedgerMetadata, index: int) -> None:
        credentials = credentials_of(self._ledger_id, metadata)
        entry_bytes = self._planned.entry_bytes or entry_bytes_estimate(metadata)
        batch_entries = batch_entries_max(entry_bytes * metadata.write_quorum_size)

        async def repair_batch(entry_ids: tuple[int, ...], lease: Lease) -> None:
            await self._repair_batch(_EntryBatch(metadata, index, credentials, lease, entry_bytes), entry_ids)

        await for_each_leased(
            batches(self._entry_ids(metadata, index), lambda: batch_entries),
            repair_batch,
            self._tools.window,
            lambda: batch_entries * entry_bytes * metadata.write_quorum_size,
        )

    def _entry_ids(self, metadata: LedgerMetadata, index: int) -> Iterator[int]:
        """Planned entries of one segment."""
        planned = joined(entries for ranges in self._ranges.values() for entries in ranges)
        inside, _ = in_and_out_of(planned, (segment_entries(metadata, index),))
        for entries in inside:
            yield from range(entries.first_entry_id, entries.last_entry_id + 1)

    async def _repair_batch(self, batch: _EntryBatch, entry_ids: Sequence[int]) -> None:
        """Read the planned copies of these entries; where one is bad, all others; then write, and read back."""
        planned = {entry_id: self._wanted(batch, entry_id) for entry_id in entry_ids}
        found = await self._read(batch, planned)
        others = {
            entry_id: [each for each in batch.members(entry_id) if each not in found[entry_id]]
            for entry_id in entry_ids
            if any(copy.state in BAD_STATES for copy in found[entry_id].values())
        }
        for entry_id, copies in (await self._read(batch, others)).items():
            found[entry_id] |= copies
        writes: dict[str, list[tuple[int, Copy]]] = {}
        for entry_id, copies in found.items():
            in_order = [copies[each] for each in batch.members(entry_id) if each in copies]
            verdict = judge_entry(in_order, planned[entry_id], await self._running_bkctl(in_order))
            for bookie_id in verdict.to_move:
                self._moving.setdefault(batch.first_entry_id, {}).setdefault(bookie_id, EntryRangeSet()).add(entry_id)
            for bookie_id, reason, detail in verdict.left:
                self._leave(bookie_id, reason, entry_id, detail)
            for bookie_id in verdict.targets:
                assert verdict.source is not None
                writes.setdefault(bookie_id, []).append((entry_id, verdict.source))
        for bookie_id, adds in writes.items():
            await self._write(batch, bookie_id, adds)

    async def _running_bkctl(self, copies: Sequence[Copy]) -> list[str]:
        """The bookies with a bad record that run bkctl."""
        software = self._tools.engine.replicator.software
        bookie_ids = [copy.bookie_id for copy in copies if copy.has_bad_record]
        return [each for each in bookie_ids if await software.is_bkctl(each)]

    def _wanted(self, batch: _EntryBatch, entry_id: int) -> list[str]:
        """Bookies whose copy of the entry is planned, and which the metadata still names for it."""
        wanted = []
        for bookie_id in batch.members(entry_id):
            if not _is_in(self._ranges.get(bookie_id, ()), entry_id):
                continue
            if bookie_id in self._tools.unusable:
                self._leave(bookie_id, LeftReason.UNREACHABLE, entry_id, self._tools.unusable[bookie_id])
            else:
                wanted.append(bookie_id)
        return wanted

    async def _read(self, batch: _EntryBatch, wanted: Mapping[int, Sequence[str]]) -> dict[int, dict[str, Copy]]:
        """Copies of entries on these bookies."""
        bytes_taken = batch.entry_bytes * sum(map(len, wanted.values()))
        if not bytes_taken:
            return {entry_id: {} for entry_id in wanted}
        await self._tools.rate.take(bytes_taken)
        found = await self._tools.copies.read_each(wanted, batch.credentials)
        bytes_read = sum(len(copy.body) for copies in found.values() for copy in copies.values())
        self._tools.rate.correct(bytes_taken, bytes_read)
        batch.hold(bytes_read)
        return found

    async def _write(self, batch: _EntryBatch, bookie_id: str, adds: Sequence[tuple[int, Copy]]) -> None:
        """Write copies to one bookie, and read back those that it took."""
        size_bytes = sum(len(copy.body) for _, copy in adds)
        await self._tools.rate.take(2 * size_bytes)
        statuses = await self._add(bookie_id, batch.credentials, [(entry_id, copy.body) for entry_id, copy in adds])
        stored = []
        for (entry_id, copy), status in zip(adds, statuses, strict=True):
            if status is Status.OK:
                stored.append((entry_id, copy))
                continue
            detail = str(error_of(status, bookie_id))
            reason = LeftReason.READ_ONLY if status is Status.READ_ONLY else LeftReason.REFUSED
            if status in {Status.TIMEOUT, Status.UNAVAILABLE}:
                self._tools.unusable[bookie_id] = detail
                reason = LeftReason.UNREACHABLE
            self._leave(bookie_id, reason, entry_id, detail)
        copies = await self._tools.copies.read_many(bookie_id, batch.credentials, [entry_id for entry_id, _ in stored])
        good = bytes_written = 0
        for (entry_id, source), copy in zip(stored, copies, strict=True):
            if copy.state is CopyState.PRESENT and _is_equal(copy, source):
                good += 1
                bytes_written += len(source.body)
            elif copy.state is CopyState.UNREACHABLE:
                self._leave(bookie_id, LeftReason.UNREACHABLE, entry_id, copy.reason)
            else:
                detail = copy.reason or "its copy differs from the one that was written"
                self._leave(bookie_id, LeftReason.STILL_BAD, entry_id, detail)
        self._copies += good
        self._bytes_written += bytes_written
        self._tools.on_written(good, bytes_written)

    async def _add(
        self, bookie_id: str, credentials: LedgerCredentials, adds: Sequence[tuple[int, bytes]]
    ) -> list[Status]:
        """The final status of each recovery add; an overloaded bookie is asked again."""
        config, clock = self._tools.config, self._ports.clock
        statuses: dict[int, Status] = {}
        rest = list(adds)
        for attempt in range(1, config.attempts_max + 1):
            if not self._lock.is_held:
                raise _LockGoneError
            answers = await self._ports.bookies.add_many(
                bookie_id, credentials.ledger_id, credentials.master_key, rest, is_recovery_add=True
            )
            statuses |= {entry_id: status for (entry_id, _), status in zip(rest, answers, strict=True)}
            again = {Status.TOO_MANY_REQUESTS} | ({Status.TIMEOUT} if attempt == 1 else set())
            rest = [(entry_id, body) for entry_id, body in rest if statuses[entry_id] in again]
            if not rest:
                break
            self._tools.window.shrink(self._tools.window.shrinks)
            await clock.sleep(pause_s(attempt, config, clock))
        return [statuses[entry_id] for entry_id, _ in adds]

    def _leave(self, bookie_id: str, reason: LeftReason, entry_id: int, detail: str) -> None:
        self._left.setdefault((bookie_id, reason), EntryRangeSet()).add(entry_id)
        self._details.setdefault((bookie_id, reason), detail)

    def _nothing(self, reason: LeftReason, detail: str) -> LedgerRewritten:
        """The result if the rest of the plan was not carried out."""
        left = tuple(
            LeftCopies(self._ledger_id, reason, each.bookie_id, each.copies, each.entries, detail)
            for each in self._planned.changes
        )
        return msgspec.structs.replace(self._result(), left=left)

    def _result(self, *, was_deleted: bool = False) -> LedgerRewritten:
        return LedgerRewritten(
            ledger_id=self._ledger_id,
            copies=self._copies,
            copies_moved=self._copies_moved,
            stripes_moved=self._stripes_moved,
            bytes_written=self._bytes_written,
            was_deleted=was_deleted,
            left=()
            if was_deleted
            else tuple(
                LeftCopies(self._ledger_id, reason, bookie_id, entries.count, entries.ranges(), detail)
                for (bookie_id, reason), entries in self._left.items()
                for detail in [self._details[bookie_id, reason]]
            ),
        )


class _EntryBatch:
    """What the steps for one batch of entries need; the lease covers the bytes that they hold."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        segment_index: int,
        credentials: LedgerCredentials,
        lease: Lease,
        entry_bytes: int,
    ) -> None:
        self.first_entry_id = metadata.segments[segment_index].first_entry_id
        self._ensemble = metadata.segments[segment_index].ensemble
        self.credentials = credentials
        self.entry_bytes = entry_bytes
        self._metadata = metadata
        self._lease = lease
        self._bytes_held = 0

    def members(self, entry_id: int) -> list[str]:
        """Bookies of the entry's write set."""
        indexes = write_set(entry_id, self._metadata.ensemble_size, self._metadata.write_quorum_size)
        return list(dict.fromkeys(self._ensemble[index] for index in indexes))

    def hold(self, size_bytes: int) -> None:
        """Count bytes that were read."""
        self._bytes_held += size_bytes
        self._lease.resize(self._bytes_held)


def _is_in(ranges: Sequence[EntryRange], entry_id: int) -> bool:
    """Whether one of the ranges, which are ascending and do not overlap, has the entry."""
    position = bisect.bisect_right(ranges, entry_id, key=lambda entries: entries.first_entry_id)
    return position > 0 and entry_id <= ranges[position - 1].last_entry_id


def _why_not_moved(result: LedgerResult) -> tuple[LeftReason, str]:
    for failure in result.failures:
        reason = _REASONS.get(failure.reason, LeftReason.NOT_MOVED)
        return reason, failure.bare_detail
    return LeftReason.NOT_MOVED, "the ledger changed meanwhile: run the command again"


def _is_equal(copy: Copy, source: Copy) -> bool:
    assert copy.entry is not None
    assert source.entry is not None
    return (copy.entry.length, copy.entry.payload) == (source.entry.length, source.entry.payload)
