"""What was found out about a ledger and its bookies, for ``explanation.py``. Pure."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.lock import HeldLock
from bkctl.runtime.metadata.replication.maintenance import Maintenance
from bkctl.runtime.metadata.replication.marks import ListedMark
from bkctl.runtime.metadata.replication.recovery_notes import LostBookieNote
from bkctl.runtime.placement.rules import PlacementRules
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.replication.judge.copies import CopyState
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.judge.verdict import (
    UNDER_REPLICATED_STATES,
    LedgerVerdict,
    ReplicationState,
    judge_metadata,
    removed_members,
)
from bkctl.storage.ids import INVALID_ENTRY_ID
from bkctl.storage.words import SHOWN_MAX, counted, enumerated

BAD_COPIES = frozenset({CopyState.MISSING, CopyState.CORRUPT, CopyState.FAILED, CopyState.DIFFERENT})
"""A bookie that answers, but not with a good copy."""


class MemberAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a bookie of the ledger says about its end.

    ``problem``: why there is no valid answer; None if there is one. ``is_silent``: whether there is none at all.
    ``is_refused``: whether the bookie refuses this client.
    ``last_entry_id``: its last entry, -1 if it has none.
    """

    problem: str | None = None
    is_silent: bool = False
    is_refused: bool = False
    last_entry_id: int = INVALID_ENTRY_ID
    last_add_confirmed: int = INVALID_ENTRY_ID

    @property
    def is_valid(self) -> bool:
        """Whether the bookie would count in the recovery of the ledger."""
        return self.problem is None


class StripeCopy(msgspec.Struct, frozen=True, kw_only=True):
    """The first and last entry that one bookie should have of one segment; None: not read, or there is no entry."""

    bookie_id: str
    index: int
    entries: int | None
    first: CopyState | None = None
    last: CopyState | None = None


class SegmentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One segment. ``entries`` of an open one end at the last add confirmed that a bookie knows.

    ``without_copy``: the first and last entries of its write sets that no member is known to have.
    """

    segment_index: int
    entries: EntryRange
    ensemble: tuple[str, ...]
    is_open: bool
    copies: tuple[StripeCopy, ...]
    without_copy: tuple[int, ...] = ()


class OutsideCopies(msgspec.Struct, frozen=True, kw_only=True):
    """What a live bookie has of the entries that no member of their ensemble is known to have.

    ``asked`` and ``found`` are entry ids, first and last ones of segments. ``problem``: why it did not answer.
    """

    bookie_id: str
    asked: tuple[int, ...]
    found: tuple[int, ...] = ()
    problem: str | None = None


class AutorecoveryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of autorecovery, as far as it concerns one ledger."""

    is_enabled: bool = True
    auditor: str | None = None
    alarm: str | None = None
    """Why it marks nothing."""
    mark: ListedMark | None = None
    lock: HeldLock | None = None
    now_ms: int = 0
    maintenance: tuple[Maintenance, ...] = ()
    deadlines: tuple[tuple[str, LostBookieNote], ...] = ()
    """Of members that are lost, while a daemon of bkctl is the auditor."""
    given_up: GivenUpNote | None = None
    """The bookies that an operator gave up with what they had of the ledger."""
    returned: tuple[str, ...] = ()
    """Those of them that are back, and that its end no longer names."""
    away: tuple[str, ...] = ()
    """Those that are down and have their cookie: their disks may have entries."""
    moving: frozenset[str] = frozenset()
    """Bookies whose ledgers a command moves now, if one of the ledger is lost."""


