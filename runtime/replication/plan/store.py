"""The ledgers of a plan, sorted into the order of work. A large plan is in a temporary file, not in memory."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, overload

import msgspec

from runtime.replication.plan.recovery_plan import LedgerPlan, PlanTotals
from storage.ports import File

IN_MEMORY_MAX: Final = 100_000
"""A plan with more ledgers goes to the file."""
_LENGTH: Final = struct.Struct("<I")
_READ_BYTES: Final = 512
"""Longer than almost every record with its length, so that one read gets both."""
_WRITE_BYTES: Final = 1 << 20


OpenTemporaryFile: TypeAlias = Callable[[], File | None]
"""A new file without a name; None if there is no place for one."""


class PlanStore(Sequence[LedgerPlan]):
    """Ledgers in the order of work: fewest surviving copies first, then the newest.

    Call ``add`` for each, then ``sort`` once. In the file a ledger takes 25 bytes of memory.
    """

    def __init__(self, open_file: OpenTemporaryFile, in_memory_max: int = IN_MEMORY_MAX) -> None:
        """``open_file`` is called only for a large plan."""
        self.totals = PlanTotals()
        self._open_file = open_file
        self._in_memory_max = in_memory_max
        self._ledgers: list[LedgerPlan] = []
        self._file: File | None = None
        self._size_bytes = 0
        self._unwritten = bytearray()
        self._offsets = array("q")
        self._ids = array("q")
        self._copies = array("i")
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(LedgerPlan)

    def add(self, ledger: LedgerPlan) -> None:
        """Add a ledger, in any order."""
        self.totals.add(ledger)
        if self._file is None:
            self._ledgers.append(ledger)
            if len(self._ledgers) > self._in_memory_max and (file := self._open_file()) is not None:
                self._file = file
                for each in self._ledgers:
                    self._append(file, each)
                self._ledgers = []
        else:
            self._append(self._file, ledger)

    def sort(self) -> None:
        """Finish the plan."""
        self._ledgers.sort(key=lambda ledger: (ledger.surviving_copies, -ledger.ledger_id))
        if self._file is not None:
            import numpy as np  # noqa: PLC0415  few plans are large, and its import takes long

            self._write(self._file)
            order = np.lexsort((-np.frombuffer(self._ids, np.int64), np.frombuffer(self._copies, np.int32)))
            self._offsets = array("q", np.frombuffer(self._offsets, np.int64)[order].tobytes())
            self._ids = self._copies = array("q")

    def close(self) -> None:
        """Delete the file, if there is one."""
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return len(self._ledgers) if self._file is None else len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> LedgerPlan: ...
    @overload
    def __getitem__(self, index: slice) -> list[LedgerPlan]: ...
    def __getitem__(self, index: int | slice) -> LedgerPlan | list[LedgerPlan]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if self._file is None:
            return self._ledgers[index]
        offset = self._offsets[index]
        found = self._file.pread(_READ_BYTES, offset)
        (size_bytes,) = _LENGTH.unpack_from(found)
        if size_bytes > len(found) - _LENGTH.size:
            found = self._file.pread(_LENGTH.size + size_bytes, offset)
        return self._decoder.decode(memoryview(found)[_LENGTH.size : _LENGTH.size + size_bytes])

    def _append(self, file: File, ledger: LedgerPlan) -> None:
        encoded = self._encoder.encode(ledger)
        self._offsets.append(self._size_bytes + len(self._unwritten))
        self._ids.append(ledger.ledger_id)
        self._copies.append(ledger.surviving_copies)
        self._unwritten += _LENGTH.pack(len(encoded)) + encoded
        if len(self._unwritten) >= _WRITE_BYTES:
            self._write(file)

    def _write(self, file: File) -> None:
        file.pwrite(self._unwritten, self._size_bytes)
        self._size_bytes += len(self._unwritten)
        self._unwritten = bytearray()
