"""List of the entries of a ledger that a bookie has: the blob of wire section 11.

A list consists of groups. A group is one run of consecutive ids, or runs of equal length at equal distances. For a
striped ledger, of which a bookie has for example two entries out of three, one group is enough. Java writes one group
per run, which can be millions.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bkctl.runtime.errors import ProtocolError
from bkctl.storage.ids import INVALID_ENTRY_ID

_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")
ENTRY_GROUP_BYTES = _GROUP.size
"""A group on the wire."""
_VERSION = 0
_INT32_MAX = 2**31 - 1


class EntryGroup(NamedTuple):
    """Runs of ``size`` consecutive ids: one at ``first_start``, then one every ``period`` ids up to ``last_start``."""

    first_start: int
    last_start: int
    size: int
    period: int
    """0: there is only one run."""


class EntryList:
    """Ids of entries, in ascending groups that do not overlap."""

    def __init__(self, groups: Iterable[EntryGroup] = ()) -> None:
        self.groups = tuple(groups)
        self._starts = [group.first_start for group in self.groups]

    def __contains__(self, entry_id: int) -> bool:
        position = bisect.bisect_right(self._starts, entry_id) - 1
        if position < 0:
            return False
        first, last, size, period = self.groups[position]
        if entry_id >= last + size:
            return False
        return (entry_id - first) % period < size if period else entry_id - first < size

    def __iter__(self) -> Iterator[int]:
        """All ids, ascending."""
        for first, last, size, period in self.groups:
            for start in range(first, last + 1, period or 1):
                yield from range(start, start + size)

    def first_from(self, entry_id: int) -> int | None:
        """The first id of the list that is not below ``entry_id``."""
        position = bisect.bisect_right(self._starts, entry_id) - 1
        if position >= 0:
            first, last, size, period = self.groups[position]
            if entry_id < last + size:
                return entry_id if entry_id in self else first + ((entry_id - first) // period + 1) * period
        return self._starts[position + 1] if position + 1 < len(self._starts) else None

    def __len__(self) -> int:
        return sum(group.size * _run_count(group) for group in self.groups)

    @property
    def last_entry_id(self) -> int:
        """The highest id; -1: the list is empty."""
        return self.groups[-1].last_start + self.groups[-1].size - 1 if self.groups else INVALID_ENTRY_ID

    @property
    def run_count(self) -> int:
        """Number of maximal runs of consecutive ids."""
        return sum(map(_run_count, self.groups))


class EntryListBuilder:
    """Collects ascending ids. Memory use depends on the number of groups, not of ids."""

    def __init__(self) -> None:
        self._groups: list[EntryGroup] = []
        self._start = 0
        self._size = 0

    @property
    def group_count(self) -> int:
        """Number of groups so far."""
        return len(self._groups)

    def extend(self, entry_ids: Iterable[int]) -> None:
        """Add ids, which must be ascending and greater than all earlier ones."""
        start, size = self._start, self._size
        for entry_id in entry_ids:
            if size and entry_id == start + size and size < _INT32_MAX:
                size += 1
                continue
            if size:
                self._close(start, size)
            start, size = entry_id, 1
        self._start, self._size = start, size

    def finish(self) -> EntryList:
        """The list of all added ids."""
        if self._size:
            self._close(self._start, self._size)
            self._size = 0
        return EntryList(self._groups)

    def _close(self, start: int, size: int) -> None:
        if self._groups:
            former = self._groups[-1]
            period = start - former.last_start
            if former.size == size and former.period in {0, period} and period <= _INT32_MAX:
                self._groups[-1] = EntryGroup(former.first_start, start, size, period)
                return
        self._groups.append(EntryGroup(start, start, size, 0))


def encode_entry_list(entries: EntryList, size_bytes_max: int) -> bytes | None:
    """Encode the blob as Java does if that fits, otherwise with grouped runs; None if neither fits."""
    room_count = (size_bytes_max - _HEADER.size) // _GROUP.size
    if entries.run_count <= room_count:
        groups = [EntryGroup(start, start, group.size, 0) for group in entries.groups for start in _starts(group)]
    elif len(entries.groups) <= room_count:
        groups = list(entries.groups)
    else:
        return None
    return _HEADER.pack(_VERSION, len(groups)) + b"".join(_GROUP.pack(*group) for group in groups)


def decode_entry_list(blob: bytes) -> EntryList:
    """Decode a blob; ProtocolError if it is invalid."""
    if len(blob) < _HEADER.size:
        raise ProtocolError(f"a list of entries of {len(blob)} bytes")
    version, count = _HEADER.unpack_from(blob)
    if version > _VERSION or len(blob) != _HEADER.size + count * _GROUP.size:
        raise ProtocolError(f"a list of entries of version {version} with {count} groups in {len(blob)} bytes")
    groups = [EntryGroup(*fields) for fields in _GROUP.iter_unpack(memoryview(blob)[_HEADER.size :])]
    end = 0
    for group in groups:
        first, last, size, period = group
        is_run = last == first
        is_series = period > 0 and last > first and (last - first) % period == 0 and size <= period
        if first < end or size < 1 or not (is_run or is_series):
            raise ProtocolError(f"a list of entries with the group {tuple(group)}")
        end = last + size
    return EntryList(groups)


def _run_count(group: EntryGroup) -> int:
    return 1 + (group.last_start - group.first_start) // group.period if group.period else 1


def _starts(group: EntryGroup) -> Iterator[int]:
    return iter(range(group.first_start, group.last_start + 1, group.period or 1))
