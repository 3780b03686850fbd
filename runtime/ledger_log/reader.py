"""Reads a log of ledgers from any position, and follows it across its ledgers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.errors import LedgerNotFoundError, LogPositionError
from bkctl.runtime.metadata.ledger_logs.format import LedgerLog
from bkctl.runtime.metadata.ledger_logs.nodes import LogNodes
from bkctl.runtime.metadata.store import Versioned


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry of a log."""

    position: int
    ledger_id: int
    entry_id: int
    payload: bytes


def lost_ledger(name: str, log: LedgerLog, error: LedgerNotFoundError) -> LedgerNotFoundError:
    """The error for a ledger of a log that something else than the log has deleted."""
    end = log.end_of(error.ledger_id)
    rest = f"delete {name} deletes the rest" if end is None else f"read {name} --from {end} reads on"
    sentence = f"log {name} has lost it: bkctl ledger import restores it from the trash or from an export; without it, "
    return LedgerNotFoundError(error.ledger_id, f"{sentence}bkctl log {rest}")


class LogReader:
    """Reads one log, without fencing its writer."""

    def __init__(self, client: LedgerClient, nodes: LogNodes, name: str) -> None:
        self.name = name
        self._client = client
        self._nodes = nodes

    async def entries(self, first: int | None = None, *, is_following: bool = False) -> AsyncGenerator[LogEntry, None]:
        """The entries from position ``first`` on, in order; None: from the first one that was not trimmed.

        Ends at the last confirmed entry; with ``is_following`` never: it waits for more. LogNotFoundError;
        LogPositionError for a position that was trimmed, or that is more than one beyond the end; errors of reading
        ledgers.
        """
        found = await self._nodes.read(self.name)
        position = found.value.first_position if first is None else first
        while True:
            log = found.value
            self._require_kept(log, position)
            if log.ledgers:
                at = log.index_of(position)
                try:
                    async with aclosing(self._of_ledger(log, at, position, is_following)) as entries:
                        async for entry in entries:
                            yield entry
                            position = entry.position + 1
                except LedgerNotFoundError as error:
                    found = await self._nodes.read(self.name)
                    self._require_kept(found.value, position)
                    if found.value.ledgers == log.ledgers:
                        raise lost_ledger(self.name, log, error) from error
                    continue
                if at + 1 < len(log.ledgers):
                    position = log.ledgers[at + 1].first_position
                    continue
            elif position > 0:
                raise LogPositionError(f"log {self.name} has no position {position}: it is empty")
            if not is_following:
                return
            found = await self._newer(found)

    async def _newer(self, found: Versioned[LedgerLog]) -> Versioned[LedgerLog]:
        """The node after its next change."""
        await self._nodes.wait_for_change(self.name, found.version)
        return await self._nodes.read(self.name)

    def _require_kept(self, log: LedgerLog, position: int) -> None:
        if position < log.first_position:
            raise LogPositionError(
                f"log {self.name} no longer has position {position}: it was trimmed, and begins at {log.first_position}"
            )

    async def _of_ledger(
        self, log: LedgerLog, at: int, position: int, is_following: bool
    ) -> AsyncGenerator[LogEntry, None]:
        ledger = log.ledgers[at]
        reader = await self._client.open(ledger.ledger_id)
        first = position - ledger.first_position
        end = ledger.first_position + reader.last_add_confirmed + 1
        # Of an open ledger the bookies report an older end, so a follower of acknowledged entries may be ahead of it.
        if position > end and (reader.is_closed or not is_following):
            raise LogPositionError(f"log {self.name} has no position {position}: its next entry gets position {end}")
        source = reader.follow(first) if is_following else reader.entries(first)
        async with aclosing(source) as entries:
            async for entry in entries:
                yield LogEntry(ledger.first_position + entry.entry_id, ledger.ledger_id, entry.entry_id, entry.payload)
