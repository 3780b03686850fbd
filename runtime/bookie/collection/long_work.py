"""Long-running work in one ledger directory, concurrent with the collector's rounds and with other directories.

A round starts it and does not wait for it: at the configured rate copying may take days, and deletions, here or on
other disks, must not wait that long. It is stopped, even in the middle of a log, when it is suspended or a disk has
become too full for it; it then remains due. Source: storage sections 7.3 and 7.5.

A round does not wait for a search of the whole index for rows that reference a log either: there may be 10^9 rows.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable

import msgspec

from bkctl.runtime.bookie.collection.logs import DirectoryCollector
from bkctl.runtime.bookie.collection.metrics import GarbageCollectionMetrics
from bkctl.runtime.bookie.disks.rules import DiskState
from bkctl.runtime.config import CompactionConfig, GarbageCollectionConfig
from bkctl.runtime.ports import Clock
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)


class CompactionKind(enum.StrEnum):
    """A major compaction also compacts fuller logs than a minor one, and runs less often."""

    MINOR = "minor"
    MAJOR = "major"


class CompactionState(msgspec.Struct):
    """When compactions last ran (monotonic clock, seconds), and the kinds that an operator suspended."""

    last_minor_s: float
    last_major_s: float
    suspended: frozenset[CompactionKind] = frozenset()


class CompactionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What runs in one directory, and what ran last (monotonic clock, seconds)."""

    running: CompactionKind | None
    suspended: frozenset[CompactionKind]
    """By an operator or because of the disks."""
    last_minor_s: float
    last_major_s: float


class DiskReaction(msgspec.Struct, frozen=True):
    """How rounds react to the state of the disks (storage section 7.5)."""

    suspended: frozenset[CompactionKind] = frozenset()
    is_forced: bool = False
    is_room_scarce: bool = False

    @classmethod
    def to(cls, level: DiskState, config: GarbageCollectionConfig) -> DiskReaction:
        """Copying survivors needs space before it frees any: suspended on a full disk, unless the settings force it."""
        is_scarce, is_full = level is not DiskState.WRITABLE, level is DiskState.FULL
        if config.is_forced_when_full:
            return cls(is_forced=is_scarce, is_room_scarce=is_full)
        suspended = {CompactionKind.MAJOR: is_scarce, CompactionKind.MINOR: is_full}
        return cls(frozenset(kind for kind in suspended if suspended[kind]), is_room_scarce=is_full)


def due_compaction(
    config: GarbageCollectionConfig,
    state: CompactionState,
    now_s: float,
    *,
    by_disks: frozenset[CompactionKind] = frozenset(),
    is_forced: bool,
) -> CompactionKind | None:
    """Major if it is due, else minor if it is due, else None. A suspended kind does not run even if forced.

    ``by_disks``: kinds suspended because of the disks, in addition to those suspended by an operator.
    """
    for kind, compaction, last_s in (
        (CompactionKind.MAJOR, config.major, state.last_major_s),
        (CompactionKind.MINOR, config.minor, state.last_minor_s),
    ):
        is_suspended = kind in state.suspended | by_disks
        if not is_suspended and _is_due(config, compaction, last_s, now_s, is_forced=is_forced):
            return kind
    return None


def note_compaction(state: CompactionState, kind: CompactionKind, now_s: float) -> None:
    """Record a completed compaction; a major one includes the work of a minor one."""
    state.last_minor_s = now_s
    if kind is CompactionKind.MAJOR:
        state.last_major_s = now_s


def _is_due(
    config: GarbageCollectionConfig, compaction: CompactionConfig, last_s: float, now_s: float, *, is_forced: bool
) -> bool:
    if is_forced and config.is_forced_compaction_allowed and 0 < compaction.threshold < 1:
        return True
    return compaction.is_enabled and (is_forced or now_s - last_s > compaction.interval_s)


