"""Adds in flight to one ensemble, with acknowledgements delivered strictly in order. Source: protocol section 3.

The writer and the write-backs of recovery share this code. They differ in how they handle a failing bookie, so the
owner decides that. Everything runs on the loop and nothing waits: an entry is one body, Qw sends, a call per answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Protocol

from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import AckSet, write_set
from bkctl.runtime.protocol.status import Status
from bkctl.storage.errors import BkctlError


class FailureListener(Protocol):
    """Called for every answer other than OK from a bookie of the ensemble."""

    def __call__(self, index: int, bookie_id: str, status: Status, *, is_late: bool) -> None:
        """``is_late``: the add was already delivered, or is complete without this bookie."""


class PendingAdd:
    """One entry in flight. Its body is kept until delivery, because a resend must repeat it byte for byte."""

    __slots__ = ("acks", "body", "entry_id", "future", "payload_bytes", "write_set")

    def __init__(
        self,
        entry_id: int,
        body: bytes,
        payload_bytes: int,
        future: asyncio.Future[int],
        indexes: tuple[int, ...],
        acks: AckSet,
    ) -> None:
        self.entry_id = entry_id
        self.body = body
        self.payload_bytes = payload_bytes
        self.future = future
        self.write_set = indexes
        self.acks = acks


class AddPipeline:
    """Sends adds and delivers their acknowledgements in entry order; ``last_add_confirmed`` is the last delivered one.

    While suspended, answers are recorded but nothing is delivered (rule 3 of protocol section 0.1).
    """

    def __init__(
        self,
        ports: ClientPorts,
        credentials: LedgerCredentials,
        metadata: LedgerMetadata,
        *,
        last_add_confirmed: int,
        is_recovery: bool,
        on_failure: FailureListener,
    ) -> None:
        self.last_add_confirmed = last_add_confirmed
        self.ensemble = metadata.last_segment.ensemble
        self.pending_bytes = 0
        self._write_quorum_size = metadata.write_quorum_size
        self._ack_quorum_size = metadata.ack_quorum_size
        self._ensemble_size = size = metadata.ensemble_size
        # A write set depends only on the entry id modulo the ensemble size: a lookup saves one call per add.
        self._write_sets = [write_set(first, size, metadata.write_quorum_size) for first in range(size)]
        self._ledger_id = credentials.ledger_id
        self._master_key = credentials.master_key
        self._add = (
            partial(ports.bookies.add, is_recovery_add=True, is_high_priority=True)
            if is_recovery
            else ports.bookies.add
        )
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._pending: deque[PendingAdd] = deque()
        self._is_suspended = False
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def pending_count(self) -> int:
        """Adds sent and not yet delivered."""
        return len(self._pending)

    def submit(
        self, entry_id: int, body: bytes, payload_bytes: int, without: Collection[int] = ()
    ) -> asyncio.Future[int]:
        """Send one entry to its write set. The future returns its id once it and all before it are acknowledged.

        ``without``: indexes whose present bookies do not get it.
        """
        indexes = self._write_sets[entry_id % self._ensemble_size]
        future: asyncio.Future[int] = self._loop.create_future()
        add = PendingAdd(
            entry_id, body, payload_bytes, future, indexes, AckSet(self._write_quorum_size, self._ack_quorum_size)
        )
        self._pending.append(add)
        self.pending_bytes += payload_bytes
        ensemble = self.ensemble
        for index in indexes:
            if index in without:
                continue
            bookie_id = ensemble[index]
            self._add(
                bookie_id,
                self._ledger_id,
                entry_id,
                self._master_key,
                body,
                partial(self._on_answer, add, index, bookie_id),
            )
        return future

    def _on_answer(self, add: PendingAdd, index: int, bookie_id: str, status: Status) -> None:
        if self.ensemble[index] != bookie_id:
            return  # replaced since the request: its answer no longer counts (rule 4)
        if status == Status.OK:
            # Record it even if the add is complete: an ensemble change can make it incomplete again.
            if add.acks.ack(index) and self._pending and self._pending[0] is add:
                self._deliver()
            return
        # A bookie that was asked twice may fail after an acknowledgement; the failure then overrides it.
        add.acks.fail(index, bookie_id)
        is_late = add.entry_id <= self.last_add_confirmed or add.acks.is_complete
        self._on_failure(index, bookie_id, status, is_late=is_late)

    def _deliver(self) -> None:
        pending = self._pending
        delivered_count = 0
        while pending and pending[0].acks.is_complete and not self._is_suspended:
            add = pending.popleft()
            self.last_add_confirmed = add.entry_id
            self.pending_bytes -= add.payload_bytes
            add.body = b""  # late answers may keep the add alive for seconds
            delivered_count += 1
            if not add.future.done():
                add.future.set_result(add.entry_id)
        if delivered_count and self._waiters:
            # Each delivery makes room for one waiter. An empty pipeline wakes all, so no wake-up can be lost.
            self._wake(delivered_count if pending else len(self._waiters))

    def suspend(self) -> None:
        """Deliver nothing until ``resume``: an ensemble change is in flight."""
        self._is_suspended = True

    def resume(self, ensemble: tuple[str, ...], retry: Collection[int] = ()) -> None:
        """Continue with ``ensemble``: discard acknowledgements of replaced bookies and send to their successors.

        ``retry``: indexes whose failed bookie stays because there is no successor; it is asked again.
        """
        replaced = [i for i, bookie_id in enumerate(ensemble) if bookie_id != self.ensemble[i] or i in retry]
        self.ensemble = ensemble
        self._is_suspended = False
        for add in self._pending:
            for index in replaced:
                if index in add.write_set:
                    add.acks.unset(index)
                    done = partial(self._on_answer, add, index, ensemble[index])
                    self._add(ensemble[index], self._ledger_id, add.entry_id, self._master_key, add.body, done)
        self._deliver()

    def drain(self, error_of: Callable[[int], BkctlError]) -> int:
        """Fail all pending adds with the error for their entry id; returns their payload bytes.

        After this nothing can be delivered, so ``last_add_confirmed`` is final.
        """
        drained, self._pending = self._pending, deque()
        drained_bytes, self.pending_bytes = self.pending_bytes, 0
        for add in drained:
            if not add.future.done():
                add.future.set_exception(error_of(add.entry_id))
        self._wake(len(self._waiters))
        return drained_bytes

    async def progress(self) -> None:
        """Wait until adds were delivered or drained. Callers are woken in turn and must check their condition again."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self, count: int) -> None:
        for _ in range(min(count, len(self._waiters))):
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
