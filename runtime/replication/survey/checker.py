"""`ledger verify`: reads every entry from every bookie of its write set, and checks digests and equality.

This fences nothing and writes nothing. Entries without a good copy there are looked for on all live bookies. A ledger
that is not closed is checked up to the last add confirmed of a no-recovery open, and beyond only if the scope names
entries there: one that no bookie has is then not counted, because it may never have been written. Source: replication
section 3. Unlike Java's checker, this verifies digests and distinguishes missing from unreachable copies.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from bkctl.runtime.client.last_entry import read_last_add_confirmed
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials, credentials_of
from bkctl.runtime.client.reader import ENTRIES_WITHOUT_END_MAX
from bkctl.runtime.errors import LedgerNotFoundError, MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.gaps import BarrenRun, CopyGaps
from bkctl.runtime.replication.copy.outside import OutsideBookies
from bkctl.runtime.replication.copy.rate import SharedPacer
from bkctl.runtime.replication.copy.reader import BATCH_ENTRIES, CopyReader, batch_entries_max, entry_bytes_estimate
from bkctl.runtime.replication.copy.request_times import RequestTimes
from bkctl.runtime.replication.copy.tasks import for_each_bounded, for_each_leased
from bkctl.runtime.replication.copy.window import Lease
from bkctl.runtime.replication.judge.check_scope import WHOLE, CheckScope
from bkctl.runtime.replication.judge.copies import Copy, CopyState, compared_copies
from bkctl.runtime.replication.judge.fragments import (
    EntryRange,
    EntryRangeSet,
    batches,
    format_ranges,
    in_and_out_of,
    merge_ranges,
    segment_entries,
    stripe_count,
)
from bkctl.runtime.replication.judge.ledger_check import CheckTotals, CopyDefect, LedgerCheck
from bkctl.storage.errors import BkctlError
from bkctl.storage.ids import INVALID_ENTRY_ID

ROUNDS_MAX = 3
"""Maximum checks of a ledger whose metadata keeps changing while findings are made."""


_PROOFS_OF_ENTRY = frozenset({CopyState.PRESENT, CopyState.DIFFERENT, CopyState.CORRUPT})
"""States of a copy that show that an entry was written."""


class SettledFinding(Protocol):
    """What was found out about a ledger."""

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing that a change of the metadata meanwhile could explain."""


FindingT = TypeVar("FindingT", bound=SettledFinding)


async def examine_settled(
    ledgers: LedgerStore,
    ledger_id: int,
    examine: Callable[[LedgerMetadata], Awaitable[FindingT]],
    known: Versioned[LedgerMetadata] | None = None,
) -> FindingT | None:
    """Examine a ledger again while its metadata has changed meanwhile and something was found; None: it was deleted.

    ``known``: its metadata, if it has just been read. MetadataFormatError, and errors of the metadata store.
    """
    try:
        versioned = known or await ledgers.read(ledger_id)
        for rounds_left in range(ROUNDS_MAX, 0, -1):
            finding = await examine(versioned.value)
            if finding.is_clean:
                break
            version, versioned = versioned.version, await ledgers.read(ledger_id)
            if versioned.version == version or rounds_left == 1:
                break
    except LedgerNotFoundError:
        return None
    return finding


class _PaidBatch(NamedTuple):
    """Bookies to ask, by entry, and the bytes that were taken from the rate of each bookie."""

    wanted: dict[int, list[str]]
    taken: Counter[str]


