"""Group commit: one write and one sync for all records that are queued.

There is no deliberate wait unless the settings ask for one: while one group is synced, the next one gathers, so groups
grow with the load. An answer travels with its record and is sent only after the sync that covers the record has
returned, unless the settings allow less. Adds with deferred sync are answered earlier, between the write and
the sync of their group. Source: storage sections 3.7 and 6.3, without hazard H5.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from bkctl.runtime.ports import Responder, Workers
from bkctl.runtime.protocol.messages import AddRun
from bkctl.runtime.protocol.status import Status
from bkctl.storage.config import JournalConfig
from bkctl.storage.errors import JournalFailedError, JournalFullError
from bkctl.storage.journal.format import EXPLICIT_LAC_VERSION_MIN, GROUP_BYTES_MAX
from bkctl.storage.journal.writer import JournalWriter

Ticket: TypeAlias = tuple[Responder, AddRun]
"""Adds that wait for the sync of their records, and the connection to answer on."""

_RETRY_DELAY_S = 1.0
"""How long to wait before the next attempt after the journal's disk had no space."""

_TOGETHER_BYTES_MAX = GROUP_BYTES_MAX // 2
"""Records that one write takes, without their framing. Longer writes are hardly cheaper, and answers wait for them."""

_SETTLE_S_MAX = 30.0
"""Longer than clients wait. Without disk space no checkpoint ends, but a bookie must stop."""


class _Group:
    """Records that share one write and one sync, and the adds and futures that wait for them."""

    __slots__ = ("began_ns", "deferred_tickets", "records", "size_bytes", "tickets", "waiters")

    def __init__(self) -> None:
        self.began_ns = 0
        """When its first record was queued."""
        self.records: list[bytes] = []
        self.size_bytes = 0
        self.tickets: list[Ticket] = []
        self.deferred_tickets: list[Ticket] = []
        """Adds that wait only for the write."""
        self.waiters: list[asyncio.Future[None]] = []

    def join(self, later: _Group) -> None:
        """Add the records of a later group, and who waits for them."""
        self.records += later.records
        self.size_bytes += later.size_bytes
        self.tickets += later.tickets
        self.deferred_tickets += later.deferred_tickets
        self.waiters += later.waiters


