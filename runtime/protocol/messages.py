"""Requests to a bookie and its answers, independent of their encoding. Source: wire sections 4.3 and 5.

Ledger and entry ids are as the peer sent them and may be negative; the bookie checks them. The requester chooses the
transaction id (u64), and the answer repeats it; a negative one belongs to a request in v2, which has none.
"""

from __future__ import annotations

import itertools
from typing import TypeAlias

import msgspec

from bkctl.runtime.protocol.entry_list import EntryList
from bkctl.runtime.protocol.status import Status


class BookieRequest(msgspec.Struct, gc=False, kw_only=True):
    """What all requests for the bookie's handler have in common: times by ``Clock.monotonic_ns``."""

    received_ns: int = 0
    """When the connection received it."""
    begun_ns: int = 0
    """When its turn came; 0 if it did not wait for one."""


class AddRun(BookieRequest, gc=False):
    """Adds to one ledger from one socket read, in order, as three columns of the same length.

    ``bodies`` are entries (wire section 8.1); ``master_key`` is any byte string. One object represents one add or
    hundreds, from the decoder to the answer, so no step needs an object per add.
    """

    ledger_id: int
    master_key: bytes
    is_recovery_add: bool
    is_high_priority: bool
    is_deferred_sync: bool
    txn_ids: list[int]
    entry_ids: list[int]
    bodies: list[bytes]
    size_bytes: int = 0
    """Size of all bodies. Only the methods of this class change it, and the columns."""

    def __post_init__(self) -> None:
        self.size_bytes = sum(map(len, self.bodies))

    def extend(self, txn_ids: list[int], entry_ids: list[int], bodies: list[bytes]) -> None:
        """Append adds."""
        self.txn_ids += txn_ids
        self.entry_ids += entry_ids
        self.bodies += bodies
        self.size_bytes += sum(map(len, bodies))

    def cut(self, count: int) -> AddRun:
        """Remove the first ``count`` adds; returns them."""
        first = AddRun(
            self.ledger_id,
            self.master_key,
            self.is_recovery_add,
            self.is_high_priority,
            self.is_deferred_sync,
            self.txn_ids[:count],
            self.entry_ids[:count],
            self.bodies[:count],
            received_ns=self.received_ns,
        )
        del self.txn_ids[:count], self.entry_ids[:count], self.bodies[:count]
        self.size_bytes -= first.size_bytes
        return first

    def put_back(self, first: AddRun) -> None:
        """Undo a cut."""
        self.txn_ids[:0], self.entry_ids[:0], self.bodies[:0] = first.txn_ids, first.entry_ids, first.bodies
        self.size_bytes += first.size_bytes


class ReadCall(BookieRequest, gc=False):
    """Read an entry, or the last one for -1; with a key in ``fence_with``, fence the ledger first."""

    txn_id: int
    ledger_id: int
    entry_id: int
    fence_with: bytes | None
    is_high_priority: bool

    @property
    def wants_lac(self) -> bool:
        """Whether the answer may carry the LAC: not in v2."""
        return self.txn_id >= 0


class ReadRun(BookieRequest, gc=False):
    """Reads of one ledger, without a fence, from one socket read and of one priority; two columns of the same length.

    As for adds, one object goes from the decoder to the answer. The handler gets those of consecutive entries. They are
    answered from the start on, in one part or several; ``cut`` removes what is answered. ``txn_id`` is that of the
    first read, and stays.
    """

    txn_id: int
    ledger_id: int
    is_high_priority: bool
    txn_ids: list[int]
    entry_ids: list[int]

    @property
    def entry_id(self) -> int:
        """The first entry that is not answered yet."""
        return self.entry_ids[0]

    @property
    def wants_lac(self) -> bool:
        """As for a single read."""
        return self.txn_id >= 0

    def cut(self, count: int) -> ReadRun:
        """Remove the first ``count`` reads, at least one; returns them."""
        first = self.part(slice(count))
        del self.txn_ids[:count], self.entry_ids[:count]
        return first

    def part(self, places: slice) -> ReadRun:
        """Some of the reads, at least one."""
        return self.of(self.txn_ids[places], self.entry_ids[places])

    def of(self, txn_ids: list[int], entry_ids: list[int]) -> ReadRun:
        """Reads that were received with these."""
        return ReadRun(
            txn_ids[0],
            self.ledger_id,
            self.is_high_priority,
            txn_ids,
            entry_ids,
            received_ns=self.received_ns,
            begun_ns=self.begun_ns,
        )

    def singly(self) -> list[ReadCall]:
        """Each read by itself."""
        return [
            ReadCall(
                txn_id,
                self.ledger_id,
                entry_id,
                None,
                self.is_high_priority,
                received_ns=self.received_ns,
                begun_ns=self.begun_ns,
            )
            for txn_id, entry_id in zip(self.txn_ids, self.entry_ids, strict=True)
        ]


