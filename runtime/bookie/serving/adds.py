"""The add path of a bookie, also when its write cache is full. Source: wire section 5.1."""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable

from bkctl.runtime.bookie.serving.ledger_handles import LedgerHandles
from bkctl.runtime.ports import Clock, Responder, TimerHandle
from bkctl.runtime.protocol.messages import AddRun
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v2_bookie import is_binary_call
from bkctl.storage.entry import ENTRY_HEADER_BYTES_MIN
from bkctl.storage.errors import (
    DeletionPendingError,
    EntryTooLargeError,
    LedgerCollectedError,
    MasterKeyMismatchError,
    MemtableFullError,
    StorageError,
)
from bkctl.storage.ids import LEDGER_ID_MAX, EntryId, LedgerId
from bkctl.storage.journal.format import is_zero_filled
from bkctl.storage.measures import Measures, Outcomes

logger = logging.getLogger(__name__)

_HEAD = struct.Struct(">qqq")
"""How an entry begins: ledger id, entry id, LAC."""
_LAC = struct.Struct(">16xq")


class AddMeasures(Measures):
    """Adds that wait for room in the write cache or in the journal's queue."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = Outcomes()
        """How long they waited, until they were stored or rejected."""


class AddPath:
    """Handles adds in the order in which they arrive.

    While the write cache or the journal's queue is full, adds wait for at most ``throttle_s``, without being journaled;
    then they are rejected with TOO_MANY_REQUESTS. Adds that arrive after a waiting one for the same directories also
    wait, so the order within a ledger is kept; a full directory does not block the others.
    """

    def __init__(
        self, handles: LedgerHandles, clock: Clock, throttle_s: float, request_checkpoint: Callable[[], None]
    ) -> None:
        self.measures = AddMeasures()
        self._handles = handles
        self._clock = clock
        self._throttle_ns = int(throttle_s * 1e9)
        self.request_checkpoint = request_checkpoint
        self.on_stored: Callable[[], None] = lambda: None
        """Called when adds are in the write cache and queued for the journal."""
        self._waiting: dict[int, deque[tuple[int, Responder, AddRun]]] = {}
        """By place (``LedgerHandles.route_of``); no queue is empty."""
        self._timer: TimerHandle | None = None

    def add(self, connection: Responder, run: AddRun) -> None:
        """Store and journal the entries; answers follow when they are durable, rejections immediately.

        The adds of a run are stored together if all of them can be, otherwise in parts.
        """
        last_add_confirmed = _last_add_confirmed_if_valid(run)
        if last_add_confirmed is not None:
            self._add_valid(connection, run, last_add_confirmed)
        elif len(run.bodies) > 1:
            self._add_halves(connection, run, self.add)
        else:
            connection.answer(run, Status.BAD_REQUEST)

    def _add_valid(self, connection: Responder, run: AddRun, last_add_confirmed: EntryId) -> None:
        if self._is_waiting(run):
            self._wait(connection, run)
        elif not self._store(connection, run, last_add_confirmed):
            if len(run.bodies) > 1:
                self._add_halves(connection, run, self.add)
            else:
                self._wait(connection, run)

    def _add_halves(self, connection: Responder, run: AddRun, add: Callable[[Responder, AddRun], None]) -> None:
        first = run.cut(len(run.bodies) // 2)
        try:
            add(connection, first)
        except BaseException:
            run.put_back(first)
            raise
        add(connection, run)

    @property
    def waiting_count(self) -> int:
        """Adds that wait for room in the write cache or in the journal's queue."""
        return sum(len(run.bodies) for queue in self._waiting.values() for _, _, run in queue)

    def retry_waiting(self) -> None:
        """Retry waiting adds, in order; call after the write cache was swapped and when a journal has room again."""
        for place, queue in list(self._waiting.items()):
            while queue:
                due_ns, connection, run = queue[0]
                count = len(run.bodies)
                if self._store(connection, run, _last_add_confirmed(run.bodies)):
                    queue.popleft()
                    self._note_end(due_ns, count, is_success=True)
                elif count > 1:
                    queue.appendleft((due_ns, connection, run.cut(count // 2)))
                else:
                    break
            self._drop_if_empty(place)

    def refuse_waiting(self) -> None:
        """Reject all waiting adds; call when writes have stopped, because no room will be made for them."""
        waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            for due_ns, connection, run in queue:
                self._note_end(due_ns, len(run.bodies), is_success=False)
                connection.answer(run, Status.READ_ONLY)

    def _is_waiting(self, run: AddRun) -> bool:
        """Whether other adds already wait for the directories of this run."""
        return bool(self._waiting) and self._handles.route_of(run.ledger_id) in self._waiting

    def _store(self, connection: Responder, run: AddRun, last_add_confirmed: EntryId) -> bool:
        """Whether the run was stored or rejected; False if nothing was done.

        False for a single add: the write cache, the memory for changed rows or the journal's queue is full, or a
        checkpoint must finish before the id of a deleted ledger can be used again. False for several: not all of them
        can be stored now.
        """
        ledger_id = run.ledger_id
        try:
            handle = self._handles.open(ledger_id, run.master_key, is_plain_add=not run.is_recovery_add)
            row = handle.row
            if row.is_fenced and not run.is_recovery_add:
                connection.answer(run, Status.FENCED)
                return True
            if row.is_limbo and not run.is_recovery_add:
                # No writer may continue from an unknown end (storage section 9.2).
                connection.answer(run, Status.UNKNOWN_LEDGER_STATE)
                return True
            if not handle.group_commit.has_room_for(run):
                return False
            if len(run.bodies) == 1:
                handle.engine.add(ledger_id, run.entry_ids[0], run.bodies[0])
            elif not handle.engine.add_many(ledger_id, run.entry_ids, run.bodies, last_add_confirmed):
                return False
        except MasterKeyMismatchError:
            connection.answer(run, Status.UNAUTHORIZED)
        except LedgerCollectedError:
            connection.answer(run, Status.FENCED)
        except (MemtableFullError, DeletionPendingError):
            self.request_checkpoint()
            return False
        except EntryTooLargeError as error:
            logger.warning("refused an add: %s", error)
            connection.answer(run, Status.BAD_REQUEST)
        except StorageError as error:
            logger.error("ledger %d: cannot read its row: %s", ledger_id, error)
            connection.answer(run, Status.IO_ERROR)
        else:
            self._wake_polls(ledger_id, last_add_confirmed)
            handle.group_commit.append(connection, run)
            self.on_stored()
        return True

    def _wake_polls(self, ledger_id: LedgerId, last_add_confirmed: EntryId) -> None:
        """The LAC in an add is confirmed, so it is valid before the add is durable."""
        if self._handles.polls.is_awaited(ledger_id):
            self._handles.polls.note_lac(ledger_id, last_add_confirmed)

    def _wait(self, connection: Responder, run: AddRun) -> None:
        queue = self._waiting.setdefault(self._handles.route_of(run.ledger_id), deque())
        queue.append((self._clock.monotonic_ns() + self._throttle_ns, connection, run))
        if self._timer is None:
            self._timer = self._clock.call_later(self._throttle_ns / 1e9, self._refuse_overdue)

    def _refuse_overdue(self) -> None:
        self._timer = None
        now_ns = self._clock.monotonic_ns()
        for place, queue in list(self._waiting.items()):
            while queue and queue[0][0] <= now_ns:
                due_ns, connection, run = queue.popleft()
                self._note_end(due_ns, len(run.bodies), is_success=False)
                connection.answer(run, Status.TOO_MANY_REQUESTS)
            self._drop_if_empty(place)
        if self._waiting:
            next_ns = min(queue[0][0] for queue in self._waiting.values())
            self._timer = self._clock.call_later((next_ns - now_ns) / 1e9, self._refuse_overdue)

    def _note_end(self, due_ns: int, count: int, *, is_success: bool) -> None:
        waited_ns = self._clock.monotonic_ns() - (due_ns - self._throttle_ns)
        self.measures.waits.add(waited_ns, count, is_success=is_success)

    def _drop_if_empty(self, place: int) -> None:
        if not self._waiting[place]:
            del self._waiting[place]


def _last_add_confirmed_if_valid(run: AddRun) -> EntryId | None:
    """The highest LAC in a run, if each body is an entry with these ids that a replay cannot mistake for another
    record."""
    # Hazard H19: a replay reads a negative id as a control record. The collector never sees an id above the maximum.
    if not 0 <= run.ledger_id <= LEDGER_ID_MAX or min(run.entry_ids) < 0:
        return None
    if min(map(len, run.bodies)) < ENTRY_HEADER_BYTES_MIN:
        return None
    if run.ledger_id == 0 and any(map(is_zero_filled, run.bodies)):  # replay treats zeros as a hole
        return None
    if is_binary_call(run):  # the bodies are where its ids are from
        return _last_add_confirmed(run.bodies)
    ledger_ids, entry_ids, confirmed = zip(*map(_HEAD.unpack_from, run.bodies), strict=True)
    if list(entry_ids) != run.entry_ids or ledger_ids.count(run.ledger_id) != len(ledger_ids):
        return None
    return int(max(confirmed))


def _last_add_confirmed(bodies: list[bytes]) -> EntryId:
    return int(max(map(_LAC.unpack_from, bodies))[0])
