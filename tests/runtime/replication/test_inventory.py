"""What is expected of each bookie, and how each copy counts, compared with a count of single entries."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.replication.cluster_audit.inventory import (
    InventoryTotals,
    LedgerEvidence,
    LedgerHoldings,
    findings_of,
    holdings_of,
)
from bkctl.runtime.replication.cluster_audit.inventory_tables import BAD_COPIES, BadCopyRange, LedgerHead
from bkctl.runtime.replication.cluster_audit.tables import FINDINGS_MAX
from bkctl.runtime.replication.judge.copies import CopyDefect, CopyState, LedgerCheck, ListedCopies
from bkctl.runtime.replication.judge.fragments import EntryRange, EntryRangeSet
from tests.runtime.replication.samples import ledger

HEAD = LedgerHead(7, "closed", "public/default", 1)
BOOKIES = [f"b{number}:3181" for number in range(6)]


def ranges(entry_ids: list[int]) -> tuple[EntryRange, ...]:
    found = EntryRangeSet()
    for entry_id in entry_ids:
        found.add(entry_id)
    return found.ranges()


def listed_of(missing: Mapping[str, tuple[EntryRange, ...] | None]) -> dict[str, ListedCopies | None]:
    return {bookie_id: None if each is None else ListedCopies(each) for bookie_id, each in missing.items()}


def members(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    segment = max(
        (each for each in metadata.segments if each.first_entry_id <= entry_id), key=lambda each: each.first_entry_id
    )
    indexes = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)
    return [segment.ensemble[index] for index in indexes]


@pytest.mark.parametrize("seed", range(40))
def test_lists_are_compared_entry_by_entry(seed: int) -> None:
    source = random.Random(seed)
    size = source.randrange(1, 5)
    quorum = source.randrange(1, size + 1)
    last_entry_id = source.randrange(60)
    starts = sorted({0, *(source.randrange(last_entry_id + 1) for _ in range(source.randrange(3)))})
    metadata = ledger(
        {start: source.sample(BOOKIES, size) for start in starts}, quorum, quorum, last_entry_id=last_entry_id
    )
    chance = source.choice((0.1, 0.6, 0.95))
    expected = {
        (entry_id, bookie_id) for entry_id in range(last_entry_id + 1) for bookie_id in members(metadata, entry_id)
    }
    gone = {copy for copy in expected if source.random() < chance}
    silent = {bookie_id for bookie_id in BOOKIES if source.random() < 0.2}
    missing = {
        each: None if each in silent else ranges(sorted(entry_id for entry_id, bookie_id in gone if bookie_id == each))
        for each in BOOKIES
    }

    found = holdings_of(HEAD, metadata, LedgerEvidence(last_entry_id=last_entry_id, listed=listed_of(missing)))

    for row in found.bookies:
        own = {copy for copy in expected if copy[1] == row.bookie_id}
        lost = gone & own
        known = (0, len(own), 0) if row.bookie_id in silent else (len(own) - len(lost), 0, len(lost))
        assert (row.listed_copies, row.unknown_copies, row.missing_copies) == known
        assert row.expected_copies == len(own)
    listed = {copy for copy in gone if copy[1] not in silent}
    named = {
        (entry_id, row.bookie_id)
        for row in found.bad
        for entry_id in range(row.first_entry_id, row.last_entry_id + 1)
        if (entry_id, row.bookie_id) in expected
    }
    assert named == listed
    assert sum(row.copies for row in found.bad) == len(listed)
    nowhere = {
        entry_id
        for entry_id in range(last_entry_id + 1)
        if all((entry_id, bookie_id) in listed for bookie_id in members(metadata, entry_id))
    }
    assert {entry_id for row in found.lost for entry_id in range(row.first_entry_id, row.last_entry_id + 1)} == nowhere
    for bad in found.bad:
        stored = {
            each for each in range(bad.first_entry_id, bad.last_entry_id + 1) if (each, bad.bookie_id) in expected
        }
        assert bad.is_lost == (stored <= nowhere)


def test_a_striped_bookie_that_lost_all_has_one_range() -> None:
    metadata = ledger({0: BOOKIES[:3]}, 2, 2, last_entry_id=99)
    missing = {BOOKIES[0]: ranges([entry_id for entry_id in range(100) if BOOKIES[0] in members(metadata, entry_id)])}

    (found,) = holdings_of(HEAD, metadata, LedgerEvidence(last_entry_id=99, listed=listed_of(missing))).bad

    assert (found.first_entry_id, found.last_entry_id, found.copies) == (0, 99, 67)
    (line,) = findings_of([found])
    assert (line.state, line.entries, line.copies) == (CopyState.MISSING, EntryRange(0, 99), 67)


def test_what_was_read_counts_more_than_what_was_listed() -> None:
    metadata = ledger({0: BOOKIES[:2]}, 2, 2, last_entry_id=9)
    defects = (
        CopyDefect(BOOKIES[0], CopyState.FAILED, 1, ranges([4]), "input/output error", is_damaged=True),
        CopyDefect(BOOKIES[1], CopyState.UNREACHABLE, 2, ranges([0, 9]), "no answer"),
    )
    check = LedgerCheck(ledger_id=7, last_entry_id=9, defects=defects, bytes_read=100)
    evidence = LedgerEvidence(
        last_entry_id=9,
        listed=listed_of({BOOKIES[0]: ranges([0, 8]), BOOKIES[1]: None}),
        check=check,
        read=ranges([0, 4, 9]),
    )

    first, second = holdings_of(HEAD, metadata, evidence).bookies

    # Entry 0 was read and is good, so the list that lacks it is wrong; nothing contradicts that 8 is missing.
    assert (first.read_copies, first.failed_copies, first.missing_copies, first.listed_copies) == (2, 1, 1, 6)
    assert (second.read_copies, second.unknown_copies, second.lists_unanswered) == (1, 9, 1)
    for row in (first, second):
        parts = ("read_copies", "listed_copies", "unknown_copies", *BAD_COPIES)
        assert sum(getattr(row, name) for name in parts) == row.expected_copies == 10


def test_entries_whose_every_copy_failed_have_no_good_copy() -> None:
    metadata = ledger({0: BOOKIES[:2]}, 2, 2, last_entry_id=9)
    defects = tuple(CopyDefect(each, CopyState.FAILED, 2, ranges([3, 4]), "input/output error") for each in BOOKIES[:2])
    failed, unreadable = ranges([3, 4]), ranges([3, 4, 8])
    check = LedgerCheck(ledger_id=7, last_entry_id=9, defects=defects, unreadable=unreadable, failed=failed)
    listed = listed_of(dict.fromkeys(BOOKIES[:2], ranges([6])))

    found = holdings_of(HEAD, metadata, LedgerEvidence(last_entry_id=9, listed=listed, check=check, read=unreadable))
    totals = InventoryTotals()
    totals.add(found)

    lost = [(each.first_entry_id, each.last_entry_id, each.entries, each.has_errors) for each in found.lost]
    assert lost == [(3, 4, 2, True), (6, 6, 1, False)]
    assert all(each.is_lost for each in found.bad), "no copy is left that could replace them"
    assert totals.counts["lost_entries"] == 3


def test_of_an_open_ledger_only_entries_up_to_the_proven_end_are_expected() -> None:
    metadata = ledger({0: BOOKIES[:2]}, 2, 2, state=LedgerState.OPEN)

    found = holdings_of(
        HEAD, metadata, LedgerEvidence(last_entry_id=4, listed=listed_of({BOOKIES[0]: (), BOOKIES[1]: ()}))
    )
    nothing = holdings_of(HEAD, metadata, LedgerEvidence(last_entry_id=-1, listed={}, problem="no answer"))

    assert [row.expected_copies for row in found.bookies] == [5, 5]
    assert (nothing.bookies, nothing.is_clean) == ((), False)


def test_totals_do_not_depend_on_how_ledgers_are_divided() -> None:
    rows = [
        BadCopyRange(ledger_id, "closed", None, None, BOOKIES[0], "missing", "listed", 0, 0, 1)
        for ledger_id in range(FINDINGS_MAX + 10)
    ]
    halves = InventoryTotals(), InventoryTotals()
    for number, row in enumerate(reversed(rows)):
        halves[number % 2].add(LedgerHoldings(bad=(row,)))
    halves[0].merge(halves[1])

    assert halves[0].bad == rows[:FINDINGS_MAX]
    assert halves[0].counts["bad_copy_ledgers"] == len(rows)
