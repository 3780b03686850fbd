"""Copies one stripe of a segment to another bookie, or writes its bad copies again in place; verifies the copies.

After a digest check it copies the stored bytes unchanged, so digests, lengths and last add confirmed remain those of
the writer. It copies only the entries of the replaced index, in batches: while one batch is written, the next ones are
read. Source: replication sections 4 and 15.1.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NoReturn

import msgspec

from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.ports import BodyOrStatus
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import VerifyMode
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.copy.gaps import OutsideBookies
from bkctl.runtime.replication.copy.limits import for_each_bounded
from bkctl.runtime.replication.copy.reader import REQUEST_COST_BYTES, batch_entries_max, entry_bytes_estimate
from bkctl.runtime.replication.copy.sources import BATCH_ENTRIES, GivenUpError, SourceReader
from bkctl.runtime.replication.copy.stripe_task import BATCHES_IN_FLIGHT, CopyTools, StripeOutcome, StripeTask, worst_of
from bkctl.runtime.replication.judge.bad_copies import BAD_STATES, judge_entry, left_copies, unread_reason
from bkctl.runtime.replication.judge.copies import Copy, CopyState
from bkctl.runtime.replication.judge.fragments import (
    EntryRange,
    EntryRangeSet,
    batches,
    in_and_out_of,
    is_in,
    merge_ranges,
    stripe,
)
from bkctl.runtime.replication.judge.ledger_result import FailureReason

_SAMPLED_SHARE = 0.01
_REASONS: Final = {
    Status.READ_ONLY: FailureReason.READ_ONLY,
    Status.AUTHENTICATION_REQUIRED: FailureReason.REFUSES_CLIENT,
}
"""Why a target did not store a copy."""


class _BatchProgress(msgspec.Struct):
    last_entry_id: int
    is_verified: bool = False


class StripeReplicator:
    """One stripe that is copied."""

    def __init__(self, tools: CopyTools, task: StripeTask, activity: LedgerActivity) -> None:
        self._tools = tools
        self._ports = tools.ports
        self._task = task
        self._activity = activity
        self._reader = SourceReader(tools, task, activity)
        self._bytes_copied = 0
        self._target_failure: str | None = None
        self._is_target_refusing = False
        self._is_target_read_first = False
        self._present = EntryRangeSet(ranges_max=sys.maxsize)
        self._unverified: deque[_BatchProgress] = deque()
        """Batches up to the last one that was started, from the first one that is not verified."""

    async def run(self) -> StripeOutcome:
        """Copy, and read the entries back from the target. An empty stripe needs no request."""
        task, reader, entries = self._task, self._reader, self._task.entries
        try:
            self._is_target_read_first = entries > 0 and await self._may_have_corrupt_copies()
            if entries <= self._batch_size():
                await self._copy_batch(list(self._entry_ids(task.fragment.entries)))
            else:
                await for_each_bounded(self._batches(), self._copy_batch, BATCHES_IN_FLIGHT)
        except GivenUpError:
            if reader.is_target_silent and self._target_failure is None:
                self._target_failure = f"bookie {task.target}: it does not respond"
        return StripeOutcome(
            entries=entries,
            bytes_copied=self._bytes_copied,
            target_failure=self._target_failure,
            lost=reader.lost.ranges(),
            unreadable=reader.unreadable(),
            reason=reader.reason,
            is_refused=reader.is_refused if self._target_failure is None else self._is_target_refusing,
            defects=reader.defects(),
            present=self._present.ranges(),
        )

    async def _may_have_corrupt_copies(self) -> bool:
        """Whether the target could have a bad record that must not be written over, because it does not run bkctl
        (H18) and has the ledger already: it was a member before, or is one in another segment."""
        task = self._task
        if await self._tools.software.is_bkctl(task.target):
            return False
        (answer,) = await self._tools.copies.read_batch(task.target, task.credentials.ledger_id, [task.last_entry_id])
        return answer is not Status.NO_SUCH_LEDGER

    def _entry_ids(self, entries: EntryRange) -> Iterator[int]:
        metadata = self._task.metadata
        return stripe(entries, self._task.index, *metadata.sizes)

    def _batch_size(self) -> int:
        return batch_entries_max(self._reader.entry_bytes, BATCH_ENTRIES)

    async def _batches(self) -> AsyncIterator[Sequence[int]]:
        rest = self._task.fragment.entries
        while rest.count:
            for batch in self._reader.run.until_probe(
                batches(self._entry_ids(rest), self._batch_size), rest.last_entry_id
            ):
                yield batch
            rest = EntryRange(self._reader.run.read_to + 1, rest.last_entry_id)
            if rest.count:
                rest = await self._reader.after_gap(rest)

    async def _copy_batch(self, entry_ids: Sequence[int]) -> None:
        if not entry_ids:
            return
        progress = _BatchProgress(entry_ids[-1])
        self._unverified.append(progress)
        size_bytes = len(entry_ids) * (self._reader.entry_bytes + REQUEST_COST_BYTES)
        async with self._tools.copies.windows.memory.lease(size_bytes) as memory:
            is_copied = entry_ids[-1] <= self._task.copied_until
            left_out = frozenset[int]()
            every = entry_ids
            if is_copied or self._is_target_read_first:
                bad = await self._bad_on_target(entry_ids)
                entry_ids = bad if is_copied else entry_ids
            if entry_ids:
                found = await self._reader.read(entry_ids)
                if self._reader.is_hopeless:
                    return  # after an entry without a good copy, the rest is only read for the report, and not copied
                bytes_read = sum(map(len, found.values()))
                memory.resize(bytes_read + len(entry_ids) * REQUEST_COST_BYTES)
                if found:
                    await self._add(list(found.items()))
                    self._bytes_copied += bytes_read
                    self._tools.on_copied(len(found), bytes_read)
                    await self._verify(found)
                left_out = frozenset(entry_ids).difference(found)
        if self._task.lost:
            for entry_id in every:
                if entry_id not in left_out and is_in(entry_id, self._task.lost):
                    self._present.add(entry_id)
        progress.is_verified = True
        self._note_verified()

    # -- adds -----------------------------------------------------------------------------------------------------

    async def _add(self, adds: Sequence[tuple[int, bytes]]) -> None:
        """After a failed add the target is not used."""
        task = self._task
        with self._activity.waiting(f"target {task.target}"):
            failures = await self._tools.writer.add(task.target, task.credentials, adds)
        if failures:
            status = worst_of(failures)
            if status in {Status.TIMEOUT, Status.UNAVAILABLE}:
                self._ports.suspects.add(task.target)
            is_refused = status is Status.AUTHENTICATION_REQUIRED
            self._give_up_target(str(self._ports.bookies.error_of(status, task.target)), is_refused=is_refused)

    def _give_up_target(self, reason: str, *, is_refused: bool = False) -> NoReturn:
        if self._target_failure is None:
            self._target_failure, self._is_target_refusing = reason, is_refused
        raise GivenUpError

    def _give_up_unread(self, entry_id: int, copy: Copy) -> NoReturn:
        reason = f"bookie {copy.bookie_id}: cannot read its copy of entry {entry_id}: {copy.reason}"
        self._give_up_target(reason, is_refused=copy.is_refused)

    # -- verification of the copies, before the metadata references them ------------------------------------------

    async def _verify(self, found: dict[int, bytes]) -> None:
        """Read entries of a batch back after all its adds were acknowledged."""
        rest = {entry_id: found[entry_id] for entry_id in self._to_verify(list(found))}
        while rest:
            different = await self._different(rest)
            if different:  # ask for one patiently, then for the others together again
                await self._verify_one(different[0], rest[different[0]])
            rest = {entry_id: rest[entry_id] for entry_id in different[1:]}

    def _to_verify(self, entry_ids: Sequence[int]) -> Sequence[int]:
        mode = self._tools.config.verify
        if mode is VerifyMode.ALL:
            return entry_ids
        if mode is VerifyMode.NONE:
            return ()
        chosen = self._ports.clock.random.sample(entry_ids, math.ceil(len(entry_ids) * _SAMPLED_SHARE))
        ends = {self._task.first_entry_id, self._task.last_entry_id}
        return sorted({*chosen, *ends.intersection(entry_ids)})

    async def _bad_on_target(self, entry_ids: Sequence[int]) -> list[int]:
        """Entries that the target does not have, or may not have. Gives it up if it has a record that stays bad."""
        task = self._task
        with self._activity.waiting(f"target {task.target}"):
            await self._pace_target(len(entry_ids))
            found = await self._tools.copies.read_verified(
                task.target, task.credentials, entry_ids, self._reader.entry_bytes
            )
        if found.unanswered and not await self._tools.software.is_bkctl(task.target):
            rest = list(found.unanswered)
            for entry_id, copy in zip(
                rest, await self._tools.copies.read_many(task.target, task.credentials, rest), strict=True
            ):
                if copy.state is CopyState.UNREACHABLE:  # it may have a bad record
                    self._give_up_unread(entry_id, copy)
                if copy.state is not CopyState.PRESENT:
                    found.bad[entry_id] = copy
        records = {entry_id: copy for entry_id, copy in found.bad.items() if copy.has_bad_record}
        if records and not await self._tools.software.is_bkctl(task.target):
            entry_id, copy = next(iter(records.items()))
            # A record that the bookie cannot read stays on its disk as well as a corrupt one.
            kind = "cannot read its" if copy.is_damaged else "has a corrupt"
            self._give_up_target(f"bookie {task.target}: {kind} copy of entry {entry_id}, which stays there")
        return [entry_id for entry_id in entry_ids if entry_id not in found.good]

    async def _different(self, wanted: Mapping[int, bytes]) -> list[int]:
        """Entries that the target does not have, or may not have, with these bodies."""
        task, entry_ids = self._task, list(wanted)
        with self._activity.waiting(f"target {task.target}"):
            await self._pace_target(len(entry_ids))
            answers = await self._tools.copies.read_batch(
                task.target, task.credentials.ledger_id, entry_ids, self._reader.entry_bytes
            )
        if answers == list(wanted.values()):
            return []
        rows = zip(wanted.items(), answers, strict=True)
        return [entry_id for (entry_id, body), answer in rows if not self._is_equal(entry_id, answer, body)]

    def _is_equal(self, entry_id: int, stored: BodyOrStatus, body: bytes) -> bool:
        """Whether the payloads are; the last add confirmed inside a body may differ (see ``compared_copies``)."""
        if stored == body or isinstance(stored, Status):
            return stored == body
        codec = self._task.credentials.codec
        (error,) = codec.verify_many([entry_id], [stored])
        return error is None and codec.decode(entry_id, stored).payload == codec.decode(entry_id, body).payload

    async def _pace_target(self, entry_count: int) -> None:
        await self._tools.pacer.take_read(self._task.target, entry_count * self._reader.entry_bytes)

    async def _verify_one(self, entry_id: int, body: bytes) -> None:
        task = self._task
        copy = await self._tools.copies.read(task.target, task.credentials, entry_id)
        if copy.entry is None:
            self._give_up_unread(entry_id, copy)
        if not self._is_equal(entry_id, copy.body, body):
            self._give_up_target(f"bookie {task.target}: has a different entry {entry_id}")

    def _note_verified(self) -> None:
        """Report how far the stripe is complete without gaps."""
        verified = None
        while self._unverified and self._unverified[0].is_verified:
            verified = self._unverified.popleft().last_entry_id
        if verified is not None:
            self._tools.on_verified(self._task, verified)


@dataclasses.dataclass(eq=False)
class StripeRewrite:
    """The bad copies of one stripe, which are written again in place: the target is the present member.

    A batch reads the copies of the target again and, for those that are still bad, the copies of the whole write set;
    if no member has a good one, other live bookies are asked. It writes the bytes of a good copy, and reads them back.
    So a repeated repair writes only what is still bad.

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
