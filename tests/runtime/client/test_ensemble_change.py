"""Who takes the place of failed bookies. The changes themselves are tested with the writer."""

from __future__ import annotations

import pytest

from bkctl.runtime.client.ensemble_change import Replacements
from bkctl.runtime.errors import NotEnoughBookiesError
from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType
from tests.runtime.client.fakes import Fakes

ENSEMBLE = ("b1", "b2", "b3")


async def replacements(fakes: Fakes, *writable: str, suspects: tuple[str, ...] = ()) -> Replacements:
    client = await fakes.client()
    for suspect in suspects:
        client.ports.suspects.add(suspect)
    survey = await client.ports.placement.survey(writable)
    return Replacements(client.ports, 1, new_ledger(ENSEMBLE, 2, 2, DigestType.CRC32C, b""), survey)


async def test_neither_the_ensemble_nor_a_failed_bookie_is_chosen(fakes: Fakes) -> None:
    choice = await replacements(fakes, "b1", "b2", "b3", "b4", "b5")
    chosen = choice.choose(ENSEMBLE, {0: "b1", 2: "b3"})
    assert chosen.keys() == {0, 2}
    assert set(chosen.values()) == {"b4", "b5"}


async def test_a_failure_that_the_ensemble_no_longer_names_is_passed_over(fakes: Fakes) -> None:
    choice = await replacements(fakes, "b4", "b5", "b6")
    assert choice.choose(("b9", "b2", "b3"), {0: "b1", 1: "b2"}).keys() == {1}


async def test_what_can_be_replaced_is_replaced(fakes: Fakes) -> None:
    choice = await replacements(fakes, "b1", "b2", "b3", "b4")
    assert list(choice.choose(ENSEMBLE, {0: "b1", 1: "b2"}).values()) == ["b4"]
    with pytest.raises(NotEnoughBookiesError, match=r"b1 \(3 are registered.* until its session expires"):
        (await replacements(fakes, *ENSEMBLE)).choose(ENSEMBLE, {0: "b1"})


async def test_suspects_serve_when_nobody_else_is_left(fakes: Fakes) -> None:
    choice = await replacements(fakes, "b4", "b5", suspects=("b4",))
    assert choice.choose(ENSEMBLE, {0: "b1"}) == {0: "b5"}
    assert choice.choose(("b1", "b5", "b3"), {0: "b1"}) == {0: "b4"}


async def test_the_last_candidate_takes_the_place_of_a_bookie_that_is_gone(fakes: Fakes) -> None:
    choice = await replacements(fakes, "b1", "b2", "b4")
    assert choice.choose(ENSEMBLE, {0: "b1", 2: "b3"}) == {2: "b4"}


async def test_an_unsuitable_bookie_is_not_chosen(fakes: Fakes) -> None:
    choice = await replacements(fakes, "b4", "b5")
    assert choice.choose(ENSEMBLE, {0: "b1"}, {"b4"}) == {0: "b5"}
