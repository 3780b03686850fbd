"""Bookies that leave: which of them serve, and whether those are read-only. Source: replication section 15.2."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from bkctl.runtime.errors import ConflictError
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.outage import OutageWait
from bkctl.runtime.ports import Clock

POLL_S = 0.5


class LeavingBookies(msgspec.Struct, frozen=True):
    """Registrations of bookies that leave, at one moment. A bookie that changes its mode counts as writable."""

    writable: tuple[str, ...]
    read_only: tuple[str, ...]
    down: tuple[str, ...]

    @property
    def serving(self) -> tuple[str, ...]:
        """Those that are registered."""
        return tuple(sorted(self.writable + self.read_only))

    @property
    def not_writable(self) -> tuple[str, ...]:
        """Those that accept no writes."""
        return self.read_only + self.down


class ModeWatch:
    """Watches the registrations of bookies that leave."""

    def __init__(self, registration: RegistrationClient, clock: Clock, outage: OutageWait) -> None:
        self._registration = registration
        self._clock = clock
        self._outage = outage

    async def read(self, bookie_ids: Collection[str]) -> LeavingBookies:
        """How the bookies are registered now."""
        found = await self._outage.outlast(self._registration.snapshot)
        writable = frozenset(bookie_ids).intersection(found.writable)
        read_only = frozenset(bookie_ids).intersection(found.read_only) - writable
        down = frozenset(bookie_ids) - writable - read_only
        return LeavingBookies(tuple(sorted(writable)), tuple(sorted(read_only)), tuple(sorted(down)))

    async def require_no_writable(self, bookie_ids: Collection[str]) -> LeavingBookies:
        """ConflictError if one of the bookies accepts writes, so that new ledgers may be on it."""
        found = await self.read(bookie_ids)
        if found.writable:
            raise ConflictError(
                f"bookie {found.writable[0]} is writable again, so new ledgers may be on it: make it read-only "
                f"(bkctl bookie set-mode read-only {found.writable[0]}) and run the command again"
            )
        return found

    async def wait_until_none(
        self,
        state: Callable[[LeavingBookies], Sequence[str]],
        bookie_ids: Collection[str],
        wait_s: float,
        on_wait: Callable[[Sequence[str]], None] = lambda _: None,
        on_left: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> Sequence[str]:
        """Wait until none of the bookies is in this state; those that still are when the time is over.

        ``on_wait`` is called once with those that are in it at first, if any; ``on_left`` whenever they have changed.
        """
        deadline_ns = self._clock.monotonic_ns() + int(wait_s * 1e9)
        shown: Sequence[str] = ()
        while (left := state(await self.read(bookie_ids))) and self._clock.monotonic_ns() < deadline_ns:
            if not shown:
                on_wait(left)
            if left != shown:
                on_left(left)
                shown = left
            await self._clock.sleep(POLL_S)
        return left
