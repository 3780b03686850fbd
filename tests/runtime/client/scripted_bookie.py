"""A small bookie in this process, on the real wire, that misbehaves on demand.

It obeys wire section 5 over a dict: fencing, keys, recovery adds, negatives, limbo. Tests script faults on it: refuse,
hang, drop the connection, damage the digest, hold requests back. It is the fault injector for the scenarios of
protocol section 11; the bookie that keeps promises 1 and 2 of the design is ``bkctl.runtime.bookie``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import struct
from collections.abc import Callable, Sequence
from typing import cast

from bkctl.runtime.net.host import listen_tcp
from bkctl.runtime.net.listener import BookieListener
from bkctl.runtime.net.server_connection import ListenerLimits, ServerConnection
from bkctl.runtime.ports import Responder
from bkctl.runtime.protocol.messages import (
    AddRun,
    BatchReadRequest,
    BookieCall,
    BookieInfoAnswer,
    BookieInfoCall,
    ForceLedgerCall,
    ReadAnswer,
    ReadCall,
    ReadLacAnswer,
    ReadLacCall,
    ReadRun,
    RefusedCall,
)
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v3 import encode_add_request, encode_read_request
from bkctl.runtime.protocol.v3_bookie import decode_before_login

LOOPBACK = "127.0.0.1"
_HEAD = struct.Struct(">qqq")


@dataclasses.dataclass(frozen=True)
class Request:
    """One request as it arrived. ``kind``: add, force, read or read_lac."""

    kind: str
    ledger_id: int
    entry_id: int
    body: bytes = b""
    is_fencing: bool = False
    is_recovery: bool = False
    is_high_priority: bool = False


@dataclasses.dataclass
class Rule:
    """What happens to matching requests; ``times`` counts down, None never ends."""

    kind: str
    entry_id: int | None
    action: Callable[[Responder, BookieCall, Callable[[], None]], None]
    times: int | None

    def matches(self, request: Request) -> bool:
        is_match = request.kind == self.kind and self.entry_id in {None, request.entry_id} and self.times != 0
        if is_match and self.times is not None:
            self.times -= 1
        return is_match


class Held:
    """Requests kept back until ``release``; they are then served in the order of their arrival."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        self._arrived = asyncio.Event()
        self._count = 0
        self._is_released = False

    def keep(self, serve: Callable[[], None]) -> None:
        if self._is_released:
            serve()
            return
        self._waiting.append(serve)
        self._count += 1
        self._arrived.set()

    async def arrived(self, count: int = 1) -> None:
        """Wait until so many requests are here."""
        async with asyncio.timeout(60):
            while self._count < count:
                self._arrived.clear()
                await self._arrived.wait()

    def release(self) -> None:
        self._is_released = True
        for serve in self._waiting:
            serve()
        self._waiting.clear()


@dataclasses.dataclass
class StoredLedger:
    """What the bookie knows of one ledger."""

    master_key: bytes
    entries: dict[int, bytes] = dataclasses.field(default_factory=dict)
    is_fenced: bool = False
    is_limbo: bool = False
    last_add_confirmed: int = -1


