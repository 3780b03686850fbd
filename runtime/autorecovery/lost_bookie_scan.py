"""Which ledgers have copies on lost bookies: one pass over the metadata of all ledgers.

Ledgers stream through, so memory does not grow with their number. The bookies that are live are looked up again for
each ledger, so that a bookie that comes back during the pass is spared.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Set
from contextlib import aclosing

import msgspec

from bkctl.runtime.autorecovery.lane import Turn
from bkctl.runtime.autorecovery.publisher import MarkRequest, Publisher
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.replication.recovery_notes import NO_COPY, bookies_given_up
from bkctl.runtime.metadata.replication.recovery_status import read_given_up
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.judge.verdict import (
    LedgerVerdict,
    ReplicationState,
    judge_ledger,
    wanted_members,
    write_set_rows,
)

_EARLY_MISSING_MIN = 2
_READS_IN_FLIGHT_MAX = 64
"""Enough for full speed. ZooKeeper answers in order, so the first mark comes after the reads that are in flight."""


class ScanAim(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass marks. Bookies that are gone, but neither due nor early, are only collected.

    ``is_forced``: every bookie that is gone is due, unless it is excused.
    """

    due: frozenset[str] = frozenset()
    early: frozenset[str] = frozenset()
    excused: frozenset[str] = frozenset()
    is_forced: bool = False

    def given_up(self, missing: Collection[str]) -> frozenset[str]:
        """Those of the missing bookies that are no longer waited for."""
        return frozenset(missing) - self.excused if self.is_forced else self.due.intersection(missing)

    def without(self, returned: frozenset[str]) -> ScanAim:
        """The aim after these bookies came back: if they are lost again, they have a new deadline."""
        return msgspec.structs.replace(
            self, due=self.due - returned, early=self.early - returned, excused=self.excused | returned
        )

    def and_also(self, due: frozenset[str], early: frozenset[str]) -> ScanAim:
        """The aim after the deadlines of more bookies have passed."""
        return msgspec.structs.replace(self, due=self.due | due, early=self.early | early)


class LedgerFinding(msgspec.Struct, frozen=True):
    """What is wrong with a ledger. ``to_mark`` may be empty: no worker can replace any of its bookies now.

    ``lost_with``: bookies that had the only copies of some entries, and are no longer waited for. ``is_postponed``:
    some entries have copies only on bookies that are waited for.
    """

    to_mark: frozenset[str] = frozenset()
    lost_with: frozenset[str] = frozenset()
    is_postponed: bool = False


def examine_ledger(
    ledger_id: int, metadata: LedgerMetadata, live: frozenset[str], aim: ScanAim, accepted: Collection[str] = ()
) -> LedgerFinding | None:
    """Judge a ledger; None if all bookies that it needs are live. ``accepted``: bookies that an operator gave up with
    what they had of it. Pure."""
    if metadata.bookies() <= live:
        return None
    rows = write_set_rows(ledger_id, metadata)
    verdict = judge_ledger(rows, live, accepted)
    missing = wanted_members(verdict.rows, metadata.bookies()) - live
    if not missing:
        return None
    given_up = aim.given_up(missing)
    early = {
        bookie_id
        for row in verdict.rows
        if row.live_copies == 1 and len(row.missing_bookies) >= _EARLY_MISSING_MIN
        for bookie_id in row.missing_bookies
    }
    to_mark = _replaceable(metadata, verdict, given_up | aim.early.intersection(early))
    if verdict.replication is not ReplicationState.UNAVAILABLE:
        return LedgerFinding(to_mark)
    if (
        given_up
        and judge_ledger(rows, live | (missing - given_up), accepted).replication is ReplicationState.UNAVAILABLE
    ):
        return LedgerFinding(to_mark, lost_with=given_up)
    return LedgerFinding(to_mark, is_postponed=True)


def _wanted(ledger_id: int, metadata: LedgerMetadata, live: frozenset[str], accepted: Collection[str]) -> Set[str]:
    """The bookies that the ledger needs."""
    if not accepted:
        return metadata.bookies()
    rows = judge_ledger(write_set_rows(ledger_id, metadata), live, accepted).rows
    return wanted_members(rows, metadata.bookies())


def _replaceable(metadata: LedgerMetadata, verdict: LedgerVerdict, bookies: frozenset[str]) -> frozenset[str]:
    """Those of the bookies that can be replaced in some segment: each of their entries there has a live copy."""
    hopeless = {
        (row.write_set.segment_first_entry_id, bookie_id)
        for row in verdict.rows
        if row.replication in {ReplicationState.UNAVAILABLE, ReplicationState.GIVEN_UP}
        for bookie_id in row.missing_bookies
    }
    return frozenset(
        bookie_id
        for segment in metadata.segments
        for bookie_id in bookies.intersection(segment.ensemble)
        if (segment.first_entry_id, bookie_id) not in hopeless
    )


@dataclasses.dataclass(eq=False)
class LostBookieScan:
    """One pass. What it found is in its fields once ``requests`` has ended. ``referenced``: what ledgers need."""

    ports: ClientPorts
    publisher: Publisher
    aim: Callable[[], ScanAim]
    live: Callable[[], frozenset[str]]
    ledgers: int = 0
    unreadable: int = 0
    lost: int = 0
    postponed: int = 0
    referenced: set[str] = dataclasses.field(default_factory=set)

    async def requests(self, turn: Turn) -> AsyncGenerator[MarkRequest, None]:
        """The ledgers to mark. Losses are noted on the way. Notes of losses that are over are removed, and those of
        losses that were accepted once their ledgers are deleted."""
        noted = await self.publisher.losses.ledger_ids()
        given_up = await read_given_up(self.publisher.notes)
        ledgers = self.ports.ledgers.read_all(window=_READS_IN_FLIGHT_MAX)
        async with aclosing(ledgers):
            async for ledger_id, found in ledgers:
                turn.beat()
                self.ledgers += 1
                note = given_up.pop(ledger_id, None)
                if not isinstance(found, Versioned):
                    self.unreadable += 1
                    self.publisher.report(logging.WARNING, f"{found}: the ledger is passed over")
                    noted.discard(ledger_id)
                    continue
                metadata, accepted = found.value, bookies_given_up(note)
                self.referenced |= _wanted(ledger_id, metadata, self.live(), accepted)
                finding = examine_ledger(ledger_id, metadata, self.live(), self.aim(), accepted)
                if finding is not None and finding.lost_with:
                    self.lost += 1
                    await self.publisher.note_loss(ledger_id, finding.lost_with, NO_COPY)
                elif ledger_id in noted and (finding is None or not finding.is_postponed):
                    await self.publisher.withdraw_loss(ledger_id, NO_COPY)
                noted.discard(ledger_id)
                if finding is not None:
                    self.postponed += finding.is_postponed
                    if finding.to_mark:
                        yield MarkRequest(ledger_id, tuple(sorted(finding.to_mark)))
        for ledger_id in sorted(noted):
            await self.publisher.losses.remove(str(ledger_id))  # the ledger was deleted
        for ledger_id in given_up:
            await self.publisher.notes.given_up.remove(str(ledger_id))
