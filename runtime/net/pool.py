"""Adapter of the Bookies port: connections to all bookies. Source: wire section 14, protocol section 8."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import AuthenticationRequiredError, BookieError, ClientClosedError
from bkctl.runtime.net.batch_read_connection import BatchReadConnection
from bkctl.runtime.net.bookie_connection import BookieConnection, settle
from bkctl.runtime.net.client_handshake import ClientSecurity, refusal_sentence
from bkctl.runtime.net.frame_connection import FrameConnection, Resolver, SharedByConnections, UnsentBytes
from bkctl.runtime.net.request_ages import RequestAges
from bkctl.runtime.net.request_batch import AddBatch, ReadBatch
from bkctl.runtime.ports import (
    AddDone,
    BodyOrStatus,
    BookieId,
    BookieInfo,
    Clock,
    LacReply,
    PollReply,
    ReadReply,
    TimerHandle,
)
from bkctl.runtime.protocol import v3, v3_batches
from bkctl.runtime.protocol.entry_list import EntryList
from bkctl.runtime.protocol.framing import read_buffer
from bkctl.runtime.protocol.messages import (
    Answer,
    BookieInfoAnswer,
    ListEntriesAnswer,
    OtherAnswer,
    ReadAnswer,
    ReadLacAnswer,
)
from bkctl.runtime.protocol.status import Status, error_of
from bkctl.runtime.protocol.v2_batch_reads import BatchReadCall

T = TypeVar("T")
AnswerT = TypeVar("AnswerT", ReadAnswer, ReadLacAnswer, ListEntriesAnswer, BookieInfoAnswer, OtherAnswer)

ConnectionT = TypeVar("ConnectionT", bound=FrameConnection)

UNSENT_BYTES_MAX = 64 * 1024 * 1024
"""Maximum unsent bytes to one bookie. Above it requests end with TOO_MANY_REQUESTS, and the writer replaces the bookie.
Larger than ``pending_bytes_max`` plus entry headers, because all pending adds of a writer are queued here until the
connection is established."""

_UNSENT_BYTES_OF_ALL_MAX = 3 * UNSENT_BYTES_MAX
"""Maximum unsent bytes to all bookies together; above it, bookies that do not read get no more."""

_READ_BYTES = 256 * 1024
"""Maximum bytes of one socket read: several large answers, because one that the end of a read cuts is copied again."""

_SWEEPS_PER_TIMEOUT = 20
"""Timeout checks per shortest timeout. So no timeout is late by more than a tenth of it."""


_HANDSHAKE_SHARE = 0.8
"""Maximum time of a connection with TLS or a login, as a share of the shortest time-out of a request."""

_REFUSED_PAUSE_S = 1.0
"""After a refusal: handshakes cost more than requests, and many requests may be waiting to be refused."""

_FINAL_OF_BATCH = frozenset(
    {Status.TIMEOUT, Status.UNAVAILABLE, Status.TOO_MANY_REQUESTS, Status.AUTHENTICATION_REQUIRED}
)
"""Outcomes of a batch read that single reads would have too."""


class BookiePool:
    """One connection per bookie, opened by the first request, and reopened by the first request after a loss.

    Batch reads have another one. A bookie that ends it without an answer gets single reads from then on.
    All connections share one sequence of transaction ids. Create and use it on one loop.
    """

    def __init__(
        self, resolve: Resolver, config: ClientConfig, clock: Clock, *, unsent_bytes_max: int = UNSENT_BYTES_MAX
    ) -> None:
        """ConfigurationError if a file of ``config.security`` cannot be used."""
        self._resolve = resolve
        self._config = config
        self._clock = clock
        unsent = UnsentBytes(unsent_bytes_max, _UNSENT_BYTES_OF_ALL_MAX)
        security = ClientSecurity.of(config.security)
        buffer = read_buffer(_READ_BYTES)
        self._shared = SharedByConnections(config.frame_bytes_max, unsent, buffer, config.security, security)
        self._connect_timeout_s = config.connect_timeout_s
        if security is not None:  # before the requests that wait for the connection expire: the error has the reason
            shortest_s = min(config.add_timeout_s, config.read_timeout_s)
            self._connect_timeout_s = min(config.connect_timeout_s, _HANDSHAKE_SHARE * shortest_s)
        self._loop = asyncio.get_running_loop()
        self._connections: dict[BookieId, BookieConnection] = {}
        self._batch_readers: dict[BookieId, BatchReadConnection] = {}
        self._single_readers: set[BookieId] = set()
        """Bookies that do not serve batch reads."""
        self._next_txn_id = 1
        self._add_timeout_ns = int(config.add_timeout_s * 1e9)
        self._read_timeout_ns = int(config.read_timeout_s * 1e9)
        self._sweep_interval_s = min(config.add_timeout_s, config.read_timeout_s) / _SWEEPS_PER_TIMEOUT
        self._ages = RequestAges(max(self._add_timeout_ns, self._read_timeout_ns))
        self._timer: TimerHandle | None = None
        self._is_closed = False
        self._losses: Counter[BookieId] = Counter()
        self.refused: Counter[BookieId] = Counter()
        """Errors so far that say that a bookie and this client do not accept each other."""

    def add(
        self,
        bookie_id: BookieId,
        ledger_id: int,
        entry_id: int,
        master_key: bytes,
        body: bytes,
        done: AddDone,
        *,
        is_recovery_add: bool = False,
        is_high_priority: bool = False,
        is_deferred_sync: bool = False,
    ) -> None:
        """Send an add. ``done`` is called later with the outcome, never inside this call."""
        txn_id = self._new_txn_id()
        flags = (is_recovery_add, is_high_priority, is_deferred_sync)
        frame = v3.encode_add_request(txn_id, ledger_id, entry_id, master_key, body, *flags)
        self._connection(bookie_id).add(txn_id, frame, done)

    def force(self, bookie_id: BookieId, ledger_id: int) -> asyncio.Future[None]:
        """Sync what the bookie has answered of a ledger. The future fails with the BookieError of the status."""
        txn_id = self._new_txn_id()
        return self._ask(bookie_id, txn_id, v3.encode_force_request(txn_id, ledger_id), OtherAnswer, _done)

    def losses(self, bookie_id: BookieId) -> int:
        """How often the connection to a bookie ended."""
        return self._losses[bookie_id]

    def read(
        self,
        bookie_id: BookieId,
        ledger_id: int,
        entry_id: int,
        *,
        fence_with: bytes | None = None,
        is_high_priority: bool = False,
    ) -> asyncio.Future[ReadReply]:
        """Read an entry, or the last stored one for -1; ``fence_with`` (master key) fences the ledger first.

        The future fails with the BookieError of the status. The digest is not checked here.
        """
        txn_id = self._new_txn_id()
        frame = v3.encode_read_request(txn_id, ledger_id, entry_id, fence_with, is_high_priority)
        return self._ask(bookie_id, txn_id, frame, ReadAnswer, _read_reply if fence_with is None else _fencing_reply)

    def read_lac(self, bookie_id: BookieId, ledger_id: int) -> asyncio.Future[LacReply]:
        """Ask for the explicit LAC packet and the last stored entry; fences nothing, needs no key (wire 5.6).

        The future fails with the BookieError of the status. The digests are not checked here.
        """
        txn_id = self._new_txn_id()
        frame = v3.encode_read_lac_request(txn_id, ledger_id)
        return self._ask(bookie_id, txn_id, frame, ReadLacAnswer, _lac_reply)

    def write_lac(
        self, bookie_id: BookieId, ledger_id: int, master_key: bytes, lac: int, lac_body: bytes
    ) -> asyncio.Future[None]:
        """Store an explicit LAC packet, which wakes the polls that wait for it (wire 5.5).

        The future fails with the BookieError of the status.
        """
        txn_id = self._new_txn_id()
        frame = v3.encode_write_lac_request(txn_id, ledger_id, master_key, lac, lac_body)
        return self._ask(bookie_id, txn_id, frame, OtherAnswer, _done)

    def poll(
        self, bookie_id: BookieId, ledger_id: int, previous_lac: int, timeout_s: float
    ) -> asyncio.Future[PollReply]:
        """Wait until the bookie knows a LAC above ``previous_lac``, at most ``timeout_s``, which must be well below the
        time-out of reads. ``bkctl.runtime.ports`` has the details."""
        txn_id = self._new_txn_id()
        frame = v3.encode_poll_request(txn_id, ledger_id, previous_lac, int(timeout_s * 1000))
        return self._ask(bookie_id, txn_id, frame, ReadAnswer, _poll_reply)

    def read_many(
        self, bookie_id: BookieId, ledger_id: int, entry_ids: Sequence[int], *, bytes_max: int
    ) -> asyncio.Future[list[BodyOrStatus]]:
        """Read entries of one ledger; ids must not be negative. Fences nothing.

        Answers for the first of ``entry_ids``, in their order; ``bkctl.runtime.ports`` has the details.
        """
        if not entry_ids or min(ledger_id, *entry_ids) < 0:
            raise ValueError("a batch of no requests, or with a negative id")
        future: asyncio.Future[list[BodyOrStatus]] = self._loop.create_future()
        is_batch = 1 < len(entry_ids) == entry_ids[-1] - entry_ids[0] + 1 and bookie_id not in self._single_readers
        if is_batch and list(entry_ids) == list(range(entry_ids[0], entry_ids[-1] + 1)):
            self._read_batch(bookie_id, ledger_id, entry_ids, bytes_max, future)
        else:
            self._read_singly(bookie_id, ledger_id, entry_ids, future)
        return future

    def _read_batch(
        self,
        bookie_id: BookieId,
        ledger_id: int,
        entry_ids: Sequence[int],
        bytes_max: int,
        future: asyncio.Future[list[BodyOrStatus]],
    ) -> None:
        """Send one request for consecutive entries; if it is not answered with entries, read them singly."""

        def done(outcome: list[bytes] | Status | None) -> None:
            if future.done():  # the caller has cancelled it
                return
            if isinstance(outcome, list):
                future.set_result(cast("list[BodyOrStatus]", outcome))
            elif outcome in _FINAL_OF_BATCH:
                future.set_result([outcome] * len(entry_ids))
            else:
                self._read_singly(bookie_id, ledger_id, entry_ids, future)

        bytes_max = max(1, min(bytes_max, self._config.frame_bytes_max))
        call = BatchReadCall(self._new_txn_id(), ledger_id, entry_ids[0], len(entry_ids), bytes_max)
        connection = self._batch_readers.get(bookie_id)
        if connection is None:
            connection = BatchReadConnection(bookie_id, self._shared, self._forget_batch_reader)
            self._open(connection, self._batch_readers)
        connection.ask(call, done)

    def _read_singly(
        self,
        bookie_id: BookieId,
        ledger_id: int,
        entry_ids: Sequence[int],
        future: asyncio.Future[list[BodyOrStatus]],
    ) -> None:
        first_txn_id = self._new_txn_ids(len(entry_ids))
        ids = v3_batches.batch_ids(first_txn_id, ledger_id, entry_ids)
        self._connection(bookie_id).send_batch(v3_batches.encode_reads(ids), ReadBatch(first_txn_id, ids, future))

    def add_many(
        self,
        bookie_id: BookieId,
        ledger_id: int,
        master_key: bytes,
        adds: Sequence[tuple[int, bytes]],
        *,
        is_recovery_add: bool = False,
    ) -> asyncio.Future[list[Status]]:
        """Send adds of one ledger: entry ids, which must not be negative, with their bodies.

        The result is the status of each, in their order; ``bkctl.runtime.ports`` has the details.
        """
        entry_ids = [entry_id for entry_id, _ in adds]
        if not adds or min(ledger_id, *entry_ids) < 0:
            raise ValueError("a batch of no requests, or with a negative id")
        future: asyncio.Future[list[Status]] = self._loop.create_future()
        first_txn_id = self._new_txn_ids(len(entry_ids))
        ids = v3_batches.batch_ids(first_txn_id, ledger_id, entry_ids)
        frames = v3_batches.encode_adds(ids, master_key, [body for _, body in adds], is_recovery_add)
        self._connection(bookie_id).send_batch(frames, AddBatch(first_txn_id, ids, future))
        return future

    def list_entries(self, bookie_id: BookieId, ledger_id: int) -> asyncio.Future[EntryList]:
        """Ask which entries of a ledger the bookie has; fences nothing, needs no key (wire 5.9).

        The future fails with the BookieError of the status.
        """
        txn_id = self._new_txn_id()
        frame = v3.encode_list_entries_request(txn_id, ledger_id)
        return self._ask(bookie_id, txn_id, frame, ListEntriesAnswer, _entry_list)

    async def info(self, bookie_id: BookieId) -> BookieInfo:
        """Disk space; raises BookieError."""
        txn_id = self._new_txn_id()
        return await self._ask(bookie_id, txn_id, v3.encode_bookie_info_request(txn_id), BookieInfoAnswer, _bookie_info)

    def error_of(self, status: Status, bookie_id: BookieId, detail: str = "") -> BookieError:
        """The error of a status other than OK that a callback received, or that is in a result."""
        if status is Status.AUTHENTICATION_REQUIRED:
            self.refused[bookie_id] += 1
            reason = self._shared.refusals.get(bookie_id) or refusal_sentence(self._config.security)
            return AuthenticationRequiredError(bookie_id, reason, is_expired=self._shared.is_expired)
        if status is Status.UNAVAILABLE and self._is_closed:
            return ClientClosedError(bookie_id, detail or "the client was closed")
        return error_of(status, bookie_id, detail)

    async def close(self) -> None:
        """Fail pending requests with UNAVAILABLE and close all connections; later requests fail the same way.

        Waits shortly for adds: an entry is acknowledged while some of its copies are still on their way, and they would
        not arrive.
        """
        try:
            await settle(self._connections.values())
        finally:
            self._is_closed = True
            if self._timer is not None:
                self._timer.cancel()
            await asyncio.gather(*(connection.close() for connection in self._all_connections()))

    def _all_connections(self) -> list[FrameConnection]:
        return [*self._connections.values(), *self._batch_readers.values()]

    def _ask(
        self,
        bookie_id: BookieId,
        txn_id: int,
        frame: bytes,
        answer_type: type[AnswerT],
        reply_of: Callable[[AnswerT, BookieId], T | BookieError],
    ) -> asyncio.Future[T]:
        """Send a request other than an add; ``reply_of`` converts its answer to the result or error of the future."""
        future: asyncio.Future[T] = self._loop.create_future()

        def finish(answer: Answer | Status, detail: str) -> None:
            if future.done():  # the caller has cancelled it
                return
            if isinstance(answer, Status):
                future.set_exception(self.error_of(answer, bookie_id, detail))
                return
            assert isinstance(answer, answer_type)
            reply = reply_of(answer, bookie_id)
            if isinstance(reply, BookieError):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self._connection(bookie_id).request(txn_id, frame, answer_type, finish)
        return future

    def _new_txn_ids(self, count: int) -> int:
        """The first of ``count`` consecutive transaction ids."""
        first_txn_id = self._new_txn_id()
        self._next_txn_id += count - 1
        return first_txn_id

    def _new_txn_id(self) -> int:
        if self._timer is None and not self._is_closed:
            self._ages.note(self._clock.monotonic_ns(), self._next_txn_id)
            self._timer = self._clock.call_later(self._sweep_interval_s, self._sweep)
        txn_id = self._next_txn_id
        self._next_txn_id += 1
        return txn_id

    def _connection(self, bookie_id: BookieId) -> BookieConnection:
        connection = self._connections.get(bookie_id)
        if connection is None:
            connection = BookieConnection(bookie_id, self._shared, self._forget)
            self._open(connection, self._connections)
        return connection

    def _open(self, connection: ConnectionT, connections: dict[BookieId, ConnectionT]) -> None:
        if self._is_closed:
            connection.refuse("the client is closed")
        else:
            connections[connection.bookie_id] = connection
            connection.connect(self._resolve, self._connect_timeout_s)

    def _forget(self, connection: FrameConnection) -> None:
        self._losses[connection.bookie_id] += 1
        self._remove(connection, self._connections)

    def _forget_batch_reader(self, connection: FrameConnection) -> None:
        reader = self._batch_readers.get(connection.bookie_id)
        if reader is connection and reader.is_without_batches:
            self._single_readers.add(connection.bookie_id)
        self._remove(connection, self._batch_readers)

    def _remove(self, connection: FrameConnection, connections: dict[BookieId, ConnectionT]) -> None:
        """The next request connects again, after a refusal only when the pause is over: until then it is refused."""

        def remove() -> None:
            if connections.get(connection.bookie_id) is connection:
                del connections[connection.bookie_id]

        def end_pause() -> None:
            self._single_readers.discard(connection.bookie_id)  # perhaps it only refused the client
            remove()

        if connection.is_client_refused and not self._is_closed:
            self._clock.call_later(_REFUSED_PAUSE_S, end_pause)
        else:
            remove()

    def _sweep(self) -> None:
        """Time out old requests; repeats as long as any request is pending."""
        now_ns = self._clock.monotonic_ns()
        self._ages.note(now_ns, self._next_txn_id)
        connections = [connection for connection in self._all_connections() if connection.has_pending]
        self._timer = self._clock.call_later(self._sweep_interval_s, self._sweep) if connections else None
        adds_below = self._ages.expired_below(now_ns, self._add_timeout_ns)
        others_below = self._ages.expired_below(now_ns, self._read_timeout_ns)
        for connection in connections:
            connection.expire(adds_below, others_below)


def _read_reply(answer: ReadAnswer, bookie_id: BookieId) -> ReadReply | BookieError:
    return _reply_of(answer, answer.entry_status, bookie_id)


def _fencing_reply(answer: ReadAnswer, bookie_id: BookieId) -> ReadReply | BookieError:
    return _reply_of(answer, answer.status, bookie_id)


def _reply_of(answer: ReadAnswer, status: Status, bookie_id: BookieId) -> ReadReply | BookieError:
    if status is not Status.OK:
        return error_of(status, bookie_id)
    if answer.body is None:
        return error_of(Status.IO_ERROR, bookie_id, "a positive response without an entry")
    return ReadReply(answer.body, answer.max_last_add_confirmed)


def _poll_reply(answer: ReadAnswer, bookie_id: BookieId) -> PollReply | BookieError:
    if answer.entry_status is not Status.OK:
        return error_of(answer.status, bookie_id)
    return PollReply(answer.max_last_add_confirmed, answer.body)


def _done(answer: OtherAnswer, bookie_id: BookieId) -> BookieError | None:
    return None if answer.status is Status.OK else error_of(answer.status, bookie_id)


def _lac_reply(answer: ReadLacAnswer, bookie_id: BookieId) -> LacReply | BookieError:
    # A Java bookie with an explicit LAC but no entry answers IO_ERROR together with the LAC (wire 5.6).
    if answer.status is Status.OK or (answer.status is Status.IO_ERROR and answer.lac_body is not None):
        return LacReply(answer.lac_body, answer.last_entry_body)
    return error_of(answer.status, bookie_id)


def _entry_list(answer: ListEntriesAnswer, bookie_id: BookieId) -> EntryList | BookieError:
    if answer.status is not Status.OK:
        return error_of(answer.status, bookie_id)
    if answer.entries is None:
        return error_of(Status.IO_ERROR, bookie_id, "cannot parse the list of entries")
    return answer.entries


def _bookie_info(answer: BookieInfoAnswer, bookie_id: BookieId) -> BookieInfo | BookieError:
    if answer.status is not Status.OK:
        return error_of(answer.status, bookie_id)
    if answer.total_bytes is None or answer.free_bytes is None:
        return error_of(Status.IO_ERROR, bookie_id, "the response has no value for a number that was requested")
    return BookieInfo(answer.total_bytes, answer.free_bytes)
