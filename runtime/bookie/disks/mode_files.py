"""The mode of a bookie in the files BOOKIE_STATUS, if the settings want them. Source: storage section 8."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from runtime.bookie.disks.modes import BookieModes, sentence
from runtime.bookie.disks.monitor import DISKS_LANE
from runtime.ports import Clock, Workers
from storage.bookie_status import read_bookie_status, write_bookie_status
from storage.ports import FileSystem

logger = logging.getLogger(__name__)


class ModeFiles:
    """Reads the mode at boot and writes every change. ``folders``: ``current`` of the ledger directories."""

    def __init__(
        self,
        file_system: FileSystem,
        folders: Sequence[str],
        modes: BookieModes,
        workers: Workers,
        clock: Clock,
        *,
        is_kept: bool,
    ) -> None:
        self._file_system = file_system
        self._folders = folders
        self._modes = modes
        self._workers = workers
        self._clock = clock
        self._is_kept = is_kept

    def restore(self) -> bool:
        """Take over the mode of the process before; whether it was read-only because of its disks. OSError."""
        status = read_bookie_status(self._file_system, self._folders) if self._is_kept else None
        if status is None:
            return False
        self._modes.restore(status)
        return status.is_read_only and not status.is_manual

    async def write(self) -> None:
        """Note the mode as it is now. What cannot be written does not matter: the next process looks for itself."""
        if not self._is_kept:
            return
        status = self._modes.status(self._clock.now_ms())
        error = await self._workers.run(DISKS_LANE, write_bookie_status, self._file_system, self._folders, status)
        if error is not None:
            logger.warning("the mode of the bookie is not noted everywhere: %s", sentence(error))