class DirectoryCompaction:
    """Runs one compaction and one search at a time. ``on_ended`` is called after each compaction."""

    def __init__(
        self,
        config: GarbageCollectionConfig,
        clock: Clock,
        directory: DirectoryCollector,
        read_repair_due: Callable[[], Awaitable[bool]],
        metrics: GarbageCollectionMetrics,
        on_ended: Callable[[], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._directory = directory
        self._read_repair_due = read_repair_due
        self._metrics = metrics
        self._on_ended = on_ended
        now_s = self._now_s()
        self._state = CompactionState(now_s, now_s)
        self._disks = DiskReaction()
        self._kind: CompactionKind | None = None
        self._running: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None

    # -- input --------------------------------------------------------------------------------------------------

    def suspend(self, kind: CompactionKind, *, is_suspended: bool) -> None:
        """Stop this kind and run none until it is no longer suspended."""
        self._state.suspended = self._state.suspended | {kind} if is_suspended else self._state.suspended - {kind}
        self._stop_suspended()

    def note_disks(self, reaction: DiskReaction) -> None:
        """Apply a new reaction to the state of the disks."""
        self._disks = reaction
        self._stop_suspended()

    async def begin_due(self, forced: frozenset[CompactionKind] | None) -> None:
        """Start a compaction if one is due. A running one continues, unless it is minor and a major one is forced.

        ``forced``: the only kinds that may start, due or not.
        """
        is_forced = forced is not None or self._disks.is_forced
        by_disks = self._disks.suspended
        if forced is not None:
            by_disks |= frozenset(CompactionKind) - forced
        kind = due_compaction(self._config, self._state, self._now_s(), by_disks=by_disks, is_forced=is_forced)
        if kind is None:
            return
        if not await self.is_at_rest():
            if not is_forced or kind is self._kind or kind is CompactionKind.MINOR:
                return
            await self._stop()
        self._kind = kind
        self._running = asyncio.get_running_loop().create_task(self._run(kind))
        self._metrics.compactions_running += 1
        self._running.add_done_callback(self._note_end)

    def begin_settling(self) -> None:
        """Start settling the logs not yet proven unused, unless that is already running."""
        if self._settling is None or self._settling.done():
            self._settling = asyncio.get_running_loop().create_task(self._trying(self._directory.settle_unproven()))

    async def cut_off(self) -> bool:
        """Stop running work; returns whether there was any."""
        running = self._unfinished()
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        return bool(running)

    # -- state --------------------------------------------------------------------------------------------------

    @property
    def status(self) -> CompactionStatus:
        """What runs and what ran last."""
        return CompactionStatus(
            running=self._kind if self._running is not None and not self._running.done() else None,
            suspended=self._state.suspended | self._disks.suspended,
            last_minor_s=self._state.last_minor_s,
            last_major_s=self._state.last_major_s,
        )

    async def is_at_rest(self) -> bool:
        """Whether no compaction runs here. Waits for the end of one that was stopped."""
        if self._running is not None and self._running.cancelling():
            await asyncio.wait([self._running])
        return self._running is None or self._running.done()

    async def ended(self) -> None:
        """Return when nothing runs here."""
        while running := self._unfinished():
            await asyncio.wait(running)

    def _unfinished(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._running, self._settling) if task is not None and not task.done()]

    # -- one compaction -----------------------------------------------------------------------------------------

    def _stop_suspended(self) -> None:
        is_suspended = self._kind in self._state.suspended | self._disks.suspended
        if is_suspended and self._running is not None and not self._running.done() and not self._running.cancelling():
            logger.info("%s compaction of %s stops: it is suspended", self._kind, self._directory.path)
            self._metrics.compactions_stopped_count += 1
            self._running.cancel()

    async def _stop(self) -> None:
        if self._running is not None and not self._running.done():
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _run(self, kind: CompactionKind) -> None:
        logger.info("%s compaction of %s started", kind.value, self._directory.path)
        await self._trying(self._compact(self._config.major if kind is CompactionKind.MAJOR else self._config.minor))
        note_compaction(self._state, kind, self._now_s())
        if kind is CompactionKind.MAJOR:
            self._directory.metrics.major_compactions_count += 1
        else:
            self._directory.metrics.minor_compactions_count += 1

    async def _compact(self, config: CompactionConfig) -> None:
        with self._directory.timings.compactions.timed(self._clock.monotonic_ns):
            await self._directory.compact(config)
            if not await self._read_repair_due():
                await self._directory.settle_unproven()

    async def _trying(self, step: Awaitable[None]) -> None:
        is_failed = False
        try:
            await step
        except (BkctlError, OSError) as error:
            logger.warning("garbage collection: %s", error)
            is_failed = True
        except Exception:
            # Catch everything: the bookie keeps serving without its collector, and a later round tries again.
            logger.exception("garbage collection of %s failed", self._directory.path)
            is_failed = True
        self._metrics.compactions_failed_count += is_failed or self._directory.take_failures_count() > 0

    def _note_end(self, _: asyncio.Task[None]) -> None:
        self._metrics.compactions_running -= 1
        self._directory.metrics.compaction_progress = 0.0
        self._on_ended()

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9
