"""Which ledgers a pass marks."""

from __future__ import annotations

import pytest

from bkctl.runtime.autorecovery.auditor import LedgerFinding, ScanAim, examine_ledger
from bkctl.runtime.ledger.metadata import LedgerMetadata
from tests.runtime.replication.samples import ledger

LIVE = frozenset({"l1", "l2", "l3"})
DUE = ScanAim(due=frozenset({"d1", "d2"}))
EARLY = ScanAim(early=frozenset({"w1", "w2"}))
FORCED = ScanAim(excused=frozenset({"m1"}), is_forced=True)


def closed(*ensemble: str, write_quorum: int | None = None, last_entry_id: int = 9) -> LedgerMetadata:
    quorum = write_quorum or len(ensemble)
    return ledger({0: ensemble}, quorum, quorum, last_entry_id=last_entry_id, length=100)


def to_mark(*bookie_ids: str) -> LedgerFinding:
    return LedgerFinding(frozenset(bookie_ids))


@pytest.mark.parametrize(
    ("metadata", "aim", "finding"),
    [
        (closed("l1", "l2"), DUE, None),
        (closed("l1", "d1"), DUE, to_mark("d1")),
        (closed("l1", "d1", "w1"), DUE, to_mark("d1")),
        (closed("l1", "w1"), DUE, to_mark()),
        (closed("d1", "d2"), DUE, LedgerFinding(lost_with=frozenset({"d1", "d2"}))),
        (closed("d1", "w1"), DUE, LedgerFinding(is_postponed=True)),
        (closed("w1", "w2"), DUE, LedgerFinding(is_postponed=True)),
        # an empty ledger, and a bookie that stores none of the entries: only the metadata must change
        (closed("d1", "d2", last_entry_id=-1), DUE, to_mark("d1", "d2")),
        (closed("l1", "l2", "d1", write_quorum=2, last_entry_id=0), DUE, to_mark("d1")),
        # the write sets of the second and third entry have one copy and none
        (closed("l1", "d1", "d2", write_quorum=2), DUE, LedgerFinding(lost_with=frozenset({"d1", "d2"}))),
        (closed("l1", "w1", "w2"), EARLY, to_mark("w1", "w2")),
        (closed("l1", "w1", "m1"), EARLY, to_mark("w1")),
        (closed("l1", "l2", "w1", "w2"), EARLY, to_mark()),
        (closed("l1", "w1"), EARLY, to_mark()),
        # one that is named twice, unless others are missing, which a repair of the marked ledger would replace, too
        (closed("l1", "l2", "l1"), DUE, to_mark("l1")),
        (closed("l1", "w1", "l1"), DUE, to_mark()),
        (closed("l1", "l2", "l1", last_entry_id=-1), DUE, None),
        (closed("l1", "unknown"), FORCED, to_mark("unknown")),
        (closed("l1", "m1"), FORCED, to_mark()),
        (closed("l1", "unknown"), DUE, to_mark()),
    ],
)
def test_a_ledger(metadata: LedgerMetadata, aim: ScanAim, finding: LedgerFinding | None) -> None:
    assert examine_ledger(7, metadata, LIVE, aim) == finding


def test_an_accepted_loss_is_neither_lost_nor_marked_but_what_has_copies_is() -> None:
    metadata = ledger({0: ["d1", "d2"], 5: ["l1", "d1"]}, 2, 2, last_entry_id=9, length=100)
    assert examine_ledger(7, metadata, LIVE, DUE, ("d1", "d2")) == to_mark("d1"), "from 5 on"
    assert examine_ledger(7, metadata, LIVE, DUE, ("d1",)) == LedgerFinding(
        frozenset({"d1"}), lost_with=frozenset({"d1", "d2"})
    )
    assert examine_ledger(7, closed("d1", "d2"), LIVE, DUE, ("d1", "d2")) is None
    striped = closed("d1", "a1", "a2", write_quorum=2)
    assert examine_ledger(7, striped, LIVE, DUE, ("a1", "a2")) == LedgerFinding(lost_with=frozenset({"d1"}))


def test_a_lost_segment_is_found_among_good_ones() -> None:
    metadata = ledger({0: ["l1", "l2"], 5: ["d1", "d2"], 8: ["l1", "d1"]}, 2, 2, last_entry_id=9, length=100)
    found = examine_ledger(7, metadata, LIVE, DUE)
    assert found == LedgerFinding(frozenset({"d1"}), lost_with=frozenset({"d1", "d2"})), "d1 can be replaced from 8 on"