class LedgerChecker:
    """Checks ledgers; the limits of ``config`` apply to all of them together."""

    def __init__(
        self,
        ports: ClientPorts,
        live_bookies: Container[str],
        config: ReplicationConfig,
        pacer: SharedPacer | None = None,
        times: RequestTimes | None = None,
    ) -> None:
        """``live_bookies``: registered ones, writable or read-only. Others count as unreachable without a request.

        ``pacer`` limits the bytes that are read; None: no limit. ``times`` gets the time of each read.
        """
        self._ports = ports
        self._live_bookies = live_bookies
        self._config = config
        self._pacer = pacer or SharedPacer(ports.clock)
        batches_max = max(1, config.entries_in_flight_max // BATCH_ENTRIES)
        self._copies = CopyReader(ports, config, live_bookies.__contains__, items_max=batches_max, times=times)

    async def check_all(
        self,
        ledger_ids: AsyncIterable[int],
        on_check: Callable[[LedgerCheck, CheckTotals], None],
        scope: CheckScope = WHOLE,
    ) -> CheckTotals:
        """Check many ledgers concurrently; ``on_check`` receives each result, in order of completion, and the sums."""
        totals = CheckTotals()

        async def check_one(ledger_id: int) -> None:
            nonlocal totals
            check = await self.check(ledger_id, scope)
            if not check.is_deleted:
                totals = totals.plus(check)
            on_check(check, totals)

        await for_each_bounded(ledger_ids, check_one, self._config.ledgers_in_parallel)
        return totals

    async def check(self, ledger_id: int, scope: CheckScope = WHOLE) -> LedgerCheck:
        """Check one ledger. Its findings are in the result; raises only errors of the metadata store.

        Findings count only if the metadata has not changed since, because a writer or a repair may have moved copies
        meanwhile.
        """

        def check_now(metadata: LedgerMetadata) -> Awaitable[LedgerCheck]:
            return self.check_by(ledger_id, metadata, scope)

        try:
            check = await examine_settled(self._ports.ledgers, ledger_id, check_now)
        except MetadataFormatError as error:
            return LedgerCheck(ledger_id=ledger_id, problem=str(error))
        return LedgerCheck(ledger_id=ledger_id, is_deleted=True) if check is None else check

    async def check_by(self, ledger_id: int, metadata: LedgerMetadata, scope: CheckScope) -> LedgerCheck:
        """Check one ledger by this metadata; raises nothing."""
        credentials = credentials_of(ledger_id, metadata)
        tally = _CheckCounts(entry_bytes_estimate(metadata))
        last_entry_id, failure = await self.end_of(metadata, credentials, scope)
        last_index = len(metadata.segments) - 1
        for segment_index in range(last_index + 1):
            entries = segment_entries(metadata, segment_index, last_entry_id)
            await self._check_segment(metadata, segment_index, entries, credentials, tally, scope)
        if not metadata.is_closed and scope.has_open_end:
            last_scoped = scope.last_from(last_entry_id + 1)
            entries = EntryRange(last_entry_id + 1, INVALID_ENTRY_ID if last_scoped is None else last_scoped)
            await self._check_segment(metadata, last_index, entries, credentials, tally, scope, is_confirmed=False)
        problem = _problem_of(metadata, scope, failure, tally)
        last_entry_id = max(last_entry_id, tally.last_entry_id)
        check = tally.result(ledger_id, metadata.state.name.lower(), last_entry_id, problem)
        return await self._without_kept(check, metadata, credentials)

    async def _without_kept(
        self, check: LedgerCheck, metadata: LedgerMetadata, credentials: LedgerCredentials
    ) -> LedgerCheck:
        """The check; entries that a live bookie outside of the ensemble has are neither lost nor unreadable."""
        missing = merge_ranges((*check.lost, *check.unreadable))
        if not missing:
            return check
        last_entry_id = missing[-1].last_entry_id
        ensembles = [
            frozenset(segment.ensemble)
            for index, segment in enumerate(metadata.segments)
            if in_and_out_of(missing, (segment_entries(metadata, index, last_entry_id),))[0]
        ]
        members = functools.reduce(operator.and_, ensembles)
        live = (await self._ports.registrations.snapshot()).live
        asked = [each for each in live.difference(members) if each in self._live_bookies]
        kept = OutsideBookies.of(self._ports, self._copies, credentials, asked)
        found = await kept.found(missing, self._config.barren_entries_max)
        lost, unreadable = in_and_out_of(check.lost, found)[1], in_and_out_of(check.unreadable, found)[1]
        return msgspec.structs.replace(check, lost=lost, unreadable=unreadable)

    async def end_of(
        self, metadata: LedgerMetadata, credentials: LedgerCredentials, scope: CheckScope
    ) -> tuple[int, BkctlError | None]:
        """The last entry that is certainly part of the ledger, and why it is unknown where the ledger ends, or None."""
        if metadata.is_closed:
            return metadata.last_entry_id, None
        # Earlier segments are complete, regardless of the last add confirmed.
        complete = metadata.last_segment.first_entry_id - 1
        if not scope.has_open_end or scope.ranges[-1].last_entry_id <= complete:
            return complete, None
        try:
            return await read_last_add_confirmed(self._ports, credentials, metadata, is_fencing=False), None
        except BkctlError as error:
            return complete, error

    async def _check_segment(
        self,
        metadata: LedgerMetadata,
        segment_index: int,
        entries: EntryRange,
        credentials: LedgerCredentials,
        tally: _CheckCounts,
        scope: CheckScope,
        *,
        is_confirmed: bool = True,
    ) -> None:
        if is_confirmed:
            tally.entries_total += entries.count
        ensemble = metadata.segments[segment_index].ensemble
        if scope.bookie_ids is not None and scope.bookie_ids.isdisjoint(ensemble):
            return
        is_open = segment_index == len(metadata.segments) - 1 and not metadata.is_closed
        bookie_ids = [each for each in dict.fromkeys(ensemble) if scope.bookie_ids is None or each in scope.bookie_ids]

        def members(entry_id: int) -> list[str]:
            indexes = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)
            storing = dict.fromkeys(ensemble[index] for index in indexes)
            return [each for each in storing if each in bookie_ids]

        run, earlier_copies = BarrenRun(self._config.barren_entries_max), dict[str, Copy]()
        gaps = CopyGaps(self._ports.bookies, self._copies, credentials)

        async def check_batch(batch: _PaidBatch, lease: Lease) -> None:
            found = await self._read_batch(batch, credentials, lease, is_open=is_open)
            copies = [copy for row in found.values() for copy in row.values()]
            if copies:
                run.note(len(batch.wanted), has_good_copy=any(copy.entry is not None for copy in copies))
            earlier_copies.update((copy.bookie_id, copy) for copy in copies if copy.entry is None)
            add = tally.add if is_confirmed else tally.add_if_found
            for entry_id, each_wanted in batch.wanted.items():
                if each_wanted:
                    add(entry_id, compared_copies([found[entry_id][each] for each in each_wanted]))

        def count_max() -> int:
            return batch_entries_max(tally.entry_bytes * metadata.write_quorum_size)

        rest = entries
        while rest.count:
            found = batches(scope.entry_ids(credentials.ledger_id, metadata, rest), count_max)
            wanted = ({each: members(each) for each in ids} for ids in run.until_probe(found, rest.last_entry_id))
            await for_each_leased(
                self._paid(wanted, tally),
                check_batch,
                self._copies.windows.items,
                lambda: tally.entry_bytes * metadata.write_quorum_size * count_max(),
            )
            rest = EntryRange(run.read_to + 1, rest.last_entry_id)
            if rest.count:
                gap = await gaps.at(rest, bookie_ids, earlier_copies, run)
                if is_confirmed:
                    tally.add_gap(metadata, ensemble, scope.within(gap.entries), gap.copies)
                else:
                    tally.add_gap_if_found(scope.within(gap.entries), gap.copies)
                rest = EntryRange(gap.entries.last_entry_id + 1, rest.last_entry_id)

    async def _paid(
        self, batches_wanted: Iterable[dict[int, list[str]]], tally: _CheckCounts
    ) -> AsyncGenerator[_PaidBatch, None]:
        """Batches whose turn has come by the rates. One that waits for a busy bookie holds no room of the others."""
        for wanted in batches_wanted:
            taken = Counter[str]()
            for bookie_ids in wanted.values():
                taken.update(dict.fromkeys(bookie_ids, tally.entry_bytes))
            await self._pacer.take_reads(taken)
            yield _PaidBatch(wanted, taken)

    async def _read_batch(
        self, batch: _PaidBatch, credentials: LedgerCredentials, lease: Lease, *, is_open: bool
    ) -> dict[int, dict[str, Copy]]:
        """The copies of some entries, by entry and bookie."""
        read = Counter[str]()
        found = await self._copies.read_each(batch.wanted, credentials)
        for copies in found.values():
            read.update({bookie_id: len(copy.body) for bookie_id, copy in copies.items()})
        self._pacer.correct_reads(batch.taken, read)
        lease.resize(read.total())
        if is_open:
            await self._ask_late_ones(found, credentials)
        return found

    async def _ask_late_ones(self, found: dict[int, dict[str, Copy]], credentials: LedgerCredentials) -> None:
        """Ask again for missing copies: a live writer may still deliver them, because Qa of Qw confirm an entry."""
        late = {
            entry_id: [copy.bookie_id for copy in copies.values() if copy.state is CopyState.MISSING]
            for entry_id, copies in found.items()
        }
        if any(late.values()):
            await self._ports.clock.sleep(self._config.late_copy_wait_s)
            for entry_id, copies in (await self._copies.read_each(late, credentials)).items():
                found[entry_id] |= copies


