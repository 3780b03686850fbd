"""The mode of a bookie in files: read at boot, written at every change.

BOOKIE_STATUS is Java's and written only if enabled. bkctl.mode keeps what an operator set while the bookie ran.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bkctl.runtime.bookie.disks.modes import BookieModes
from bkctl.runtime.bookie.disks.monitor import DISKS_LANE
from bkctl.runtime.ports import Clock, Workers
from bkctl.storage.advice import with_path
from bkctl.storage.bookie_status import BookieStatus, read_bookie_status, write_bookie_status
from bkctl.storage.operator_mode import OperatorMode, read_operator_mode, write_operator_mode
from bkctl.storage.ports import FileSystem

logger = logging.getLogger(__name__)


class ModeFiles:
    """The files of one bookie. ``directories``: ``current`` of its ledger directories; ``is_kept``: write
    BOOKIE_STATUS."""

    def __init__(
        self,
        file_system: FileSystem,
        directories: Sequence[str],
        modes: BookieModes,
        workers: Workers,
        clock: Clock,
        *,
        is_kept: bool,
    ) -> None:
        self._file_system = file_system
        self._directories = directories
        self._modes = modes
        self._workers = workers
        self._clock = clock
        self._is_kept = is_kept

    def restore(self) -> bool:
        """Restore the mode of the previous process; returns whether it was read-only because of its disks.

        CorruptFileError, OSError.
        """
        status = read_bookie_status(self._file_system, self._directories) if self._is_kept else None
        order = latest_order(read_operator_mode(self._file_system, self._directories), status)
        if order is not None:
            self._modes.follow_order(order)
        return status is not None and status.is_read_only and not status.is_manual

    async def store_order(self, order: OperatorMode) -> None:
        """Write what an operator set. OSError if no directory could keep it."""
        errors = await self._workers.run(DISKS_LANE, write_operator_mode, self._file_system, self._directories, order)
        if len(errors) == len(self._directories):
            raise errors[0]
        for error in errors:
            logger.warning("cannot write the mode of the bookie to every directory: %s", with_path(error))

    async def write(self) -> None:
        """Write BOOKIE_STATUS. A failure is only logged, because the next process checks the disks itself."""
        if not self._is_kept:
            return
        status = self._modes.status(self._clock.now_ms())
        error = await self._workers.run(DISKS_LANE, write_bookie_status, self._file_system, self._directories, status)
        if error is not None:
            logger.warning("cannot write the mode of the bookie to every directory: %s", with_path(error))


def latest_order(order: OperatorMode | None, status: BookieStatus | None) -> OperatorMode | None:
    """What the operator set last: in bkctl.mode, or in BOOKIE_STATUS, which a Java bookie or an operator may have
    written since."""
    if status is None or not status.is_manual or (order is not None and order.written_ms >= status.written_ms):
        return order
    if order is not None and order.is_read_only == status.is_read_only:
        return order
    return OperatorMode(
        is_read_only=status.is_read_only,
        since_ms=status.written_ms,
        written_ms=status.written_ms,
        reason="file BOOKIE_STATUS",
    )
