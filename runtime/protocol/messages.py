"""Requests to a bookie and its answers, apart from the encoding that carried them. Source: wire sections 4.3 and 5.

Ledger and entry ids are whatever the peer sent, negative ones included; the bookie's rules judge them. A transaction id
(u64) is the requester's and is echoed.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from runtime.protocol.status import Status


class AddCall(msgspec.Struct, frozen=True, gc=False):
    """Store ``body`` (wire section 8.1); ``master_key`` is any byte string."""

    txn_id: int
    ledger_id: int
    entry_id: int
    master_key: bytes
    body: bytes
    is_recovery_add: bool
    is_high_priority: bool
    is_deferred_sync: bool


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


class SelfAnsweredCall(msgspec.Struct, frozen=True, gc=False):
    """A request whose answer follows from the protocol alone: the complete frame to send back."""

    frame: bytes


Call: TypeAlias = (
    AddCall
    | ReadCall
    | ReadLacCall
    | WriteLacCall
    | ForceLedgerCall
    | BookieInfoCall
    | ListEntriesCall
    | SelfAnsweredCall
)


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
    """Disk space in bytes, None where it was not told."""

    txn_id: int
    status: Status
    total_bytes: int | None
    free_bytes: int | None


class ListEntriesAnswer(msgspec.Struct, frozen=True, gc=False):
    """Which entries of a ledger a bookie has: the blob of wire section 11, None with an error."""

    txn_id: int
    status: Status
    blob: bytes | None


class OtherAnswer(msgspec.Struct, frozen=True, gc=False):
    """An answer to an operation that this client does not send."""

    txn_id: int
    status: Status


Answer: TypeAlias = AddAnswer | ReadAnswer | ReadLacAnswer | BookieInfoAnswer | ListEntriesAnswer | OtherAnswer
