"""What a ledger still needs, without what an operator gave up, for its explanation. Pure."""

from __future__ import annotations

import itertools
from collections import Counter

from bkctl.runtime.metadata.replication.recovery_notes import bookies_given_up
from bkctl.runtime.replication.judge.ledger_facts import LedgerFacts, SegmentFacts
from bkctl.runtime.replication.judge.verdict import (
    UNDER_REPLICATED_STATES,
    LedgerVerdict,
    ReplicationState,
    judge_ledger,
    removed_members,
    write_set_rows,
)


def judged(facts: LedgerFacts) -> LedgerVerdict:
    """The verdict on the ledger."""
    rows = write_set_rows(facts.ledger_id, facts.metadata)
    return judge_ledger(rows, facts.registrations.live, bookies_given_up(facts.autorecovery.given_up))


def given_up_segments(facts: LedgerFacts) -> set[int]:
    """The segments of which an operator accepted the loss, and that miss nothing else."""
    if facts.autorecovery.given_up is None:
        return set()
    states: dict[int | None, set[ReplicationState]] = {}
    for row in judged(facts).rows:
        states.setdefault(row.write_set.segment_first_entry_id, set()).add(row.replication)
    found = set()
    for segment in facts.segments:
        of_it = states.get(segment.entries.first_entry_id, set())
        is_answered = segment.without_copy and not any(facts.silent_holders(segment))
        if (ReplicationState.GIVEN_UP in of_it or is_answered) and of_it.isdisjoint(UNDER_REPLICATED_STATES):
            found.add(segment.segment_index)
    return found


def needed_segments(facts: LedgerFacts) -> tuple[SegmentFacts, ...]:
    """The segments that were not given up."""
    given_up = given_up_segments(facts)
    return tuple(each for each in facts.segments if each.segment_index not in given_up)


def lost_positions(facts: LedgerFacts) -> dict[int, list[int]]:
    """The positions in each segment that was not given up of bookies that are not registered, and were not given up
    there."""
    live, removed = facts.registrations.live, removed_members(judged(facts).rows)
    return {
        each.segment_index: [
            index
            for index, bookie_id in enumerate(each.ensemble)
            if bookie_id not in live and (each.entries.first_entry_id, bookie_id) not in removed
        ]
        for each in needed_segments(facts)
    }


def lost_bookies(facts: LedgerFacts) -> dict[str, int]:
    """The bookies that are not registered and that the ledger needs, with the number of segments."""
    ensembles = {each.segment_index: each.ensemble for each in facts.segments}
    found = [{ensembles[number][index] for index in indexes} for number, indexes in lost_positions(facts).items()]
    return dict(Counter(itertools.chain.from_iterable(found)))
