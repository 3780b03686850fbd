"""The writer of a ledger: pipelined adds, forces, ensemble changes, close. Source: protocol sections 3, 4.2 and 5."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from bkctl.runtime.client.add_pipeline import AddPipeline
from bkctl.runtime.client.ensemble_change import publish_replacements
from bkctl.runtime.client.explicit_lac import ExplicitLac
from bkctl.runtime.client.metadata_update import LedgerRecord, LocalCopy, update_record
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials
from bkctl.runtime.errors import (
    ConfigurationError,
    ConflictError,
    DuplicateEntryError,
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
from bkctl.runtime.protocol.status import Status
from bkctl.storage.errors import BkctlError, EntryTooLargeError
from bkctl.storage.ids import ENTRY_ID_MAX, INVALID_ENTRY_ID

FRAME_RESERVE_BYTES = 1024
"""Space in a frame for everything except payload: length word, request header, entry header, longest digest."""

logger = logging.getLogger(__name__)


class LedgerWriter:
    """Appends entries to a ledger that this client created.

    If an append succeeded, its entry is part of the ledger permanently. If it failed, the entry is in doubt: it belongs
    to the ledger if and only if its id is not above the last entry id of the closed ledger. A writer that failed stays
    closed; continue with a new ledger.

    With deferred sync an append proves less: its entry is part of the ledger permanently once ``force`` has returned.

    Use it with ``async with``, or call ``close``, to close the ledger at its end.
    """

    def __init__(
        self,
        ports: ClientPorts,
        credentials: LedgerCredentials,
        metadata: Versioned[LedgerMetadata],
        quorum_warning: str | None = None,
        lac_interval_s: float | None = None,
        *,
        deferred_sync: bool = False,
        caller_entry_ids: bool = False,
    ) -> None:
        self.ledger_id = credentials.ledger_id
        self.quorum_warning = quorum_warning
        """A sentence for the user that says why the chosen quorums are risky; None if they are not."""
        self._ports = ports
        self._record = LedgerRecord(ports.ledgers, self.ledger_id)
        self._copy = LocalCopy(metadata)
        self._codec = credentials.codec
        self._pipeline = AddPipeline(
            ports,
            credentials,
            metadata.value,
            last_add_confirmed=INVALID_ENTRY_ID,
            is_recovery=False,
            on_failure=self._on_failure,
            is_deferred_sync=deferred_sync,
            has_gaps=caller_entry_ids,
        )
        self._is_deferred_sync = deferred_sync
        self._has_caller_ids = caller_entry_ids
        self._losses: list[int] = []
        """Lost connections to each bookie of the ensemble before the first add that is not confirmed."""
        self._explicit_lac = ExplicitLac(ports, credentials, self._pipeline, lac_interval_s)
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
        """Highest entry id that is acknowledged together with all before it; -1 if there is none.

        With deferred sync, only ``force`` moves it.
        """
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

    def append_nowait(self, payload: bytes, *, entry_id: int | None = None) -> asyncio.Future[int]:
        """Send one entry. The future returns its id once it and all entries before it are acknowledged.

        ``entry_id``: required, and only allowed, in a ledger created with ``caller_entry_ids``.

        Raises, with nothing sent: LedgerClosedError if the writer is closed or has failed, EntryTooLargeError,
        ConfigurationError for an entry id that is missing, not allowed or impossible, DuplicateEntryError, and
        TooManyPendingAddsError at the limit ``pending_adds_max`` or ``pending_bytes_max`` (``append`` waits instead).
        An id is over the limit if it is ``pending_adds_max`` or more after the first that is not acknowledged.
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
        self._check_entry_id(entry_id)
        if not self._has_room(entry_id):
            raise TooManyPendingAddsError(
                self.ledger_id,
                f"{pipeline.pending_count} adds of {pipeline.pending_bytes} bytes are not answered yet; the first one "
                f"to be acknowledged is entry {pipeline.last_acknowledged + 1}",
            )
        if entry_id is None:
            entry_id = self._last_add_pushed = self._last_add_pushed + 1
        length = self._length + payload_bytes
        self._explicit_lac.told = lac = pipeline.last_add_confirmed
        body = self._codec.encode(entry_id, lac, length, payload)
        self._length = length
        if self._is_deferred_sync and self._is_all_confirmed():
            self._losses = self._count_losses()
        if self._failed:
            self._start_change()  # replaces bookies that failed after their adds were complete
        self._explicit_lac.expect()
        return pipeline.submit(entry_id, body, payload_bytes)

    async def append(self, payload: bytes, *, entry_id: int | None = None) -> int:
        """Append one entry and wait until it is acknowledged; returns its id. Errors as for ``append_nowait``."""
        self._check_entry_id(entry_id)
        while self._is_open and not self._has_room(entry_id):
            await self._pipeline.progress()
        return await self.append_nowait(payload, entry_id=entry_id)

    def _check_entry_id(self, entry_id: int | None) -> None:
        if entry_id is None:
            if self._has_caller_ids:
                raise ConfigurationError(f"ledger {self.ledger_id}: its entries need an id: pass entry_id")
            return
        if not self._has_caller_ids:
            raise ConfigurationError(
                f"ledger {self.ledger_id}: its writer assigns the entry ids: create it with caller_entry_ids=True"
            )
        if not 0 <= entry_id <= ENTRY_ID_MAX:
            raise ConfigurationError(f"ledger {self.ledger_id}: {entry_id} is not an entry id")
        if self._pipeline.has_sent(entry_id):
            raise DuplicateEntryError(self.ledger_id, f"entry {entry_id} was appended before; nothing was sent")

    def _has_room(self, entry_id: int | None) -> bool:
        """Whether an add may be sent. Ids that the caller chooses have a window; the first that is not acknowledged
        always has room, because all others wait for it."""
        pipeline = self._pipeline
        has_bytes = pipeline.pending_bytes < self._pending_bytes_max
        if entry_id is None:
            return has_bytes and pipeline.pending_count < self._pending_adds_max
        ahead = entry_id - pipeline.last_acknowledged
        return ahead <= 1 or (has_bytes and ahead <= self._pending_adds_max)

    # ---- what is confirmed -----------------------------------------------------------------------------------------

    async def force(self) -> int:
        """Make all entries that are acknowledged now durable on every bookie of the ensemble; returns the last add
        confirmed. Without deferred sync they are durable on an ack quorum before.

        Raises LedgerClosedError if the writer is or gets closed. The BookieError of a bookie that fails: nothing is
        confirmed, and another attempt is possible. NotEnoughBookiesError, with deferred sync, if the connection to a
        bookie was lost since the first of these entries was sent: it may have restarted without them. The writer then
        closes the ledger at the last add confirmed.
        """
        if not self._is_open:
            raise LedgerClosedError(self.ledger_id, "the writer is closed; nothing was forced")
        pipeline = self._pipeline
        entry_id, payload_bytes = pipeline.last_acknowledged, pipeline.acknowledged_bytes
        if entry_id == INVALID_ENTRY_ID:
            return entry_id
        forced = [self._ports.bookies.force(bookie_id, self.ledger_id) for bookie_id in pipeline.ensemble]
        outcomes = await asyncio.gather(*forced, return_exceptions=True)
        if not self._is_open:
            raise LedgerClosedError(
                self.ledger_id,
                f"the writer was closed at entry {pipeline.last_add_confirmed}, before the force was answered",
            )
        self._require_connections()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        pipeline.confirm(entry_id, payload_bytes)
        self._explicit_lac.expect()
        return pipeline.last_add_confirmed

    def _is_all_confirmed(self) -> bool:
        pipeline = self._pipeline
        return pipeline.pending_count == 0 and pipeline.last_acknowledged == pipeline.last_add_confirmed

    def _count_losses(self) -> list[int]:
        return [self._ports.bookies.losses(bookie_id) for bookie_id in self._pipeline.ensemble]

    def _require_connections(self) -> None:
        """A bookie that restarts may lose entries that it did not sync, and then answers a force all the same."""
        if not self._is_deferred_sync or self._is_all_confirmed():
            return
        losses = zip(self._pipeline.ensemble, self._losses, self._count_losses(), strict=True)
        if lost := [bookie_id for bookie_id, before, now in losses if now != before]:
            failure = self._not_durable(f"the connection to {', '.join(lost)} was lost")
            self._give_up(lambda _: failure)
            raise failure

    def _not_durable(self, reason: str) -> NotEnoughBookiesError:
        return NotEnoughBookiesError(
            self.ledger_id,
            f"{reason}, and a ledger with deferred sync keeps its bookies: it ends at entry "
            f"{self._pipeline.last_add_confirmed}, and what was acknowledged after the last force is not part of it",
        )

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
                self._allow_change()
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

    def _allow_change(self) -> None:
        """NotEnoughBookiesError with deferred sync: a successor would not get the entries that are not confirmed. It
        also limits changes without progress: bookies that fail in turn would keep an add waiting forever."""
        if self._is_deferred_sync:
            raise self._not_durable(f"{', '.join(self._failed.values())} failed")
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
        """Stop accepting, acknowledging and confirming entries, so that the last add confirmed is final."""
        self._is_open = False
        self._explicit_lac.stop()
        self._pipeline.drain(error_for)
        self._length = self._pipeline.confirmed_bytes

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
