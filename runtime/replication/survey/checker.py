"""`ledger verify`: reads every entry from every bookie of its write set, and checks digests and equality.

This fences nothing and writes nothing. Entries without a good copy there are looked for on all live bookies. A ledger
that is not closed is checked up to the last add confirmed of a no-recovery open, and beyond only if the scope names
entries there: one that no bookie has is then not counted, because it may never have been written. Source: replication
section 3. Unlike Java's checker, this verifies digests and distinguishes missing from unreachable copies.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from bkctl.runtime.client.last_entry import read_last_add_confirmed, try_read_last_add_confirmed
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials, credentials_of
from bkctl.runtime.client.reader import ENTRIES_WITHOUT_END_MAX
from bkctl.runtime.errors import LedgerNotFoundError, MetadataAuthError, MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.activity import COPY_RATE, LedgerActivity
from bkctl.runtime.replication.copy.gaps import BarrenRun, CopyGaps, OutsideBookies
from bkctl.runtime.replication.copy.limits import Lease, SharedPacer, for_each_bounded, for_each_leased
from bkctl.runtime.replication.copy.reader import (
    BATCH_ENTRIES,
    CopyReader,
    RequestTimes,
    batch_entries_max,
    entry_bytes_estimate,
)
from bkctl.runtime.replication.judge.check_scope import WHOLE, CheckScope
from bkctl.runtime.replication.judge.copies import (
    NAMED_TWICE,
    CheckTally,
    CheckTotals,
    Copy,
    CopyState,
    LedgerCheck,
    compared_copies,
)
from bkctl.runtime.replication.judge.fragments import (
    EntryRange,
    accepted_entries,
    batches,
    format_ranges,
    in_and_out_of,
    is_in,
    merge_ranges,
    segment_entries,
)
from bkctl.runtime.replication.judge.verdict import judge_metadata, removed_members
from bkctl.storage.errors import BkctlError
from bkctl.storage.ids import ENTRY_ID_MAX, INVALID_ENTRY_ID

ROUNDS_MAX = 3
"""Maximum checks of a ledger whose metadata keeps changing while findings are made."""


class CheckWork(LedgerActivity):
    """A ledger that is being checked by this metadata, of which about ``bytes_planned`` will be read.

    ``removed``: the bookies that were given up, each with the first entry of a segment. ``accepted``: see
    ``accepted_entries``.
    """

    def __init__(
        self,
        ledger_id: int,
        since_ns: int,
        metadata: LedgerMetadata,
        scope: CheckScope,
        removed: frozenset[tuple[int | None, str]],
        accepted: tuple[EntryRange, ...],
    ) -> None:
        super().__init__(ledger_id, since_ns)
        self.removed = removed
        self.accepted = accepted
        self.metadata = metadata
        self.scope = scope
        self.credentials = credentials_of(ledger_id, metadata)
        self.tally = CheckTally(entry_bytes_estimate(metadata))
        self.bytes_planned = bytes_to_check(metadata, scope)
        self.bytes_read = 0

    def excused(self, copies: Iterable[Copy]) -> tuple[EntryRange, ...]:
        """The entries that may be missing if these are the copies: no bookie that should have them may have one."""
        if not self.accepted or self.scope.bookie_ids is not None:
            return ()
        return self.accepted if {copy.state for copy in copies} == {CopyState.MISSING} else ()

    @property
    def row_bytes(self) -> int:
        """Expected size of all copies of an entry together."""
        return self.tally.entry_bytes * self.metadata.write_quorum_size

    @property
    def bytes_done(self) -> int:
        """What is done of the plan."""
        return min(self.bytes_read, self.bytes_planned)


def bytes_to_check(metadata: LedgerMetadata, scope: CheckScope) -> int:
    """About how much a check reads of a ledger; 0 while it is open, because its size is unknown."""
    if not metadata.is_closed:
        return 0
    entries = sum(each.count for each in scope.within(EntryRange(0, metadata.last_entry_id)))
    if scope.sample is not None:
        entries = math.ceil(entries * scope.sample.share)
    return entries * metadata.write_quorum_size * entry_bytes_estimate(metadata)


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
        given_up: Mapping[int, GivenUpNote] = MappingProxyType({}),
    ) -> None:
        """``live_bookies``: registered ones, writable or read-only. Others count as unreachable without a request, but
        no copy is expected on those that an operator gave up, nor of entries whose loss one accepted: ``given_up``.

        ``pacer`` limits the bytes that are read; None: no limit. ``times`` gets the time of each read.
        """
        self._ports = ports
        self._live_bookies = live_bookies
        self.given_up = given_up
        self._config = config
        self._pacer = pacer or SharedPacer(ports.clock)
        batches_max = max(1, config.entries_in_flight_max // BATCH_ENTRIES)
        self._copies = CopyReader(ports, config, live_bookies.__contains__, items_max=batches_max, times=times)
        self._current: dict[CheckWork, None] = {}
        self._bytes_ended = 0
        self.bytes_read = 0
        """Of all ledgers so far, of those in progress too."""

    @property
    def oldest(self) -> CheckWork | None:
        """The ledger in progress that was begun first."""
        return next(iter(self._current), None)

    @property
    def bytes_done(self) -> int:
        """What is done of the bytes that ``bytes_to_check`` expects of all ledgers."""
        return self._bytes_ended + sum(each.bytes_done for each in self._current)

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
        except (MetadataFormatError, MetadataAuthError) as error:
            is_refused = isinstance(error, MetadataAuthError)
            return LedgerCheck(ledger_id=ledger_id, problem=str(error), is_refused=is_refused)
        return LedgerCheck(ledger_id=ledger_id, is_deleted=True) if check is None else check

    async def check_by(self, ledger_id: int, metadata: LedgerMetadata, scope: CheckScope) -> LedgerCheck:
        """Check one ledger by this metadata; raises nothing."""
        removed = self.removed_from(ledger_id, metadata)
        accepted = accepted_entries(self.given_up.get(ledger_id), metadata)
        work = CheckWork(ledger_id, self._ports.clock.monotonic_ns(), metadata, scope, removed, accepted)
        self._current[work] = None
        try:
            return await self._check(work)
        finally:
            del self._current[work]
            self._bytes_ended += work.bytes_planned

    def removed_from(self, ledger_id: int, metadata: LedgerMetadata) -> frozenset[tuple[int | None, str]]:
        """The bookies of a ledger that were given up, each with the first entry of a segment."""
        if (note := self.given_up.get(ledger_id)) is None:
            return frozenset()
        return removed_members(judge_metadata(ledger_id, metadata, self._live_bookies, note).rows)

    async def _check(self, work: CheckWork) -> LedgerCheck:
        metadata, scope, tally = work.metadata, work.scope, work.tally
        last_entry_id, failure = await self.end_of(metadata, work.credentials, scope)
        last_index = len(metadata.segments) - 1
        for segment_index in range(last_index + 1):
            entries = segment_entries(metadata, segment_index, last_entry_id)
            tally.entries_total += entries.count
            await self._check_segment(work, segment_index, entries)
        if not metadata.is_closed and scope.has_open_end:
            last_scoped = scope.last_from(last_entry_id + 1)
            entries = EntryRange(last_entry_id + 1, INVALID_ENTRY_ID if last_scoped is None else last_scoped)
            await self._check_segment(work, last_index, entries, is_confirmed=False)
        problem = _problem_of(last_entry_id + 1, scope, failure, tally)
        last_entry_id = max(last_entry_id, tally.last_entry_id)
        check = tally.result(work.ledger_id, metadata.state.name.lower(), last_entry_id, problem)
        return await self._without_kept(check, work)

    async def _without_kept(self, check: LedgerCheck, work: CheckWork) -> LedgerCheck:
        """The check; entries that a live bookie outside of the ensemble has are neither lost nor unreadable."""
        missing = merge_ranges((*check.lost, *check.unreadable))
        if not missing:
            return check
        last_entry_id = missing[-1].last_entry_id
        ensembles = [
            frozenset(segment.ensemble)
            for index, segment in enumerate(work.metadata.segments)
            if in_and_out_of(missing, (segment_entries(work.metadata, index, last_entry_id),))[0]
        ]
        members = functools.reduce(operator.and_, ensembles)
        live = (await self._ports.registrations.snapshot()).live
        asked = [each for each in live.difference(members) if each in self._live_bookies]
        kept = OutsideBookies.of(self._copies, work.credentials, asked)
        found = await kept.found(missing, self._config.barren_entries_max)
        lost, unreadable, failed = (
            in_and_out_of(each, found)[1] for each in (check.lost, check.unreadable, check.failed)
        )
        return msgspec.structs.replace(check, lost=lost, unreadable=unreadable, failed=failed)

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
            with suppress(BkctlError):  # what one bookie knows to be confirmed is part of the ledger
                known = await try_read_last_add_confirmed(self._ports, credentials, metadata, above=ENTRY_ID_MAX)
                complete = max(complete, known)
            return complete, error

    async def _check_segment(
        self, work: CheckWork, segment_index: int, entries: EntryRange, *, is_confirmed: bool = True
    ) -> None:
        metadata, scope, tally = work.metadata, work.scope, work.tally
        segment = metadata.segments[segment_index]
        ensemble = segment.ensemble
        if scope.bookie_ids is not None and scope.bookie_ids.isdisjoint(ensemble):
            return
        is_open = segment_index == len(metadata.segments) - 1 and not metadata.is_closed
        bookie_ids = [
            each
            for each in dict.fromkeys(ensemble)
            if (scope.bookie_ids is None or each in scope.bookie_ids)
            and (segment.first_entry_id, each) not in work.removed
        ]

        def members(entry_id: int) -> list[str]:
            indexes = write_set(entry_id, *metadata.sizes)
            storing = dict.fromkeys(ensemble[index] for index in indexes)
            return [each for each in storing if each in bookie_ids]

        run, earlier_copies = BarrenRun(self._config.barren_entries_max), dict[str, Copy]()
        gaps = CopyGaps(self._copies, work.credentials)

        async def check_batch(batch: _PaidBatch, lease: Lease) -> None:
            found = await self._read_batch(work, batch, lease, is_open=is_open)
            if copies := [copy for row in found.values() for copy in row.values()]:
                run.note(len(batch.wanted), has_good_copy=any(copy.entry is not None for copy in copies))
            earlier_copies.update((copy.bookie_id, copy) for copy in copies if copy.entry is None)
            add = tally.add if is_confirmed else tally.add_if_found
            for entry_id, each_wanted in batch.wanted.items():
                row = [found[entry_id][each] for each in each_wanted]
                if row and not is_in(entry_id, work.excused(row)):
                    add(entry_id, [*compared_copies(row), *_repeated(row, work.metadata, ensemble, entry_id)])

        def count_max() -> int:
            return batch_entries_max(work.row_bytes)

        def size_bytes() -> int:
            return work.row_bytes * count_max()

        rest = entries
        while rest.count:
            found = batches(scope.entry_ids(work.ledger_id, metadata, rest), count_max)
            wanted = ({each: members(each) for each in ids} for ids in run.until_probe(found, rest.last_entry_id))
            await for_each_leased(self._paid(work, wanted), check_batch, self._copies.windows.items, size_bytes)
            rest = EntryRange(run.read_to + 1, rest.last_entry_id)
            if rest.count:
                gap = await gaps.at(rest, bookie_ids, earlier_copies, run)
                if is_confirmed:
                    ranges = in_and_out_of(scope.within(gap.entries), work.excused(gap.copies.values()))[1]
                    tally.add_gap(metadata, ensemble, ranges, gap.copies, is_guessed=gap.is_guessed)
                else:
                    tally.add_gap_if_found(scope.within(gap.entries), gap.copies)
                rest = EntryRange(gap.entries.last_entry_id + 1, rest.last_entry_id)

    async def _paid(
        self, work: CheckWork, batches_wanted: Iterable[dict[int, list[str]]]
    ) -> AsyncGenerator[_PaidBatch, None]:
        """Batches whose turn has come by the rates. One that waits for a busy bookie holds no room of the others."""
        for wanted in batches_wanted:
            taken = Counter[str]()
            for bookie_ids in wanted.values():
                taken.update(dict.fromkeys(bookie_ids, work.tally.entry_bytes))
            with work.waiting(COPY_RATE):
                await self._pacer.take_reads(taken)
            yield _PaidBatch(wanted, taken)

    async def _read_batch(
        self, work: CheckWork, batch: _PaidBatch, lease: Lease, *, is_open: bool
    ) -> dict[int, dict[str, Copy]]:
        read = Counter[str]()
        with work.waiting(f"copies on {', '.join(batch.taken)}"):
            found = await self._copies.read_each(batch.wanted, work.credentials)
        for copies in found.values():
            read.update({bookie_id: len(copy.body) for bookie_id, copy in copies.items()})
        self._pacer.correct_reads(batch.taken, read)
        lease.resize(read.total())
        work.bytes_read += read.total()
        self.bytes_read += read.total()
        if is_open:
            await self._ask_late_ones(found, work.credentials)
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


def _repeated(copies: Sequence[Copy], metadata: LedgerMetadata, ensemble: Sequence[str], entry_id: int) -> list[Copy]:
    """The copies that are missing because bookies have two places in the write set of an entry that was found."""
    if len(set(ensemble)) == len(ensemble) or not any(copy.entry is not None for copy in copies):
        return []
    places = Counter(ensemble[index] for index in write_set(entry_id, *metadata.sizes))
    return [
        Copy(copy.bookie_id, CopyState.REPEATED, NAMED_TWICE)
        for copy in copies
        for _ in range(places[copy.bookie_id] - 1)
    ]


def _problem_of(first_entry_id: int, scope: CheckScope, failure: BkctlError | None, tally: CheckTally) -> str | None:
    """What is unknown about the end of the ledger, from this entry on; ``failure``: why it is unknown."""
    doubt = f"entries {format_ranges(tally.uncertain.ranges())} may exist on bookies that gave no certain answer"
    if failure is None:
        return doubt if tally.uncertain.count else None
    sentences = [f"it is open, and its end is unknown: {failure}"]
    if scope.last_from(first_entry_id) is None:
        most = f"name at most {ENTRIES_WITHOUT_END_MAX} to read them"
        sentences.append(f"entries from {first_entry_id} on were not read: {most}")
    if tally.uncertain.count:
        sentences.append(doubt)
    if tally.absent.count:
        sentences.append(f"no bookie of their write sets has {format_ranges(tally.absent.ranges())}")
    return "; ".join(sentences)
