"""Requests of ledgers whose rows are not in memory: the row is read first, in the reads lane."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from bkctl.runtime.bookie.serving.reads import READS_LANE
from bkctl.runtime.ports import Responder, Workers
from bkctl.runtime.protocol.messages import BookieCall, BookieInfoCall
from bkctl.runtime.protocol.status import Status
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.errors import StorageError

logger = logging.getLogger(__name__)


class RowReads:
    """Reads rows for the request handler. The requests of one ledger keep their order."""

    def __init__(
        self,
        storage: LedgerStorage,
        workers: Workers,
        handle: Callable[[Responder, BookieCall], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """``handle``: called with each request whose row was read; ``spawn``: runs a read."""
        self._storage = storage
        self._workers = workers
        self._handle = handle
        self._spawn = spawn
        self._waiting: dict[int, list[tuple[Responder, BookieCall]]] = {}

    def must_wait(self, connection: Responder, call: BookieCall) -> bool:
        """Whether the request is handled later, when the row of its ledger was read."""
        if isinstance(call, BookieInfoCall):
            return False
        ledger_id = call.ledger_id
        engine = self._storage.engine_of(ledger_id)
        if self._waiting and ledger_id in self._waiting:
            self._waiting[ledger_id].append((connection, call))
            return True
        if not engine.rows.needs_read(ledger_id):
            return False
        self._waiting[ledger_id] = [(connection, call)]
        self._spawn(self._read(engine, ledger_id))
        return True

    async def _read(self, engine: LedgerDirectoryEngine, ledger_id: int) -> None:
        generation = engine.read_generation
        is_lost = False
        try:
            row = await self._workers.run(READS_LANE, engine.rows.read, ledger_id)
        except (StorageError, OSError) as error:
            # If the ledger was deleted in the meantime, the row may be gone.
            is_lost = generation == engine.read_generation
            if is_lost:
                logger.error("ledger %d: cannot read its row: %s", ledger_id, error)
        else:
            if generation == engine.read_generation:
                engine.rows.note_read(ledger_id, row)
        for connection, call in self._waiting.pop(ledger_id):
            if is_lost:
                connection.answer(call, Status.IO_ERROR)
            else:
                self._handle(connection, call)
