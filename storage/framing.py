"""What journal and entry log have in common: payloads behind an i32 length, and files read through a moving window."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from storage.ports import Buffer, File

LENGTH_BYTES = 4

_LENGTH = struct.Struct(">i")
_WINDOW_BYTES = 1024 * 1024
_ZEROS = re.compile(rb"\x00*")


def framed(payloads: Sequence[Buffer]) -> list[Buffer]:
    """Parts to be written one behind the other: a length word in front of every payload.

    Every loop here runs inside the interpreter's C code: a lane that ran bytecode per record would stop the event loop.
    """
    parts: list[Buffer] = [b""] * (2 * len(payloads))
    parts[0::2] = map(_LENGTH.pack, map(len, payloads))
    parts[1::2] = payloads
    return parts


def framed_bytes(payloads: Sequence[Buffer], lengths: AbstractSet[int] | None = None) -> bytes:
    """The same in one piece, no payload at all included. ``lengths``: all that there are, where that is known."""
    if lengths is None:
        lengths = set(map(len, payloads))
    if len(lengths) != 1:
        return b"".join(framed(payloads))
    # The one length word stands between the payloads like a separator: half as many parts to join.
    return _LENGTH.pack(*lengths).join([b"", *payloads])


class ReadWindow:
    """A file read mostly forwards in small pieces, with few large reads. The size is taken once, at the start."""

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
        """All bytes that are in memory, ``size_bytes`` at ``offset`` among them, and where in them ``offset`` is."""
        self._load(size_bytes, offset)
        return self._data, offset - self._start

    def skip(self, run: re.Pattern[bytes], offset: int) -> int:
        """Offset of the first byte at or behind ``offset`` which a pattern like ``x*`` does not match, or the size."""
        while offset < self.size_bytes:
            self._load(1, offset)
            match = run.match(self._data, offset - self._start)
            end = self._start + len(self._data)
            behind = offset if match is None else self._start + match.end()
            if behind < end:
                return behind
            # Nothing at all is loaded if the file has become shorter than it was.
            offset = end if self._data else self.size_bytes
        return max(offset, self.size_bytes)

    def skip_zeros(self, offset: int) -> int:
        """Offset of the first byte at or behind ``offset`` that is not zero, or the size."""
        return self.skip(_ZEROS, offset)

    def data_end(self, offset: int) -> int:
        """Offset just behind the last byte at or behind ``offset`` that is not zero; ``offset`` if all are."""
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