class GroupCommit:
    """Owns one journal: queues records on the loop and commits them in groups in a lane.

    Records are complete payloads (ledger id, entry id, ...). After a failed write or sync nothing more is acknowledged:
    ``run`` and every waiting future raise JournalFailedError. While the disk has no space, the queue waits; its
    adds are rejected.
    """

    def __init__(
        self,
        writer: JournalWriter,
        workers: Workers,
        lane: str,
        config: JournalConfig,
        *,
        on_disk_room: Callable[[JournalFullError | None], None],
        retry_delay_s: float = _RETRY_DELAY_S,
    ) -> None:
        """``on_disk_room``: called with the error when the disk has no space, and with None when it has space again."""
        self._writer = writer
        self.measures = writer.measures
        self._workers = workers
        self._lane = lane
        self._config = config
        self._on_disk_room = on_disk_room
        self._retry_delay_s = retry_delay_s
        self._group_bytes_max = min(config.group_bytes_max or _TOGETHER_BYTES_MAX, _TOGETHER_BYTES_MAX)
        self._group_record_count_max = config.group_record_count_max or sys.maxsize
        self._wait_s = 0.0 if config.is_flushed_when_queue_empty else config.group_wait_s
        self._gathering = _Group()
        self._gathering_since_s = 0.0
        self._complete: deque[_Group] = deque()
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._has_given_up_room = asyncio.Event()
        self._is_writing = False
        self._queued_count = 0
        self._queued_bytes = 0
        self._room_callbacks: list[Callable[[], None]] = []
        self._sync_due_s: float | None = None
        self._failure: JournalFailedError | None = None

    @property
    def has_room(self) -> bool:
        """Whether the queue has room for another add; ``on_room`` reports when it has room again."""
        return (
            self._queued_bytes < self._config.queue_bytes_max
            and self._queued_count < self._config.queue_record_count_max
        )

    @property
    def queued_count(self) -> int:
        """Records that are queued or being written."""
        return self._queued_count

    @property
    def queued_bytes(self) -> int:
        """Bytes of these records."""
        return self._queued_bytes

    @property
    def queue_bytes_max(self) -> int:
        """Limit of these bytes."""
        return self._config.queue_bytes_max

    @property
    def complete_groups_count(self) -> int:
        """Groups that are being written, or wait for that."""
        return len(self._complete) + self._is_writing

    def has_room_for(self, run: AddRun) -> bool:
        """Whether the queue has room for each add of a run."""
        count = len(run.bodies)
        if count == 1:
            return self.has_room
        return (
            self._queued_bytes + run.size_bytes <= self._config.queue_bytes_max
            and self._queued_count + count <= self._config.queue_record_count_max
        )

    def on_room(self, callback: Callable[[], None]) -> None:
        """Register a callback for when a full queue has room again."""
        self._room_callbacks.append(callback)

    @property
    def holds_explicit_lacs(self) -> bool:
        """Whether the journal format has a record for explicit LACs: version 6 and later (storage section 3.6)."""
        return self._config.format_version >= EXPLICIT_LAC_VERSION_MIN

    def append(self, connection: Responder, run: AddRun) -> None:
        """Queue adds; they are answered when they are durable, and never if the journal fails.

        If the settings say that adds are not journaled, they are answered immediately. With deferred sync they are
        answered when they are written, except those of a recovery.
        """
        if not self._config.is_data_written:
            if self._failure is None:
                connection.answer(run, Status.OK)
            return
        self._queue(run.bodies)
        group = self._gathering
        is_deferred = run.is_deferred_sync and not run.is_recovery_add
        (group.deferred_tickets if is_deferred else group.tickets).append((connection, run))
        self._wake.set()
        if group.size_bytes >= self._group_bytes_max or len(group.records) >= self._group_record_count_max:
            self._complete_group()
            self.measures.groups_by_size_count += 1

    def append_silently(self, record: bytes) -> None:
        """Queue a record that has no waiter but that later records depend on."""
        self._queue([record])
        self._wake.set()

    def append_and_wait(self, record: bytes) -> asyncio.Future[None]:
        """Queue a record; the future completes when it is durable, or fails with JournalFailedError."""
        self._queue([record])
        return self.barrier()

    def barrier(self) -> asyncio.Future[None]:
        """A future that completes when all records queued so far are durable, even if adds need no sync."""
        is_work_left = self._gathering.records or self._complete or self._is_writing or self._sync_due_s is not None
        if self._failure is not None or not is_work_left:
            return self.confirmation()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gathering.waiters.append(waiter)
        self._wake.set()
        return waiter

    async def force(self, settle: Callable[[], Awaitable[None]]) -> None:
        """Return when all adds answered so far are durable. JournalFailedError; TimeoutError if no checkpoint ends.

        Adds that are not journaled need a checkpoint, for which ``settle`` waits. Java answers without one.
        """
        await self.barrier()
        if not self._config.is_data_written:
            async with asyncio.timeout(_SETTLE_S_MAX):
                await settle()

    def confirmation(self) -> asyncio.Future[None]:
        """A completed future, for a record that is already durable; failed if the journal has failed.

        After a failure, what is in memory may not be on disk, so nothing is confirmed from then on.
        """
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._failure is None:
            confirmed.set_result(None)
        else:
            confirmed.set_exception(self._failure)
        return confirmed

    async def run(self) -> None:
        """Commit groups until ``stop`` and an empty queue; JournalFailedError after a failed write or sync."""
        while True:
            await self._wait_for_work()
            self._wake.clear()
            is_wait_over = self._wait_s > 0 and await self._gather()
            if self._gathering.records or self._gathering.waiters:
                self._complete_group()
                if is_wait_over:
                    self.measures.groups_by_wait_count += 1
                else:
                    self.measures.groups_by_empty_queue_count += 1
            while self._complete:
                await self._commit(self._next_group())
            is_stopping = self._stopping.is_set() and not self._wake.is_set()
            if self._sync_due_s is not None and (is_stopping or _now_s() >= self._sync_due_s):
                await self._sync(_Group())
            if is_stopping and not self._wake.is_set():
                return

    def give_up_room(self) -> None:
        """Treat a full disk as a failure from now on: stopping a bookie must not wait for disk space."""
        self._has_given_up_room.set()

    def stop(self) -> None:
        """Let ``run`` commit what is queued and return."""
        self.give_up_room()
        self._stopping.set()
        self._wake.set()

    def _queue(self, records: list[bytes]) -> None:
        group = self._gathering
        if not group.records:
            group.began_ns = self.measures.now_ns()
            self._gathering_since_s = _now_s() if self._wait_s > 0 else 0.0
        size_bytes = sum(map(len, records))
        group.records += records
        group.size_bytes += size_bytes
        self._queued_count += len(records)
        self._queued_bytes += size_bytes

    def _complete_group(self) -> None:
        self._complete.append(self._gathering)
        self._gathering = _Group()

    def _next_group(self) -> _Group:
        """The oldest complete group, with those after it that fit into one write: a sync costs more than its bytes."""
        group = self._complete.popleft()
        while self._complete and group.size_bytes + self._complete[0].size_bytes <= _TOGETHER_BYTES_MAX:
            group.join(self._complete.popleft())
        return group

    async def _wait_for_work(self) -> None:
        """Return when a record is queued, when a sync is due, or when stopping."""
        if self._sync_due_s is None:
            await self._wake.wait()
        else:
            await _wait(self._wake, max(0.0, self._sync_due_s - _now_s()))

    async def _gather(self) -> bool:
        """Give more records time to join the group, unless a group is already complete. Whether that time is over."""
        while not self._complete and not self._stopping.is_set() and self._gathering.records:
            left_s = self._gathering_since_s + self._wait_s - _now_s()
            if left_s <= 0:
                return True
            await _wait(self._wake, left_s)
            self._wake.clear()
        return False

    async def _commit(self, group: _Group) -> None:
        # Fences, explicit LACs and forced ledgers complete only after a sync.
        is_synced = self._config.is_data_synced or bool(group.waiters)
        is_synced_later = is_synced and bool(group.deferred_tickets)
        taken_ns = self.measures.now_ns()
        await self._write(group, is_synced=is_synced and not is_synced_later)
        for connection, run in group.deferred_tickets:
            connection.answer(run, Status.OK)
        if is_synced_later:
            await self._sync(group)
        self._note(group, taken_ns)
        for connection, run in group.tickets:
            connection.answer(run, Status.OK)
        for waiter in group.waiters:
            if not waiter.done():
                waiter.set_result(None)
        if group.records:
            was_full = not self.has_room
            self._queued_count -= len(group.records)
            self._queued_bytes -= group.size_bytes
            if was_full and self.has_room:
                for callback in self._room_callbacks:
                    callback()

    def _note(self, group: _Group, taken_ns: int) -> None:
        """Count a group that was taken from the queue at ``taken_ns`` and is written now."""
        measures, count = self.measures, len(group.records)
        if count:
            measures.queue.succeeded.note((taken_ns - group.began_ns, count))
            measures.commits.succeeded.note((measures.now_ns() - group.began_ns, count))
            measures.group_records.succeeded.note((count, 1))
            measures.group_bytes.succeeded.note((group.size_bytes, 1))

    async def _write(self, group: _Group, *, is_synced: bool) -> None:
        """Write a group. One without records only syncs what was written before."""
        if not group.records:
            if is_synced:
                await self._sync(group)
            return
        await self._attempt(group, self._write_when_there_is_room(group, is_synced=is_synced))
        if is_synced:
            self._sync_due_s = None
        elif self._sync_due_s is None:
            self._sync_due_s = _now_s() + self._config.sync_interval_s

    async def _sync(self, group: _Group) -> None:
        """Sync what was written before; ``group`` waits for it."""
        if self._sync_due_s is not None:
            await self._attempt(group, self._workers.run(self._lane, self._writer.sync))
            self._sync_due_s = None

    async def _attempt(self, group: _Group, work: Awaitable[object]) -> None:
        """Wait for a write or a sync that ``group`` waits for; a failure is final."""
        self._is_writing = True
        try:
            await work
        except Exception as error:
            failure = error if isinstance(error, JournalFailedError) else JournalFailedError(str(error))
            self._fail(failure, group)
            raise
        finally:
            self._is_writing = False

    async def _write_when_there_is_room(self, group: _Group, *, is_synced: bool) -> None:
        has_found_none = False
        while True:
            try:
                await self._workers.run(self._lane, self._writer.write_group, group.records, is_synced=is_synced)
            except JournalFullError as error:
                # No record was acknowledged, so the same records can be written again at the same offset.
                has_found_none = True
                self._on_disk_room(error)
                if self._has_given_up_room.is_set():
                    raise JournalFailedError(
                        f"stopped with records that the journal had no space for: {error}"
                    ) from error
                self._refuse_adds(group)
            else:
                break
            await _wait(self._has_given_up_room, self._retry_delay_s)
        if has_found_none:
            self._on_disk_room(None)

    def _refuse_adds(self, group: _Group) -> None:
        """Reject the adds that are queued, so that their writers replace this bookie and need not wait for disk space.

        Their records stay queued: the entries are stored, and later records may depend on them.
        """
        for each in (group, *self._complete, self._gathering):
            for connection, run in each.tickets + each.deferred_tickets:
                connection.answer(run, Status.READ_ONLY)
            each.tickets, each.deferred_tickets = [], []

    def _fail(self, failure: JournalFailedError, group: _Group) -> None:
        """A failed sync is final: no more adds are acknowledged, and every waiter gets the failure."""
        self._failure = failure
        for lost in (group, *self._complete, self._gathering):
            for waiter in lost.waiters:
                if not waiter.done():
                    waiter.set_exception(failure)
        self._complete.clear()


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for an event, at most ``timeout_s``."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
