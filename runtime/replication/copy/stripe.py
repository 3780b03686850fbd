"""Copies one stripe of a segment to another bookie, and verifies the copies.

After a digest check it copies the stored bytes unchanged, so digests, lengths and last add confirmed remain those of
the writer. It copies only the entries of the replaced index, in batches: while one batch is written, the next ones are
read. Source: replication sections 4 and 15.1.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NoReturn

import msgspec

from runtime.client.bookie_software import BookieSoftware
from runtime.client.ports import ClientPorts
from runtime.protocol.status import Status, error_of
from runtime.replication.config import ReplicationConfig, VerifyMode
from runtime.replication.copy.activity import LedgerActivity
from runtime.replication.copy.byte_window import ByteWindow, for_each_bounded
from runtime.replication.copy.flow_window import FlowWindows
from runtime.replication.copy.rate import SharedPacer
from runtime.replication.copy.reader import BATCH_BYTES, OVERLOAD, CopyReader, batch_entries_max, pause_s
from runtime.replication.copy.sources import (
    BATCH_ENTRIES,
    REQUEST_COST_BYTES,
    GivenUpError,
    GoodCopies,
    SourceReader,
    StripeJob,
    read_batch,
)
from runtime.replication.judge.fragments import EntryRange, batches, first_stored, last_stored, stripe
from runtime.replication.judge.ledger_result import SourceDefect

TIMEOUTS_MAX = 1
"""Timeouts allowed per batch of adds before a target is given up."""

BATCHES_IN_FLIGHT = 8
"""Batches of one stripe that are read, written or verified at the same time."""

_SAMPLED_SHARE = 0.01


class StripeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result for one stripe. All entries are on the target and verified if and only if ``is_complete``.

    ``target_failure``: why the target cannot be used; try another. ``lost``: entries for which all sources answered and
    none has a good copy. ``unreadable``: entries without a good copy for which a source failed or did not answer. If a
    source does not answer, the copy is abandoned, and the last range extends to the end of the segment. ``reason``:
    the first of these entries, and the answers for it.
    """

    entries: int = 0
    bytes_copied: int = 0
    target_failure: str | None = None
    lost: tuple[EntryRange, ...] = ()
    unreadable: tuple[EntryRange, ...] = ()
    reason: str = ""
    defects: tuple[SourceDefect, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether the metadata may reference the target now."""
        return self.target_failure is None and not self.lost and not self.unreadable


@dataclasses.dataclass(frozen=True)
class Replicator:
    """Copies stripes for all ledgers of a run; they share the windows."""

    ports: ClientPorts
    copies: CopyReader
    windows: FlowWindows
    single_reads: ByteWindow
    """Limits entries that are read one by one, because their batch was not answered or has bad copies."""
    config: ReplicationConfig
    on_copied: Callable[[int, int], None]
    """Called with entries and bytes when a target acknowledges them."""
    on_verified: Callable[[StripeJob, int], None] = lambda _job, _entry_id: None
    """Called when all entries of the stripe up to this one are on the target and verified."""
    pacer: SharedPacer | None = None

    @functools.cached_property
    def software(self) -> BookieSoftware:
        """Which bookies run bkctl."""
        return BookieSoftware(self.ports.registrations, self.ports.clock)

    async def copy(self, job: StripeJob, activity: LedgerActivity) -> StripeOutcome:
        """Copy, and read the entries back from the target. An empty stripe needs no request."""
        return await _StripeCopy(self, job, activity).run()


class _BatchProgress(msgspec.Struct):
    last_entry_id: int
    is_verified: bool = False


class _StripeCopy:
    """State of copying one stripe."""

    def __init__(self, tools: Replicator, job: StripeJob, activity: LedgerActivity) -> None:
        self._tools = tools
        self._ports = tools.ports
        self._job = job
        self._activity = activity
        self._window = tools.windows.target(job.target)
        self._reader = SourceReader(
            tools.ports, tools.copies, tools.config, tools.windows, tools.single_reads, tools.pacer, job, activity
        )
        self._bytes_copied = 0
        self._target_failure: str | None = None
        self._is_target_read_first = False
        self._unverified: deque[_BatchProgress] = deque()
        """Batches up to the last one that was started, from the first one that is not verified."""
        metadata, entries = job.metadata, job.fragment.entries
        sizes = (metadata.ensemble_size, metadata.write_quorum_size)
        self._ends = {first_stored(entries, job.index, *sizes), last_stored(entries, job.index, *sizes)}

    async def run(self) -> StripeOutcome:
        """Copy all batches."""
        job, reader = self._job, self._reader
        try:
            self._is_target_read_first = job.entries > 0 and await self._may_have_corrupt_copies()
            if job.entries <= self._batch_size():
                await self._copy_batch(list(self._entry_ids(job.fragment.entries)))
            else:
                await for_each_bounded(self._batches(), self._copy_batch, BATCHES_IN_FLIGHT)
        except GivenUpError:
            pass
        return StripeOutcome(
            entries=job.entries,
            bytes_copied=self._bytes_copied,
            target_failure=self._target_failure,
            lost=reader.lost.ranges(),
            unreadable=reader.unreadable(),
            reason=reader.reason,
            defects=reader.defects(),
        )

    async def _may_have_corrupt_copies(self) -> bool:
        """Whether the target could have a bad record that must not be written over, because it does not run bkctl
        (H18) and has the ledger already: it was a member before, or is one in another segment."""
        job = self._job
        if await self._tools.software.is_bkctl(job.target):
            return False
        entry_ids = [job.last_entry_id]
        (answer,) = await self._ports.bookies.read_many(
            job.target, job.credentials.ledger_id, entry_ids, bytes_max=BATCH_BYTES
        )
        return answer is not Status.NO_SUCH_LEDGER

    def _entry_ids(self, entries: EntryRange) -> Iterator[int]:
        metadata = self._job.metadata
        return stripe(entries, self._job.index, metadata.ensemble_size, metadata.write_quorum_size)

    def _batch_size(self) -> int:
        return batch_entries_max(self._reader.entry_bytes, BATCH_ENTRIES)

    async def _batches(self) -> AsyncIterator[Sequence[int]]:
        rest = self._job.fragment.entries
        while rest.count:
            for batch in self._reader.run.until_look(
                batches(self._entry_ids(rest), self._batch_size), rest.last_entry_id
            ):
                yield batch
            rest = EntryRange(self._reader.run.read_to + 1, rest.last_entry_id)
            if rest.count:
                rest = await self._reader.after_gap(rest)

    async def _copy_batch(self, entry_ids: Sequence[int]) -> None:
        """Copy one batch from its sources to the target, then verify it."""
        if not entry_ids:
            return
        progress = _BatchProgress(entry_ids[-1])
        self._unverified.append(progress)
        size_bytes = len(entry_ids) * (self._reader.entry_bytes + REQUEST_COST_BYTES)
        async with self._tools.windows.memory.lease(size_bytes) as memory:
            is_copied = entry_ids[-1] <= self._job.copied_until
            if is_copied or self._is_target_read_first:
                bad = await self._bad_copies(entry_ids, None)
                entry_ids = bad if is_copied else entry_ids
            if entry_ids:
                found = await self._reader.read(entry_ids)
                if self._reader.is_hopeless:
                    return  # after an entry without a good copy, the rest is only read for the report, and not copied
                bytes_read = sum(map(len, found.bodies))
                memory.resize(bytes_read + len(entry_ids) * REQUEST_COST_BYTES)
                await self._add(list(zip(found.entry_ids, found.bodies, strict=True)), bytes_read)
                self._bytes_copied += bytes_read
                self._tools.on_copied(len(entry_ids), bytes_read)
                await self._verify(found)
        progress.is_verified = True
        self._note_verified()

    # -- adds -----------------------------------------------------------------------------------------------------

    async def _add(self, adds: Sequence[tuple[int, bytes]], size_bytes: int) -> None:
        """Send recovery adds, which fenced ledgers accept. After a failed add the target is not used."""
        job, config = self._job, self._tools.config
        attempt = timeouts = 0
        with self._activity.waiting(f"target {job.target}"):
            while True:
                attempt += 1
                async with self._window.lease(size_bytes + len(adds) * REQUEST_COST_BYTES) as lease:
                    statuses = await self._ports.bookies.add_many(
                        job.target, job.credentials.ledger_id, job.credentials.master_key, adds, is_recovery_add=True
                    )
                    failed = {status for status in statuses if status is not Status.OK}
                    lease.note_outcome(is_overloaded=not failed.isdisjoint(OVERLOAD))
                if not failed:
                    return
                timeouts += Status.TIMEOUT in failed
                final = failed - {Status.TOO_MANY_REQUESTS}
                if timeouts <= TIMEOUTS_MAX:
                    final.discard(Status.TIMEOUT)  # it may be overloaded without reporting it
                if final or attempt == config.attempts_max:
                    self._give_up_target_after(max(final or failed))
                adds = [add for add, status in zip(adds, statuses, strict=True) if status is not Status.OK]
                size_bytes = sum(len(body) for _, body in adds)
                await self._ports.clock.sleep(pause_s(attempt, config, self._ports.clock))

    def _give_up_target_after(self, status: Status) -> NoReturn:
        if status in {Status.TIMEOUT, Status.UNAVAILABLE}:
            self._ports.suspects.add(self._job.target)
        self._give_up_target(str(error_of(status, self._job.target)))

    def _give_up_target(self, reason: str) -> NoReturn:
        self._target_failure = self._target_failure or reason
        raise GivenUpError

    # -- verification of the copies, before the metadata references them ------------------------------------------

    async def _verify(self, found: GoodCopies) -> None:
        """Read entries of a batch back after all its adds were acknowledged."""
        places = self._places_to_verify(found.entry_ids)
        while places:
            expected = [found.fingerprints[place] for place in places]
            bad = set(await self._bad_copies([found.entry_ids[place] for place in places], expected))
            places = [place for place in places if found.entry_ids[place] in bad]
            if places:  # ask for one patiently, then for the others together again
                await self._verify_one(found.entry_ids[places[0]], found.fingerprints[places[0]])
                places = places[1:]

    def _places_to_verify(self, entry_ids: Sequence[int]) -> Sequence[int]:
        mode = self._tools.config.verify
        if mode is VerifyMode.ALL:
            return range(len(entry_ids))
        if mode is VerifyMode.NONE:
            return ()
        last_place = len(entry_ids) - 1
        count = min(len(entry_ids), math.ceil(len(entry_ids) * _SAMPLED_SHARE))
        chosen = set(self._ports.clock.random.sample(range(len(entry_ids)), count))
        return sorted(chosen | {place for place in (0, last_place) if entry_ids[place] in self._ends})

    async def _bad_copies(self, entry_ids: Sequence[int], fingerprints: Sequence[int] | None) -> list[int]:
        """Entries that the target does not have, or may not have, with these contents (None: with any)."""
        job = self._job
        with self._activity.waiting(f"target {job.target}"):
            if self._tools.pacer is not None:
                await self._tools.pacer.take_read(job.target, len(entry_ids) * self._reader.entry_bytes)
            answers = await read_batch(
                self._ports.bookies,
                self._window,
                job.target,
                job.credentials.ledger_id,
                entry_ids,
                self._reader.entry_bytes,
            )
        bodies = [b"" if isinstance(answer, Status) else answer for answer in answers]
        checks = job.credentials.codec.verify_many(entry_ids, bodies)
        if fingerprints is None:
            rows = zip(entry_ids, answers, checks, strict=True)
            # A record that the bookie cannot read stays on its disk as well as a corrupt one.
            bad = [
                f"{'cannot read its' if answer is Status.IO_ERROR else 'has a corrupt'} copy of entry {entry_id}"
                for entry_id, answer, check in rows
                if answer is Status.IO_ERROR or (type(answer) is bytes and not isinstance(check, int))
            ]
            if bad and not await self._tools.software.is_bkctl(job.target):
                self._give_up_target(f"bookie {job.target}: {bad[0]}, which stays there")
            return [entry_id for entry_id, check in zip(entry_ids, checks, strict=True) if not isinstance(check, int)]
        if checks == fingerprints:
            return []
        return [each for each, check, good in zip(entry_ids, checks, fingerprints, strict=True) if check != good]

    async def _verify_one(self, entry_id: int, fingerprint: int) -> None:
        job = self._job
        copy = await self._tools.copies.read(job.target, job.credentials, entry_id)
        if copy.entry is None:
            self._give_up_target(f"bookie {job.target}: cannot read its copy of entry {entry_id}: {copy.reason}")
        if job.credentials.codec.verify_many([entry_id], [copy.body]) != [fingerprint]:
            self._give_up_target(f"bookie {job.target}: has a different entry {entry_id}")

    def _note_verified(self) -> None:
        """Report how far the stripe is complete without gaps."""
        verified = None
        while self._unverified and self._unverified[0].is_verified:
            verified = self._unverified.popleft().last_entry_id
        if verified is not None:
            self._tools.on_verified(self._job, verified)
