"""Which entries of a ledger a check reads: all of them, some ranges, or a sample, of all or of some bookies. Pure.

A sample has, of each segment, the first and the last entry that each ensemble member stores, and one entry of each of
``share`` times as many equal blocks as there are entries, or of so many that each member stores about ``each_min`` of
them. The seed, the ledger and the block determine which one, so the same seed reads the same entries again.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
import struct
from collections.abc import Iterator

import msgspec

from bkctl.runtime.client.reader import ENTRIES_WITHOUT_END_MAX
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.replication.judge.fragments import EntryRange, first_stored, in_and_out_of, last_stored
from bkctl.storage.ids import ENTRY_ID_MAX


class Sample(msgspec.Struct, frozen=True):
    """A share of the entries, at most 1; 0: only the first and the last entries, and about ``each_min`` others of each
    member of the ensemble."""

    share: float
    seed: int
    each_min: int = 0


class CheckScope(msgspec.Struct, frozen=True):
    """``ranges``: ascending, without common entries. Without ``has_open_end``, the last segment of a ledger that is not
    closed is left out. With ``bookie_ids``, only the copies of these are read: only whether the check is clean counts
    then, because other bookies may have an entry that these lack."""

    ranges: tuple[EntryRange, ...] = (EntryRange(0, ENTRY_ID_MAX),)
    sample: Sample | None = None
    has_open_end: bool = True
    bookie_ids: frozenset[str] | None = None

    def last_from(self, first_entry_id: int) -> int | None:
        """The last entry of the ranges, if they name at most ENTRIES_WITHOUT_END_MAX entries from this one on."""
        count = sum(
            EntryRange(max(each.first_entry_id, first_entry_id), each.last_entry_id).count for each in self.ranges
        )
        return self.ranges[-1].last_entry_id if count <= ENTRIES_WITHOUT_END_MAX else None

    def entry_ids(self, ledger_id: int, metadata: LedgerMetadata, segment: EntryRange) -> Iterator[int]:
        """The entries to check of one segment, ascending."""
        for each in self.within(segment):
            if self.sample is None:
                yield from range(each.first_entry_id, each.last_entry_id + 1)
            else:
                yield from _sampled(self.sample, ledger_id, metadata, each)

    def within(self, entries: EntryRange) -> tuple[EntryRange, ...]:
        """The parts of ``entries`` that are in the ranges."""
        return in_and_out_of((entries,), self.ranges)[0]


WHOLE = CheckScope()


def _sampled(sample: Sample, ledger_id: int, metadata: LedgerMetadata, entries: EntryRange) -> Iterator[int]:
    members = range(metadata.ensemble_size)
    ends = {find(entries, member, *metadata.sizes) for member in members for find in (first_stored, last_stored)}
    ordered = heapq.merge(
        sorted(each for each in ends if each >= 0), _one_of_each_block(sample, ledger_id, metadata, entries)
    )
    yield from (entry_id for entry_id, _ in itertools.groupby(ordered))


def _one_of_each_block(sample: Sample, ledger_id: int, metadata: LedgerMetadata, entries: EntryRange) -> Iterator[int]:
    blocks_min = math.ceil(sample.each_min * metadata.ensemble_size / metadata.write_quorum_size)
    blocks = min(entries.count, max(blocks_min, math.ceil(entries.count * sample.share)))
    for block in range(blocks):
        start, stop = entries.count * block // blocks, entries.count * (block + 1) // blocks
        key = struct.pack(">qqq", sample.seed, ledger_id, entries.first_entry_id + start)
        digest = hashlib.blake2b(key, digest_size=8).digest()
        yield entries.first_entry_id + start + int.from_bytes(digest) % (stop - start)