def read_runs(
    txn_ids: list[int], ledger_ids: list[int], entry_ids: list[int], *, is_high_priority: bool
) -> list[ReadRun]:
    """Reads in columns of the same length, by ledger where it changes."""
    if len(set(ledger_ids)) == 1:
        return [ReadRun(txn_ids[0], ledger_ids[0], is_high_priority, txn_ids, entry_ids)]
    runs: list[ReadRun] = []
    start = 0
    for ledger_id, same in itertools.groupby(ledger_ids):
        stop = start + len(list(same))
        runs.append(ReadRun(txn_ids[start], ledger_id, is_high_priority, txn_ids[start:stop], entry_ids[start:stop]))
        start = stop
    return runs


class LongPollRead(BookieRequest, gc=False):
    """Wait until the LAC is above ``previous_lac``, at most ``wait_ms``; then read ``entry_id``.

    ``is_piggyback``: read the entry after ``previous_lac`` instead, if the LAC is above it (wire section 5.4).
    """

    txn_id: int
    ledger_id: int
    entry_id: int
    previous_lac: int
    wait_ms: int
    is_piggyback: bool
    is_high_priority: bool
    lac_changed_ms: int | None = None
    """Time of the change of the LAC that ended the waiting, in milliseconds since 1970."""


class BatchReadRequest(BookieRequest, gc=False):
    """Read consecutive entries, the first one whatever its size; with a key in ``fence_with``, fence the ledger first.

    ``bytes_max``: of the whole frame of the answer.
    """

    txn_id: int
    request_id: int
    ledger_id: int
    first_entry_id: int
    count_max: int
    bytes_max: int
    fence_with: bytes | None
    is_high_priority: bool


class ReadLacCall(BookieRequest, gc=False):
    """Read the explicit LAC packet and the last entry of a ledger."""

    txn_id: int
    ledger_id: int


class WriteLacCall(BookieRequest, gc=False):
    """Store ``body``, an explicit LAC packet (wire section 8.4)."""

    txn_id: int
    ledger_id: int
    master_key: bytes
    body: bytes


class ForceLedgerCall(BookieRequest, gc=False):
    """Sync the entries of a ledger that were written with deferred sync."""

    txn_id: int
    ledger_id: int


class BookieInfoCall(BookieRequest, gc=False):
    """Get disk space; ``requested`` has bit 1 for the total and bit 2 for the free bytes."""

    txn_id: int
    requested: int


class ListEntriesCall(BookieRequest, gc=False):
    """List the entries of a ledger that the bookie has."""

    txn_id: int
    ledger_id: int


class AuthCall(msgspec.Struct, frozen=True, gc=False):
    """A step of a login; the codec repeats ``header`` in the answer. ``plugin_name`` None: without its message."""

    txn_id: int
    header: bytes
    plugin_name: str | None
    token: bytes


class StartTlsCall(msgspec.Struct, frozen=True, gc=False):
    """Switch the connection to TLS."""

    txn_id: int


class UnknownCall(msgspec.Struct, frozen=True, gc=False):
    """An operation of the protocol without messages; the codec repeats ``header`` in the answer."""

    txn_id: int
    header: bytes


class RefusedCall(msgspec.Struct, frozen=True, gc=False):
    """A request that the protocol rejects; it does not reach a handler."""

    call: RequestCall
    status: Status


class Junk(msgspec.Struct, frozen=True, gc=False):
    """Invalid bytes, after which the connection is closed; always the last call of a connection."""

    reason: str
    is_logged: bool = True


QueuedRead: TypeAlias = ReadCall | LongPollRead | BatchReadRequest | ReadLacCall | ListEntriesCall
"""Requests that wait for their turn in a read lane."""

