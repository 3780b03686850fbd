"""Verdicts on marks, against brute force over entries, and one example of each state."""

from __future__ import annotations

import random
from collections.abc import Collection

import msgspec
import pytest

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.replication.format import UnderReplicationMark
from bkctl.runtime.metadata.replication.marks import ListedMark
from bkctl.runtime.replication.judge.copies import LedgerCheck
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.judge.marks import (
    MarkedLedger,
    MarkFinding,
    MarkVerdict,
    judge_mark,
)
from bkctl.runtime.replication.judge.verdict import ReplicationState
from tests.runtime.replication.samples import ledger, random_ledger
from tests.runtime.replication.test_audit import brute_force

BOOKIES = [f"b{number}" for number in range(6)]
MARKED_MS = 1000
GOOD = LedgerCheck(ledger_id=1, copies_expected=4, copies_good=4)
CLOSED = ledger({0: ["b0", "b1"]}, 2, 2, last_entry_id=1)


def mark_of(*missing: str, is_readable: bool = True) -> ListedMark:
    if not is_readable:
        return ListedMark(1, None, 0, MARKED_MS, MetadataFormatError("junk"))
    return ListedMark(1, UnderReplicationMark(missing, ctime_ms=5), 0, MARKED_MS)


def judge(
    mark: ListedMark,
    known: MarkedLedger,
    *,
    writable: Collection[str] = BOOKIES,
    read_only: Collection[str] = (),
) -> MarkVerdict:
    return judge_mark(mark, known, Registrations(tuple(writable), tuple(read_only)))


def stores_entries(metadata: LedgerMetadata, bookie_ids: Collection[str]) -> bool:
    """Whether one of the bookies should store an entry; any entry may follow in the last segment of an open ledger."""
    for index, segment in enumerate(metadata.segments):
        is_last = index == len(metadata.segments) - 1
        end = metadata.last_entry_id + 1 if is_last else metadata.segments[index + 1].first_entry_id
        if is_last and not metadata.is_closed:
            end = segment.first_entry_id + metadata.ensemble_size
        for entry_id in range(segment.first_entry_id, end):
            positions = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)
            if any(segment.ensemble[position] in bookie_ids for position in positions):
                return True
    return False


def test_a_mark_is_cleared_only_if_all_bookies_are_live_and_the_copies_of_those_it_names_were_read() -> None:
    source = random.Random(3)
    states = set()
    for _ in range(4000):
        metadata = random_ledger(source, BOOKIES)
        live = {each for each in BOOKIES if source.random() < 0.85}
        writable = {each for each in live if source.random() < 0.9}
        named = [each for each in BOOKIES if source.random() < 0.3]
        mark = mark_of(*named, is_readable=source.random() < 0.8)
        check = source.choice([None, GOOD])
        rules, is_repaired = source.choice([None, [], ["rule"]]), source.random() < 0.7
        verdict = judge(
            mark,
            MarkedLedger(metadata, check=check, broken_rules=rules, is_placement_repaired=is_repaired),
            writable=writable,
            read_only=live - writable,
        )
        is_complete = brute_force(metadata, live) in {ReplicationState.EMPTY, ReplicationState.REPLICATED}
        is_proven = check is not None or not stores_entries(metadata, BOOKIES if mark.mark is None else named)
        is_placed = mark.mark is None or bool(named) or not is_repaired or rules == []
        assert verdict.is_clearable is (is_complete and is_proven and is_placed), (metadata, live, mark, verdict)
        assert not verdict.is_hopeless or not is_complete
        if brute_force(metadata, live) is ReplicationState.UNAVAILABLE:
            assert verdict.state is MarkFinding.NO_LIVE_COPY
        assert verdict.detail
        states.add(verdict.state)
        locked = judge(mark, MarkedLedger(metadata, check=check, is_locked=True), writable=writable)
        assert not locked.is_clearable
        assert not locked.is_hopeless
    unseen = {MarkFinding.LEDGER_DELETED, MarkFinding.LOCKED, MarkFinding.ENTRIES_LOST, MarkFinding.METADATA_UNREADABLE}
    assert states == set(MarkFinding) - unseen


