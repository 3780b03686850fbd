"""The part of an entry's body that a bookie reads: ids, last add confirmed, ledger length.

A body is what an add request carries and what journal and entry log keep unchanged: i64 ledger id, i64 entry id, i64
last add confirmed, i64 ledger length, then digest and data, which only clients read. Source: storage sections 3.6, 4.3.
"""

from __future__ import annotations

import struct

import msgspec

from storage.ids import EntryId, LedgerId
from storage.ports import Buffer

ENTRY_HEADER_BYTES_MIN = 24
"""Shorter bodies have no last add confirmed: refused when added, corruption when found on disk."""

ENTRY_HEADER_BYTES = 32
"""Header of every body that a client of BookKeeper makes."""

_IDS_AND_CONFIRMED = struct.Struct(">qqq")
_HEADER = struct.Struct(">qqqq")


class EntryHeader(msgspec.Struct, frozen=True, gc=False):
    """Start of an entry's body."""

    ledger_id: LedgerId
    entry_id: EntryId
    last_add_confirmed: EntryId
    length: int
    """Payload bytes of the ledger up to and with this entry; 0 when the body ends before this field."""


def decode_header(body: Buffer) -> EntryHeader:
    """Header of a body; ValueError below ``ENTRY_HEADER_BYTES_MIN`` bytes."""
    if len(body) >= ENTRY_HEADER_BYTES:
        return EntryHeader(*_HEADER.unpack_from(body))
    if len(body) < ENTRY_HEADER_BYTES_MIN:
        raise ValueError(f"an entry of {len(body)} bytes has no last add confirmed")
    ledger_id, entry_id, last_add_confirmed = _IDS_AND_CONFIRMED.unpack_from(body)
    return EntryHeader(ledger_id, entry_id, last_add_confirmed, 0)
