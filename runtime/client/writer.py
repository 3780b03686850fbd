"""The writer of a ledger: pipelined adds, ensemble changes, close. Source: protocol sections 3, 4.2 and 5."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from bkctl.runtime.client.add_pipeline import AddPipeline
from bkctl.runtime.client.ensemble_change import publish_replacements
from bkctl.runtime.client.metadata_update import LedgerRecord, LocalCopy, update_record
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials
from bkctl.runtime.errors import (
    ConflictError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerPasswordError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    TooManyPendingAddsError,
)
from bkctl.runtime.ledger.changes import to_closed
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.ports import TimerHandle
from bkctl.runtime.protocol.status import Status
from bkctl.storage.errors import BkctlError, EntryTooLargeError
from bkctl.storage.ids import INVALID_ENTRY_ID

FRAME_RESERVE_BYTES = 1024
"""Space in a frame for everything except payload: length word, request header, entry header, longest digest."""

logger = logging.getLogger(__name__)


class LedgerWriter:
    """Appends entries to a ledger that this client created.

    If an append succeeded, its entry is part of the ledger permanently. If it failed, the entry is in doubt: it belongs
    to the ledger if and only if its id is not above the last entry id of the closed ledger. A writer that failed stays
    closed; continue with a new ledger.

    Use it with ``async with``, or call ``close``, to close the ledger at its end.
    """

    def __init__(
        self,
        ports: ClientPorts,
        credentials: LedgerCredentials,
        metadata: Versioned[LedgerMetadata],
        quorum_warning: str | None = None,
        lac_interval_s: float | None = None,
    ) -> None:
        self.ledger_id = credentials.ledger_id
        self.quorum_warning = quorum_warning
        """A sentence for the user that says why the chosen quorums are risky; None if they are not."""
        self._ports = ports
        self._record = LedgerRecord(ports.ledgers, self.ledger_id)
        self._copy = LocalCopy(metadata)
        self._codec = credentials.codec
        self._master_key = credentials.master_key
        self._lac_interval_s = lac_interval_s
        self._lac_timer: TimerHandle | None = None
        self._told_lac = INVALID_ENTRY_ID
        """The highest last add confirmed that was sent to bookies."""
        self._pipeline = AddPipeline(
            ports,
            credentials,
            metadata.value,
            last_add_confirmed=INVALID_ENTRY_ID,
            is_recovery=False,
            on_failure=self._on_failure,
        )
        self._payload_bytes_max = ports.config.writer_frame_bytes_max - FRAME_RESERVE_BYTES
        self._pending_adds_max = ports.config.pending_adds_max
        self._pending_bytes_max = ports.config.pending_bytes_max
        self._last_add_pushed = INVALID_ENTRY_ID
        self._length = 0
        self._is_open = True
        self._failed: dict[int, str] = {}
        self._change: asyncio.Task[None] | None = None
        self._changed_at = INVALID_ENTRY_ID
        self._changes_without_progress = 0
        self._closing: asyncio.Task[None] | None = None

    @property
    def last_add_confirmed(self) -> int:
        """Highest entry id that is acknowledged together with all before it; -1 if there is none."""
        stored = self._copy.value
        return stored.last_entry_id if stored.is_closed else self._pipeline.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of all entries, including those in flight."""
        stored = self._copy.value
        return stored.length if stored.is_closed else self._length

    @property
    def metadata(self) -> LedgerMetadata:
        """The newest metadata that this writer has seen."""
        return self._copy.value

    @property
    def is_open(self) -> bool:
        """Whether ``append`` still accepts entries."""
        return self._is_open

    def append_nowait(self, payload: bytes) -> asyncio.Future[int]:
        """Send one entry. The future returns its id once it and all entries before it are acknowledged.

        Raises, with nothing sent: LedgerClosedError if the writer is closed or has failed, EntryTooLargeError, and
        TooManyPendingAddsError at the limit ``pending_adds_max`` or ``pending_bytes_max`` (``append`` waits instead).
        If the future fails, with LedgerFencedError, LedgerClosedError, NotEnoughBookiesError, LedgerPasswordError,
        ConflictError or a MetadataError, the entry is in doubt.
        """
        if not self._is_open:
            raise LedgerClosedError(self.ledger_id, "the writer is closed; nothing was sent")
        payload_bytes = len(payload)
        if payload_bytes > self._payload_bytes_max:
            raise EntryTooLargeError(
                f"ledger {self.ledger_id}: an entry of {payload_bytes} bytes exceeds the limit of "
                f"{self._payload_bytes_max}"
            )
        pipeline = self._pipeline
        if not self._has_room():
            raise TooManyPendingAddsError(
                self.ledger_id,
                f"{pipeline.pending_count} adds of {pipeline.pending_bytes} bytes are not answered yet",
            )
        entry_id = self._last_add_pushed + 1
        length = self._length + payload_bytes
        self._told_lac = pipeline.last_add_confirmed
        body = self._codec.encode(entry_id, self._told_lac, length, payload)
        self._last_add_pushed = entry_id
        self._length = length
        if self._failed:
            self._start_change()  # replaces bookies that failed after their adds were complete
        if self._lac_timer is None and self._lac_interval_s is not None:
            self._lac_timer = self._ports.clock.call_later(self._lac_interval_s, self._tell_lac)
        return pipeline.submit(entry_id, body, payload_bytes)

    async def append(self, payload: bytes) -> int:
        """Append one entry and wait until it is acknowledged; returns its id. Errors as for ``append_nowait``."""
        while self._is_open and not self._has_room():
            await self._pipeline.progress()
        return await self.append_nowait(payload)

    def _has_room(self) -> bool:
        pipeline = self._pipeline
        return pipeline.pending_count < self._pending_adds_max and pipeline.pending_bytes < self._pending_bytes_max

    def _tell_lac(self) -> None:
        """Tell followers of the last acknowledged entry: without another add, they would not learn of it."""
        self._lac_timer = None
        if not self._is_open:
            return
        lac = self._pipeline.last_add_confirmed
        if lac > self._told_lac:
            self._told_lac = lac
            packet = self._codec.encode_lac(lac)
            for bookie_id in self._pipeline.ensemble:
                told = self._ports.bookies.write_lac(bookie_id, self.ledger_id, self._master_key, lac, packet)
                told.add_done_callback(self._note_told)
        if self._pipeline.pending_count:
            assert self._lac_interval_s is not None
            self._lac_timer = self._ports.clock.call_later(self._lac_interval_s, self._tell_lac)

    def _note_told(self, told: asyncio.Future[None]) -> None:
        """A failure does no harm: followers learn of the entry from the next one, or from the close."""
        if not told.cancelled() and (error := told.exception()) is not None:
            logger.debug("ledger %d: explicit LAC: %s", self.ledger_id, error)

    # ---- bookie failures -------------------------------------------------------------------------------------------

    def _on_failure(self, index: int, bookie_id: str, status: Status, *, is_late: bool) -> None:
        if not self._is_open:
            return
        if not is_late and status == Status.FENCED:
            self._give_up(lambda entry_id: self._fenced(entry_id, f"bookie {bookie_id}"))
        elif not is_late and status == Status.UNAUTHORIZED:
            self._give_up(lambda _: LedgerPasswordError(self.ledger_id, f"bookie {bookie_id} rejects the password"))
        elif not is_late and status == Status.AUTHENTICATION_REQUIRED:
            failure = self._ports.bookies.error_of(status, bookie_id)
            self._give_up(lambda _: failure)
        else:
            logger.info("ledger %d: bookie %s failed: %s", self.ledger_id, bookie_id, status.name)
            self._ports.suspects.add(bookie_id)
            self._failed[index] = bookie_id
            if not is_late:
                self._start_change()

    def _start_change(self) -> None:
        if self._change is None:
            self._pipeline.suspend()
            self._change = asyncio.get_running_loop().create_task(self._change_ensemble())

    async def _change_ensemble(self) -> None:
        """Replace failed bookies until none is left, then resume the adds. A failed change ends the writer."""
        failed: dict[int, str] = {}
        try:
            while self._failed and self._is_open:
                self._count_change()
                failed |= self._failed
                self._failed = {}
                metadata = await publish_replacements(
                    self._ports,
                    self._record,
                    self._copy,
                    failed,
                    ledger_id=self.ledger_id,
                    next_entry_id=lambda: self._pipeline.last_add_confirmed + 1,
                    is_wanted=lambda: self._is_open,
                )
                if metadata.state is not LedgerState.OPEN:
                    self._yield_to_other(metadata)
        except Exception as error:
            failure = error if isinstance(error, BkctlError) else _unexpected(self.ledger_id, error)
            self._give_up(lambda _: failure)  # after any error: adds must not wait forever
        # No suspension point since the write: everything delivered later is on the new ensemble.
        if self._is_open:
            self._change = None
            ensemble = self._copy.value.last_segment.ensemble
            self._pipeline.resume(ensemble, [i for i, bookie_id in failed.items() if ensemble[i] == bookie_id])

    def _count_change(self) -> None:
        """Limit changes without progress: bookies that fail in turn would keep an add waiting forever."""
        confirmed = self._pipeline.last_add_confirmed
        self._changes_without_progress = 1 if confirmed > self._changed_at else self._changes_without_progress + 1
        self._changed_at = confirmed
        if self._changes_without_progress > self._ports.config.ensemble_changes_without_progress_max:
            raise NotEnoughBookiesError(
                self.ledger_id,
                f"{self._changes_without_progress - 1} ensemble changes in a row without a stored entry",
            )

    def _yield_to_other(self, metadata: LedgerMetadata) -> None:
        """Another process recovers or has closed the ledger, and decides its end: fail the pending adds."""
        if metadata.is_closed:
            self._stop(
                lambda _: LedgerClosedError(
                    self.ledger_id, f"another client closed it at entry {metadata.last_entry_id}; the add may be lost"
                )
            )
        else:
            self._stop(lambda entry_id: self._fenced(entry_id, "the metadata (state IN_RECOVERY)"))

    def _fenced(self, entry_id: int, source: str) -> LedgerFencedError:
        return LedgerFencedError(
            self.ledger_id,
            f"{source} says that another client recovers it; that decides whether entry {entry_id} is kept",
        )

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _stop(self, error_for: Callable[[int], BkctlError]) -> None:
        """Stop accepting and acknowledging entries, so that the last add confirmed is final."""
        self._is_open = False
        if self._lac_timer is not None:
            self._lac_timer.cancel()
        self._length -= self._pipeline.drain(error_for)

    def _give_up(self, error_for: Callable[[int], BkctlError]) -> None:
        """Fail all pending adds, and close the ledger at the last acknowledged one in the background."""
        if not self._is_open:
            return
        self._stop(error_for)
        self._start_closing().add_done_callback(self._report_closing)

    def abandon(self) -> None:
        """Stop without changing the metadata: the ledger stays open until it is recovered."""
        if self._is_open:
            self._stop(lambda _: LedgerClosedError(self.ledger_id, "the client was closed; the add may be lost"))

    async def close(self) -> None:
        """Close the ledger at its end: pending adds fail with LedgerClosedError, the metadata becomes CLOSED.

        Safe to repeat: later calls share the outcome of the first. Raises ConflictError if another process closed the
        ledger at a different end, LedgerNotFoundError if it was deleted, MetadataError if the store is unreachable (the
        ledger then stays open until it is recovered). This takes up to twice the store's operation timeout, because
        only a read shows whether a write without an answer succeeded.
        """
        if self._is_open:
            self._stop(lambda _: LedgerClosedError(self.ledger_id, "the writer was closed; the add may be lost"))
        await asyncio.shield(self._start_closing())

    def _start_closing(self) -> asyncio.Task[None]:
        if self._closing is None:
            # Read the end now, not in the task: nothing can be delivered between the drain and this line.
            publishing = self._publish_end(self._pipeline.last_add_confirmed, self._length)
            self._closing = asyncio.get_running_loop().create_task(publishing)
        return self._closing

    async def _publish_end(self, last_entry_id: int, length: int) -> None:
        """Close the metadata at this writer's end, even from IN_RECOVERY. Only the stopped writer knows all that it
        acknowledged; the recovery's own close then fails and adopts this end (protocol section 5)."""
        if self._copy.value.is_closed:
            return  # an ensemble change found it closed, failed the pending adds and adopted the end

        def is_needed(metadata: LedgerMetadata) -> bool:
            if metadata.is_closed and (metadata.last_entry_id, metadata.length) != (last_entry_id, length):
                raise ConflictError(
                    f"ledger {self.ledger_id}: another client closed it at entry {metadata.last_entry_id} "
                    f"({metadata.length} bytes), this writer ended at entry {last_entry_id} ({length} bytes)"
                )
            return not metadata.is_closed

        try:
            await update_record(
                self._record,
                self._copy,
                is_needed=is_needed,
                transform=lambda metadata: to_closed(metadata, last_entry_id, length),
                clock=self._ports.clock,
                attempts_max=self._ports.config.metadata_attempts_max,
            )
        except MetadataUnavailableError as error:
            raise MetadataUnavailableError(
                f"ledger {self.ledger_id}: its end, entry {last_entry_id}, may not be recorded; acknowledged "
                f"entries are safe, and the next reader that opens it with recovery closes it ({error})",
                error.path,
            ) from error

    def _report_closing(self, closing: asyncio.Task[None]) -> None:
        error = None if closing.cancelled() else closing.exception()
        if error is not None:
            logger.warning("ledger %d: closing after a failure: %s", self.ledger_id, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _class: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except BkctlError as close_error:
            if error is None:
                raise
            logger.warning("ledger %d: closing after a failure: %s", self.ledger_id, close_error)


def _unexpected(ledger_id: int, error: Exception) -> LedgerClosedError:
    logger.error("ledger %d: ensemble change", ledger_id, exc_info=error)
    failure = LedgerClosedError(ledger_id, f"the ensemble change failed: {error!r}")
    failure.__cause__ = error
    return failure
