"""The rack-aware policy of Apache BookKeeper 4.18.0 judges ensembles as we do, and finds no choice that we miss.

Each line of the golden file was made by asking its RackawareEnsemblePlacementPolicy, with a resolver that knows the
racks of the line: ``isEnsembleAdheringToPlacementPolicy``, ``newEnsemble`` or ``replaceBookie``. Two facts were seen on
the way. Its verdict counts only the racks of writable bookies. A ledger with a single bookie never adheres; the file
has none.
"""

from __future__ import annotations

import os
import random

import msgspec
import pytest

from bkctl.runtime.placement.choice import Choice, PlacementNeed, choose_ensemble, choose_replacements
from bkctl.runtime.placement.rules import PlacementRules, judge_ensemble
from bkctl.runtime.placement.view import ClusterView, KnownBookie
from tests.test_repository import ROOT

ADHERES = "MEETS_STRICT"


class Verdict(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One question, and the answer of Java."""

    min_racks: int
    is_enforced: bool
    racks: dict[str, str]
    writable: list[str]
    read_only: list[str]
    write_quorum: int
    ensemble: list[str] = []
    new: int | None = None
    replace: int | None = None
    answer: str
    chosen: list[str] = []

    @property
    def view(self) -> ClusterView:
        """What Java counts: writable bookies."""
        return ClusterView({bookie_id: KnownBookie(rack=self.racks[bookie_id]) for bookie_id in self.writable})

    @property
    def rules(self) -> PlacementRules:
        return PlacementRules(min_racks_per_write_quorum=self.min_racks, needs_known_rack=self.is_enforced)


with open(os.path.join(ROOT, "tests", "golden", "placement", "rack-aware-4.18.0.jsonl"), "rb") as file:
    VERDICTS = [msgspec.json.decode(line, type=Verdict) for line in file]


def test_ensembles_adhere_or_not_as_in_java() -> None:
    judged = [each for each in VERDICTS if each.new is None and each.replace is None]
    assert len(judged) == 250
    assert {each.answer for each in judged} == {ADHERES, "FAIL"}
    for each in judged:
        broken = judge_ensemble(each.view, each.rules, each.ensemble, each.write_quorum)
        assert ("FAIL" if broken else ADHERES) == each.answer, each


@pytest.mark.parametrize("kind", ["new", "replace"])
def test_where_java_finds_bookies_that_adhere_so_do_we(kind: str) -> None:
    found_by_java = [each for each in VERDICTS if getattr(each, kind) is not None and each.answer == ADHERES]
    assert len(found_by_java) >= 40
    for each in found_by_java:
        need = PlacementNeed(write_quorum_size=each.write_quorum)
        source = random.Random(1)
        if each.new is not None:
            found = choose_ensemble(each.view, each.rules, need, each.new, source)
            assert isinstance(found, Choice)
            ensemble = list(found.bookies)
        else:
            assert each.replace is not None
            ensemble = list(each.ensemble)
            found = choose_replacements(each.view, each.rules, need, ensemble, [each.replace], source)
            assert isinstance(found, Choice)
            ensemble[each.replace] = found.bookies[0]
        assert judge_ensemble(each.view, each.rules, ensemble, each.write_quorum) == (), each
