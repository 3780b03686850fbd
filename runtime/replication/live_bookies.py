"""Who is registered, remembered for a moment, and whom to copy to. Source: replication sections 5 and 13 (bk#3707)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection

from runtime.client.suspects import SuspectBookies
from runtime.metadata.registration import RegistrationClient, Registrations
from runtime.ports import Clock

REFRESH_S = 2.0
"""Longest time that a list of registered bookies is believed."""


class LiveBookies:
    """The registered bookies, read again when the last list is older than ``REFRESH_S``."""

    def __init__(self, registration: RegistrationClient, clock: Clock) -> None:
        self._registration = registration
        self._clock = clock
        self._registrations = Registrations(writable=(), read_only=())
        self._live: frozenset[str] = frozenset()
        self._read_at_ns: int | None = None
        self._reading = asyncio.Lock()

    async def refresh(self, age_max_s: float = REFRESH_S) -> Registrations:
        """The registered bookies, at most ``age_max_s`` old."""
        async with self._reading:
            now_ns = self._clock.monotonic_ns()
            if self._read_at_ns is None or now_ns - self._read_at_ns > age_max_s * 1e9:
                self._registrations = await self._registration.snapshot()
                self._live = frozenset(self._registrations.writable) | frozenset(self._registrations.read_only)
                self._read_at_ns = now_ns
        return self._registrations

    def is_live(self, bookie_id: str) -> bool:
        """Whether the last list had the bookie, writable or read-only."""
        return bookie_id in self._live


class TargetChooser:
    """Spreads the copies of a run over the writable bookies: the one that was given the least so far is next."""

    def __init__(self, live_bookies: LiveBookies, suspects: SuspectBookies, clock: Clock) -> None:
        self._live_bookies = live_bookies
        self._suspects = suspects
        self._clock = clock
        self._assigned: Counter[str] = Counter()

    async def choose(self, excluded: Collection[str], entry_count: int) -> str | None:
        """A writable bookie that is not excluded, or None; ``entry_count`` is what it will be given.

        Bookies that failed a moment ago are taken only when there is no other.
        """
        candidates = sorted(set((await self._live_bookies.refresh()).writable).difference(excluded))
        if not candidates:  # before giving up, see whether one has come back
            candidates = sorted(set((await self._live_bookies.refresh(0)).writable).difference(excluded))
        if not candidates:
            return None
        suspects = self._suspects.current()
        self._clock.random.shuffle(candidates)
        target = min(candidates, key=lambda bookie_id: (bookie_id in suspects, self._assigned[bookie_id]))
        self._assigned[target] += max(1, entry_count)
        return target