HandshakeCall: TypeAlias = AuthCall | StartTlsCall
"""Requests about the connection itself."""

ReceivedCall: TypeAlias = AddRun | QueuedRead | WriteLacCall | ForceLedgerCall | BookieInfoCall
"""Requests for the bookie's handler, decoded one at a time."""

BookieCall: TypeAlias = ReceivedCall | ReadRun
"""Requests for the bookie's handler."""

SingleCall: TypeAlias = QueuedRead | WriteLacCall | ForceLedgerCall | BookieInfoCall | HandshakeCall | UnknownCall
"""Requests with one answer each."""

RequestCall: TypeAlias = AddRun | SingleCall
"""All requests that can be answered."""

Call: TypeAlias = BookieCall | HandshakeCall | RefusedCall | Junk
"""All results of decoding a peer's bytes."""


_ERRORS_OF_LAST_ENTRY = frozenset({Status.IO_ERROR, Status.UNKNOWN_LEDGER_STATE, Status.NO_SUCH_ENTRY})


class AddAnswer(msgspec.Struct, frozen=True, gc=False):
    """Outcome of an add."""

    txn_id: int
    status: Status


class ReadAnswer(msgspec.Struct, frozen=True, gc=False):
    """Outcome of a read; a body may come with an error too (wire section 5.2)."""

    txn_id: int
    status: Status
    body: bytes | None
    max_last_add_confirmed: int | None

    @property
    def entry_status(self) -> Status:
        """The outcome for the entry itself, if the read does not fence.

        A Java bookie answers with the error of its last entry, and the body, if it cannot find the last add confirmed
        (wire section 5.2). The digest shows whether the body is good.
        """
        return Status.OK if self.body and self.status in _ERRORS_OF_LAST_ENTRY else self.status


class ReadRunAnswer(msgspec.Struct, frozen=True, gc=False):
    """Answer to the next reads of a run: bodies if the status is OK, else the status of one read."""

    status: Status
    bodies: list[bytes]
    lac: int | None


class LongPollAnswer(ReadAnswer, frozen=True, gc=False):
    """Outcome of a long poll with piggyback; ``entry_id`` is that of the body, -1 without one."""

    entry_id: int
    lac_changed_ms: int | None


class ReadLacAnswer(msgspec.Struct, frozen=True, gc=False):
    """Outcome of a LAC read; a body is None if the bookie does not have it."""

    txn_id: int
    status: Status
    lac_body: bytes | None
    last_entry_body: bytes | None


class BookieInfoAnswer(msgspec.Struct, frozen=True, gc=False):
    """Disk space in bytes; None for values that were not requested."""

    txn_id: int
    status: Status
    total_bytes: int | None
    free_bytes: int | None


class ListEntriesAnswer(msgspec.Struct, frozen=True, gc=False):
    """The entries of a ledger that a bookie has; None with an error, or if the peer's list cannot be decoded."""

    txn_id: int
    status: Status
    entries: EntryList | None


class EntriesAnswer(msgspec.Struct, frozen=True, gc=False):
    """Outcome of a batch read: the bodies from the first entry on, up to one that is missing or has no room.

    ``block``: they, as ``v2_bookie.encode_entries`` encodes them; many clients may get the same.
    """

    txn_id: int
    status: Status
    block: bytes


class AuthAnswer(msgspec.Struct, frozen=True, gc=False):
    """The bookie's step of an authentication."""

    txn_id: int
    status: Status
    plugin_name: str
    payload: bytes


class OtherAnswer(msgspec.Struct, frozen=True, gc=False):
    """An answer of which only the status counts, or one to an operation that this client does not send."""

    txn_id: int
    status: Status


Answer: TypeAlias = AddAnswer | ReadAnswer | ReadLacAnswer | BookieInfoAnswer | ListEntriesAnswer | OtherAnswer
"""Answers as a client decodes them."""

BookieAnswer: TypeAlias = (
    ReadAnswer
    | ReadRunAnswer
    | EntriesAnswer
    | ReadLacAnswer
    | BookieInfoAnswer
    | ListEntriesAnswer
    | AuthAnswer
    | Status
)
"""Answers of a bookie: only a status if there is nothing else to report, as in every rejection."""