@pytest.mark.parametrize(
    ("known", "writable", "state"),
    [
        (MarkedLedger(), BOOKIES, MarkFinding.LEDGER_DELETED),
        (MarkedLedger(problem="not protobuf"), BOOKIES, MarkFinding.METADATA_UNREADABLE),
        (MarkedLedger(is_locked=True), BOOKIES, MarkFinding.LOCKED),
        (MarkedLedger(CLOSED), ["b2"], MarkFinding.NO_LIVE_COPY),
        (MarkedLedger(CLOSED), ["b1"], MarkFinding.NOT_ENOUGH_BOOKIES),
        (MarkedLedger(CLOSED), ["b1", "b2"], MarkFinding.WAITING),
        (MarkedLedger(CLOSED, check=GOOD), ["b0", "b1"], MarkFinding.COMPLETE),
        (
            MarkedLedger(CLOSED, check=LedgerCheck(ledger_id=1, copies_expected=4, lost=(EntryRange(1, 1),))),
            ["b0", "b1"],
            MarkFinding.ENTRIES_LOST,
        ),
        (
            MarkedLedger(CLOSED, check=LedgerCheck(ledger_id=1, copies_expected=4, copies_good=3)),
            ["b0", "b1"],
            MarkFinding.WAITING,
        ),
        (
            MarkedLedger(CLOSED, check=LedgerCheck(ledger_id=1, problem="no answer")),
            ["b0", "b1"],
            MarkFinding.COPIES_UNKNOWN,
        ),
        (MarkedLedger(CLOSED, check=LedgerCheck(ledger_id=1, is_deleted=True)), BOOKIES, MarkFinding.LEDGER_DELETED),
    ],
)
def test_one_example_of_each_state(known: MarkedLedger, writable: list[str], state: MarkFinding) -> None:
    verdict = judge(mark_of("b0"), known, writable=writable)
    assert verdict.state is state
    assert verdict.detail


def test_an_open_ledger_cannot_be_closed_without_answers_of_enough_bookies() -> None:
    """Of each write set, Qw - Qa + 1 must answer: of three bookies with Qa = 2 two, with Qa = 3 one."""
    for ack_quorum, closable in ((2, {2, 3}), (3, {1, 2, 3}), (1, {3})):
        opened = ledger({0: ["b0", "b1", "b2"]}, 3, ack_quorum, state=LedgerState.OPEN)
        for up in (1, 2, 3):
            writable = [*["b0", "b1", "b2"][:up], "b3", "b4", "b5"]
            verdict = judge(mark_of("b2"), MarkedLedger(opened), writable=writable)
            assert (verdict.state is not MarkFinding.NOT_CLOSABLE) is (up in closable), (ack_quorum, up, verdict)


def test_a_registration_never_proves_that_a_bookie_has_its_entries() -> None:
    """A bookie can be frozen while the others confirm adds, and come back later: its cookie and directories are old."""
    verdict = judge(mark_of("b0"), MarkedLedger(CLOSED))
    assert verdict.state is MarkFinding.COPIES_UNKNOWN
    assert "b0" in verdict.detail
    assert "--deep" in verdict.detail
    assert judge(mark_of("gone", "b1"), MarkedLedger(CLOSED)).state is MarkFinding.COPIES_UNKNOWN
    assert judge(mark_of("gone"), MarkedLedger(CLOSED)).state is MarkFinding.COMPLETE, "no member any longer"


def test_only_closed_ledgers_with_no_entry_need_no_proof() -> None:
    empty = msgspec.structs.replace(CLOSED, last_entry_id=-1)
    opened: LedgerMetadata = msgspec.structs.replace(CLOSED, state=LedgerState.OPEN, last_entry_id=-1)
    assert judge(mark_of("b0"), MarkedLedger(empty), writable=[]).state is MarkFinding.COMPLETE
    assert judge(mark_of("b0"), MarkedLedger(opened)).state is MarkFinding.COPIES_UNKNOWN
