"""What clients may ask of one bookie at most."""

from __future__ import annotations

import msgspec

from runtime.protocol.framing import FRAME_BYTES_MAX


class ListenerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the bookie's port; memory ones say when to read no more, or to refuse, never to fail."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    """Largest frame, its length word included (nettyMaxFrameSizeBytes)."""
    connections_max: int = 2000
    """Connections served at once; a further one is closed."""
    unanswered_bytes_max: int = 64 * 1024 * 1024
    """Requests of one connection under way, reads excepted, and likewise its answers that it does not take. At the
    first limit nothing more is read from it until half is answered; at the second its reads are refused."""
    memory_bytes_max: int = 256 * 1024 * 1024
    """What all connections may hold together, besides one read each: see ``MemoryBudget``."""
    stall_s_max: float = 60.0
    """How long a peer may stand still within a frame, or with answers that it does not take. Between two frames and
    with all answers taken it may be silent for ever."""
