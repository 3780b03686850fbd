"""Frames: a length word (u32, big-endian, does not count itself) and as many bytes. Source: wire section 1."""

from __future__ import annotations

import itertools
import struct

from bkctl.runtime.errors import ProtocolError

FRAME_BYTES_MAX = 5 * 1024 * 1024
"""Default limit of a frame, including its length word (nettyMaxFrameSizeBytes)."""

READ_BYTES = 64 * 1024
"""Maximum bytes of one socket read that may always be made."""

LONG_READ_BYTES = 512 * 1024
"""Maximum bytes of one while memory allows it: each read, and each run of adds, costs as much as a dozen adds."""

LENGTH = struct.Struct(">I")

_LONG_BYTES = 8 * 1024
"""From this size on, one more copy of a frame costs more than a view of it."""

_LIKE_COUNT_MIN = 8
"""From so many frames of equal length on, splitting them together costs less."""

_NOTHING = memoryview(b"")


def encode_frame(payload: bytes) -> bytes:
    """Prefix a payload with its length word."""
    return LENGTH.pack(len(payload)) + payload


def read_buffer(size_bytes: int = READ_BYTES) -> memoryview:
    """A buffer for socket reads. All connections of a loop can share it, because each read is split immediately."""
    return memoryview(bytearray(size_bytes))


