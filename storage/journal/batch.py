"""Entries of a journal put together by ledger, for replay: what comes one by one there is applied many at a time."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from storage.entry import ENTRY_HEADER_BYTES_MIN
from storage.framing import LENGTH_BYTES
from storage.ids import EntryId, LedgerId
from storage.journal.checked_groups import JournalGroup
from storage.journal.format import JournalRecord

_FRAME_HEAD = struct.Struct(">iqqq")
"""Length word, then ledger id, entry id and last add confirmed. Behind the shortest record there is padding enough."""


class LedgerEntries(NamedTuple):
    """Entries of one ledger in the order of the journal: three columns of the same length."""

    entry_ids: list[EntryId]
    bodies: list[bytes]
    last_adds_confirmed: list[EntryId]


def batched(
    units: Iterable[JournalGroup | JournalRecord], batch_bytes_min: int
) -> Iterator[list[JournalGroup] | JournalRecord]:
    """The same units in order; consecutive groups are joined to batches that end with the group that reaches
    ``batch_bytes_min``."""
    batch: list[JournalGroup] = []
    batch_bytes = 0
    for unit in units:
        if isinstance(unit, JournalRecord):
            if batch:
                yield batch
                batch, batch_bytes = [], 0
            yield unit
            continue
        batch.append(unit)
        batch_bytes += unit.padding_offset - unit.start_offset
        if batch_bytes >= batch_bytes_min:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


def entries_by_ledger(
    groups: Sequence[JournalGroup],
) -> tuple[dict[LedgerId, LedgerEntries], list[tuple[int, bytes]]]:
    """The entries of whole groups; and what else is in them, in order, each record with its offset in the file."""
    others: list[tuple[int, bytes]] = []
    entry_ids: defaultdict[LedgerId, list[EntryId]] = defaultdict(list)
    bodies: defaultdict[LedgerId, list[bytes]] = defaultdict(list)
    confirmed: defaultdict[LedgerId, list[EntryId]] = defaultdict(list)
    unpack = _FRAME_HEAD.unpack_from
    for group in groups:
        data = group.data
        for start in group.starts:
            length, ledger_id, entry_id, last_add_confirmed = unpack(data, start)
            first = start + LENGTH_BYTES
            if entry_id < 0 or length < ENTRY_HEADER_BYTES_MIN:
                others.append((group.start_offset + start - group.starts[0], data[first : first + length]))
                continue
            entry_ids[ledger_id].append(entry_id)
            bodies[ledger_id].append(data[first : first + length])
            confirmed[ledger_id].append(last_add_confirmed)
    return {each: LedgerEntries(ids, bodies[each], confirmed[each]) for each, ids in entry_ids.items()}, others
