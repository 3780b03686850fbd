"""Whether a bookie takes writes: by its settings, by the room on its disks. Source: storage section 8, metadata 8.3.

Requests see a change at once; the registration follows as soon as ZooKeeper lets it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from runtime.errors import MetadataUnavailableError
from runtime.metadata.registration import BookieMode
from storage.errors import StorageError

logger = logging.getLogger(__name__)

RETRY_DELAY_S: Final = 1.0


class BookieModes:
    """The mode of one bookie. Forced read-only (forceReadOnlyBookie) is for good, a full disk is not."""

    def __init__(self, *, is_forced_read_only: bool) -> None:
        self._is_forced_read_only = is_forced_read_only
        self._is_disk_full = False
        self._changed = asyncio.Event()
        self._full_callbacks: list[Callable[[], None]] = []

    @property
    def mode(self) -> BookieMode:
        """Mode to be registered in."""
        is_writable = not (self._is_forced_read_only or self._is_disk_full)
        return BookieMode.WRITABLE if is_writable else BookieMode.READ_ONLY

    @property
    def is_disk_full(self) -> bool:
        """Whether no checkpoint can be finished for want of room."""
        return self._is_disk_full

    def allows_add(self, *, is_high_priority: bool) -> bool:
        """Whether an add may be stored: one of high priority, as recovery makes, also while forced read-only.

        On a full disk there are no "high-priority writes available": what they add could not be flushed either.
        """
        return self.mode is BookieMode.WRITABLE or (is_high_priority and not self._is_disk_full)

    def on_disk_full(self, callback: Callable[[], None]) -> None:
        """Call back when writes have stopped because a disk is full."""
        self._full_callbacks.append(callback)

    def note_disk_full(self, error: StorageError | OSError) -> None:
        """A checkpoint has no room: read-only from now on."""
        if self._is_disk_full:
            return
        self._is_disk_full = True
        logger.warning(
            "disk full, read-only until there is room (%s); reads go on, the journal holds what was not flushed",
            sentence(error),
        )
        self._changed.set()
        for callback in self._full_callbacks:
            callback()

    def note_room(self) -> None:
        """A checkpoint succeeded."""
        if self._is_disk_full:
            self._is_disk_full = False
            logger.warning("there is room on the disk again: %s, everything is flushed", self.mode.value)
            self._changed.set()

    async def follow(self, registered: BookieMode, register: Callable[[BookieMode], Awaitable[None]]) -> None:
        """Keep the registration in step, from ``registered`` on, until cancelled; RegistrationError ends it."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while (mode := self.mode) is not registered:
                try:
                    await register(mode)
                    registered = mode
                except MetadataUnavailableError as error:
                    logger.warning("not registered as %s yet: %s", mode.value, error)
                    await asyncio.sleep(RETRY_DELAY_S)


def sentence(error: StorageError | OSError) -> str:
    """What happened, and where."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
