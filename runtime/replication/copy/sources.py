"""Reads good copies of the entries of one stripe: batches from one source each, and single reads where that fails.

Only single reads decide that a copy is bad or an entry lost, because they ask every source and wait for those that do
not answer. Bookies outside of the ensemble are asked last: earlier members may still have the entries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

from bkctl.runtime.ledger.write_set import is_in_write_set, write_set
from bkctl.runtime.metadata.pipeline import each_of
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.copy.activity import COPY_RATE, LedgerActivity
from bkctl.runtime.replication.copy.gaps import BarrenRun, CopyGap, CopyGaps, OutsideBookies
from bkctl.runtime.replication.copy.limits import Lease, for_each_leased, run_all
from bkctl.runtime.replication.copy.reader import entry_bytes_estimate, pause_s
from bkctl.runtime.replication.copy.stripe_task import CopyTools, StripeTask
from bkctl.runtime.replication.judge.copies import Copy, CopyState
from bkctl.runtime.replication.judge.fragments import EntryRange, EntryRangeSet, in_and_out_of, is_in, stripe_count
from bkctl.runtime.replication.judge.ledger_result import SourceDefect

BATCH_ENTRIES = 256
"""A batch to copy ends at this or at ``BATCH_BYTES``: more entries than where several copies are compared."""


class GivenUpError(Exception):
    """Abandon the rest of the stripe; the state of the copy contains the reason."""


class SourceReader:
    """Reads the entries of one stripe, and records bad copies and entries without a good one."""

    def __init__(self, tools: CopyTools, task: StripeTask, activity: LedgerActivity) -> None:
        self._ports = tools.ports
        self._copies = tools.copies
        self._config = tools.config
        self._pacer = tools.pacer
        self._task = task
        self._activity = activity
        self._sizes = (task.metadata.ensemble_size, task.metadata.write_quorum_size)
        self.entry_bytes = max(1, entry_bytes_estimate(task.metadata))
        """Expected size of the next entry: a moving average."""
        self.lost = EntryRangeSet()
        self._failed = EntryRangeSet()
        self._unprobed: EntryRange | None = None
        self.reason = ""
        self.is_refused = False
        """Whether the sources that did not answer do not accept this client."""
        self.is_target_silent = False
        """Whether reading was given up because the target does not answer."""
        self._defects: dict[tuple[str, CopyState], EntryRangeSet] = {}
        self.run = BarrenRun(tools.config.barren_entries_max)
        """When it ends a walk, ``after_gap`` is where to go on."""
        self._earlier_copies: dict[str, Copy] = {}
        self._gaps = CopyGaps(tools.copies, task.credentials)
        self._outside = OutsideBookies(tools.copies, task.credentials.ledger_id, task.outside, self._ask)

    @property
    def is_hopeless(self) -> bool:
        """Whether an entry has no good copy. Then the rest is only read for the report."""
        return bool(self.lost.count or self._failed.count)

    def unreadable(self) -> tuple[EntryRange, ...]:
        """Entries without a good copy for which a source failed or did not answer."""
        if self._unprobed is None:
            return self._failed.ranges()
        first = self._unprobed.first_entry_id
        below = [entries for entries in self._failed.ranges() if entries.first_entry_id < first]
        clipped = (EntryRange(entries.first_entry_id, min(entries.last_entry_id, first - 1)) for entries in below)
        return (*clipped, self._unprobed)

    def defects(self) -> tuple[SourceDefect, ...]:
        """Bad copies on the sources."""
        return tuple(
            SourceDefect(self._task.credentials.ledger_id, bookie_id, state, entries.ranges())
            for (bookie_id, state), entries in sorted(self._defects.items(), key=lambda item: item[0][0])
        )

    async def read(self, entry_ids: Sequence[int]) -> dict[int, bytes]:
        """Good copies of these entries as stored, except of those that have none, which is recorded. GivenUpError."""
        good: dict[int, bytes] = {}
        pending = entry_ids
        for attempt in range(1, self._config.attempts_max + 1):
            if not pending:
                break
            pending, is_busy = await self._read_round(pending, good)
            if pending and not is_busy:  # this may wait for the source, or find another one
                await self._read_single({pending[0]: None}, good)
                pending = pending[1:]
            elif pending and attempt > 1:  # the second attempt asks another source if there is one
                await self._ports.clock.sleep(pause_s(attempt - 1, self._config, self._ports.clock))
        await self._read_single(dict.fromkeys(pending), good)
        self.run.note(len(entry_ids), has_good_copy=bool(good))
        if good:
            self.entry_bytes = max(1, (self.entry_bytes + sum(map(len, good.values())) // len(good)) // 2)
        return {entry_id: good[entry_id] for entry_id in entry_ids if entry_id in good}

    async def after_gap(self, rest: EntryRange) -> EntryRange:
        """``rest`` without the entries at its start that no source has, which are recorded. GivenUpError."""
        index, (ensemble_size, write_quorum_size) = self._task.index, self._sizes
        round_ids = range(rest.first_entry_id, rest.first_entry_id + ensemble_size)
        stored = [each for each in round_ids if is_in_write_set(each, index, ensemble_size, write_quorum_size)]
        sources = list(dict.fromkeys(source for each in stored for source in self._sources(each)))
        earlier_copies = {bookie_id: copy for bookie_id, copy in self._earlier_copies.items() if bookie_id in sources}
        gap = await self._gaps.at(rest, [*sources, *self._outside.known_holders], earlier_copies, self.run)
        if gap.entries.count:
            self._record_gap(gap)
        return EntryRange(gap.entries.last_entry_id + 1, rest.last_entry_id)

    def _record_gap(self, gap: CopyGap) -> None:
        index, entries, sizes = self._task.index, gap.entries, self._sizes
        states = {copy.state for copy in gap.copies.values()}
        if CopyState.UNREACHABLE in states:
            self._give_up_from(entries.first_entry_id)
        is_missing = states == {CopyState.MISSING}
        for part in in_and_out_of((entries,), self._task.accepted if is_missing else ())[1]:
            count = stripe_count(part, index, *sizes)
            for copy in gap.copies.values():
                if copy.state is not CopyState.UNREACHABLE and copy.bookie_id not in self._task.outside:
                    self._defects.setdefault((copy.bookie_id, copy.state), EntryRangeSet()).add_range(part, count)
            (self._failed if CopyState.FAILED in states else self.lost).add_range(part, count)

    async def _read_round(self, entry_ids: Sequence[int], good: dict[int, bytes]) -> tuple[Sequence[int], bool]:
        """Read from the preferred sources; returns entries without an answer, and whether sources were just busy."""
        groups = self._by_source(entry_ids)
        unasked = groups.pop("", ())
        if unasked:  # first whether one of these can be read: if not, the others would be read, and paid for, in vain
            await self._read_single({unasked[0]: None}, good)
        unanswered = [*unasked[1:]]
        statuses: set[Status] = set()
        works = [self._read_from(source, chosen, good, groups) for source, chosen in groups.items()]
        for found in await run_all(works):
            unanswered += found
            statuses.update(found.values())
        return sorted(unanswered), statuses == {Status.TOO_MANY_REQUESTS} and not unasked

    async def _read_from(
        self, source: str, entry_ids: Sequence[int], good: dict[int, bytes], needed: Collection[str]
    ) -> dict[int, Status]:
        """Read entries from one source, except bad copies from the others; returns those without an answer.

        ``needed``: the sources of the whole batch. If one has fallen silent, or the target (GivenUpError), nothing is
        read, and paid for, in vain.
        """
        target = self._task.target
        expected_bytes = len(entry_ids) * self.entry_bytes
        with self._activity.waiting(COPY_RATE):
            await self._pacer.take(source, target, expected_bytes)
        self.is_target_silent = self._copies.is_silent(target)
        if self.is_target_silent or not all(map(self._copies.is_responsive, needed)):
            self._pacer.correct(source, target, expected_bytes, 0)
            if self.is_target_silent:
                raise GivenUpError
            return dict.fromkeys(entry_ids, Status.UNAVAILABLE)
        with self._activity.waiting(f"source {source}"):
            found = await self._copies.read_verified(source, self._task.credentials, entry_ids, self.entry_bytes)
        self._pacer.correct(source, target, expected_bytes, sum(map(len, found.good.values())))
        good.update(found.good)
        if found.unanswered:
            self._ports.suspects.add(source)
            if set(found.unanswered.values()) != {Status.TOO_MANY_REQUESTS}:
                # At once, so that no other source is read for a batch that cannot be completed.
                await self._read_single({next(iter(found.unanswered)): None}, good)
        await self._read_single(dict.fromkeys(found.bad) if source in self._task.outside else found.bad, good)
        return {each: status for each, status in found.unanswered.items() if each not in good}

    def _by_source(self, entry_ids: Sequence[int]) -> dict[str, Sequence[int]]:
        """The entries by the bookie to ask; an empty id: no source can be asked with a batch."""
        ensemble_size, write_quorum_size = self._sizes
        if write_quorum_size == ensemble_size:
            return {self._first_source(0): entry_ids}
        by_residue: dict[int, str] = {}
        groups: dict[str, list[int]] = {}
        for entry_id in entry_ids:
            residue = entry_id % ensemble_size
            if residue not in by_residue:
                by_residue[residue] = self._first_source(residue)
            groups.setdefault(by_residue[residue], []).append(entry_id)
        return {**groups}

    def _first_source(self, entry_id: int) -> str:
        sources = [*self._sources(entry_id), *self._outside.known_holders]
        return next((each for each in sources if self._copies.is_responsive(each)), "")

    # -- single reads ---------------------------------------------------------------------------------------------

    async def _read_single(self, bad: Mapping[int, Copy | None], good: dict[int, bytes]) -> None:
        """Read entries from any source, one by one. GivenUpError if a source that is needed does not answer.

        ``bad``: the entries, with a bad copy if one was found already.
        """
        if not bad:
            return

        async def read(item: tuple[int, Copy | None], _: Lease) -> None:
            copy = await self._read_good_copy(*item)
            if copy is not None:
                good[item[0]] = copy.body

        await for_each_leased(each_of(bad.items()), read, self._copies.windows.items, lambda: self.entry_bytes)

    async def _read_good_copy(self, entry_id: int, bad: Copy | None) -> Copy | None:
        """A verified copy from any live member of the write set, else from another bookie; None if there is none, which
        is recorded."""
        found = {} if bad is None else {bad.bookie_id: bad}
        sources = [bookie_id for bookie_id in self._sources(entry_id) if bookie_id not in found]
        for bookie_id in sources:
            found[bookie_id] = copy = await self._ask(bookie_id, entry_id, attempts_max=1)
            if copy.state is CopyState.PRESENT:
                break
        else:
            for bookie_id in sources:  # no other source: wait for those that did not answer
                if found[bookie_id].state is CopyState.UNREACHABLE:
                    found[bookie_id] = await self._ask(bookie_id, entry_id)
        is_missing = {copy.state for copy in found.values()} == {CopyState.MISSING}
        is_accepted = is_missing and is_in(entry_id, self._task.accepted)
        for copy in found.values():
            if copy.state is CopyState.UNREACHABLE:
                self._ports.suspects.add(copy.bookie_id)
            elif copy.state is not CopyState.PRESENT and not is_accepted:
                self._earlier_copies[copy.bookie_id] = copy
                self._defects.setdefault((copy.bookie_id, copy.state), EntryRangeSet()).add(entry_id)
        for copy in found.values():
            if copy.state is CopyState.PRESENT:
                return copy
        if (kept := await self._outside.find(entry_id)) is not None:
            return kept
        if not is_accepted:
            self._record_failure(entry_id, found)
        return None

    async def _ask(self, bookie_id: str, entry_id: int, *, attempts_max: int | None = None) -> Copy:
        with self._activity.waiting(f"source {bookie_id}"):
            return await self._copies.read(bookie_id, self._task.credentials, entry_id, attempts_max=attempts_max)

    def _sources(self, entry_id: int) -> list[str]:
        """Members of the write set that may have the entry, in one order per ledger, suspects last.

        The replaced bookie is the first one if it still serves: it has the whole stripe, in this order on its disk.
        """
        ensemble_size, write_quorum_size = self._sizes
        ensemble = self._task.fragment.ensemble
        # Otherwise start with the same member for all entries, so that its disk reads sequentially; vary it by ledger.
        start = self._task.credentials.ledger_id % ensemble_size
        indexes = sorted(
            write_set(entry_id, ensemble_size, write_quorum_size),
            key=lambda index: (index != self._task.index, (index - start) % ensemble_size),
        )
        bookie_ids = dict.fromkeys(ensemble[index] for index in indexes)
        return self._ports.suspects.last([bookie for bookie in bookie_ids if bookie not in self._task.unreachable])

    def _record_failure(self, entry_id: int, found: dict[str, Copy]) -> None:
        answers = ", ".join(f"{copy.bookie_id}: {copy.reason}" for copy in found.values())
        reason = f"entry {entry_id}: {answers or 'no other bookie ever had it'}"
        states = {copy.state for copy in found.values()}
        if CopyState.UNREACHABLE in states:
            self.reason = reason
            self.is_refused = all(each.is_refused for each in found.values() if each.state is CopyState.UNREACHABLE)
            self._give_up_from(entry_id)
        (self._failed if CopyState.FAILED in states else self.lost).add(entry_id)
        self.reason = self.reason or reason

    def _give_up_from(self, entry_id: int) -> NoReturn:
        # Each further entry would cost a timeout, so the rest of the range is reported without reading it.
        first_entry_id = entry_id if self._unprobed is None else min(entry_id, self._unprobed.first_entry_id)
        self._unprobed = EntryRange(first_entry_id, self._task.fragment.entries.last_entry_id)
        raise GivenUpError
