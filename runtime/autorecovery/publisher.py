"""Writes the marks of the auditor's lanes: a bounded number at once, merged into the marks that exist.

Marks are Java's, so Java's workers repair them too. Nothing is marked while autorecovery is disabled. A ledger without
a copy of some of its entries gets a note instead of a mark, because no worker can repair it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing
from typing import TypeAlias

import msgspec

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.lane import Turn
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import BadVersionError, ConflictError, MetadataFormatError, RefusedError
from bkctl.runtime.ledger.metadata import is_valid_bookie_id
from bkctl.runtime.metadata.pipeline import pipelined
from bkctl.runtime.metadata.replication.marks import MarkOutcome, UnderReplicationMarks
from bkctl.runtime.metadata.replication.recovery_notes import LostLedgerNote, RecoveryNotes
from bkctl.runtime.metadata.replication.switches import WatchedSwitch
from bkctl.runtime.metadata.store import MetadataStore

logger = logging.getLogger(__name__)

GROUP_BITS = 16
"""Marks of ledgers with the same id above these bits are in one directory."""
_GROUPS_MAX = 4096
_REPORTS_MAX = 20
"""Ledgers that are reported by name in one pass; further ones are only counted."""


class DisabledError(Exception):
    """Autorecovery is disabled, perhaps since a moment ago."""


class MarkRequest(msgspec.Struct, frozen=True):
    """A ledger to mark. No missing bookie: its placement is to be repaired."""

    ledger_id: int
    missing_bookies: tuple[str, ...]


MarkOutcomes: TypeAlias = collections.Counter[MarkOutcome | None]
"""What became of the ledgers to mark. None: it failed, and was reported by name."""


def count_written(outcomes: MarkOutcomes) -> int:
    """Marks that were written, new or not."""
    return outcomes[MarkOutcome.CREATED] + outcomes[MarkOutcome.MERGED]


class Publisher:
    """The only writer of marks in this auditor. Several lanes may publish at the same time."""

    def __init__(self, ports: ClientPorts, store: MetadataStore, config: AutorecoveryConfig) -> None:
        root = ports.ledgers.root
        self._ports = ports
        self._switch = WatchedSwitch(store, root)
        self._window = config.marks_in_flight_max
        self.notes = RecoveryNotes(store, root)
        self.losses = self.notes.losses
        self._marks = UnderReplicationMarks(store, root, ports.clock, is_ctime_stored=config.is_mark_time_stored)
        self._groups: dict[int, asyncio.Lock] = {}
        """Groups of ledgers with a mark; the lock is held until its directories exist."""
        self._reports: collections.Counter[int] = collections.Counter()
        """By level: losses have a higher one than marks that cannot be written, which must not hide them."""
        self.repeated: set[int] | None = None
        """While not None: ledgers that were requested again. Their marks did not change, but are needed."""

    async def publish(self, requests: AsyncIterator[MarkRequest], turn: Turn) -> MarkOutcomes:
        """Mark all these ledgers. MetadataUnavailableError; RefusedError while Pulsar migrates its metadata.

        The requests are read as they are needed. The caller closes their iterator. DisabledError: not all were read.
        """
        self._reports.clear()
        self._groups.clear()  # directories without marks are deleted
        is_cut, found = False, MarkOutcomes()

        async def allowed() -> AsyncGenerator[MarkRequest, None]:
            nonlocal is_cut
            async for request in requests:
                if is_cut := not await self.is_enabled():
                    return  # what has begun is finished
                yield request

        reading = allowed()
        async with aclosing(reading), aclosing(pipelined(reading, self._mark, self._window)) as outcomes:
            async for outcome in outcomes:
                found[outcome] += 1
                turn.beat()
        if is_cut:
            raise DisabledError
        return found

    async def note_loss(self, ledger_id: int, missing_bookies: Collection[str], reason: str) -> None:
        """Note that no copy is left of some entries, and report it; unless that was noted before."""
        missing = tuple(sorted(missing_bookies))
        note = LostLedgerNote(found_ms=self._ports.clock.now_ms(), missing_bookies=missing, reason=reason)
        if await self.losses.add(str(ledger_id), note):
            self.report(logging.ERROR, f"ledger {ledger_id}: {reason}: {', '.join(missing)}")

    async def withdraw_loss(self, ledger_id: int, reason: str) -> None:
        """Remove the note of a loss whose reason begins so, or that cannot be read."""
        note = await self.losses.find_or_problem(str(ledger_id))
        if isinstance(note, MetadataFormatError):
            await self.losses.remove(str(ledger_id))
        elif note is not None and note.value.reason.startswith(reason):
            with contextlib.suppress(BadVersionError):
                await self.losses.remove(str(ledger_id), note.version)

    async def is_enabled(self) -> bool:
        """Whether autorecovery is enabled. One operation after a change, otherwise none."""
        return not await self._switch.is_off()

    async def require_enabled(self) -> None:
        """DisabledError. Costs as ``is_enabled``."""
        if not await self.is_enabled():
            raise DisabledError

    async def _mark(self, request: MarkRequest) -> MarkOutcome | None:
        """None: the ledger cannot be marked, which was reported."""
        ledger_id = request.ledger_id
        valid = [each for each in request.missing_bookies if is_valid_bookie_id(each)]
        if request.missing_bookies and not valid:
            self.report(logging.WARNING, f"ledger {ledger_id} names no valid bookie id: it is not marked")
            return None
        await self._ports.ledgers.migration.require_none()
        try:
            outcome = await self._mark_in_group(ledger_id, valid)
        except (MetadataFormatError, RefusedError, ConflictError) as error:
            self.report(logging.WARNING, f"ledger {ledger_id} cannot be marked: {error}")
            return None
        if self.repeated is not None and outcome is MarkOutcome.UNCHANGED:
            self.repeated.add(ledger_id)
        return outcome

    async def _mark_in_group(self, ledger_id: int, missing_bookies: Sequence[str]) -> MarkOutcome:
        """The first mark of each 65536 ids alone: it creates the directories of the others, which would all fail."""
        group = ledger_id >> GROUP_BITS
        if group not in self._groups:
            if len(self._groups) >= _GROUPS_MAX:
                self._groups.clear()
            first = self._groups[group] = asyncio.Lock()
            async with first:
                return await self._marks.mark(ledger_id, missing_bookies)
        async with self._groups[group]:
            pass
        return await self._marks.mark(ledger_id, missing_bookies)

    def report(self, level: int, sentence: str) -> None:
        """Log what is wrong with a ledger, if it is one of the first of this level."""
        self._reports[level] += 1
        if self._reports[level] <= _REPORTS_MAX:
            ending = "; further ledgers are not reported" if self._reports[level] == _REPORTS_MAX else ""
            logger.log(level, "%s%s", sentence, ending)