class ScriptedBookie:
    """A ``RequestHandler`` with its listener."""

    def __init__(self, bookie_id: str) -> None:
        self.space = (1, 1)
        """Total and free bytes that it reports."""
        self.bookie_id = bookie_id
        self.ledgers: dict[int, StoredLedger] = {}
        self.requests: list[Request] = []
        self.port = 0
        self._rules: list[Rule] = []
        self._listener: BookieListener | None = None
        self._held_port: socket.socket | None = None

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self.release_port()
        self._listener = BookieListener(ListenerLimits())
        self.port = await self._listener.open(listen_tcp, LOOPBACK, self.port)
        self._listener.serve(self)

    async def stop(self) -> None:
        """Refuse connections from now on; what is stored stays, and no process of another test gets the port."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
            self._held_port = socket.socket()
            self._held_port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held_port.bind((LOOPBACK, self.port))

    def release_port(self) -> None:
        """Release the port, after the last stop of the bookie."""
        if self._held_port is not None:
            self._held_port.close()
            self._held_port = None

    # -- script --------------------------------------------------------------------------------------------------

    def refuse(self, kind: str, status: Status, entry_id: int | None = None, times: int | None = None) -> None:
        """Answer with ``status``, do nothing else."""

        def action(connection: Responder, call: BookieCall, _serve: Callable[[], None]) -> None:
            connection.answer(call, status)

        self._rules.append(Rule(kind, entry_id, action, times))

    def reject_client(self, kind: str) -> None:
        """Answer as a bookie does that wants a login first: without the message of the operation (wire 12.2)."""

        def action(connection: Responder, call: BookieCall, _serve: Callable[[], None]) -> None:
            assert isinstance(call, ReadCall | AddRun)
            if isinstance(call, ReadCall):
                frames = [encode_read_request(call.txn_id, 0, 0, None, is_high_priority=False)]
            else:
                frames = [encode_add_request(each, 0, 0, b"", b"", True, False) for each in call.txn_ids]
            for frame in frames:
                refused = decode_before_login(frame[4:])
                assert isinstance(refused, RefusedCall)
                cast("ServerConnection", connection)._send_answer(refused.call, refused.status)
            connection.answer(call, Status.IO_ERROR)  # without a caller; ends the request for the listener

        self._rules.append(Rule(kind, None, action, None))

    def hang(self, kind: str, entry_id: int | None = None, times: int | None = None) -> None:
        """Take the request and never answer."""
        self._rules.append(Rule(kind, entry_id, lambda *_: None, times))

    def drop(self, kind: str, entry_id: int | None = None, times: int | None = None) -> None:
        """Cut the connection instead of an answer."""

        def action(connection: Responder, call: BookieCall, _serve: Callable[[], None]) -> None:
            cast("ServerConnection", connection).abort()
            connection.answer(call, Status.IO_ERROR)  # goes nowhere; ends the request for the listener

        self._rules.append(Rule(kind, entry_id, action, times))

    def hold(
        self, kind: str, entry_id: int | None = None, times: int | None = None, status: Status | None = None
    ) -> Held:
        """Serve matching requests only when released, or answer them with ``status`` then."""
        held = Held()

        def action(connection: Responder, call: BookieCall, serve: Callable[[], None]) -> None:
            held.keep(serve if status is None else lambda: connection.answer(call, status))

        self._rules.append(Rule(kind, entry_id, action, times))
        return held

    def obey(self) -> None:
        """Forget all rules."""
        self._rules.clear()

    def damage(self, ledger_id: int, entry_id: int) -> None:
        """Flip the last byte of a stored entry."""
        body = self.ledgers[ledger_id].entries[entry_id]
        self.ledgers[ledger_id].entries[entry_id] = body[:-1] + bytes([body[-1] ^ 1])

    def count(self, kind: str, entry_id: int | None = None) -> int:
        """How many such requests have arrived."""
        return sum(r.kind == kind and entry_id in {None, r.entry_id} for r in self.requests)

    def holds(self, ledger_id: int) -> list[int]:
        """Entry ids stored, ascending."""
        stored = self.ledgers.get(ledger_id)
        return sorted(stored.entries) if stored else []

    # -- RequestHandler ------------------------------------------------------------------------------------------

    def handle(self, connection: Responder, call: BookieCall) -> None:
        if isinstance(call, AddRun):
            while call.bodies:
                self._add(connection, call.cut(1))
        elif isinstance(call, ReadCall):
            self._read(connection, call)
        elif isinstance(call, ReadRun):
            for read in call.singly():  # each read is answered by itself
                self._read(connection, read)
        elif isinstance(call, ReadLacCall):
            self._read_lac(connection, call)
        elif isinstance(call, ForceLedgerCall):
            self._take(
                connection, call, Request("force", call.ledger_id, -1), lambda: connection.answer(call, Status.OK)
            )
        elif isinstance(call, BookieInfoCall):
            info = BookieInfoAnswer(call.txn_id, Status.OK, *self.space)
            self._follow(connection, call, Request("info", -1, -1), lambda: connection.answer(call, info))
        elif isinstance(call, BatchReadRequest):
            connection.answer(call, Status.BAD_REQUEST)  # as before release 4.17: the client reads singly from then on
        else:
            raise NotImplementedError

    def find_in_memory(
        self, ledger_id: int, entry_ids: Sequence[int], *, wants_lac: bool
    ) -> tuple[list[bytes | None], None]:
        """All reads are answered by ``handle``."""
        return [None] * len(entry_ids), None

    def poll_memory(self, call: object) -> None:
        """As for other reads."""

    def _add(self, connection: Responder, add: AddRun) -> None:
        request = Request(
            "add", add.ledger_id, add.entry_ids[0], add.bodies[0], False, add.is_recovery_add, add.is_high_priority
        )
        self._take(connection, add, request, lambda: connection.answer(add, self._store(request, add.master_key)))

    def _read(self, connection: Responder, call: ReadCall) -> None:
        is_fencing = call.fence_with is not None
        request = Request("read", call.ledger_id, call.entry_id, b"", is_fencing, False, call.is_high_priority)

        def serve() -> None:
            connection.answer(call, ReadAnswer(call.txn_id, *self._find(request, call.fence_with)))

        self._take(connection, call, request, serve)

    def _read_lac(self, connection: Responder, call: ReadLacCall) -> None:
        def serve() -> None:
            stored = self.ledgers.get(call.ledger_id)
            if stored is None or not stored.entries:
                connection.answer(call, Status.NO_SUCH_ENTRY)
            else:
                last = stored.entries[max(stored.entries)]
                connection.answer(call, ReadLacAnswer(call.txn_id, Status.OK, None, last))

        self._take(connection, call, Request("read_lac", call.ledger_id, -1), serve)

    def _take(self, connection: Responder, call: BookieCall, request: Request, serve: Callable[[], None]) -> None:
        self.requests.append(request)
        self._follow(connection, call, request, serve)

    def _follow(self, connection: Responder, call: BookieCall, request: Request, serve: Callable[[], None]) -> None:
        for rule in self._rules:
            if rule.matches(request):
                rule.action(connection, call, serve)
                return
        serve()

    def _store(self, request: Request, master_key: bytes) -> Status:
        stored = self.ledgers.setdefault(request.ledger_id, StoredLedger(master_key))
        if stored.master_key != master_key:
            return Status.UNAUTHORIZED
        if stored.is_fenced and not request.is_recovery:
            return Status.FENCED
        stored.entries[request.entry_id] = request.body
        stored.last_add_confirmed = max(stored.last_add_confirmed, _HEAD.unpack_from(request.body)[2])
        return Status.OK

    def _find(self, request: Request, fence_with: bytes | None) -> tuple[Status, bytes | None, int | None]:
        if fence_with is not None:
            stored = self.ledgers.setdefault(request.ledger_id, StoredLedger(fence_with))
            if stored.master_key != fence_with:
                return Status.UNAUTHORIZED, None, None
            stored.is_fenced = True
        found = self.ledgers.get(request.ledger_id)
        if found is None:
            return Status.NO_SUCH_LEDGER, None, None
        entry_id = max(found.entries, default=-1) if request.entry_id == -1 else request.entry_id
        body = found.entries.get(entry_id)
        if body is None:
            return (Status.UNKNOWN_LEDGER_STATE if found.is_limbo else Status.NO_SUCH_ENTRY), None, None
        return Status.OK, body, None if fence_with is not None else found.last_add_confirmed
