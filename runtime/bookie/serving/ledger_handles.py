"""Write access to the ledgers of a bookie: the master key check, the key record, and fencing.

Source: storage section 6, wire sections 5.3 and 9.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Sequence

from bkctl.runtime.bookie.serving.group_commit import GroupCommit
from bkctl.runtime.bookie.serving.long_polls import LongPolls
from bkctl.runtime.ports import Clock
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.errors import DeletionPendingError, LedgerCollectedError, MasterKeyMismatchError, MemtableFullError
from bkctl.storage.index.ledger_index import EXPLICIT_LAC_BYTES_MIN, LedgerRow, explicit_lac_of
from bkctl.storage.journal.format import encode_fence_record, encode_ledger_key_record
from bkctl.storage.measures import Measures, NowNs, Outcomes

_HANDLES_MAX = 100_000


class FenceMeasures(Measures):
    """The two parts of a fencing read, which run at the same time."""

    def __init__(self, now_ns: NowNs) -> None:
        super().__init__(now_ns)
        self.reads = Outcomes()
        """Reading the entry."""
        self.waits = Outcomes()
        """Until the fence is durable."""


class LedgerHandle:
    """A ledger that this process has write access to; opened once per process."""

    __slots__ = ("engine", "group_commit", "ledger_id", "master_key")

    def __init__(
        self, ledger_id: int, master_key: bytes, engine: LedgerDirectoryEngine, group_commit: GroupCommit
    ) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.engine = engine
        self.group_commit = group_commit

    @property
    def row(self) -> LedgerRow:
        """The ledger's row. If it is fenced, ordinary adds are rejected permanently: by a fence, or because a log of
        the ledger is damaged."""
        row = self.engine.rows.find(self.ledger_id)
        assert row is not None, "handles of deleted ledgers are forgotten"
        return row


class LedgerHandles:
    """The handles of one bookie; used on the loop.

    Beyond ``handles_max`` the oldest handle is dropped; the next write to its ledger journals the key again.
    """

    def __init__(
        self,
        storage: LedgerStorage,
        journals: Sequence[GroupCommit],
        clock: Clock,
        *,
        handles_max: int = _HANDLES_MAX,
    ) -> None:
        self.polls = LongPolls(clock)
        self._storage = storage
        self._journals = journals
        self._handles_max = handles_max
        self._route_count = math.lcm(len(storage.engines), len(journals))
        self._handles: OrderedDict[int, LedgerHandle] = OrderedDict()
        self._fences_in_flight: dict[int, asyncio.Future[None]] = {}

    def group_commit_of(self, ledger_id: int) -> GroupCommit:
        """The journal for all records of a ledger; a single one keeps them in order."""
        return self._journals[ledger_id % len(self._journals)]

    def route_of(self, ledger_id: int) -> int:
        """A number shared by the ledgers that have both ledger directory and journal in common."""
        return ledger_id % self._route_count

    def open(self, ledger_id: int, master_key: bytes, *, is_plain_add: bool = False) -> LedgerHandle:
        """Handle of a ledger, creating the ledger if it is unknown; MasterKeyMismatchError, DeletionPendingError.

        A collected ledger is created again, fenced; a plain add gets LedgerCollectedError instead. MemtableFullError
        while there is no memory for another changed row: a checkpoint is due.

        The first access in a process journals the key before any record that needs it in a replay, which includes
        fences (hazard H3).
        """
        handle = self._handles.get(ledger_id)
        if handle is not None and handle.master_key == master_key:
            return handle
        engine = self._storage.engine_of(ledger_id)
        if is_plain_add and ledger_id in engine.collected:
            raise LedgerCollectedError(f"ledger {ledger_id} is closed, and its copy was collected")
        if engine.is_deletion_pending(ledger_id):
            raise DeletionPendingError(f"ledger {ledger_id} was deleted, and no checkpoint has finished since")
        if not engine.rows.has_room and not engine.rows.holds_key(ledger_id, master_key):
            raise _no_room(ledger_id)
        is_new = ledger_id not in engine.rows and not engine.negatives_are_unknown
        engine.rows.set_master_key(ledger_id, master_key)
        if is_new:  # the first read need not look for its last entry on the disk
            engine.note_last_stored(ledger_id, None, engine.read_generation)
        row = engine.rows.find(ledger_id)
        assert row is not None, "set_master_key creates the row"
        if row.master_key != master_key:
            raise MasterKeyMismatchError(f"ledger {ledger_id} has a master key, but the request has none")
        journal = self.group_commit_of(ledger_id)
        journal.append_silently(encode_ledger_key_record(ledger_id, row.master_key))
        handle = LedgerHandle(ledger_id, row.master_key, engine, journal)
        if len(self._handles) >= self._handles_max:
            self._handles.popitem(last=False)
        self._handles[ledger_id] = handle
        return handle

    def forget(self, ledger_id: int) -> None:
        """Drop the handle of a deleted ledger: the next write creates the ledger again and journals its key."""
        self._handles.pop(ledger_id, None)
        self.polls.note_end(ledger_id)

    def set_explicit_lac(self, handle: LedgerHandle, body: bytes) -> None:
        """Store an explicit LAC in memory. MemtableFullError like ``open``."""
        if not handle.engine.rows.has_room:
            raise _no_room(handle.ledger_id)
        handle.engine.set_explicit_lac(handle.ledger_id, body)
        self.polls.note_lac(handle.ledger_id, explicit_lac_of(body))

    def fence(self, ledger_id: int, *, is_forced: bool = False) -> asyncio.Future[None]:
        """Reject ordinary adds from now on; the future completes when that is durable, or fails with the journal.

        The ledger must have been opened, or have a durable row. Adds accepted earlier are before the fence in the same
        journal. Idempotent: waits for a fence that is not yet durable; for a durable one, returns a completed future,
        or a failed one if the journal has failed. MemtableFullError like ``open``, unless it ``is_forced``.
        """
        in_flight = self._fences_in_flight.get(ledger_id)
        if in_flight is not None:
            return in_flight
        engine = self._storage.engine_of(ledger_id)
        row = engine.rows.find(ledger_id)
        if not is_forced and not engine.rows.has_room and (row is None or not row.is_fenced):
            raise _no_room(ledger_id)
        if not engine.rows.set_fenced(ledger_id):
            return self.group_commit_of(ledger_id).confirmation()
        self.polls.note_end(ledger_id)
        durable = self.group_commit_of(ledger_id).append_and_wait(encode_fence_record(ledger_id))
        self._fences_in_flight[ledger_id] = durable
        durable.add_done_callback(lambda _: self._fences_in_flight.pop(ledger_id, None))
        return durable


def is_explicit_lac_of(ledger_id: int, body: bytes) -> bool:
    """Whether this is the body of a request that sets the explicit LAC of the ledger."""
    return len(body) >= EXPLICIT_LAC_BYTES_MIN and int.from_bytes(body[:8], signed=True) == ledger_id


def _no_room(ledger_id: int) -> MemtableFullError:
    return MemtableFullError(f"no memory for the row of ledger {ledger_id} before a checkpoint")
