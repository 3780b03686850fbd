"""A bookie that keeps entries in a dict, behind a real listener; it answers at once, or when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence

from bkctl.runtime.net.host import listen_tcp
from bkctl.runtime.net.listener import BookieListener
from bkctl.runtime.net.server_connection import ListenerLimits
from bkctl.runtime.ports import Responder
from bkctl.runtime.protocol.entry_list import EntryListBuilder
from bkctl.runtime.protocol.messages import (
    AddRun,
    BatchReadRequest,
    BookieAnswer,
    BookieCall,
    BookieInfoAnswer,
    EntriesAnswer,
    ForceLedgerCall,
    ListEntriesAnswer,
    ListEntriesCall,
    ReadAnswer,
    ReadCall,
    ReadLacAnswer,
    ReadLacCall,
    ReadRun,
    WriteLacCall,
)
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v2_bookie import encode_entries

LOOPBACK = "127.0.0.1"

_QUIET_TURN_COUNT = 50


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
        self.read_status = Status.OK
        """The status of reads that find their entry."""
        self.entries_max: int | None = None
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
        async with asyncio.timeout(120):
            while len(self.held) < count:
                self._arrived.clear()
                await self._arrived.wait()

    async def reads_no_more(self) -> int:
        """Wait until no further request comes; the number of requests that came.

        What a peer sends over the loopback is there within a turn of the loop: many turns without a request show that
        the bookie reads nothing.
        """
        count = turns_left = -1
        while turns_left:
            if count != self.request_count:
                count, turns_left = self.request_count, _QUIET_TURN_COUNT
            await asyncio.sleep(0)
            turns_left -= 1
        return count

    def release(self) -> None:
        """Answer everything held back, the newest first."""
        while self.held:
            self.held.pop()()

    def _answer(self, connection: Responder, call: BookieCall, outcome: BookieAnswer) -> None:
        def answer() -> None:
            connection.answer(call, outcome)

        self.request_count += 1
        if self.is_holding:
            self.held.append(answer)
            self._arrived.set()
        else:
            answer()

    def handle(self, connection: Responder, call: BookieCall) -> None:
        if isinstance(call, AddRun):
            while call.bodies:  # each add is answered by itself
                self._add(connection, call)
        elif isinstance(call, ReadCall):
            self.read_flags.append((call.fence_with, call.is_high_priority))
            body = self.entries.get((call.ledger_id, call.entry_id))
            status = Status.NO_SUCH_ENTRY if body is None else self.read_status
            self._answer(connection, call, ReadAnswer(call.txn_id, status, body, None))
        elif isinstance(call, ReadRun):
            for read in call.singly():  # each read is answered by itself
                self.handle(connection, read)
        elif isinstance(call, BatchReadRequest):
            self.read_flags.append((call.fence_with, call.is_high_priority))
            ids = range(call.first_entry_id, call.first_entry_id + call.count_max)
            found = (self.entries.get((call.ledger_id, entry_id)) for entry_id in ids)
            bodies = [body for body in itertools.takewhile(lambda body: body is not None, found) if body is not None]
            status = self.read_status if bodies else Status.NO_SUCH_ENTRY
            self._answer(connection, call, EntriesAnswer(call.txn_id, status, encode_entries(bodies)))
        elif isinstance(call, ReadLacCall):
            packet = self.lac_packets.get(call.ledger_id)
            last = max((key for key in self.entries if key[0] == call.ledger_id), default=None)
            body = None if last is None else self.entries[last]
            missing = Status.NO_SUCH_ENTRY if packet is None else Status.IO_ERROR  # as Java does (wire 5.6)
            status = missing if body is None else Status.OK
            self._answer(connection, call, ReadLacAnswer(call.txn_id, status, packet, body))
        elif isinstance(call, WriteLacCall):
            self.lac_packets[call.ledger_id] = call.body
            self._answer(connection, call, Status.OK)
        elif isinstance(call, ForceLedgerCall):
            self.forced.append(call.ledger_id)
            self._answer(connection, call, Status.OK)
        elif isinstance(call, ListEntriesCall):
            builder = EntryListBuilder()
            builder.extend(sorted(entry_id for owner_id, entry_id in self.entries if owner_id == call.ledger_id))
            self._answer(connection, call, ListEntriesAnswer(call.txn_id, Status.OK, builder.finish()))
        else:
            self._answer(connection, call, BookieInfoAnswer(call.txn_id, Status.OK, 2000, 1000))

    def find_in_memory(
        self, ledger_id: int, entry_ids: Sequence[int], *, wants_lac: bool
    ) -> tuple[list[bytes | None], None]:
        """All reads are answered by ``handle``."""
        return [None] * len(entry_ids), None

    def poll_memory(self, call: object) -> None:
        """As for other reads."""

    def _add(self, connection: Responder, run: AddRun) -> None:
        if self.entries_max is not None and len(self.entries) >= self.entries_max:
            raise RuntimeError("a fault of the bookie")
        body = run.bodies[0]
        assert type(body) is bytes
        self.entries[run.ledger_id, run.entry_ids[0]] = body
        self.add_flags.append((run.master_key, run.is_recovery_add, run.is_high_priority, run.is_deferred_sync))
        self._answer(connection, run.cut(1), Status.OK)


@contextlib.asynccontextmanager
async def memory_bookie(limits: ListenerLimits | None = None) -> AsyncIterator[MemoryBookie]:
    """A bookie that listens until the block ends."""
    bookie = MemoryBookie(limits or ListenerLimits())
    await bookie.open()
    try:
        yield bookie
    finally:
        await bookie.close()
