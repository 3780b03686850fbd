"""Copies one stripe of a segment to another bookie, and verifies the copies.

After a digest check it copies the stored bytes unchanged, so digests, lengths and last add confirmed remain those of
the writer. It copies only the entries of the replaced index, in batches: while one batch is written, the next ones are
read. Source: replication sections 4 and 15.1.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import NoReturn

import msgspec

from bkctl.runtime.ports import BodyOrStatus
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import VerifyMode
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.copy.limits import for_each_bounded
from bkctl.runtime.replication.copy.reader import REQUEST_COST_BYTES, batch_entries_max
from bkctl.runtime.replication.copy.sources import BATCH_ENTRIES, GivenUpError, SourceReader
from bkctl.runtime.replication.copy.stripe_task import BATCHES_IN_FLIGHT, CopyTools, StripeOutcome, StripeTask, worst_of
from bkctl.runtime.replication.judge.copies import Copy, CopyState
from bkctl.runtime.replication.judge.fragments import EntryRange, batches, stripe

_SAMPLED_SHARE = 0.01


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
        """Copy one batch from its sources to the target, then verify it."""
        if not entry_ids:
            return
        progress = _BatchProgress(entry_ids[-1])
        self._unverified.append(progress)
        size_bytes = len(entry_ids) * (self._reader.entry_bytes + REQUEST_COST_BYTES)
        async with self._tools.copies.windows.memory.lease(size_bytes) as memory:
            is_copied = entry_ids[-1] <= self._task.copied_until
            if is_copied or self._is_target_read_first:
                bad = await self._bad_on_target(entry_ids)
                entry_ids = bad if is_copied else entry_ids
            if entry_ids:
                found = await self._reader.read(entry_ids)
                if self._reader.is_hopeless:
                    return  # after an entry without a good copy, the rest is only read for the report, and not copied
                bytes_read = sum(map(len, found.values()))
                memory.resize(bytes_read + len(entry_ids) * REQUEST_COST_BYTES)
                await self._add(list(found.items()))
                self._bytes_copied += bytes_read
                self._tools.on_copied(len(entry_ids), bytes_read)
                await self._verify(found)
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
