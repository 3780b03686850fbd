"""What changed between two reports."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bkctl.runtime.errors import ConflictError
from bkctl.runtime.replication.cluster_audit.comparison import compare, require_comparable, run_of
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from tests.runtime.replication.cluster_audit.test_findings import A, B, C, D, E, closed, report


def changes(before: AuditReport, now: AuditReport) -> dict[int, tuple[str, str | None, str | None]]:
    return {each.ledger_id: (each.change, each.before, each.now) for each in compare(before, now).ledgers}


LEDGERS = (closed(A, B), closed(C, D), closed(A, C, D), closed(D, E), closed(A, E), "garbage", closed("bx", "by"))


def test_every_kind_of_change() -> None:
    """Bookie a dies, and e comes back; ledger 6 can be read again, and 7 is lost in both."""
    before = report(*LEDGERS, live="abc")
    now = report(*LEDGERS[:5], closed(B, C), LEDGERS[6], live="bce")
    assert changes(before, now) == {
        1: ("newly_bad", None, "at_risk"),
        3: ("worse", "under_replicated", "at_risk"),
        4: ("better", "unavailable", "at_risk"),
        6: ("healed", "unreadable", None),
    }
    found = compare(before, now)
    assert (found.bookies_gone, found.bookies_back) == ((A,), (E,))
    assert str(found) == (
        "1 bookie gone, 1 bookie new or back, 1 ledger that newly misses copies or cannot be read, "
        "1 ledger worse, 1 ledger better and 1 ledger healed or deleted"
    )
    assert {each.name: (each.before, each.now) for each in found.different_counts} == {
        "unavailable": (2, 1),
        "unreadable": (1, 0),
        "at_risk": (2, 5),
        "one_copy": (2, 5),
        "under_replicated": (1, 0),
        "payload_bytes": (600, 700),
        "copy_bytes": (1300, 1500),
    }


def created(found: AuditReport, *times_ms: int | None) -> AuditReport:
    """With these times of creation of the ledgers that miss copies."""
    rows = zip(found.under_replicated, times_ms, strict=True)
    changed = tuple(msgspec.structs.replace(row, created_ms=time_ms) for row, time_ms in rows)
    return msgspec.structs.replace(found, under_replicated=changed)


def test_only_a_ledger_that_did_not_exist_before_is_new() -> None:
    ledgers = 3 * (closed(A, B),)
    before, now = report(*ledgers), report(*ledgers, live="bcd")
    then_ms = before.summary.judged_at_ms
    now = created(now, then_ms - 1, then_ms + 1, None)
    assert changes(before, now) == {
        1: ("worse", "replicated", "at_risk"),
        2: ("new", None, "at_risk"),
        3: ("newly_bad", None, "at_risk"),
    }
    assert (
        str(compare(before, now))
        == "1 bookie gone, 1 bookie new or back, 1 new ledger that misses copies or cannot be read, "
        "1 ledger that newly misses copies or cannot be read and 1 ledger worse"
    )
    cut = msgspec.structs.replace(before, summary=msgspec.structs.replace(before.summary, unreadable=1))
    assert changes(cut, now) == {2: ("new", None, "at_risk")}, "the others may be in the rest"


def test_a_report_of_a_file_knows_the_ledgers_of_the_file() -> None:
    before, now = report(closed(A, B)), report(closed(A, B), live="b")
    written = msgspec.structs.replace(before.summary, file_written_ms=before.summary.judged_at_ms - 3600)
    now = created(now, before.summary.judged_at_ms - 1)
    assert changes(before, now)[1][0] == "worse"
    assert changes(msgspec.structs.replace(before, summary=written), now)[1][0] == "new"


def test_a_loss_is_worse_than_an_outage() -> None:
    before, now = report(closed(D, E), cookies="abcde"), report(closed(D, E), cookies="abc")
    assert changes(before, now) == {1: ("worse", "unavailable", "lost")}
    assert changes(now, before) == {1: ("better", "lost", "unavailable")}


def test_the_same_report_has_no_change() -> None:
    same = report(*LEDGERS)
    found = compare(same, same)
    assert found.ledgers == ()
    assert found.different_counts == []
    assert str(found) == "no ledger is better or worse"


def with_inventory(plain: AuditReport, bad_copies: int, **changes: Any) -> AuditReport:
    known = {"inventory": "all_entries", "bad_copies": bad_copies, "lost_entries": 1, "unknown_copies": 0} | changes
    return msgspec.structs.replace(plain, summary=msgspec.structs.replace(plain.summary, **known))


@pytest.mark.parametrize(
    "changes",
    [
        {"left_out_ledgers": 1},
        {"unknown_copies": 1},
        {"unknown_ends": 1},
        {"inventory": "listed"},
        {"inventory": "sampled"},
    ],
)
def test_a_copy_that_was_not_examined_is_not_repaired(changes: dict[str, Any]) -> None:
    plain = report(*LEDGERS)
    bad, part = with_inventory(plain, 540), with_inventory(plain, 0, **changes)
    for found in (compare(bad, part), compare(part, bad), compare(part, with_inventory(plain, 7, inventory="sampled"))):
        assert (str(found), found.different_counts) == ("no ledger is better or worse; copies were not compared", [])
    assert (run_of(part, "run=2").bad_copies, run_of(part, "run=2").lost_entries) == (None, None)
    assert (run_of(bad, "run=1").bad_copies, run_of(bad, "run=1").lost_entries) == (540, 1)


def test_bad_copies_are_compared_if_both_inventories_know_all_copies() -> None:
    plain = report(*LEDGERS)
    clean, bad = (with_inventory(plain, count) for count in (0, 540))

    worse, better = compare(clean, bad), compare(bad, clean)

    assert [(each.name, each.before, each.now) for each in worse.different_counts] == [("bad_copies", 0, 540)]
    assert (str(worse), str(better)) == ("540 more bad copies", "540 fewer bad copies")
    assert {each.name: each.now for each in worse.counts}["lost_entries"] == 1
    assert compare(plain, bad).different_counts == compare(bad, plain).different_counts == []
    assert str(compare(plain, bad)) == "no ledger is better or worse"


def test_what_was_cut_off_a_list_is_neither_new_nor_healed() -> None:
    """The counts still show it."""
    few, many = report(*LEDGERS[:3], live="abc"), report(*LEDGERS[:3], live="bc")
    cut = msgspec.structs.replace(many, under_replicated=many.under_replicated[:1])
    assert cut.is_truncated
    assert not compare(few, cut).has_all
    assert {change for change, _, _ in changes(few, cut).values()} == {"newly_bad"}, "3 may be in the rest"
    assert {change for change, _, _ in changes(cut, few).values()} == {"healed"}
    assert "under_replicated" in {each.name for each in compare(few, cut).different_counts}


@pytest.mark.parametrize(("before", "now"), [("a", "a"), (None, "a"), ("a", None)])
def test_reports_of_one_cluster_can_be_compared(before: str | None, now: str | None) -> None:
    require_comparable(report(instance_id=before), now, "old")


def test_reports_of_two_clusters_cannot_be_compared() -> None:
    with pytest.raises(ConflictError, match="old is the report of the cluster with the instance id a, but this one"):
        require_comparable(report(instance_id="a"), "b", "old")