class LedgerFacts(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All that was found. ``registrations`` are without the ``ignored`` bookies, which count as gone."""

    ledger_id: int
    metadata: LedgerMetadata
    registrations: Registrations
    ignored: frozenset[str] = frozenset()
    answers: Mapping[str, MemberAnswer]
    segments: tuple[SegmentFacts, ...]
    outside: tuple[OutsideCopies, ...] = ()
    survey: BookieSurvey
    rules: PlacementRules
    free_bytes: Mapping[str, int]
    silent: Mapping[str, str]
    """Writable bookies that do not report their free space, with the reason; ``free_bytes`` is of those that do."""
    autorecovery: AutorecoveryFacts
    serving: frozenset[str] = frozenset()
    """Bookies of the ledger that are not registered, but answer."""

    @property
    def refusing(self) -> frozenset[str]:
        """Bookies of the ledger that refuse this client."""
        return frozenset(each for each, answer in self.answers.items() if answer.is_refused)

    @property
    def unknown_on(self) -> tuple[str, ...]:
        """Registered bookies of the ledger that gave no valid answer."""
        return tuple(bookie_id for bookie_id, answer in self.answers.items() if not answer.is_valid)

    def holders(self, segment: SegmentFacts) -> list[frozenset[str]]:
        """For each of the entries without a known copy, the bookies that should have it."""
        return [
            frozenset(segment.ensemble[index] for index in write_set(entry_id, *self.metadata.sizes))
            for entry_id in segment.without_copy
        ]

    def silent_holders(self, segment: SegmentFacts) -> list[frozenset[str]]:
        """Those of them that do not answer and so may have the entry."""
        answering = {bookie_id for bookie_id, answer in self.answers.items() if not answer.is_silent}
        return [each - answering for each in self.holders(segment)]

    def is_outside(self, segment: SegmentFacts) -> bool:
        """Whether bookies outside of the ensemble have the first and the last entry that no member is known to have."""
        found = {entry_id for each in self.outside for entry_id in each.found}
        return found.issuperset(segment.without_copy[:1] + segment.without_copy[-1:])

    @functools.cached_property
    def verdict(self) -> LedgerVerdict:
        """The verdict on the ledger."""
        live, note = self.registrations.live, self.autorecovery.given_up
        return judge_metadata(self.ledger_id, self.metadata, live, note)

    @functools.cached_property
    def given_up_segments(self) -> set[int]:
        """The segments of which an operator accepted the loss, and that miss nothing else."""
        if self.autorecovery.given_up is None:
            return set()
        states: dict[int | None, set[ReplicationState]] = {}
        for row in self.verdict.rows:
            states.setdefault(row.write_set.segment_first_entry_id, set()).add(row.replication)
        found = set()
        for segment in self.segments:
            of_it = states.get(segment.entries.first_entry_id, set())
            is_answered = segment.without_copy and not any(self.silent_holders(segment))
            if (ReplicationState.GIVEN_UP in of_it or is_answered) and of_it.isdisjoint(UNDER_REPLICATED_STATES):
                found.add(segment.segment_index)
        return found

    @functools.cached_property
    def needed_segments(self) -> tuple[SegmentFacts, ...]:
        """The segments that were not given up."""
        given_up = self.given_up_segments
        return tuple(each for each in self.segments if each.segment_index not in given_up)

    @functools.cached_property
    def lost_positions(self) -> dict[int, list[int]]:
        """The positions in each segment that was not given up of bookies that are not registered, and were not given up
        there."""
        live, removed = self.registrations.live, removed_members(self.verdict.rows)
        return {
            each.segment_index: [
                index
                for index, bookie_id in enumerate(each.ensemble)
                if bookie_id not in live and (each.entries.first_entry_id, bookie_id) not in removed
            ]
            for each in self.needed_segments
        }

    @functools.cached_property
    def lost_bookies(self) -> dict[str, int]:
        """The bookies that are not registered and that the ledger needs, with the number of segments."""
        ensembles = {each.segment_index: each.ensemble for each in self.segments}
        found = [{ensembles[number][index] for index in indexes} for number, indexes in self.lost_positions.items()]
        return dict(Counter(itertools.chain.from_iterable(found)))

    @property
    def seen(self) -> str:
        """What is known of a ledger without problems, of which only some entries were read, and the command that reads
        all."""
        copies = [copy for segment in self.segments for copy in segment.copies]
        states = {state for copy in copies for state in (copy.first, copy.last) if state is not None}
        if not states:
            return "there was no entry to read"
        which = "each bookie has its" if states == {CopyState.PRESENT} else "not all bookies gave their"
        return f"{which} first and last entry of each segment; bkctl ledger verify {self.ledger_id} reads all entries"


def end_of(metadata: LedgerMetadata, answers: Mapping[str, MemberAnswer]) -> int:
    """The last entry of a closed ledger, else the highest last add confirmed that a bookie knows."""
    if metadata.is_closed:
        return metadata.last_entry_id
    before_last_segment = metadata.last_segment.first_entry_id - 1
    return max((before_last_segment, *(answer.last_add_confirmed for answer in answers.values())))


def is_bad(copy: StripeCopy) -> bool:
    """Whether the first or the last entry is missing or damaged."""
    return copy.first in BAD_COPIES or copy.last in BAD_COPIES


def segments_text(segments: Sequence[SegmentFacts]) -> str:
    """How many these are, and where the first of them begin."""
    starts = [str(each.entries.first_entry_id) for each in segments]
    return f"{counted(len(starts), 'segment')} (from entry {enumerated(starts, shown_max=SHOWN_MAX)})"