class FrameSplitter:
    """Splits the bytes of one connection into frames.

    The transport reads into ``free_space`` and reports the size to ``advance``. ``payloads`` then returns all complete
    frames and keeps the beginning of an incomplete one. Memory use is at most twice the bytes received of that frame:
    a large length word alone costs no memory, and an idle connection none at all.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX, buffer: memoryview | None = None) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = read_buffer() if buffer is None else buffer
        self._received: bytes | memoryview = _NOTHING
        self._start = 0
        self._head = _NOTHING
        self._is_reading_into_head = False
        self.unfinished_bytes = 0
        """Bytes received of an incomplete frame; 0 between frames."""
        self.gathered_count = 0
        """Number of frames so far that arrived in more than one read."""

    @property
    def promised_bytes(self) -> int:
        """Size of the incomplete frame, including its length word; 0 between frames or while its length is unknown."""
        if self.unfinished_bytes < LENGTH.size:
            return 0
        return LENGTH.size + int(LENGTH.unpack_from(self._head)[0])

    @property
    def waiting_bytes(self) -> int:
        """Bytes kept from which ``payloads`` has taken nothing yet."""
        return len(self._received) - self._start

    def free_space(self, bytes_max: int = LONG_READ_BYTES) -> memoryview:
        """Buffer for the next bytes, never empty, at most ``bytes_max`` long. Valid until ``advance``."""
        have = self.unfinished_bytes
        self._is_reading_into_head = self.promised_bytes - have >= min(bytes_max, len(self._buffer))
        if not self._is_reading_into_head:
            return self._buffer[:bytes_max]
        if have == len(self._head):
            self._resize_head(min(2 * have, self.promised_bytes))
        return self._head[have:]

    def advance(self, received_bytes: int) -> None:
        """Record that bytes were written to the start of ``free_space``."""
        if self._is_reading_into_head:
            self.unfinished_bytes += received_bytes
            return
        fresh = self._buffer[:received_bytes]
        self._received = bytes(self._received) + bytes(fresh) if self._received else fresh

    @property
    def has_waiting(self) -> bool:
        """Whether there are bytes from which ``payloads`` has taken nothing yet."""
        return len(self._received) > self._start

    def payloads(self, count_max: int | None = None) -> list[bytes]:
        """Remove and return the payloads of complete frames, at most ``count_max``; call again until there are none.

        ProtocolError for an empty or too long frame, after all earlier frames were returned. The length word is enough
        to detect it.
        """
        payloads: list[bytes] = []
        if self.unfinished_bytes:
            payload = self._complete_head()
            if payload is None:
                return payloads
            payloads.append(payload)
        received, start, end = self._received, self._start, len(self._received)
        unpack, word_bytes, payload_bytes_max = LENGTH.unpack_from, LENGTH.size, self._frame_bytes_max - LENGTH.size
        may_be_like = True
        while start + word_bytes <= end:
            if len(payloads) == count_max:
                self._start = start
                return payloads
            (payload_bytes,) = unpack(received, start)
            if not 0 < payload_bytes <= payload_bytes_max:
                if not payloads:
                    raise _length_error(payload_bytes)
                self._start = start
                return payloads
            stop = start + word_bytes + payload_bytes
            if stop > end:
                break
            if may_be_like:
                count = (end - start) // (stop - start)
                count = count if count_max is None else min(count, count_max - len(payloads))
                like = _split_like(received, start, stop - start, count)
                may_be_like = bool(like)
                if may_be_like:
                    payloads += like
                    start += len(like) * (stop - start)
                    continue
                if payload_bytes < _LONG_BYTES and not isinstance(received, bytes):
                    # Slices of bytes cost less than those of a view.
                    received, start, end = bytes(received[start:]), 0, end - start
                    stop = word_bytes + payload_bytes
                    self._received = received
            payloads.append(bytes(received[start + word_bytes : stop]))
            start = stop
        self._start = start
        self._move_to_head(end)
        self._received, self._start = _NOTHING, 0
        return payloads

    def set_aside(self) -> None:
        """Copy the remaining bytes, because the buffer will be used for another read."""
        self._received = bytes(self._received[self._start :])
        self._start = 0

    @property
    def next_byte(self) -> int | None:
        """First of the received bytes from which no payload was made; None if there are none."""
        if self.unfinished_bytes:
            return self._head[0]
        return self._received[self._start] if self.has_waiting else None

    def take_rest(self) -> bytes:
        """Remove and return the received bytes from which no payload was made: they are not frames."""
        rest = bytes(self._head[: self.unfinished_bytes]) + bytes(self._received[self._start :])
        self.drop()
        return rest

    def drop(self) -> None:
        """Release all memory: the connection is lost, but its objects may exist for a while."""
        self._received, self._start = _NOTHING, 0
        self._head, self.unfinished_bytes = _NOTHING, 0

    def _complete_head(self) -> bytes | None:
        """The payload of the incomplete frame, if its rest was received; otherwise the bytes are added to its start."""
        self._move_to_head(LENGTH.size)
        if self.unfinished_bytes >= LENGTH.size:
            (payload_bytes,) = LENGTH.unpack_from(self._head)
            if not 0 < payload_bytes <= self._frame_bytes_max - LENGTH.size:
                raise _length_error(payload_bytes)
            have, frame_bytes = self.unfinished_bytes, LENGTH.size + payload_bytes
            if have + len(self._received) - self._start >= frame_bytes:
                stop = self._start + frame_bytes - have
                payload = b"".join((self._head[LENGTH.size : have], self._received[self._start : stop]))
                self._start = stop
                self._head, self.unfinished_bytes = _NOTHING, 0
                self.gathered_count += 1
                return payload
            self._move_to_head(frame_bytes)
        self._received, self._start = _NOTHING, 0
        return None

    def _move_to_head(self, wanted_bytes: int) -> None:
        """Extend the incomplete frame to ``wanted_bytes``, or as far as bytes are available."""
        have = self.unfinished_bytes
        part = self._received[self._start : self._start + max(0, wanted_bytes - have)]
        if not part:
            return
        total = have + len(part)
        if have:
            if total > len(self._head):
                self._resize_head(max(total, min(2 * have, self.promised_bytes)))
            self._head[have:total] = part
        else:
            self._head = memoryview(bytearray(part))
        self._start += len(part)
        self.unfinished_bytes = total

    def _resize_head(self, size_bytes: int) -> None:
        old, self._head = self._head, memoryview(bytearray(size_bytes))
        self._head[: len(old)] = old


def _split_like(received: bytes | memoryview, start: int, frame_bytes: int, count: int) -> list[bytes]:
    """The payloads of ``count`` complete frames that all have the length of the first one; none if they do not.

    All loops run in the interpreter's C code.
    """
    if count < _LIKE_COUNT_MIN:
        return []
    stop = start + count * frame_bytes
    view = memoryview(received)[start:stop]
    word = bytes(view[: LENGTH.size])
    # The last byte first: lengths that differ do so there in most cases.
    if any(view[place::frame_bytes] != word[place : place + 1] * count for place in reversed(range(LENGTH.size))):
        return []
    payload_bytes = frame_bytes - LENGTH.size
    return list(itertools.chain.from_iterable(struct.iter_unpack(f"{LENGTH.size}x{payload_bytes}s", view)))


def _length_error(payload_bytes: int) -> ProtocolError:
    if payload_bytes == 0:
        return ProtocolError("an empty frame is not a message")
    return ProtocolError(f"a frame of {payload_bytes} bytes exceeds the limit")
