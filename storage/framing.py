"""Shared by journal and entry log: payloads with an i32 length prefix, and reading through a moving window."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from bkctl.storage.ports import Buffer, File

LENGTH_BYTES = 4

_LENGTH = struct.Struct(">i")
_WINDOW_BYTES = 1024 * 1024
_ZEROS = re.compile(rb"\x00*")


def framed(payloads: Sequence[Buffer]) -> list[Buffer]:
    """Parts to write in sequence: a length word before every payload.

    All loops here run in the interpreter's C code. Bytecode per record in a lane would block the event loop (GIL).
    """
    parts: list[Buffer] = [b""] * (2 * len(payloads))
    parts[0::2] = map(_LENGTH.pack, map(len, payloads))
    parts[1::2] = payloads
    return parts


def framed_bytes(payloads: Sequence[Buffer], lengths: AbstractSet[int] | None = None) -> bytes:
    """Like ``framed``, but joined; ``payloads`` may be empty. ``lengths``: the distinct lengths, if known."""
    if lengths is None:
        lengths = set(map(len, payloads))
    if len(lengths) != 1:
        return b"".join(framed(payloads))
    # With one common length, join with the length word as separator: half as many parts.
    return _LENGTH.pack(*lengths).join([b"", *payloads])


class ReadWindow:
    """Reads a file mostly forwards in small pieces, with few large reads. The size is read once, at the start."""

    def __init__(self, file: File, window_bytes: int = _WINDOW_BYTES) -> None:
        self._file = file
        self._window_bytes = window_bytes
        self._data = b""
        self._start = 0
        self.size_bytes = file.size()

    def read(self, size_bytes: int, offset: int) -> bytes:
        """Up to ``size_bytes`` at ``offset``; shorter only at the end of the file. ``size_bytes`` must be bounded."""
        self._load(size_bytes, offset)
        first = offset - self._start
        return self._data[first : first + size_bytes]

    def loaded(self, size_bytes: int, offset: int) -> tuple[bytes, int]:
        """All bytes in memory, including ``size_bytes`` at ``offset``, and the position of ``offset`` in them."""
        self._load(size_bytes, offset)
        return self._data, offset - self._start

    def skip(self, run: re.Pattern[bytes], offset: int) -> int:
        """First offset from ``offset`` on that a pattern like ``x*`` does not match, or the file size."""
        while offset < self.size_bytes:
            self._load(1, offset)
            match = run.match(self._data, offset - self._start)
            end = self._start + len(self._data)
            behind = offset if match is None else self._start + match.end()
            if behind < end:
                return behind
            # Nothing is loaded if the file was truncated meanwhile.
            offset = end if self._data else self.size_bytes
        return max(offset, self.size_bytes)

    def skip_zeros(self, offset: int) -> int:
        """Offset of the first nonzero byte from ``offset`` on, or the file size."""
        return self.skip(_ZEROS, offset)

    def data_end(self, offset: int) -> int:
        """Offset after the last nonzero byte from ``offset`` on; ``offset`` if all bytes are zero."""
        end = offset
        while (offset := self.skip_zeros(offset)) < self.size_bytes:
            end = self._start + len(self._data.rstrip(b"\0"))
            offset = self._start + len(self._data)
        return end

    def _load(self, size_bytes: int, offset: int) -> None:
        if self._start <= offset and offset + size_bytes <= self._start + len(self._data):
            return
        left_bytes = max(0, self.size_bytes - offset)
        self._data = self._file.pread(min(max(size_bytes, self._window_bytes), left_bytes), offset)
        self._start = offset
