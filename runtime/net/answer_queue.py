"""Answers on their way to one client: those of a tick leave in one write, those that it does not take are counted."""

from __future__ import annotations

import asyncio

from runtime.net.memory_budget import MemoryBudget

_WRITE_BYTES = 8 * 1024
"""Entries read in a loop tick leave in writes of this size: the peer works on the first ones meanwhile."""

_WRITE_BUFFER_BYTES_MAX = _WRITE_BYTES // 2
"""Below a write's size: uvloop sends at once what exceeds it, and waits for the end of the tick else."""

_PIECE_BYTES = 64 * 1024
"""Answers that waited for their peer leave in pieces: what it does not take would be copied by each attempt."""


class AnswerQueue:
    """The writing half of a connection. ``is_blocked``: the peer does not take its answers."""

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
        """How often the peer was found not to take its answers."""

    def connect(self, transport: asyncio.Transport) -> None:
        """From now on frames can be sent."""
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES_MAX)

    @property
    def transport_bytes(self) -> int:
        """What the operating system has not taken yet of what was written."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, frame: bytes) -> None:
        """Send a frame at the end of this tick, with all others, or as soon as the peer takes it.

        Dropped if the connection is gone.
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
        """Send what is queued now if it is enough for a write."""
        if self._frame_bytes >= _WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what is queued now."""
        if self._frames and self._transport is not None and not self.is_blocked:
            frames, self._frames, self._frame_bytes = self._frames, [], 0
            self._transport.write(b"".join(frames))

    def has_room_for(self, frame: bytes) -> bool:
        """False if this frame would wait behind too many others that the peer does not take."""
        if not self.is_blocked:
            return True
        bytes_max = min(self._bytes_max, self._budget.free_answer_bytes)
        return self._untaken_bytes + len(frame) <= bytes_max

    def block(self) -> None:
        """The transport wants no more."""
        self.is_blocked = True
        self.block_count += 1
        self._count_untaken(self.transport_bytes + self._frame_bytes)

    def unblock(self) -> None:
        """It does again: send what waits, until it is blocked anew."""
        self.is_blocked = False
        while self._frames and not self.is_blocked and self._transport is not None:
            self._transport.write(self._next_piece())
        if not self.is_blocked:
            self._count_untaken(0)

    def drop(self) -> None:
        """The connection is gone, and whoever waited for the answers."""
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
