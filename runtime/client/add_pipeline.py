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
    """Sends adds and delivers their acknowledgements in entry order, whatever the order in which they were sent.

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
        is_deferred_sync: bool = False,
        has_gaps: bool = False,
    ) -> None:
        """``is_deferred_sync``: only ``confirm`` moves the last add confirmed. ``has_gaps``: ids come in any order."""
        self.last_acknowledged = last_add_confirmed
        """The last delivered add."""
        self.acknowledged_bytes = 0
        """Payload of the delivered adds."""
        self.last_add_confirmed = last_add_confirmed
        self.confirmed_bytes = 0
        """Payload of the adds up to the last confirmed one."""
        self.ensemble = metadata.last_segment.ensemble
        self.pending_bytes = 0
        self._write_quorum_size = metadata.write_quorum_size
        self._ack_quorum_size = metadata.ack_quorum_size
        self._ensemble_size = size = metadata.ensemble_size
        # A write set depends only on the entry id modulo the ensemble size: a lookup saves one call per add.
        self._write_sets = [write_set(first, size, metadata.write_quorum_size) for first in range(size)]
        self._ledger_id = credentials.ledger_id
        self._master_key = credentials.master_key
        self._add = ports.bookies.add
        if is_recovery:
            self._add = partial(ports.bookies.add, is_recovery_add=True, is_high_priority=True)
        elif is_deferred_sync:
            self._add = partial(ports.bookies.add, is_deferred_sync=True)
        self._is_deferred_sync = is_deferred_sync
        self._has_gaps = has_gaps
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, PendingAdd] = {}
        self._is_suspended = False
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def pending_count(self) -> int:
        """Adds sent and not yet delivered."""
        return len(self._pending)

    def has_sent(self, entry_id: int) -> bool:
        """Whether an add with this id was submitted."""
        return entry_id <= self.last_acknowledged or entry_id in self._pending

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
        self._pending[entry_id] = add
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
            if add.acks.ack(index) and add.entry_id == self.last_acknowledged + 1:
                self._deliver()
            return
        # A bookie that was asked twice may fail after an acknowledgement; the failure then overrides it.
        add.acks.fail(index, bookie_id)
        is_late = add.entry_id <= self.last_acknowledged or add.acks.is_complete
        self._on_failure(index, bookie_id, status, is_late=is_late)

    def _deliver(self) -> None:
        pending = self._pending
        delivered_count = 0
        entry_id = self.last_acknowledged + 1
        while (add := pending.get(entry_id)) is not None and add.acks.is_complete and not self._is_suspended:
            del pending[entry_id]
            self.last_acknowledged = entry_id
            self.acknowledged_bytes += add.payload_bytes
            self.pending_bytes -= add.payload_bytes
            add.body = b""  # late answers may keep the add alive for seconds
            delivered_count += 1
            if not add.future.done():
                add.future.set_result(entry_id)
            entry_id += 1
        if not self._is_deferred_sync:
            self.last_add_confirmed, self.confirmed_bytes = self.last_acknowledged, self.acknowledged_bytes
        if delivered_count and self._waiters:
            # Each delivery makes room for one waiter. An empty pipeline wakes all, so no wake-up can be lost. With
            # gaps, any of the waiters may be the one that can go on.
            self._wake(delivered_count if pending and not self._has_gaps else len(self._waiters))

    def confirm(self, entry_id: int, payload_bytes: int) -> None:
        """Note that everything up to an acknowledged add, with so much payload, is durable."""
        if entry_id > self.last_add_confirmed:
            self.last_add_confirmed, self.confirmed_bytes = entry_id, payload_bytes

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
        for add in self._pending.values():
            for index in replaced:
                if index in add.write_set:
                    add.acks.unset(index)
                    done = partial(self._on_answer, add, index, ensemble[index])
                    self._add(ensemble[index], self._ledger_id, add.entry_id, self._master_key, add.body, done)
        self._deliver()

    def drain(self, error_of: Callable[[int], BkctlError]) -> None:
        """Fail all pending adds with the error for their entry id.

        After this nothing can be delivered, so ``last_acknowledged`` is final.
        """
        drained, self._pending = self._pending, {}
        self.pending_bytes = 0
        for add in drained.values():
            if not add.future.done():
                add.future.set_exception(error_of(add.entry_id))
        self._wake(len(self._waiters))

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
