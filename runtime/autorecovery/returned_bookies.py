"""Clears the marks that only waited for a bookie that is back, and ends the accepted losses of what only it had.
Copies nothing.

A mark is cleared only if all of this holds; the others are left to the workers, which look at all copies:

- it names only bookies that came back, and was made once, while all of them were gone. So no check of copies asked for
  it, which could have found damage while the bookie was up;
- the ledger is closed, and all bookies that should store its entries are registered;
- of the bookies that came back, all entries that they should store of a small ledger can be read. Of a larger one, the
  first and the last of each segment can, and a sample all over it, and the bookie lists all: what it lost anywhere is
  not in its list, what it cannot read any more may be. A bookie that answers no list has not proven anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing

import msgspec

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.lane import Lane, Turn
from bkctl.runtime.autorecovery.publisher import Publisher
from bkctl.runtime.client.ports import ClientPorts, credentials_of
from bkctl.runtime.errors import BadVersionError, LedgerNotFoundError, MetadataFormatError, RefusedError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.pipeline import each_of
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.marks import ListedMark, UnderReplicationMarks, list_marks
from bkctl.runtime.metadata.store import MetadataStore, Versioned
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.entry_lists import EntryLists
from bkctl.runtime.replication.copy.limits import for_each_bounded
from bkctl.runtime.replication.copy.reader import CopyReader
from bkctl.runtime.replication.judge.check_scope import CheckScope, Sample
from bkctl.runtime.replication.judge.copies import CopyState
from bkctl.runtime.replication.judge.fragments import stored_count, stored_entries
from bkctl.runtime.replication.judge.marks import MarkedLedger, bookies_in_question, judge_mark
from bkctl.runtime.replication.run.mark_repair import ClearOutcome, MarkClearing
from bkctl.runtime.replication.survey.checker import LedgerChecker

logger = logging.getLogger(__name__)

LOCK_HOLDER = "bkctl-auditor"
_BATCH = 256
WHOLE_MAX = 32
"""A ledger of which a bookie should store at most so many entries is read as a whole; else so many of each segment."""


class Absence(msgspec.Struct, frozen=True):
    """From when to when a bookie was gone; ms since 1970."""

    lost_ms: int
    returned_ms: int


def waited_only(mark: ListedMark, absences: Mapping[str, Absence]) -> bool:
    """Whether only the absence of bookies that came back can have been the reason for this mark. Pure."""
    if mark.mark is None or not mark.mark.missing_bookies or mark.version > 0:
        return False
    return all(
        (absence := absences.get(bookie_id)) is not None and absence.lost_ms <= mark.marked_ms <= absence.returned_ms
        for bookie_id in mark.mark.missing_bookies
    )


class ReturnedBookies:
    """Clears marks, and notes of accepted losses, after a return."""

    def __init__(
        self, ports: ClientPorts, store: MetadataStore, config: AutorecoveryConfig, publisher: Publisher
    ) -> None:
        root = ports.ledgers.root
        self._ports = ports
        self._store = store
        self._share = config.check_entries_percentage / 100
        self._publisher = publisher
        locks = ReplicationLocks(store, root, LOCK_HOLDER)
        marks = UnderReplicationMarks(store, root, ports.clock, is_ctime_stored=config.is_mark_time_stored)
        self._clearing = MarkClearing(store, root, marks, locks)
        self._absences: dict[str, Absence] = {}
        self._back: frozenset[str] | None = None
        """Bookies that came back after the last run began, also if they are gone again. None before the first one: some
        may have come back while no auditor was elected."""
        self.lane = Lane("returns", self._run, ports.clock, interval_s=None)

    def note(self, returned: Collection[str], absences: Mapping[str, Absence]) -> None:
        """These bookies are back. ``absences``: of those whose ledgers may be marked."""
        if self._back is not None:
            self._back = self._back.union(returned)
        self._absences.update(absences)
        self.lane.wake()

    async def _run(self, turn: Turn) -> str:
        await self._end_accepted_losses(turn)
        absences = dict(self._absences)
        if not absences:
            return "no bookie has come back"
        self._publisher.repeated = set()
        try:
            outcomes = await self._clear_all(absences, turn)
        finally:
            self._publisher.repeated = None
        for bookie_id, absence in absences.items():
            if self._absences[bookie_id] == absence:
                del self._absences[bookie_id]
        cleared = sum(count for outcome, count in outcomes.items() if outcome.is_cleared)
        names = ", ".join(sorted(absences))
        text = f"{names}: cleared {cleared} marks, left {outcomes.total() - cleared} to the workers"
        logger.info("bookies that came back: %s", text)
        return text

    async def _end_accepted_losses(self, turn: Turn) -> None:
        """If a bookie that was given up is back with entries of its ledger, losing it again is another loss. Ledgers
        that no longer name it keep their notes: no reader asks it."""
        noted, self._back = self._back, frozenset()
        try:
            live = (await self._ports.registrations.snapshot()).live
            back = live if noted is None else noted
            if not back:
                return
            reader = CopyReader(self._ports, ReplicationConfig(), live.__contains__)
            since: dict[str, int | None] = {}
            async with aclosing(self._publisher.notes.given_up.all()) as notes:
                async for key, note in notes:
                    turn.beat()
                    if not isinstance(note, Versioned) or not key.isdecimal():
                        continue
                    returned = back.intersection(note.value.member_since)
                    for each in sorted(returned - since.keys()):
                        since[each] = await self._ports.registrations.member_since(each)
                    if returned:
                        await self._end_accepted_loss(int(key), note, since, reader)
        except BaseException:
            self._back = None if noted is None else noted.union(self._back or ())
            raise

    async def _end_accepted_loss(
        self, ledger_id: int, note: Versioned[GivenUpNote], since: Mapping[str, int | None], reader: CopyReader
    ) -> None:
        """``since``: when the cookies of the bookies that are back were created."""
        then, notes = note.value.member_since, self._publisher.notes.given_up
        try:
            metadata = (await self._ports.ledgers.read(ledger_id)).value
        except (LedgerNotFoundError, MetadataFormatError):
            return  # the pass over all ledgers removes the note of one that was deleted
        ended = [
            each
            for each in metadata.bookies().intersection(then, since)
            if then[each] == since[each] is not None or await _has_entries(each, ledger_id, metadata, reader)
        ]
        if not ended:
            return
        left = {each: cookie_ms for each, cookie_ms in then.items() if each not in ended}
        if left:
            await notes.replace(str(ledger_id), msgspec.structs.replace(note.value, member_since=left), note.version)
        else:
            with contextlib.suppress(BadVersionError):
                await notes.remove(str(ledger_id), note.version)
        logger.info("ledger %d: its accepted loss is over: %s is back", ledger_id, ", ".join(sorted(ended)))

    async def _clear_all(self, absences: Mapping[str, Absence], turn: Turn) -> Counter[ClearOutcome]:
        outcomes: Counter[ClearOutcome] = Counter()
        lists = EntryLists(self._ports.bookies, self._ports.clock)
        batch: list[ListedMark] = []
        async with aclosing(list_marks(self._store, self._ports.ledgers.root, ForeignNames())) as marks:
            async for mark in marks:
                turn.beat()
                if waited_only(mark, absences):
                    batch.append(mark)
                if len(batch) == _BATCH:
                    outcomes += await self._clear(batch, lists, turn)
                    batch = []
        return outcomes + await self._clear(batch, lists, turn)

    async def _clear(self, marks: Sequence[ListedMark], lists: EntryLists, turn: Turn) -> Counter[ClearOutcome]:
        """Clear those of the marks that are not needed; those that stay count as needed."""
        registrations = await self._ports.registrations.snapshot()
        checker = LedgerChecker(self._ports, registrations.live, ReplicationConfig())
        judged: dict[int, tuple[int, int]] = {}
        outcomes: Counter[ClearOutcome] = Counter()

        async def judge(mark: ListedMark) -> None:
            version = await self._version_if_complete(mark, registrations, lists, checker)
            turn.beat()
            if version is None:
                outcomes[ClearOutcome.NEEDED] += 1
            else:
                judged[mark.ledger_id] = mark.version, version

        await for_each_bounded(each_of(marks), judge, ReplicationConfig().ledgers_in_parallel)

        async def are_needed(ledger_ids: Sequence[int]) -> Collection[int]:
            """What has changed since it was judged."""
            turn.beat()
            await self._ports.ledgers.migration.require_none()
            live = (await self._ports.registrations.snapshot()).live
            found = await asyncio.gather(*(self._read_if_live(each, live) for each in ledger_ids))
            return [
                ledger_id
                for ledger_id, ledger in zip(ledger_ids, found, strict=True)
                if ledger is None
                or ledger.version != judged[ledger_id][1]
                or ledger_id in (self._publisher.repeated or ())
            ]

        versions = [(ledger_id, mark_version) for ledger_id, (mark_version, _) in judged.items()]
        await self._clearing.clear(versions, are_needed, lambda _: None, lambda _, outcome: outcomes.update((outcome,)))
        return outcomes

    async def _version_if_complete(
        self, mark: ListedMark, registrations: Registrations, lists: EntryLists, checker: LedgerChecker
    ) -> int | None:
        """Version of the ledger's metadata if the mark is not needed."""
        found = await self._read_if_live(mark.ledger_id, registrations.live)
        if found is None or not found.value.is_closed:
            return None
        check = None
        if in_question := frozenset(bookies_in_question(mark, found.value)):
            scope = CheckScope(bookie_ids=in_question)
            if any(stored_count(found.value, each) > WHOLE_MAX for each in in_question):
                for each in in_question:
                    listed = await lists.compared(each, mark.ledger_id, found.value)
                    if listed is None or listed.missing:
                        return None
                sample = Sample(self._share, self._ports.clock.random.getrandbits(63), each_min=WHOLE_MAX)
                scope = msgspec.structs.replace(scope, sample=sample)
            check = await checker.check(mark.ledger_id, scope)
        verdict = judge_mark(mark, MarkedLedger(found.value, check=check), registrations)
        return found.version if verdict.is_clearable else None

    async def _read_if_live(self, ledger_id: int, live: frozenset[str]) -> Versioned[LedgerMetadata] | None:
        """The metadata of a ledger, if it can be read, and names only bookies that are live."""
        try:
            found = await self._ports.ledgers.read(ledger_id)
        except (LedgerNotFoundError, MetadataFormatError, RefusedError):
            return None
        return found if found.value.bookies() <= live else None


async def _has_entries(bookie_id: str, ledger_id: int, metadata: LedgerMetadata, reader: CopyReader) -> bool:
    """Whether it returns the first entry that it should have: a bookie that is new under an old id does not."""
    first = next(stored_entries(metadata, bookie_id), None)
    if first is None:
        return False
    copy = await reader.read(bookie_id, credentials_of(ledger_id, metadata), first, attempts_max=1)
    return copy.state is CopyState.PRESENT
