"""Writes bad copies of one stripe again, in place: a stripe copy whose target is the present member.

A batch reads the copies of the target again and, for those that are still bad, the copies of the whole write set; if
no member has a good one, other live bookies are asked. It writes the bytes of a good copy, and reads them back. So a
repeated repair writes only what is still bad.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import chain
from typing import Final

from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.copy.limits import for_each_bounded
from bkctl.runtime.replication.copy.outside import OutsideBookies
from bkctl.runtime.replication.copy.reader import REQUEST_COST_BYTES, batch_entries_max, entry_bytes_estimate
from bkctl.runtime.replication.copy.stripe_task import BATCHES_IN_FLIGHT, CopyTools, StripeOutcome, StripeTask
from bkctl.runtime.replication.judge.bad_copies import BAD_STATES, judge_entry, left_copies, unread_reason
from bkctl.runtime.replication.judge.copies import Copy, CopyState
from bkctl.runtime.replication.judge.fragments import EntryRangeSet, batches, in_and_out_of, merge_ranges, stripe
from bkctl.runtime.replication.judge.ledger_result import FailureReason

_REASONS: Final = {
    Status.READ_ONLY: FailureReason.READ_ONLY,
    Status.AUTHENTICATION_REQUIRED: FailureReason.REFUSES_CLIENT,
}
"""Why a target did not store a copy."""


@dataclasses.dataclass(eq=False)
class StripeRewrite:
    """The bad copies of one stripe, which are written again.

    ``before_add`` is called before each request that writes, and may raise, for example because the lock was lost.
    ``unusable``: bookies that stopped answering to adds, with the reason, which may be shared by several jobs; their
    copies are left.
    """

    tools: CopyTools
    task: StripeTask
    activity: LedgerActivity
    before_add: Callable[[], None]
    unusable: dict[str, str]

    def __post_init__(self) -> None:
        self._target = self.task.target
        self._entry_bytes = max(1, entry_bytes_estimate(self.task.metadata))
        """Expected size of the next entry: a moving average."""
        self._outside = OutsideBookies(self.tools.copies, self.task.credentials.ledger_id, self.task.outside, self._ask)
        self._copies = 0
        self._bytes_written = 0
        self._must_move = EntryRangeSet()
        self._left: dict[FailureReason, EntryRangeSet] = {}
        self._details: dict[FailureReason, str] = {}

    async def run(self) -> StripeOutcome:
        """Repair all batches."""
        await for_each_bounded(self._batches(), self._repair_batch, BATCHES_IN_FLIGHT)
        ledger_id = self.task.credentials.ledger_id
        return StripeOutcome(
            entries=self._copies,
            bytes_copied=self._bytes_written,
            target_failure=self.unusable.get(self._target),
            left=tuple(
                left_copies(ledger_id, reason, self._target, found.count, found.ranges(), self._details[reason])
                for reason, found in self._left.items()
            ),
            must_move=self._must_move.ranges(),
            must_move_count=self._must_move.count,
        )

    async def _batches(self) -> AsyncIterator[Sequence[int]]:
        task, metadata = self.task, self.task.metadata
        bad, _ = in_and_out_of(merge_ranges(task.bad), (task.fragment.entries,))
        entry_ids = chain.from_iterable(stripe(entries, task.index, *metadata.sizes) for entries in bad)
        for batch in batches(entry_ids, lambda: batch_entries_max(self._entry_bytes * metadata.write_quorum_size)):
            yield batch

    async def _repair_batch(self, entry_ids: Sequence[int]) -> None:
        if self._target in self.unusable:
            for entry_id in entry_ids:
                self._note_left(FailureReason.UNREACHABLE, entry_id, self.unusable[self._target])
            return
        expected_bytes = self._entry_bytes * self.task.metadata.write_quorum_size + REQUEST_COST_BYTES
        async with self.tools.copies.windows.memory.lease(len(entry_ids) * expected_bytes) as memory:
            found = await self._read({each: [self._target] for each in entry_ids})
            bad = [each for each in entry_ids if found[each][self._target].state in BAD_STATES]
            others = {each: [member for member in self._members(each) if member != self._target] for each in bad}
            for entry_id, copies in (await self._read(others)).items():
                found[entry_id] |= copies
            bodies = [copy.body for copies in found.values() for copy in copies.values() if copy.body]
            size_bytes = sum(map(len, bodies))
            memory.resize(size_bytes + len(entry_ids) * REQUEST_COST_BYTES)
            if bodies:
                self._entry_bytes = max(1, (self._entry_bytes + size_bytes // len(bodies)) // 2)
            sources = {entry_id: await self._source(entry_id, copies) for entry_id, copies in found.items()}
            await self._write([(entry_id, source) for entry_id, source in sources.items() if source is not None])

    async def _source(self, entry_id: int, copies: Mapping[str, Copy]) -> Copy | None:
        """The good copy to write; None if the target's is good, or noted as one that is left or must move."""
        has_bad_record = copies[self._target].has_bad_record
        is_bkctl = has_bad_record and await self.tools.software.is_bkctl(self._target)
        in_order = [copies[each] for each in self._members(entry_id) if each in copies]
        verdict = judge_entry(in_order, self._target, is_bkctl=is_bkctl)
        is_without_copy = verdict.left is not None and verdict.left[0] in {FailureReason.LOST, FailureReason.UNREADABLE}
        if is_without_copy and (kept := await self._outside.find(entry_id)) is not None:
            verdict = judge_entry([*in_order, kept], self._target, is_bkctl=is_bkctl)
        if verdict.left is not None:
            reason, detail = verdict.left
            self._note_left(reason, entry_id, detail)
        if verdict.must_move:
            self._must_move.add(entry_id)
        return verdict.source

    async def _ask(self, bookie_id: str, entry_id: int) -> Copy:
        await self.tools.pacer.take_read(bookie_id, self._entry_bytes)
        with self.activity.waiting(f"source {bookie_id}"):
            return await self.tools.copies.read(bookie_id, self.task.credentials, entry_id)

    def _members(self, entry_id: int) -> list[str]:
        metadata = self.task.metadata
        indexes = write_set(entry_id, *metadata.sizes)
        return list(dict.fromkeys(self.task.fragment.ensemble[index] for index in indexes))

    async def _read(self, wanted: Mapping[int, Sequence[str]]) -> dict[int, dict[str, Copy]]:
        """Copies of entries on these bookies."""
        pacer, entry_bytes = self.tools.pacer, self._entry_bytes
        counts = Counter(chain.from_iterable(wanted.values()))
        for bookie_id, count in counts.items():
            await pacer.take(bookie_id, bookie_id, count * entry_bytes)
        with self.activity.waiting(f"copies on {', '.join(counts)}"):
            found = await self.tools.copies.read_each(wanted, self.task.credentials)
        for bookie_id, count in counts.items():
            bytes_read = sum(len(copies[bookie_id].body) for copies in found.values() if bookie_id in copies)
            pacer.correct(bookie_id, bookie_id, count * entry_bytes, bytes_read)
        return found

    async def _write(self, adds: Sequence[tuple[int, Copy]]) -> None:
        """Write copies, and read back those that the target took."""
        if not adds:
            return
        target, credentials = self._target, self.task.credentials
        await self.tools.pacer.take(target, target, 2 * sum(len(source.body) for _, source in adds))
        with self.activity.waiting(f"target {target}"):
            bodies = [(entry_id, source.body) for entry_id, source in adds]
            failures = await self.tools.writer.add(target, credentials, bodies, self.before_add)
            for entry_id, status in failures.items():
                self._note_failure(entry_id, status)
            stored = [each for each in adds if each[0] not in failures]
            copies = await self.tools.copies.read_many(target, credentials, [entry_id for entry_id, _ in stored])
        good = bytes_written = 0
        for (entry_id, source), copy in zip(stored, copies, strict=True):
            if copy.state is CopyState.PRESENT and copy.content == source.content:
                good += 1
                bytes_written += len(source.body)
            elif copy.state is CopyState.UNREACHABLE:
                self._note_left(unread_reason(copy), entry_id, copy.reason)
            else:
                detail = copy.reason or "its copy differs from the one that was written"
                self._note_left(FailureReason.STILL_BAD, entry_id, detail)
        self._copies += good
        self._bytes_written += bytes_written
        self.tools.on_copied(good, bytes_written)

    def _note_failure(self, entry_id: int, status: Status) -> None:
        detail = str(self.tools.ports.bookies.error_of(status, self._target))
        reason = _REASONS.get(status, FailureReason.REFUSED)
        if status in {Status.TIMEOUT, Status.UNAVAILABLE}:
            self.unusable[self._target] = detail
            reason = FailureReason.UNREACHABLE
        self._note_left(reason, entry_id, detail)

    def _note_left(self, reason: FailureReason, entry_id: int, detail: str) -> None:
        self._left.setdefault(reason, EntryRangeSet()).add(entry_id)
        self._details.setdefault(reason, detail)
