"""The collector of a bookie: deleted ledgers go, and the space they took comes back. Source: storage section 7.1.

A round, every ``gcWaitTime``:

1. transactional compactions that were cut off are finished;
2. ledgers that are gone from the metadata are deleted, now and then also copies that it does not name any more;
3. each entry log that was finished since is measured; deleted ledgers are taken off all of them;
4. logs in which nothing is left are deleted;
5. major compaction if it is due, else minor;
6. logs that could not be proven to be unused are held against the whole index.

What cannot be done is said and tried again by the next round. A round can be cut off anywhere.

While a repair is due here (``integrity``), what rests is all that is proven by the index or by the other bookies: of
2 the copies that the metadata does not name, and 6. What is gone from the metadata is nobody's, whatever lacks here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from runtime.bookie.checkpoints import CHECKPOINT_LANE
from runtime.bookie.compaction_rules import (
    CompactionKind,
    CompactionState,
    DiskReaction,
    due_compaction,
    note_compaction,
)
from runtime.bookie.compaction_survivors import COMPACTION_LANE
from runtime.bookie.disk_rules import DiskState
from runtime.bookie.garbage_collector_ledgers import LedgerCollector
from runtime.bookie.garbage_collector_logs import DirectoryCollector
from runtime.bookie.garbage_collector_metrics import GarbageCollectionMetrics
from runtime.bookie.garbage_collector_overreplicated import OverreplicatedCollector
from runtime.config import GarbageCollectionConfig
from runtime.metadata.ledgers import LedgerStore
from runtime.ports import Clock, Workers
from storage.errors import BkctlError
from storage.log_usage import usage_buckets

logger = logging.getLogger(__name__)

FLUSH_WAIT_S_MAX: Final = 60.0
FLUSH_WAIT_FULL_S_MAX: Final = 5.0
"""Deletions become durable with a checkpoint, and logs should go after that: else a crash brings back a ledger whose
entries cannot be read. Where no checkpoint comes, for want of room, the logs go all the same: they are the room."""


class GarbageCollector:
    """Runs the rounds of one bookie, one at a time, until ``stop``."""

    def __init__(
        self,
        config: GarbageCollectionConfig,
        clock: Clock,
        workers: Workers,
        directories: Sequence[DirectoryCollector],
        ledgers: LedgerCollector,
        overreplicated: OverreplicatedCollector,
        open_ledgers: Callable[[], Awaitable[LedgerStore]],
        flush: Callable[[], Awaitable[None]],
        read_repair_due: Callable[[], Awaitable[bool]],
        metrics: GarbageCollectionMetrics,
    ) -> None:
        self._config = config
        self._clock = clock
        self._workers = workers
        self._directories = directories
        self._ledgers = ledgers
        self._overreplicated = overreplicated
        self._open_ledgers = open_ledgers
        self._flush = flush
        self._read_repair_due = read_repair_due
        now_s = self._now_s()
        self._compaction = CompactionState(now_s, now_s)
        self._last_overreplicated_s = now_s
        self._disks = DiskReaction()
        self._round: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._hold_count = 0
        self._is_requested = False
        self._is_forced = False
        self._is_stopping = False
        self._waiting: list[asyncio.Future[None]] = []
        self.metrics = metrics

    # -- for operators, and for other parts of the bookie -------------------------------------------------------

    async def force(self) -> None:
        """Run a round now, with a compaction if any is allowed; returns when such a round has run to its end.

        CancelledError when the collector stops first.
        """
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(ended)
        self._is_forced = True
        self._changed.set()
        await ended

    def request(self) -> None:
        """Run a round soon, for instance because room has become scarce; nothing is forced."""
        self._is_requested = True
        self._changed.set()

    def suspend_major(self, *, is_suspended: bool = True) -> None:
        """Skip major compactions from now on, or no longer. Deleting ledgers and empty logs goes on."""
        self._compaction.is_major_suspended = is_suspended

    def suspend_minor(self, *, is_suspended: bool = True) -> None:
        """Skip minor compactions from now on, or no longer."""
        self._compaction.is_minor_suspended = is_suspended

    def note_disk_level(self, level: DiskState) -> None:
        """The fullest ledger disk is so full now (storage section 7.5)."""
        before, self._disks = self._disks, DiskReaction.to(level, self._config)
        if self._disks != before and level is not DiskState.WRITABLE:
            self.request()  # also where compaction rests: what nobody uses may go at once

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """No round runs within the block, nor anything that one has begun; a round that is cut off is made up for."""
        self._hold_count += 1
        try:
            await self._cut_off()
            yield
        finally:
            self._hold_count -= 1
            self._changed.set()

    async def run(self) -> None:
        """Run rounds until ``stop``. Raises nothing that a round runs into."""
        while await self._wait_due():
            is_forced, self._is_forced, self._is_requested = self._is_forced, False, False
            waiting, self._waiting = self._waiting, []
            self._round = asyncio.get_running_loop().create_task(self._run_round(is_forced=is_forced))
            await asyncio.wait([self._round])
            if self._round.cancelled():
                self._is_requested = True
                self._is_forced |= is_forced
                self._waiting += waiting
                continue
            for ended in waiting:
                if not ended.done():
                    ended.set_result(None)

    async def stop(self) -> None:
        """Cut a round off and end ``run``; who waits for a forced round is cancelled."""
        self._is_stopping = True
        self._changed.set()
        await self._cut_off()
        for ended in self._waiting:
            ended.cancel()

    # -- rounds -------------------------------------------------------------------------------------------------

    async def _wait_due(self) -> bool:
        """True when a round is due, False when there will be none any more."""
        due_s = self._now_s() + self._config.wait_s
        while not self._is_stopping:
            self._changed.clear()
            left_s = 0.0 if self._is_forced or self._is_requested else due_s - self._now_s()
            if self._hold_count:
                await self._changed.wait()
            elif left_s <= 0:
                return True
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._changed.wait()
        return False

    async def _cut_off(self) -> None:
        if self._round is not None and not self._round.done():
            self._round.cancel()
            await asyncio.wait([self._round])
        # A job of a lane runs on when nobody waits for it any more.
        for lane in (COMPACTION_LANE, CHECKPOINT_LANE):
            await self._workers.run(lane, _nothing)

    async def _run_round(self, *, is_forced: bool) -> None:
        failed_count = 0
        try:
            for directory in self._directories:
                failed_count += await self._trying(directory.resume())
            is_repair_due = await self._read_repair_due()
            failed_count += await self._trying(self._collect_ledgers(is_repair_due=is_repair_due))
            for directory in self._directories:
                failed_count += await self._trying(directory.refresh())
                failed_count += await self._trying(directory.remove_empty())
            failed_count += await self._compact(is_forced=is_forced)
            for directory in self._directories:
                if not is_repair_due:
                    failed_count += await self._trying(directory.settle_unproven())
                failed_count += directory.take_failures_count()
        except Exception:
            # Whatever it is: a bookie serves on without its collector, and the next round tries again.
            logger.exception("a round of the garbage collector failed")
            failed_count += 1
        self.metrics.rounds_count += 1
        self.metrics.rounds_failed_count += failed_count > 0
        self._measure()

    async def _trying(self, step: Awaitable[None]) -> int:
        """1 if a step could not be done, else 0."""
        try:
            await step
        except (BkctlError, OSError) as error:
            logger.warning("garbage collection: %s", error)
            return 1
        return 0

    async def _collect_ledgers(self, *, is_repair_due: bool) -> None:
        ledgers = await self._open_ledgers()
        deleted_count = await self._ledgers.collect(ledgers)
        wait_s = self._config.overreplicated_wait_s
        is_due = wait_s > 0 and self._now_s() - self._last_overreplicated_s >= wait_s
        if is_due and not is_repair_due:
            self._last_overreplicated_s = self._now_s()
            deleted_count += await self._overreplicated.collect(ledgers)
        if deleted_count:
            logger.info("%d ledgers are deleted", deleted_count)
            await self._flush_deletions()

    async def _flush_deletions(self) -> None:
        wait_s = FLUSH_WAIT_FULL_S_MAX if self._disks.is_room_scarce else FLUSH_WAIT_S_MAX
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                # One checkpoint may not do: that behind a failed one writes what it did not, and nothing newer (H2).
                while any(directory.is_deletion_unflushed for directory in self._directories):
                    await self._flush()

    async def _compact(self, *, is_forced: bool) -> int:
        """How many directories could not be compacted."""
        state = self._disks.applied_to(self._compaction)
        kind = due_compaction(self._config, state, self._now_s(), is_forced=is_forced or self._disks.is_forced)
        if kind is None:
            return 0
        logger.info("%s compaction begins", kind.value)
        config = self._config.major if kind is CompactionKind.MAJOR else self._config.minor
        failed_count = sum([await self._trying(directory.compact(config)) for directory in self._directories])
        note_compaction(self._compaction, kind, self._now_s())
        if kind is CompactionKind.MAJOR:
            self.metrics.major_compactions_count += 1
        else:
            self.metrics.minor_compactions_count += 1
        return failed_count

    def _measure(self) -> None:
        usages = [usage for directory in self._directories for usage in directory.usages]
        self.metrics.logs_count = len(usages)
        self.metrics.remaining_bytes = sum(usage.remaining_bytes for usage in usages)
        self.metrics.usage_buckets = usage_buckets(usages)
        self.metrics.logs_quarantined = sum(directory.quarantined_count for directory in self._directories)

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9


def _nothing() -> None:
    """When it is done, so are all jobs before it."""
