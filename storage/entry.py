"""The header of an entry's body, as far as a bookie reads it: ids, last add confirmed, ledger length.

Add requests carry the body, and journal and entry log store it unchanged: i64 ledger id, i64 entry id, i64 last add
confirmed, i64 ledger length, then digest and data, which only clients read. Source: storage sections 3.6, 4.3.
"""

from __future__ import annotations

import struct

import msgspec

from bkctl.storage.ids import EntryId, LedgerId
from bkctl.storage.ports import Buffer

ENTRY_HEADER_BYTES_MIN = 24
"""Shorter bodies have no last add confirmed: an add is rejected, and on disk they are corruption."""

ENTRY_HEADER_BYTES = 32
"""Header size in bodies of BookKeeper clients."""

_IDS_AND_CONFIRMED = struct.Struct(">qqq")
_HEADER = struct.Struct(">qqqq")


class EntryHeader(msgspec.Struct, frozen=True, gc=False):
    """Start of an entry's body."""

    ledger_id: LedgerId
    entry_id: EntryId
    last_add_confirmed: EntryId
    length: int
    """Payload bytes of the ledger up to and including this entry; 0 if the body ends before this field."""


def decode_header(body: Buffer) -> EntryHeader:
    """Decode the header of a body; ValueError below ``ENTRY_HEADER_BYTES_MIN`` bytes."""
    if len(body) >= ENTRY_HEADER_BYTES:
        return EntryHeader(*_HEADER.unpack_from(body))
    if len(body) < ENTRY_HEADER_BYTES_MIN:
        raise ValueError(f"an entry of {len(body)} bytes has no last add confirmed")
    ledger_id, entry_id, last_add_confirmed = _IDS_AND_CONFIRMED.unpack_from(body)
    return EntryHeader(ledger_id, entry_id, last_add_confirmed, 0)
