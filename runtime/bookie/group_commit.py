"""Group commit: one write and one sync for all records that queued up meanwhile.

There is no deliberate wait: while a group is being synced the next one gathers, so batches grow with the load. Rule:
a reply travels with the record that makes it true and is released only when the sync that covers it has returned.
Source: storage section 3.7, without hazard H5.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol, TypeAlias

from runtime.ports import Workers
from runtime.protocol.status import Status
from storage.errors import JournalFailedError
from storage.journal_writer import JournalWriter


class AddResponder(Protocol):
    """Where the answer to an add goes: the connection it came from."""

    def respond_add(self, txn_id: int, ledger_id: int, entry_id: int, status: Status) -> None:
        """Queue the answer; a connection that is gone drops it."""


Ticket: TypeAlias = tuple[AddResponder, int, int, int]
"""The reply to an add, waiting for its record: connection, txn id, ledger id, entry id."""


GROUP_BYTES_MAX = 1024 * 1024
"""A group that has reached this is closed: copying it must not hold the interpreter, nor its sync the next replies."""


class _Group:
    """Records that share one write and one sync, and who waits for them."""

    __slots__ = ("records", "size_bytes", "tickets", "waiters")

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.size_bytes = 0
        self.tickets: list[Ticket] = []
        self.waiters: list[asyncio.Future[None]] = []


class GroupCommit:
    """Owns one journal: queues records on the loop, commits them in groups on a lane.

    Records are complete payloads (ledger id, entry id, ...). After a failed write or sync nothing is acknowledged any
    more: ``run`` raises JournalFailedError and every wait does too.
    """

    def __init__(self, writer: JournalWriter, workers: Workers, lane: str) -> None:
        self._writer = writer
        self._workers = workers
        self._lane = lane
        self._gathering = _Group()
        self._complete: deque[_Group] = deque()
        self._wake = asyncio.Event()
        self._is_writing = False
        self._is_stopping = False
        self._failure: JournalFailedError | None = None
        self.durable = writer.durable_position
        """Everything journaled before this position is on disk: the checkpoint token."""

    def append(self, record: bytes, ticket: Ticket) -> None:
        """Queue a record; the ticket is released when it is durable, and never if the journal fails."""
        group = self._gathering
        group.records.append(record)
        group.tickets.append(ticket)
        group.size_bytes += len(record)
        if group.size_bytes >= GROUP_BYTES_MAX:
            self._complete_group()
        self._wake.set()

    def append_silently(self, record: bytes) -> None:
        """Queue a record that nobody waits for but that later records depend on."""
        self._gathering.records.append(record)
        self._wake.set()

    def append_and_wait(self, record: bytes) -> asyncio.Future[None]:
        """Queue a record; the future ends when it is durable, or fails with JournalFailedError."""
        self._gathering.records.append(record)
        return self.barrier()

    def barrier(self) -> asyncio.Future[None]:
        """A future that ends when all records queued so far are durable."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._failure is not None:
            waiter.set_exception(self._failure)
        elif self._gathering.records or self._complete or self._is_writing:
            self._gathering.waiters.append(waiter)
            self._wake.set()
        else:
            waiter.set_result(None)
        return waiter

    async def run(self) -> None:
        """Commit groups until ``stop`` and an empty queue; JournalFailedError when a write or sync failed."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._gathering.records or self._gathering.waiters:
                self._complete_group()
            while self._complete:
                await self._commit(self._complete.popleft())
            if self._is_stopping and not self._wake.is_set():
                return

    def stop(self) -> None:
        """Let ``run`` commit what is queued and return."""
        self._is_stopping = True
        self._wake.set()

    def _complete_group(self) -> None:
        self._complete.append(self._gathering)
        self._gathering = _Group()

    async def _commit(self, group: _Group) -> None:
        if group.records:
            self._is_writing = True
            try:
                self.durable = await self._workers.run(self._lane, self._writer.write_group, group.records)
            except JournalFailedError as failure:
                self._fail(failure, group)
                raise
            finally:
                self._is_writing = False
        for connection, txn_id, ledger_id, entry_id in group.tickets:
            connection.respond_add(txn_id, ledger_id, entry_id, Status.OK)
        for waiter in group.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _fail(self, failure: JournalFailedError, group: _Group) -> None:
        """A failed sync is final: no ticket is released any more, every waiter learns of it."""
        self._failure = failure
        for lost in (group, *self._complete, self._gathering):
            for waiter in lost.waiters:
                if not waiter.done():
                    waiter.set_exception(failure)
        self._complete.clear()
