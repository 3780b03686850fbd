"""Identifiers and reserved values of the stored formats.

Source: wire sections 8.1 and 10, storage sections 3.6 and 4.3.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

LedgerId: TypeAlias = int
EntryId: TypeAlias = int
EntryLogId: TypeAlias = int
JournalId: TypeAlias = int
PackedLocation: TypeAlias = int
"""An ``EntryLocation`` in the 64 bits of its index row: id of the log in the upper half, offset in the lower."""

_OFFSET_BITS = 32
_OFFSET_MASK = 2**_OFFSET_BITS - 1

INVALID_ENTRY_ID: EntryId = -1
"""No entry: the last entry of an empty ledger, the LAC before any confirmation, "last entry" in a read."""

ENTRY_ID_MAX: EntryId = 2**63 - 1
"""Largest entry id that the formats can store."""

LEDGER_ID_MAX: LedgerId = 2**63 - 2
"""Largest valid ledger id. A ledger 2^63-1 would make the collector of every Java bookie delete all ledgers."""


class MetaEntryKind(enum.IntEnum):
    """Negative entry ids, which mark journal records that are not entries."""

    LEDGER_KEY = -0x1000
    FENCE = -0x2000
    FORCE = -0x4000
    EXPLICIT_LAC = -0x8000


class EntryLocation(NamedTuple):
    """Where an entry's body starts: the offset points after the size word."""

    log_id: EntryLogId
    offset: int


class LocationRun(NamedTuple):
    """Locations of consecutive entries in one log."""

    log_id: EntryLogId
    offsets: Sequence[int]


class LogMark(NamedTuple):
    """Journal position. All records before it are durable in ledger storage. Ordered by id, then offset."""

    journal_id: JournalId
    offset: int


def pack_location(location: EntryLocation) -> PackedLocation:
    """Pack a location into the 64 bits of its index row."""
    return location.log_id << _OFFSET_BITS | location.offset


def unpack_location(packed: PackedLocation) -> EntryLocation:
    """Reverse of ``pack_location``; a negative number gives a negative log id."""
    return EntryLocation(packed >> _OFFSET_BITS, packed & _OFFSET_MASK)
