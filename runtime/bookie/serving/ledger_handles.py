"""Write access to the ledgers of a bookie: the master key check, the key record, and fencing.

Source: storage section 6, wire sections 5.3 and 9.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Sequence

from runtime.bookie.serving.group_commit import GroupCommit
from storage.engine.engine import LedgerDirectoryEngine
from storage.engine.ledger_storage import LedgerStorage
from storage.errors import DeletionPendingError, LedgerCollectedError, MasterKeyMismatchError
from storage.journal.format import encode_fence_record, encode_ledger_key_record

_HANDLES_MAX = 100_000


class LedgerHandle:
    """A ledger that this process has write access to; opened once per process and ledger."""

    __slots__ = ("engine", "journal", "ledger_id", "master_key")

    def __init__(self, ledger_id: int, master_key: bytes, engine: LedgerDirectoryEngine, journal: GroupCommit) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.engine = engine
        self.journal = journal

    @property
    def is_fenced(self) -> bool:
        """Whether ordinary adds are out for good: by a fence, or because a log of the ledger was found damaged."""
        row = self.engine.ledger(self.ledger_id)
        return row is not None and row.is_fenced

    @property
    def is_limbo(self) -> bool:
        """Whether entries of it may have been lost here; ends with the repair."""
        row = self.engine.ledger(self.ledger_id)
        return row is not None and row.is_limbo


class LedgerHandles:
    """The handles of one bookie, on the loop.

    Beyond ``handles_max`` the oldest handle is dropped; its ledger journals its key again at the next write.
    """

    def __init__(
        self, storage: LedgerStorage, journals: Sequence[GroupCommit], *, handles_max: int = _HANDLES_MAX
    ) -> None:
        self._storage = storage
        self._journals = journals
        self._handles_max = handles_max
        self._place_count = math.lcm(len(storage.engines), len(journals))
        self._handles: OrderedDict[int, LedgerHandle] = OrderedDict()
        self._fences_in_flight: dict[int, asyncio.Future[None]] = {}

    def journal_of(self, ledger_id: int) -> GroupCommit:
        """Journal that keeps all records of a ledger, hence in order."""
        return self._journals[ledger_id % len(self._journals)]

    def place_of(self, ledger_id: int) -> int:
        """The same number for ledgers that share both their ledger directory and their journal."""
        return ledger_id % self._place_count

    def open(self, ledger_id: int, master_key: bytes, *, is_plain_add: bool = False) -> LedgerHandle:
        """Handle of a ledger, creating the ledger if it is unknown; MasterKeyMismatchError, DeletionPendingError.

        A collected ledger is created again, fenced; a plain add gets LedgerCollectedError instead.

        The first access in a process journals the key, ahead of every record that needs it in a replay. Fences too
        rely on it (hazard H3).
        """
        handle = self._handles.get(ledger_id)
        if handle is not None and handle.master_key == master_key:
            return handle
        engine = self._storage.engine_of(ledger_id)
        if is_plain_add and ledger_id in engine.collected:
            raise LedgerCollectedError(f"ledger {ledger_id} is closed, and its copy was collected")
        if engine.is_deletion_pending(ledger_id):
            raise DeletionPendingError(f"ledger {ledger_id} was deleted, and no checkpoint has finished since")
        engine.set_master_key(ledger_id, master_key)
        row = engine.ledger(ledger_id)
        assert row is not None, "set_master_key creates the row"
        if row.master_key != master_key:
            raise MasterKeyMismatchError(f"ledger {ledger_id} has a master key, but the request has none")
        journal = self.journal_of(ledger_id)
        journal.append_silently(encode_ledger_key_record(ledger_id, row.master_key))
        handle = LedgerHandle(ledger_id, row.master_key, engine, journal)
        if len(self._handles) >= self._handles_max:
            self._handles.popitem(last=False)
        self._handles[ledger_id] = handle
        return handle

    def forget(self, ledger_id: int) -> None:
        """Let go of a ledger that was deleted: whoever writes to it again creates it again, key record and all."""
        self._handles.pop(ledger_id, None)

    def fence(self, ledger_id: int) -> asyncio.Future[None]:
        """Refuse ordinary adds from now on; the future ends when that is durable, or fails with the journal.

        Of a ledger that was opened, or whose row is durable. Adds accepted before are ahead of the fence in the same
        journal. Idempotent: a fence on its way is awaited; one that is durable is confirmed unless the journal has
        failed.
        """
        in_flight = self._fences_in_flight.get(ledger_id)
        if in_flight is not None:
            return in_flight
        if not self._storage.engine_of(ledger_id).set_fenced(ledger_id):
            return self.journal_of(ledger_id).confirmation()
        durable = self.journal_of(ledger_id).append_and_wait(encode_fence_record(ledger_id))
        self._fences_in_flight[ledger_id] = durable
        durable.add_done_callback(lambda _: self._fences_in_flight.pop(ledger_id, None))
        return durable
