"""Explicit last add confirmed: how followers learn of entries that no other entry follows. Source: protocol 3.7."""

from __future__ import annotations

import asyncio
import logging

from bkctl.runtime.client.add_pipeline import AddPipeline
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials
from bkctl.runtime.ports import TimerHandle
from bkctl.storage.ids import INVALID_ENTRY_ID

logger = logging.getLogger(__name__)


class ExplicitLac:
    """Sends the last add confirmed of a pipeline to its bookies, some time after it could have advanced."""

    def __init__(
        self, ports: ClientPorts, credentials: LedgerCredentials, pipeline: AddPipeline, interval_s: float | None
    ) -> None:
        """``interval_s`` None: send nothing."""
        self.told = INVALID_ENTRY_ID
        """The highest last add confirmed that was sent to bookies, also in an entry."""
        self._ports = ports
        self._credentials = credentials
        self._pipeline = pipeline
        self._interval_s = interval_s
        self._timer: TimerHandle | None = None

    def expect(self) -> None:
        """The last add confirmed may advance: look after the interval."""
        if self._timer is None and self._interval_s is not None:
            self._timer = self._ports.clock.call_later(self._interval_s, self._tell)

    def stop(self) -> None:
        """Send nothing more."""
        self._interval_s = None
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self) -> None:
        self._timer = None
        pipeline, credentials = self._pipeline, self._credentials
        lac = pipeline.last_add_confirmed
        if lac > self.told:
            self.told = lac
            packet = credentials.codec.encode_lac(lac)
            for bookie_id in pipeline.ensemble:
                told = self._ports.bookies.write_lac(
                    bookie_id, credentials.ledger_id, credentials.master_key, lac, packet
                )
                told.add_done_callback(self._note_told)
        if pipeline.pending_count:
            self.expect()

    def _note_told(self, told: asyncio.Future[None]) -> None:
        """A failure does no harm: followers learn of the entry from the next one, or from the close."""
        if not told.cancelled() and (error := told.exception()) is not None:
            logger.debug("ledger %d: explicit LAC: %s", self._credentials.ledger_id, error)
