"""What the audit knows about racks and losses."""

from __future__ import annotations

import pytest

from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.placement.rack_sources import RackTable
from bkctl.runtime.placement.rules import PlacementRules
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts, KnownBookies, Loss, parse_loss
from tests.runtime.replication.cluster_audit.test_counter import report
from tests.runtime.replication.samples import ledger
from tests.runtime.replication.test_audit import verdict

BOOKIES = ("b0", "b1", "b2", "b3")
RACKS = {"b0": "/east/r1", "b1": "/east/r2", "b2": "/west/r3", "gone": "/west/r4"}


def facts(rules: PlacementRules, racks: dict[str, str]) -> AuditFacts:
    survey = BookieSurvey(writable=frozenset(BOOKIES), tables=(RackTable(racks),), rules=rules)
    return AuditFacts(registrations=Registrations(BOOKIES, ()), now_ms=0, survey=survey)


def test_a_loss_has_bookies_and_racks() -> None:
    assert parse_loss("b1:3181, rack:/r1,rack:west/r2/") == Loss(
        "b1:3181, rack:/r1,rack:west/r2/", frozenset({"b1:3181"}), frozenset({"/r1", "/west/r2"})
    )
    for text in ("", "a,", "rack:", "rack:/", "a,,b"):
        with pytest.raises(ValueError, match="empty name"):
            parse_loss(text)


def test_write_sets_in_one_region_are_misplaced_if_regions_matter() -> None:
    ledgers = [ledger({0: pair}, 2, 1, last_entry_id=0, length=1) for pair in (["b0", "b1"], ["b1", "b2"])]
    verdicts = [verdict(number, each, set(BOOKIES)) for number, each in enumerate(ledgers)]
    racks = PlacementRules(min_racks_per_write_quorum=2)
    regions = PlacementRules(min_racks_per_write_quorum=2, min_regions_per_write_quorum=2)
    assert report(verdicts, facts(racks, RACKS)).misplaced == ()
    assert [each.ledger_id for each in report(verdicts, facts(regions, RACKS)).misplaced] == [0]


def test_bookies_without_a_source_share_the_default_rack_unless_they_are_down() -> None:
    known = KnownBookies(facts(PlacementRules(min_racks_per_write_quorum=2), RACKS))
    found = [known.rack_of(each) for each in ("b0", "b3", "gone", "other")]
    assert found == ["/east/r1", "/default-rack", "/west/r4", None]
    assert known.rules.has_racks


def test_racks_do_not_matter_while_all_bookies_are_in_one() -> None:
    known = facts(PlacementRules(min_racks_per_write_quorum=2), {"gone": "/r1"})
    summary = report([verdict(1, ledger({0: ["b0", "b1"]}, 2, 1, last_entry_id=0), set(BOOKIES))], known).summary
    assert (summary.racks_required, summary.misplaced, summary.one_rack) == (None, None, None)
