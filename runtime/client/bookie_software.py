"""Which bookies run bkctl: only over their corrupt copies may an entry be written again (H18)."""

from __future__ import annotations

import asyncio

from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.ports import Clock

AGE_MAX_S = 2.0
"""How long an answer counts: an operator can hand a bookie's files back to Java while a daemon runs."""


class BookieSoftware:
    """What the registrations of bookies say about their software, read again after ``AGE_MAX_S``."""

    def __init__(self, registrations: RegistrationClient, clock: Clock) -> None:
        self._registrations = registrations
        self._clock = clock
        self._known: dict[str, tuple[bool, int]] = {}
        self._reading = asyncio.Lock()

    async def is_bkctl(self, bookie_id: str) -> bool:
        """See ``RegistrationClient.running_bkctl``; MetadataError."""
        known = self._recent(bookie_id)
        if known is None:
            async with self._reading:  # one of those that ask at the same time reads
                known = self._recent(bookie_id)
                if known is None:
                    now_ns = self._clock.monotonic_ns()
                    known = bool(await self._registrations.running_bkctl([bookie_id]))
                    self._known[bookie_id] = known, now_ns
        return known

    def _recent(self, bookie_id: str) -> bool | None:
        is_bkctl, read_at_ns = self._known.get(bookie_id, (False, None))
        if read_at_ns is None or self._clock.monotonic_ns() - read_at_ns > AGE_MAX_S * 1e9:
            return None
        return is_bkctl
