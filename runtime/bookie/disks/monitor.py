"""Checks the disks of a bookie and reports the verdict. Source: storage section 8; the rules are in ``rules``.

A check is due every ``check_interval_s``, and sooner the closer a disk is to its limit, so that even a fast disk cannot
fill up between two checks. A directory that has become unusable ends the bookie.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from bkctl.runtime.bookie.disks.rules import BookieDisks, DiskSample, DiskState, DiskVerdict, judge, next_check_s
from bkctl.runtime.config import DiskConfig
from bkctl.runtime.ports import BookieInfo, Clock, Workers
from bkctl.storage.config import StorageConfig
from bkctl.storage.errors import DiskUnusableError
from bkctl.storage.filenames import current_directory
from bkctl.storage.ports import DiskSpace, FileSystem
from bkctl.storage.words import percent, size

logger = logging.getLogger(__name__)

DISKS_LANE: Final = "disks"
"""A separate lane, so that a hanging disk does not stop other work."""

_STATE_WORDS = {
    DiskState.WRITABLE: "has space",
    DiskState.ALMOST_FULL: "is almost full",
    DiskState.FULL: "is full",
}


class DiskMonitor:
    """Samples the directories of one bookie in a lane and passes every verdict to ``on_verdict``, on the loop."""

    def __init__(
        self,
        file_system: FileSystem,
        storage: StorageConfig,
        config: DiskConfig,
        workers: Workers,
        clock: Clock,
        on_verdict: Callable[[DiskVerdict], None],
        *,
        was_full: bool = False,
    ) -> None:
        """``was_full``: the bookie was read-only when it stopped, so a disk above the recovery mark still counts as
        full."""
        self._file_system = file_system
        self._config = config
        self._workers = workers
        self._clock = clock
        self._on_verdict = on_verdict
        self._journals = tuple(map(current_directory, storage.journal_directories))
        self._ledgers = tuple(map(current_directory, storage.ledger_directories))
        self._indexes = tuple(map(current_directory, storage.effective_index_directories))
        self._room_bytes = config.high_priority_room_bytes_or_default(storage.engine.entry_log.size_bytes_max)
        before = DiskState.FULL if was_full else DiskState.WRITABLE
        self._states = (before,) * (len(self._journals) + len(self._ledgers) + len(self._indexes))
        self._interval_s = config.check_interval_s
        self.samples: BookieDisks | None = None
        """Space of the directories at the last check; None before the first one."""
        self.verdict: DiskVerdict | None = None
        """Result of the last check; None before the first one."""
        self.ledger_space = BookieInfo(0, 0)
        """What clients get as the disk space of this bookie, at the last check (wire 5.7). A request must not make a
        system call on the event loop: on a disk that hangs it would never end."""

    async def check(self) -> DiskVerdict:
        """Check once. DiskUnusableError, and errors from ``on_verdict``."""
        disks, self.ledger_space = await self._workers.run(DISKS_LANE, self._sample)
        verdict = judge(self._states, disks, self._config, self._room_bytes)
        self._states = verdict.states
        for change in dict.fromkeys(verdict.changes):
            logger.warning(
                "%s %s: %s used, %s free",
                change.sample.directory,
                _STATE_WORDS[change.after],
                percent(change.sample.used_fraction),
                size(change.sample.usable_bytes),
            )
        self._interval_s = next_check_s(disks, verdict.states, self._config)
        self.samples, self.verdict = disks, verdict
        self._on_verdict(verdict)
        return verdict

    async def run(self) -> None:
        """Check periodically until cancelled. Raises like ``check``."""
        while True:
            await self._clock.sleep(self._interval_s)
            await self.check()

    def _sample(self) -> tuple[BookieDisks, BookieInfo]:
        found = {directory: self._space(directory) for directory in (*self._journals, *self._ledgers, *self._indexes)}
        journals, ledgers, indexes = (
            tuple(DiskSample(each, found[each].total_bytes, found[each].usable_bytes) for each in directories)
            for directories in (self._journals, self._ledgers, self._indexes)
        )
        return BookieDisks(journals, ledgers, indexes), total_space(found[each] for each in self._ledgers)

    def _space(self, directory: str) -> DiskSpace:
        try:
            space = self._file_system.space(directory)
        except OSError as error:
            raise DiskUnusableError(f"{directory}: cannot use the disk ({error.strerror})") from error
        if space.is_read_only:
            raise DiskUnusableError(f"{directory}: cannot write to the disk (mounted read-only)")
        return space


def total_space(spaces: Iterable[DiskSpace]) -> BookieInfo:
    """Sums over the distinct file systems (wire 5.7)."""
    by_filesystem = {space.filesystem_id: space for space in spaces}
    return BookieInfo(
        total_bytes=sum(space.total_bytes for space in by_filesystem.values()),
        free_bytes=sum(space.usable_bytes for space in by_filesystem.values()),
    )
