"""Queue of answers to one client. Sends the answers of a loop tick in one write, and counts those not yet sent."""

from __future__ import annotations

import asyncio

from bkctl.runtime.net.memory_budget import MemoryBudget

_WRITE_BYTES = 8 * 1024
"""Entries read in a loop tick are sent in writes of this size, so the peer can start on the first ones early."""

_WRITE_BUFFER_BYTES_MAX = _WRITE_BYTES // 2
"""Smaller than a write: uvloop sends immediately above this limit, otherwise at the end of the tick."""

_PIECE_BYTES = 64 * 1024
"""Delayed answers are sent in pieces of this size, because every attempt copies the bytes that the peer rejects."""


class AnswerQueue:
    """The writing half of a connection. ``is_blocked``: the peer is not reading its answers."""

    def __init__(self, budget: MemoryBudget, bytes_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._budget = budget
        self._bytes_max = bytes_max
        self._frames: list[bytes] = []
        self._frame_bytes = 0
        self._untaken_bytes = 0
        self.is_blocked = False
        self.block_count = 0
        """How often the peer has stopped reading its answers."""

    def connect(self, transport: asyncio.Transport) -> None:
        """Start sending to ``transport``."""
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES_MAX)

    @property
    def has_frames(self) -> bool:
        """Whether answers wait for the end of this tick, or for the peer."""
        return bool(self._frames)

    @property
    def transport_bytes(self) -> int:
        """Bytes written that the operating system has not accepted yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, frame: bytes) -> None:
        """Send a frame at the end of this tick together with all others, or as soon as the peer reads again.

        Dropped if the connection is lost.
        """
        if self._transport is None:
            return
        if self.is_blocked:
            self._count_untaken(self._untaken_bytes + len(frame))
        elif not self._frames:
            self._loop.call_soon(self.flush)
        self._frames.append(frame)
        self._frame_bytes += len(frame)

    def flush_early(self) -> None:
        """Send the queued frames now if they fill a write."""
        if self._frame_bytes >= _WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send the queued frames now."""
        if self._frames and self._transport is not None and not self.is_blocked:
            frames, self._frames, self._frame_bytes = self._frames, [], 0
            self._transport.write(b"".join(frames))

    def has_room_for(self, frame: bytes) -> bool:
        """False if too many unsent bytes are queued before this frame."""
        if not self.is_blocked:
            return True
        bytes_max = min(self._bytes_max, self._budget.free_answer_bytes)
        return self._untaken_bytes + len(frame) <= bytes_max

    def block(self) -> None:
        """The transport's buffer is full."""
        self.is_blocked = True
        self.block_count += 1
        self._count_untaken(self.transport_bytes + self._frame_bytes)

    def unblock(self) -> None:
        """The transport has room again: send queued frames until it is full."""
        self.is_blocked = False
        while self._frames and not self.is_blocked and self._transport is not None:
            self._transport.write(self._next_piece())
        if not self.is_blocked:
            self._count_untaken(0)

    def drop(self) -> None:
        """The connection is lost: discard the queued answers."""
        self._transport = None
        self._frames.clear()
        self._count_untaken(0)

    def _next_piece(self) -> bytes:
        count = piece_bytes = 0
        while count < len(self._frames) and piece_bytes < _PIECE_BYTES:
            piece_bytes += len(self._frames[count])
            count += 1
        piece = b"".join(self._frames[:count])
        del self._frames[:count]
        self._frame_bytes -= piece_bytes
        return piece

    def _count_untaken(self, total_bytes: int) -> None:
        self._budget.add_answers(total_bytes - self._untaken_bytes)
        self._untaken_bytes = total_bytes