def _problem_of(
    metadata: LedgerMetadata, scope: CheckScope, failure: BkctlError | None, tally: _CheckCounts
) -> str | None:
    """What is unknown about the end of the ledger; ``failure``: why it is unknown."""
    doubt = f"entries {format_ranges(tally.uncertain.ranges())} may exist on bookies that gave no certain answer"
    if failure is None:
        return doubt if tally.uncertain.count else None
    sentences = [f"it is open, and its end is unknown: {failure}"]
    first_entry_id = metadata.last_segment.first_entry_id
    if scope.last_from(first_entry_id) is None:
        most = f"name at most {ENTRIES_WITHOUT_END_MAX} to read them"
        sentences.append(f"entries from {first_entry_id} on were not read: {most}")
    if tally.uncertain.count:
        sentences.append(doubt)
    if tally.absent.count:
        sentences.append(f"no bookie of their write sets has {format_ranges(tally.absent.ranges())}")
    return "; ".join(sentences)


class _CheckCounts:
    """Counters for the check of one ledger."""

    def __init__(self, entry_bytes: int) -> None:
        self.entry_bytes = entry_bytes
        """Expected size of the next entry: a moving average."""
        self.entries_total = 0
        self.last_entry_id = INVALID_ENTRY_ID
        """The highest that was counted."""
        self.absent = EntryRangeSet()
        """Named entries that are not confirmed, and that no bookie of their write sets has."""
        self.uncertain = EntryRangeSet()
        """Named entries that are not confirmed: no bookie that answers has them, and others did not answer."""
        self._entries = 0
        self._bytes_read = 0
        self._counts = dict.fromkeys(CopyState, 0)
        self._defects: dict[tuple[str, CopyState], EntryRangeSet] = {}
        self._refused: set[tuple[str, CopyState]] = set()
        self._reasons: dict[tuple[str, CopyState], str] = {}
        self._damaged: set[tuple[str, CopyState]] = set()
        self._lost = EntryRangeSet()
        self._unreadable = EntryRangeSet()

    def add_if_found(self, entry_id: int, copies: Sequence[Copy]) -> None:
        """Count an entry that is not confirmed, if any bookie has a copy, good or damaged."""
        if all(copy.state is CopyState.MISSING for copy in copies):
            self.absent.add(entry_id)
        elif any(copy.state in _PROOFS_OF_ENTRY or copy.is_damaged for copy in copies):
            self.entries_total += 1
            self.add(entry_id, copies, is_confirmed=False)
        else:
            self.uncertain.add(entry_id)
            self._unreadable.add(entry_id)

    def add(self, entry_id: int, copies: Sequence[Copy], *, is_confirmed: bool = True) -> None:
        """Count one entry. It is never lost unless ``is_confirmed``: no writer may have got an acknowledgement."""
        self._entries += 1
        self.last_entry_id = max(self.last_entry_id, entry_id)
        has_good_copy = is_unknown = False
        for copy in copies:
            if copy.body:
                self._bytes_read += len(copy.body)
                self.entry_bytes = (self.entry_bytes * 7 + len(copy.body)) // 8
            if copy.state in {CopyState.PRESENT, CopyState.DIFFERENT}:
                has_good_copy = True
            elif copy.state in {CopyState.UNREACHABLE, CopyState.FAILED}:
                is_unknown = True
            self._count(copy, EntryRange(entry_id, entry_id), 1)
        if not has_good_copy:
            (self._lost if is_confirmed and not is_unknown else self._unreadable).add(entry_id)

    def add_gap(
        self,
        metadata: LedgerMetadata,
        ensemble: Sequence[str],
        ranges: Sequence[EntryRange],
        copies: Mapping[str, Copy],
    ) -> None:
        """Count entries of one segment that no bookie has, or that were not read. ``copies``: what all of them are."""
        is_unknown = any(copy.state in {CopyState.UNREACHABLE, CopyState.FAILED} for copy in copies.values())
        for entries in ranges:
            self._entries += entries.count
            for index, bookie_id in enumerate(ensemble):
                count = stripe_count(entries, index, metadata.ensemble_size, metadata.write_quorum_size)
                if bookie_id in copies and count:
                    self._count(copies[bookie_id], entries, count)
            (self._unreadable if is_unknown else self._lost).add_range(entries)

    def _count(self, copy: Copy, entries: EntryRange, count: int) -> None:
        """Count copies of ``count`` of these entries on one bookie, all in the state of ``copy``."""
        self._counts[copy.state] += count
        if copy.state is CopyState.PRESENT:
            return
        key = (copy.bookie_id, copy.state)
        self._reasons.setdefault(key, copy.reason)
        if copy.is_damaged:
            self._damaged.add(key)
        if copy.is_refused and key not in self._refused:
            self._refused.add(key)
            self._reasons[key] = copy.reason
        self._defects.setdefault(key, EntryRangeSet()).add_range(entries, count)

    def add_gap_if_found(self, ranges: Sequence[EntryRange], copies: Mapping[str, Copy]) -> None:
        """Count entries that are not confirmed and that no bookie is known to have, as ``add_if_found`` does."""
        is_absent = all(copy.state is CopyState.MISSING for copy in copies.values())
        for entries in ranges:
            for counted in (self.absent,) if is_absent else (self.uncertain, self._unreadable):
                counted.add_range(entries)

    def result(self, ledger_id: int, ledger_state: str, last_entry_id: int, problem: str | None) -> LedgerCheck:
        """The counts as a result."""
        return LedgerCheck(
            ledger_id=ledger_id,
            ledger_state=ledger_state,
            last_entry_id=last_entry_id,
            entries=self._entries,
            entries_total=self.entries_total,
            copies_expected=sum(self._counts.values()),
            copies_good=self._counts[CopyState.PRESENT],
            copies_missing=self._counts[CopyState.MISSING],
            copies_corrupt=self._counts[CopyState.CORRUPT],
            copies_unreachable=self._counts[CopyState.UNREACHABLE],
            copies_failed=self._counts[CopyState.FAILED],
            copies_different=self._counts[CopyState.DIFFERENT],
            bytes_read=self._bytes_read,
            defects=tuple(
                CopyDefect(
                    *key,
                    entries.count,
                    entries.ranges(),
                    self._reasons[key],
                    is_damaged=key in self._damaged,
                    is_refused=key in self._refused,
                )
                for key, entries in sorted(self._defects.items(), key=lambda item: (item[0][0], item[0][1].value))
            ),
            lost=self._lost.ranges(),
            unreadable=self._unreadable.ranges(),
            problem=problem,
        )
