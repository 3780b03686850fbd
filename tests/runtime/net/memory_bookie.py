"""A bookie that keeps entries in a dict, behind a real listener; it answers at once, or when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from runtime.net.listener import BookieListener
from runtime.net.listener_limits import ListenerLimits
from runtime.net.listening import listen_tcp
from runtime.net.request_handler import Responder
from runtime.ports import BookieInfo
from runtime.protocol.entry_list import EntryListBuilder
from runtime.protocol.status import Status

LOOPBACK = "127.0.0.1"


class MemoryBookie:
    """A ``RequestHandler``. While ``is_holding``, answers gather in ``held``."""

    def __init__(self, limits: ListenerLimits) -> None:
        self._limits = limits
        self._listener = BookieListener(limits)
        self.port = 0
        self.entries: dict[tuple[int, int], bytes] = {}
        self.lac_packets: dict[int, bytes] = {}
        self.add_flags: list[tuple[bytes, bool, bool, bool]] = []
        self.read_flags: list[tuple[bytes | None, bool]] = []
        self.forced: list[int] = []
        self.is_holding = False
        self.held: list[Callable[[], None]] = []
        self.request_count = 0
        self._arrived = asyncio.Event()

    async def open(self) -> None:
        """Listen, on the same port as before."""
        self._listener = BookieListener(self._limits)
        self.port = await self._listener.open(listen_tcp, LOOPBACK, self.port)
        self._listener.serve(self)

    async def close(self) -> None:
        """Close all connections and refuse new ones."""
        await self._listener.close()

    async def holds(self, count: int) -> None:
        """Wait until so many answers are held back."""
        async with asyncio.timeout(10):
            while len(self.held) < count:
                self._arrived.clear()
                await self._arrived.wait()

    def release(self) -> None:
        """Answer everything held back, the newest first."""
        while self.held:
            self.held.pop()()

    def _answer(self, answer: Callable[[], None]) -> None:
        self.request_count += 1
        if self.is_holding:
            self.held.append(answer)
            self._arrived.set()
        else:
            answer()

    def add(
        self,
        connection: Responder,
        txn_id: int,
        ledger_id: int,
        entry_id: int,
        master_key: bytes,
        body: bytes,
        is_recovery_add: bool,
        is_high_priority: bool,
        is_deferred_sync: bool,
    ) -> None:
        assert type(body) is bytes
        self.entries[ledger_id, entry_id] = body
        self.add_flags.append((master_key, is_recovery_add, is_high_priority, is_deferred_sync))
        self._answer(lambda: connection.respond_add(txn_id, ledger_id, entry_id, Status.OK))

    def read_from_memory(self, ledger_id: int, entry_id: int) -> None:
        """All reads are answered by ``read``."""

    def read(
        self,
        connection: Responder,
        txn_id: int,
        ledger_id: int,
        entry_id: int,
        fence_with: bytes | None,
        is_high_priority: bool,
    ) -> None:
        self.read_flags.append((fence_with, is_high_priority))
        body = self.entries.get((ledger_id, entry_id))
        status = Status.NO_SUCH_ENTRY if body is None else Status.OK
        self._answer(lambda: connection.respond_read(txn_id, ledger_id, entry_id, status, body, None))

    def read_lac(self, connection: Responder, txn_id: int, ledger_id: int) -> None:
        packet = self.lac_packets.get(ledger_id)
        last = max((key for key in self.entries if key[0] == ledger_id), default=None)
        body = None if last is None else self.entries[last]
        missing = Status.NO_SUCH_ENTRY if packet is None else Status.IO_ERROR  # as Java does (wire 5.6)
        status = missing if body is None else Status.OK
        self._answer(lambda: connection.respond_read_lac(txn_id, ledger_id, status, packet, body))

    def write_lac(self, connection: Responder, txn_id: int, ledger_id: int, master_key: bytes, body: bytes) -> None:
        self.lac_packets[ledger_id] = body
        self._answer(lambda: connection.respond_write_lac(txn_id, ledger_id, Status.OK))

    def force_ledger(self, connection: Responder, txn_id: int, ledger_id: int) -> None:
        self.forced.append(ledger_id)
        self._answer(lambda: connection.respond_force_ledger(txn_id, ledger_id, Status.OK))

    def bookie_info(self, connection: Responder, txn_id: int, requested: int) -> None:
        info = BookieInfo(2000, 1000)
        self._answer(lambda: connection.respond_bookie_info(txn_id, Status.OK, requested, info))

    def list_entries(self, connection: Responder, txn_id: int, ledger_id: int) -> None:
        builder = EntryListBuilder()
        builder.extend(sorted(entry_id for owner_id, entry_id in self.entries if owner_id == ledger_id))
        entries = builder.finish()
        self._answer(lambda: connection.respond_list_entries(txn_id, ledger_id, Status.OK, entries))


@contextlib.asynccontextmanager
async def memory_bookie(limits: ListenerLimits | None = None) -> AsyncIterator[MemoryBookie]:
    """A bookie that listens until the block ends."""
    bookie = MemoryBookie(limits or ListenerLimits())
    await bookie.open()
    try:
        yield bookie
    finally:
        await bookie.close()
