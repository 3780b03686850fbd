"""Frames: a length word (u32, big-endian, itself not counted) and as many bytes. Source: wire section 1."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from runtime.errors import ProtocolError

FRAME_BYTES_MAX = 5 * 1024 * 1024
"""Default limit of a frame, its length word included (nettyMaxFrameSizeBytes)."""

LENGTH = struct.Struct(">I")


def encode_frame(payload: bytes) -> bytes:
    """Put the length word before a payload."""
    return LENGTH.pack(len(payload)) + payload


class FrameSplitter:
    """Gathers the bytes of one connection and cuts them into frames.

    The transport reads straight into ``free_space``; ``advance`` says how much came; ``payloads`` then gives all frames
    that are complete. One partial frame at most is moved per read. The buffer grows to the frame that needs it and
    returns to its first size once it is empty and no longer filled by such frames.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX, buffer_bytes: int = 256 * 1024) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer_bytes = buffer_bytes
        self._start = 0
        self._end = 0
        self._largest_frame_bytes = 0
        self._allocate(buffer_bytes)

    def free_space(self) -> memoryview:
        """Room for the next bytes, never empty. Valid until ``advance``."""
        waiting = self._end - self._start
        if waiting == 0:
            if len(self._buffer) > self._buffer_bytes >= self._largest_frame_bytes:
                self._allocate(self._buffer_bytes)
            self._largest_frame_bytes = 0
        elif self._start > 0 or self._end == len(self._buffer):
            rest = self._view[self._start : self._end]
            needed = self._bytes_needed(waiting)
            if needed > len(self._buffer):
                self._allocate(needed)
            self._view[:waiting] = rest
        self._start, self._end = 0, waiting
        return self._view[waiting:]

    def advance(self, received_bytes: int) -> None:
        """Take note of bytes that were written to the start of ``free_space``."""
        self._end += received_bytes

    def payloads(self) -> Iterator[bytes]:
        """Take out the payloads of all complete frames, one copy each.

        ProtocolError, in its turn, for a frame that is empty or too long: known as soon as the length word is there.
        A caller may stop in between and ask again later.
        """
        view = self._view
        while self._end - self._start >= LENGTH.size:
            body_start = self._start + LENGTH.size
            (payload_bytes,) = LENGTH.unpack_from(view, self._start)
            if payload_bytes + LENGTH.size > self._frame_bytes_max:
                raise ProtocolError(f"a frame of {payload_bytes} bytes is longer than the limit allows")
            if payload_bytes == 0:
                raise ProtocolError("an empty frame is no message")
            stop = body_start + payload_bytes
            if stop > self._end:
                return
            frame_bytes = stop - self._start
            self._largest_frame_bytes = max(self._largest_frame_bytes, frame_bytes)
            self._start = stop
            yield bytes(view[body_start:stop])

    def _bytes_needed(self, waiting: int) -> int:
        """Size that the buffer must have to go on: that of the first frame in it, or more if that one is complete."""
        if waiting < LENGTH.size:
            return LENGTH.size
        frame_bytes = LENGTH.size + int(LENGTH.unpack_from(self._view, self._start)[0])
        return frame_bytes if frame_bytes > waiting else waiting + self._buffer_bytes

    def _allocate(self, size_bytes: int) -> None:
        self._buffer = bytearray(size_bytes)
        self._view = memoryview(self._buffer)
