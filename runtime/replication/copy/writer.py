"""Writes copies of entries to bookies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.limits import Windows
from bkctl.runtime.replication.copy.reader import OVERLOAD, REQUEST_COST_BYTES, pause_s

TIMEOUTS_MAX = 1
"""Timeouts allowed per batch of adds: the bookie may be overloaded without reporting it."""


class EntryWriter:
    """Writes for all ledgers of a run, within the window of each bookie."""

    def __init__(self, ports: ClientPorts, windows: Windows, config: ReplicationConfig) -> None:
        self._bookies = ports.bookies
        self._clock = ports.clock
        self._windows = windows
        self._config = config

    async def add(
        self,
        bookie_id: str,
        credentials: LedgerCredentials,
        adds: Sequence[tuple[int, bytes]],
        before_add: Callable[[], None] = lambda: None,
        *,
        is_patient: bool = False,
    ) -> dict[int, Status]:
        """Send recovery adds, which fenced ledgers accept, and again those that an overloaded bookie did not store.

        Returns the status of each entry that was not stored. ``before_add`` is called before each request, and may
        raise. ``is_patient``: for a bookie that is hard to replace, which is asked again after any silence too.
        """
        window = self._windows.of(bookie_id)
        failures: dict[int, Status] = {}
        attempt = timeouts = 0
        while True:
            attempt += 1
            size_bytes = sum(len(body) for _, body in adds) + len(adds) * REQUEST_COST_BYTES
            async with window.lease(size_bytes) as lease:
                before_add()
                statuses = await self._bookies.add_many(
                    bookie_id, credentials.ledger_id, credentials.master_key, adds, is_recovery_add=True
                )
                failed = set(statuses) - {Status.OK}
                lease.note_outcome(is_overloaded=not failed.isdisjoint(OVERLOAD))
            if not failed:
                return failures
            timeouts += Status.TIMEOUT in failed
            again: Set[Status] = OVERLOAD if is_patient else {Status.TOO_MANY_REQUESTS}
            if timeouts <= TIMEOUTS_MAX:
                again |= {Status.TIMEOUT}
            if attempt >= self._config.attempts_max:
                again = frozenset()
            rows = list(zip(adds, statuses, strict=True))
            failures |= {add[0]: status for add, status in rows if status in failed and status not in again}
            adds = [add for add, status in rows if status in again]
            if not adds:
                return failures
            await self._clock.sleep(pause_s(attempt, self._config, self._clock))


def worst_of(failures: Mapping[int, Status]) -> Status:
    """The status that says most about a bookie."""
    return max(set(failures.values()) - {Status.TOO_MANY_REQUESTS}, default=Status.TOO_MANY_REQUESTS)
