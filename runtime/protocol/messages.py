"""Requests to a bookie and its answers, apart from the encoding that carried them. Source: wire sections 4.3 and 5.

Ledger and entry ids are whatever the peer sent, negative ones included; the bookie's rules judge them. A transaction id
(u64) is the requester's and is echoed.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from runtime.protocol.entry_list import EntryList
from runtime.protocol.status import Status


class AddRun(msgspec.Struct, gc=False):
    """Adds of one read to one ledger, in their order: three columns of the same length.

    ``bodies`` are entries (wire section 8.1); ``master_key`` is any byte string. The shape is the same for one add and
    for hundreds, from the decoder to the answer, so that no step costs an object per add.
    """

    ledger_id: int
    master_key: bytes
    is_recovery_add: bool
    is_high_priority: bool
    is_deferred_sync: bool
    txn_ids: list[int]
    entry_ids: list[int]
    bodies: list[bytes]

    @property
    def is_plain(self) -> bool:
        """Whether no flag is set, as with all adds of a writer."""
        return not (self.is_recovery_add or self.is_high_priority or self.is_deferred_sync)

    @property
    def size_bytes(self) -> int:
        """Of all bodies."""
        return sum(map(len, self.bodies))

    def extend(self, txn_ids: list[int], entry_ids: list[int], bodies: list[bytes]) -> None:
        """Append adds."""
        self.txn_ids += txn_ids
        self.entry_ids += entry_ids
        self.bodies += bodies

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
        )
        del self.txn_ids[:count], self.entry_ids[:count], self.bodies[:count]
        return first

    def put_back(self, first: AddRun) -> None:
        """Undo a cut."""
        self.txn_ids[:0], self.entry_ids[:0], self.bodies[:0] = first.txn_ids, first.entry_ids, first.bodies


class ReadCall(msgspec.Struct, frozen=True, gc=False):
    """Read an entry, or the last one for -1; with a key in ``fence_with``, fence the ledger first."""

    txn_id: int
    ledger_id: int
    entry_id: int
    fence_with: bytes | None
    is_high_priority: bool


class ReadLacCall(msgspec.Struct, frozen=True, gc=False):
    """Give the explicit LAC packet and the last entry of a ledger."""

    txn_id: int
    ledger_id: int


class WriteLacCall(msgspec.Struct, frozen=True, gc=False):
    """Keep ``body``, an explicit LAC packet (wire section 8.4)."""

    txn_id: int
    ledger_id: int
    master_key: bytes
    body: bytes


class ForceLedgerCall(msgspec.Struct, frozen=True, gc=False):
    """Make durable what was written to a ledger with a deferred sync."""

    txn_id: int
    ledger_id: int


class BookieInfoCall(msgspec.Struct, frozen=True, gc=False):
    """Tell disk space; ``requested`` has bit 1 for the total and bit 2 for the free bytes."""

    txn_id: int
    requested: int


class ListEntriesCall(msgspec.Struct, frozen=True, gc=False):
    """Tell which entries of a ledger are here."""

    txn_id: int
    ledger_id: int


class AuthCall(msgspec.Struct, frozen=True, gc=False):
    """A step of an authentication; ``header`` is what the codec repeats in the answer."""

    txn_id: int
    header: bytes


class StartTlsCall(msgspec.Struct, frozen=True, gc=False):
    """Go on in TLS."""

    txn_id: int


class UnknownCall(msgspec.Struct, frozen=True, gc=False):
    """An operation of the protocol that has no messages; ``header`` is what the codec repeats in the answer."""

    txn_id: int
    header: bytes


class RefusedCall(msgspec.Struct, frozen=True, gc=False):
    """A request that the protocol alone refuses: no handler needs to see it."""

    call: RequestCall
    status: Status


class Junk(msgspec.Struct, frozen=True, gc=False):
    """Bytes that are no request, after which the connection is closed; always the last call of a connection."""

    reason: str


QueuedRead: TypeAlias = ReadCall | ReadLacCall | ListEntriesCall
"""Requests that wait for their turn in a lane of reads."""

HandshakeCall: TypeAlias = AuthCall | StartTlsCall
"""Requests about the connection itself."""

BookieCall: TypeAlias = AddRun | QueuedRead | WriteLacCall | ForceLedgerCall | BookieInfoCall
"""Requests for the bookie's handler."""

SingleCall: TypeAlias = QueuedRead | WriteLacCall | ForceLedgerCall | BookieInfoCall | HandshakeCall | UnknownCall
"""Requests with one answer each."""

RequestCall: TypeAlias = AddRun | SingleCall
"""Everything that can be answered."""

Call: TypeAlias = BookieCall | HandshakeCall | RefusedCall | Junk
"""What a codec makes of the bytes of a peer."""


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


class ReadLacAnswer(msgspec.Struct, frozen=True, gc=False):
    """Outcome of a LAC read; None for what the bookie does not have."""

    txn_id: int
    status: Status
    lac_body: bytes | None
    last_entry_body: bytes | None


class BookieInfoAnswer(msgspec.Struct, frozen=True, gc=False):
    """Disk space in bytes, None for what was not asked for."""

    txn_id: int
    status: Status
    total_bytes: int | None
    free_bytes: int | None


class ListEntriesAnswer(msgspec.Struct, frozen=True, gc=False):
    """Which entries of a ledger a bookie has; None with an error, or where the peer's list cannot be read."""

    txn_id: int
    status: Status
    entries: EntryList | None


class AuthAnswer(msgspec.Struct, frozen=True, gc=False):
    """The bookie's step of an authentication."""

    txn_id: int
    status: Status
    plugin_name: str
    payload: bytes


class OtherAnswer(msgspec.Struct, frozen=True, gc=False):
    """An answer to an operation that this client does not send."""

    txn_id: int
    status: Status


Answer: TypeAlias = AddAnswer | ReadAnswer | ReadLacAnswer | BookieInfoAnswer | ListEntriesAnswer | OtherAnswer
"""What a client is answered."""

BookieAnswer: TypeAlias = ReadAnswer | ReadLacAnswer | BookieInfoAnswer | ListEntriesAnswer | AuthAnswer | Status
"""What a bookie answers: a status alone where there is nothing else to say, as with every refusal."""
