"""The add path of a bookie, and what happens when its write cache is full. Source: wire section 5.1."""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from runtime.bookie.group_commit import AddResponder
from runtime.bookie.ledger_handles import LedgerHandles
from runtime.ports import Clock, TimerHandle
from runtime.protocol.status import Status
from storage.entry import ENTRY_HEADER_BYTES_MIN
from storage.errors import (
    DeletionPendingError,
    EntryTooLargeError,
    LedgerCollectedError,
    MasterKeyMismatchError,
    MemtableFullError,
)
from storage.journal_format import is_zero_filled

logger = logging.getLogger(__name__)

_IDS = struct.Struct(">qq")


class PendingAdd(NamedTuple):
    """An add request, with the connection that waits for its answer."""

    connection: AddResponder
    txn_id: int
    ledger_id: int
    entry_id: int
    master_key: bytes
    body: bytes
    is_recovery_add: bool


class AddPath:
    """Takes adds in the order of their arrival.

    While the write cache or the journal's queue is full, adds wait (nothing is journaled), at most ``throttle_s``; then
    they are refused with TOO_MANY_REQUESTS. Adds that arrive behind a waiting one of the same directories wait behind
    it, so one ledger's order is kept; a full directory holds up no other.
    """

    def __init__(
        self, handles: LedgerHandles, clock: Clock, throttle_s: float, request_checkpoint: Callable[[], None]
    ) -> None:
        self._handles = handles
        self._clock = clock
        self._throttle_ns = int(throttle_s * 1e9)
        self._request_checkpoint = request_checkpoint
        self._waiting: dict[int, deque[tuple[int, PendingAdd]]] = {}
        """By place (``LedgerHandles.place_of``); no queue is empty."""
        self._timer: TimerHandle | None = None

    def add(self, request: PendingAdd) -> None:
        """Store and journal an entry; the answer follows when it is durable, a refusal at once."""
        body = request.body
        if (
            len(body) < ENTRY_HEADER_BYTES_MIN
            or request.entry_id < 0  # hazard H19: a negative id would replay as a control record
            or request.ledger_id < 0
            or _IDS.unpack_from(body) != (request.ledger_id, request.entry_id)
            or (request.ledger_id == request.entry_id == 0 and is_zero_filled(body))  # replay takes it for a hole
        ):
            self._refuse(request, Status.BAD_REQUEST)
        elif self._waiting and self._handles.place_of(request.ledger_id) in self._waiting:
            self._wait(request)
        else:
            self._try(request)

    def retry_waiting(self) -> None:
        """Call after the write cache was swapped, or when a journal has room again: waiting adds go on, in order."""
        for place, queue in list(self._waiting.items()):
            while queue and self._store(queue[0][1]):
                queue.popleft()
            self._drop_if_empty(place)

    def refuse_waiting(self) -> None:
        """Call when writes have stopped: nothing will make room for the adds that wait."""
        waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            for _, request in queue:
                self._refuse(request, Status.READ_ONLY)

    def _try(self, request: PendingAdd) -> None:
        if not self._store(request):
            self._wait(request)

    def _store(self, request: PendingAdd) -> bool:
        """Whether the request was dealt with; False: the write cache is full, or the journal's queue is.

        Or a checkpoint must end before the id of a deleted ledger can be used again.
        """
        connection, txn_id, ledger_id, entry_id, master_key, body, is_recovery_add = request
        try:
            handle = self._handles.open(ledger_id, master_key, is_plain_add=not is_recovery_add)
            if handle.is_fenced and not is_recovery_add:
                self._refuse(request, Status.FENCED)
                return True
            if handle.is_limbo and not is_recovery_add:
                # No writer may go on from an end that is not known (storage section 9.2).
                self._refuse(request, Status.UNKNOWN_LEDGER_STATE)
                return True
            if not handle.journal.has_room:
                return False
            handle.engine.add(ledger_id, entry_id, body)
        except MasterKeyMismatchError:
            self._refuse(request, Status.UNAUTHORIZED)
        except LedgerCollectedError:
            self._refuse(request, Status.FENCED)
        except (MemtableFullError, DeletionPendingError):
            self._request_checkpoint()
            return False
        except EntryTooLargeError as error:
            logger.warning("refused an add: %s", error)
            self._refuse(request, Status.BAD_REQUEST)
        else:
            handle.journal.append(body, (connection, txn_id, ledger_id, entry_id))
        return True

    def _wait(self, request: PendingAdd) -> None:
        queue = self._waiting.setdefault(self._handles.place_of(request.ledger_id), deque())
        queue.append((self._clock.monotonic_ns() + self._throttle_ns, request))
        if self._timer is None:
            self._timer = self._clock.call_later(self._throttle_ns / 1e9, self._refuse_overdue)

    def _refuse_overdue(self) -> None:
        self._timer = None
        now_ns = self._clock.monotonic_ns()
        for place, queue in list(self._waiting.items()):
            while queue and queue[0][0] <= now_ns:
                self._refuse(queue.popleft()[1], Status.TOO_MANY_REQUESTS)
            self._drop_if_empty(place)
        if self._waiting:
            next_ns = min(queue[0][0] for queue in self._waiting.values())
            self._timer = self._clock.call_later((next_ns - now_ns) / 1e9, self._refuse_overdue)

    def _drop_if_empty(self, place: int) -> None:
        if not self._waiting[place]:
            del self._waiting[place]

    def _refuse(self, request: PendingAdd, status: Status) -> None:
        request.connection.respond_add(request.txn_id, request.ledger_id, request.entry_id, status)
