"""Identifiers and reserved values of the stored formats.

Source: wire sections 8.1 and 10, storage sections 3.6 and 4.3.
"""

from __future__ import annotations

import enum
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
"""No entry: an empty ledger's last entry, an unconfirmed ledger's last add confirmed, "the last one" in a read."""

ENTRY_ID_MAX: EntryId = 2**63 - 1
"""Largest number that the formats can hold for an entry id."""

LEDGER_ID_MAX: LedgerId = 2**63 - 2
"""Largest ledger id that may exist. 2^63-1 makes every Java bookie's collector delete all its ledgers."""


class MetaEntryKind(enum.IntEnum):
    """Entry ids below zero that give a journal record another meaning than "entry"."""

    LEDGER_KEY = -0x1000
    FENCE = -0x2000
    FORCE = -0x4000
    EXPLICIT_LAC = -0x8000


class EntryLocation(NamedTuple):
    """Where an entry's body starts: the offset points behind the size word."""

    log_id: EntryLogId
    offset: int


class LogMark(NamedTuple):
    """Position in a journal before which every record is durable in ledger storage. Orders by id, then offset."""

    journal_id: JournalId
    offset: int


def pack_location(location: EntryLocation) -> PackedLocation:
    """The 64 bits that stand for a location on disk."""
    return location.log_id << _OFFSET_BITS | location.offset


def unpack_location(packed: PackedLocation) -> EntryLocation:
    """What ``pack_location`` packed; of a negative number, a negative id."""
    return EntryLocation(packed >> _OFFSET_BITS, packed & _OFFSET_MASK)
