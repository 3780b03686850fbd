"""Frames: a length word (u32, big-endian, itself not counted) and as many bytes. Source: wire section 1."""

from __future__ import annotations

import struct

from runtime.errors import ProtocolError

FRAME_BYTES_MAX = 5 * 1024 * 1024
"""Default limit of a frame, its length word included (nettyMaxFrameSizeBytes)."""

READ_BYTES = 64 * 1024
"""What one read of a socket brings at most."""

LENGTH = struct.Struct(">I")

_NOTHING = memoryview(b"")


def encode_frame(payload: bytes) -> bytes:
    """Put the length word before a payload."""
    return LENGTH.pack(len(payload)) + payload


def read_buffer(size_bytes: int = READ_BYTES) -> memoryview:
    """A buffer to read sockets into. One is enough for all connections of a loop: each read is cut up at once."""
    return memoryview(bytearray(size_bytes))


class FrameSplitter:
    """Gathers the bytes of one connection and cuts them into frames.

    The transport reads into ``free_space``; ``advance`` says how much came; ``payloads`` then gives all frames that are
    complete and keeps the beginning of the one that is not. What is held grows with the bytes that were received, to
    their double at most: a length word alone costs no memory, a connection at rest none at all.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX, buffer: memoryview | None = None) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = read_buffer() if buffer is None else buffer
        self._received = _NOTHING
        self._start = 0
        self._head = _NOTHING
        self._is_reading_into_head = False
        self.unfinished_bytes = 0
        """Bytes here of a frame whose end has not come; 0 between two frames."""
        self.gathered_count = 0
        """Frames that came in more than one read, so far."""

    @property
    def promised_bytes(self) -> int:
        """Size of that frame, its length word included; 0 between two frames and before its length is known."""
        if self.unfinished_bytes < LENGTH.size:
            return 0
        return LENGTH.size + int(LENGTH.unpack_from(self._head)[0])

    def free_space(self) -> memoryview:
        """Room for the next bytes, never empty. Valid until ``advance``."""
        have = self.unfinished_bytes
        self._is_reading_into_head = self.promised_bytes - have >= len(self._buffer)
        if not self._is_reading_into_head:
            return self._buffer
        if have == len(self._head):
            self._resize_head(min(2 * have, self.promised_bytes))
        return self._head[have:]

    def advance(self, received_bytes: int) -> None:
        """Take note of bytes that were written to the start of ``free_space``."""
        if self._is_reading_into_head:
            self.unfinished_bytes += received_bytes
            return
        fresh = self._buffer[:received_bytes]
        self._received = memoryview(bytes(self._received) + bytes(fresh)) if self._received else fresh

    def payloads(self) -> list[bytes]:
        """Take out the payloads of all complete frames; ask again until there are none.

        ProtocolError for a frame that is empty or too long, once those before it are taken out: known as soon as its
        length word is there.
        """
        payloads: list[bytes] = []
        if self.unfinished_bytes:
            payload = self._complete_head()
            if payload is None:
                return payloads
            payloads.append(payload)
        received = bytes(self._received[self._start :])
        start, end = 0, len(received)
        while end - start >= LENGTH.size:
            body_start = start + LENGTH.size
            (payload_bytes,) = LENGTH.unpack_from(received, start)
            if not 0 < payload_bytes <= self._frame_bytes_max - LENGTH.size:
                if not payloads:
                    raise _length_error(payload_bytes)
                self._start += start
                return payloads
            stop = body_start + payload_bytes
            if stop > end:
                break
            payloads.append(received[body_start:stop])
            start = stop
        self._start += start
        self._move_to_head(end)
        self._received, self._start = _NOTHING, 0
        return payloads

    def set_aside(self) -> None:
        """Copy what was not taken out, before the buffer serves another read."""
        self._received = memoryview(bytes(self._received[self._start :]))
        self._start = 0

    def drop(self) -> None:
        """Forget everything: the connection is gone, and it may take a while until its objects are."""
        self._received, self._start = _NOTHING, 0
        self._head, self.unfinished_bytes = _NOTHING, 0

    def _complete_head(self) -> bytes | None:
        """Move bytes to the unfinished frame; its payload if that makes it complete."""
        self._move_to_head(LENGTH.size)
        if self.unfinished_bytes >= LENGTH.size:
            (payload_bytes,) = LENGTH.unpack_from(self._head)
            if not 0 < payload_bytes <= self._frame_bytes_max - LENGTH.size:
                raise _length_error(payload_bytes)
            frame_bytes = LENGTH.size + payload_bytes
            self._move_to_head(frame_bytes)
            if self.unfinished_bytes == frame_bytes:
                payload = bytes(self._head[LENGTH.size : frame_bytes])
                self._head, self.unfinished_bytes = _NOTHING, 0
                self.gathered_count += 1
                return payload
        self._received, self._start = _NOTHING, 0
        return None

    def _move_to_head(self, wanted_bytes: int) -> None:
        """Bring the unfinished frame to so many bytes, or to as many as there are."""
        have = self.unfinished_bytes
        part = self._received[self._start : self._start + max(0, wanted_bytes - have)]
        if not part:
            return
        total = have + len(part)
        if total > len(self._head):
            self._resize_head(max(total, min(2 * have, self.promised_bytes)))
        self._head[have:total] = part
        self._start += len(part)
        self.unfinished_bytes = total

    def _resize_head(self, size_bytes: int) -> None:
        old, self._head = self._head, memoryview(bytearray(size_bytes))
        self._head[: len(old)] = old


def _length_error(payload_bytes: int) -> ProtocolError:
    if payload_bytes == 0:
        return ProtocolError("an empty frame is not a message")
    return ProtocolError(f"a frame of {payload_bytes} bytes exceeds the limit")
