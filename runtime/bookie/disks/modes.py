"""Whether a bookie accepts writes, by its settings and its disk space. Source: storage section 8, metadata 8.3.

Requests see a change immediately; then the status files are written; then the registration is updated as soon as
ZooKeeper is available. Reasons for being read-only are independent: the bookie is writable when none is left.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from bkctl.runtime.bookie.disks.rules import DiskSample, DiskVerdict
from bkctl.runtime.errors import MetadataAuthError, MetadataUnavailableError, RefusedError
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.ports import Clock
from bkctl.storage.advice import with_path
from bkctl.storage.bookie_status import BookieStatus
from bkctl.storage.disk_room import file_limit_advice
from bkctl.storage.errors import JournalFullError, NoWritableDiskError, StorageError
from bkctl.storage.operator_mode import OperatorMode
from bkctl.storage.words import percent, size

logger = logging.getLogger(__name__)

_RETRY_DELAY_S: Final = 1.0


class ReadOnlyReason(enum.Enum):
    """Why a bookie accepts no ordinary adds."""

    FORCED = "by its settings (forceReadOnlyBookie)"
    MANUAL = "set by an operator"
    DISK_FULL = "a disk is full"
    NO_ROOM = "no space for a checkpoint"
    JOURNAL_FULL = "no space for a journal"
    REBUILD = "its index is being rebuilt"


_NOTHING_CAN_BE_FLUSHED = {ReadOnlyReason.NO_ROOM, ReadOnlyReason.JOURNAL_FULL}
_NOTHING_CAN_BE_STORED = {*_NOTHING_CAN_BE_FLUSHED, ReadOnlyReason.REBUILD}


class BookieModes:
    """The mode of one bookie. ``position_count``: ledger directories; a ledger's position is its id modulo that
    (storage section 1)."""

    def __init__(
        self,
        *,
        is_forced_read_only: bool,
        is_read_only_mode_enabled: bool = True,
        position_count: int = 1,
        retry_delay_s: float = _RETRY_DELAY_S,
    ) -> None:
        self._is_read_only_mode_enabled = is_read_only_mode_enabled
        self._position_count = position_count
        self._retry_delay_s = retry_delay_s
        self._reasons: set[ReadOnlyReason] = {ReadOnlyReason.FORCED} if is_forced_read_only else set()
        self._refused_positions: frozenset[int] = frozenset()
        self._high_priority_positions: frozenset[int] = frozenset(range(position_count))
        self._full_journals: set[int] = set()
        self._order: OperatorMode | None = None
        self._changed = asyncio.Event()
        self._registered: BookieMode | None = None
        self._refused: tuple[BookieMode, str] | None = None
        self._waiting_for_registration: list[asyncio.Future[None]] = []
        self._no_room_callbacks: list[Callable[[], None]] = []

    @property
    def mode(self) -> BookieMode:
        """The mode to register."""
        return BookieMode.READ_ONLY if self._reasons else BookieMode.WRITABLE

    @property
    def reasons(self) -> tuple[ReadOnlyReason, ...]:
        """Why it is read-only; empty while it is writable."""
        return tuple(reason for reason in ReadOnlyReason if reason in self._reasons)

    @property
    def text(self) -> str:
        """The mode in words, on one line: ``writable``, or ``read-only (set by an operator: new disk)``."""
        words = {reason: reason.value for reason in self.reasons}
        if self._order is not None and self._order.reason:
            words[ReadOnlyReason.MANUAL] += f": {' '.join(self._order.reason.split())}"
        return f"{self.mode.value} ({', '.join(words.values())})" if words else self.mode.value

    @property
    def order(self) -> OperatorMode | None:
        """Since when and why an operator keeps it read-only; None if no operator does."""
        return self._order

    @property
    def is_read_only_mode_enabled(self) -> bool:
        """Whether the settings allow read-only mode (readOnlyModeEnabled)."""
        return self._is_read_only_mode_enabled

    @property
    def is_registered(self) -> bool:
        """Whether the registration has the current mode."""
        return self._registered is self.mode

    @property
    def refusal(self) -> str:
        """Why this bookie may not register its current mode; empty if it may."""
        return self._refused[1] if self._refused is not None and self._refused[0] is self.mode else ""

    @property
    def is_disk_full(self) -> bool:
        """Whether there is too little disk space to finish a checkpoint."""
        return ReadOnlyReason.NO_ROOM in self._reasons

    @property
    def missing_room(self) -> str | None:
        """What has no disk space, in words, while no checkpoint or no journal record can be written."""
        return ", ".join(each.value for each in self.reasons if each in _NOTHING_CAN_BE_FLUSHED) or None

    @property
    def allows_recovery_adds(self) -> bool:
        """Whether adds with high priority (from recovery) are accepted in some ledger directory."""
        return any(self.allows_add(position, is_high_priority=True) for position in range(self._position_count))

    def allows_add(self, ledger_id: int, *, is_high_priority: bool) -> bool:
        """Whether an add may be stored. With high priority (from recovery) also while read-only, unless it could not be
        flushed: no checkpoint or no journal record can be written."""
        if not self._reasons and not self._refused_positions:
            return True
        position = ledger_id % self._position_count
        if not self._reasons and position not in self._refused_positions:
            return True
        is_hopeless = not _NOTHING_CAN_BE_STORED.isdisjoint(self._reasons)
        return is_high_priority and not is_hopeless and position in self._high_priority_positions

    def on_no_room(self, callback: Callable[[], None]) -> None:
        """Register a callback for when writes stop because no checkpoint or no journal record can be written."""
        self._no_room_callbacks.append(callback)

    def follow_order(self, order: OperatorMode) -> None:
        """An operator has set the mode, in this process or in an earlier one. Other reasons stay."""
        was = self._order
        self._order = order if order.is_read_only else None
        if order.is_read_only:
            self._reasons.add(ReadOnlyReason.MANUAL)
        else:
            self._reasons.discard(ReadOnlyReason.MANUAL)
        if (was is None) == order.is_read_only:
            logger.info("an operator set the mode: %s (%s)", self.mode.value, order.reason or "no reason given")
            self._changed.set()

    def status(self, now_ms: int) -> BookieStatus:
        """The status to store for the next process, in which no rebuild runs."""
        lasting = self._reasons - {ReadOnlyReason.REBUILD}
        return BookieStatus(bool(lasting), now_ms, ReadOnlyReason.MANUAL in lasting)

    def note_disks(self, verdict: DiskVerdict) -> None:
        """The disks were checked. NoWritableDiskError if this requires read-only mode and the settings forbid it."""
        self._refused_positions = verdict.refused_positions
        self._high_priority_positions = verdict.high_priority_positions
        if verdict.is_read_only:
            self._add(ReadOnlyReason.DISK_FULL, "; ".join(map(_used, verdict.full)))
        else:
            self._remove(ReadOnlyReason.DISK_FULL)

    def note_disk_full(self, error: StorageError | OSError) -> None:
        """A checkpoint has no space: read-only from now on. NoWritableDiskError if the settings forbid that."""
        if not self.is_disk_full:
            self._add(
                ReadOnlyReason.NO_ROOM,
                f"{with_path(error)}; what was not flushed is in the journal{file_limit_advice(error)}",
            )
            for callback in self._no_room_callbacks:
                callback()

    def note_room(self) -> None:
        """A checkpoint succeeded."""
        self._remove(ReadOnlyReason.NO_ROOM)

    def note_journal(self, journal_index: int, error: JournalFullError | None) -> None:
        """A journal has no space, or has it again (None). NoWritableDiskError if the settings forbid read-only mode."""
        if error is None:
            self._full_journals.discard(journal_index)
            if not self._full_journals:
                self._remove(ReadOnlyReason.JOURNAL_FULL)
        elif journal_index not in self._full_journals:
            self._full_journals.add(journal_index)
            self._add(ReadOnlyReason.JOURNAL_FULL, str(error))
            for callback in self._no_room_callbacks:
                callback()

    async def begin_rebuild(self) -> None:
        """The entry logs must not change: reject all adds from now on, including those with high priority.

        Returns once the bookie is registered as read-only, so that no writer chooses it. RefusedError if the settings
        forbid read-only mode, MetadataAuthError if ZooKeeper does. Call ``end_rebuild`` in any case.
        """
        if not self._is_read_only_mode_enabled and not self._reasons:
            raise RefusedError(
                "nothing was changed: read-only mode is disabled (readOnlyModeEnabled=false), and a bookie that "
                "accepts writes cannot rebuild its index; stop it and use `bkctl storage index rebuild`"
            )
        self._reasons.add(ReadOnlyReason.REBUILD)
        self._changed.set()
        while self._registered is not BookieMode.READ_ONLY:
            await self._next_registration()

    def end_rebuild(self) -> None:
        """The rebuild has ended: go back to the mode that the other reasons require."""
        if ReadOnlyReason.REBUILD in self._reasons:
            self._reasons.discard(ReadOnlyReason.REBUILD)
            self._changed.set()

    async def registered(self) -> None:
        """Return when the registration has the current mode; MetadataAuthError if this bookie may not register it."""
        while not self.is_registered:
            await self._next_registration()

    async def follow(
        self,
        registered: BookieMode,
        clock: Clock,
        register: Callable[[BookieMode], Awaitable[None]],
        keep_status: Callable[[], Awaitable[None]],
    ) -> None:
        """Keep status files and registration up to date, from ``registered`` on, until cancelled or RegistrationError.

        The order is that of storage section 8: the state itself, the files, the registration."""
        self._note_registered(registered)
        while True:
            await self._changed.wait()
            self._changed.clear()
            await keep_status()
            # If the mode changes again while ZooKeeper does not answer, write the files first.
            while not self._changed.is_set() and (mode := self.mode) is not self._registered:
                self._registered = None  # unknown after a failure
                try:
                    await register(mode)
                    self._note_registered(mode)
                except MetadataUnavailableError as error:
                    logger.warning("not registered as %s yet: %s", mode.value, error)
                    await clock.sleep(self._retry_delay_s)
                except MetadataAuthError as error:
                    self._note_refused(mode, error)
                    await clock.sleep(self._retry_delay_s)

    async def _next_registration(self) -> None:
        registered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting_for_registration.append(registered)
        await registered

    def _note_registered(self, mode: BookieMode) -> None:
        self._registered, self._refused = mode, None
        self._end_waiting(lambda each: each.set_result(None))

    def _note_refused(self, mode: BookieMode, error: MetadataAuthError) -> None:
        if (mode, str(error)) != self._refused:
            logger.error("not registered as %s: %s", mode.value, error)
        self._refused = mode, str(error)
        self._end_waiting(lambda each: each.set_exception(MetadataAuthError(str(error), error.path)))

    def _end_waiting(self, end: Callable[[asyncio.Future[None]], None]) -> None:
        waiting, self._waiting_for_registration = self._waiting_for_registration, []
        for each in waiting:
            if not each.done():
                end(each)

    def _add(self, reason: ReadOnlyReason, detail: str) -> None:
        if reason in self._reasons:
            return
        if not self._is_read_only_mode_enabled:
            raise NoWritableDiskError(
                f"{reason.value} ({detail}), and read-only mode is disabled (readOnlyModeEnabled=false)"
            )
        self._reasons.add(reason)
        logger.warning("%s (%s): switched to read-only until space is freed", reason.value, detail)
        self._changed.set()

    def _remove(self, reason: ReadOnlyReason) -> None:
        if reason not in self._reasons:
            return
        self._reasons.discard(reason)
        logger.warning("disk space is available again: %s", self.text)
        self._changed.set()


def _used(sample: DiskSample) -> str:
    return f"{sample.directory}: {percent(sample.used_fraction)} used, {size(sample.usable_bytes)} free"
