"""Writers choose bookies by the rules, with racks, groups and free space from their sources."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence

import pytest

from bkctl.runtime.client.ensemble_change import Replacements
from bkctl.runtime.client.placement import (
    SURVEY_AGE_S_MAX,
    PlacementSources,
    placement_on,
    rules_of,
)
from bkctl.runtime.config import PlacementConfig, PlacementPolicy
from bkctl.runtime.errors import ConfigurationError, NotEnoughBookiesError
from bkctl.runtime.ledger.changes import new_ledger, replace_bookies
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.placement.isolation import CUSTOM_METADATA_KEY
from bkctl.runtime.placement.rack_sources import SCRIPT_ARGUMENTS_MAX
from bkctl.runtime.placement.rules import PlacementRules
from bkctl.runtime.placement.survey import BookieSurvey
from tests.runtime.client.fakes import Client, Fakes
from tests.runtime.net.stepped_clock import SteppedClock

POLICY = "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy"
GOLD = {
    CUSTOM_METADATA_KEY: json.dumps({"policyClass": POLICY, "properties": {"isolationBookieGroups": "gold"}}).encode()
}
RACKS = {"b1": "/r1", "b2": "/r1", "b3": "/r1", "b4": "/r2"}


class Files:
    """A table and a script in memory; notes what the script was asked."""

    def __init__(self, table: str = "", racks: dict[str, str] | None = None) -> None:
        self.table = table
        self.racks = racks or {}
        self.asked: list[list[str]] = []

    async def read_table(self, path: str) -> str:
        assert path == "racks.txt"
        return self.table

    async def run_script(self, path: str, hosts: Sequence[str]) -> str:
        assert path == "rack-of"
        self.asked.append(list(hosts))
        return "\n".join(self.racks.get(host, "/default-rack") for host in hosts)


def sources(client: Client, files: Files | None = None, clock: SteppedClock | None = None) -> PlacementSources:
    ports = client.ports
    return PlacementSources(
        client.held_store,
        ports.registrations,
        ports.bookies,
        clock or ports.clock,
        files or Files(),
        f"{ports.ledgers.root}-pulsar/ledgers",
    )


async def client_with(fakes: Fakes, files: Files | None = None, **settings: object) -> Client:
    client = await fakes.client()
    config = PlacementConfig(**settings)  # type: ignore[arg-type]
    client.ports = dataclasses.replace(client.ports, placement=placement_on(config, sources(client, files)))
    return client


async def beside_the_root(fakes: Fakes, data: bytes) -> str:
    path = f"{fakes.ledgers.root}-pulsar/bookies"
    await fakes.store.create(path, data, make_parents=True)
    return path


async def pulsar_node(fakes: Fakes, node: object) -> str:
    path = f"{fakes.ledgers.root}-bookies"
    await fakes.store.create(path, json.dumps(node).encode())
    return path


def table(racks: dict[str, str]) -> Files:
    return Files("".join(f"{bookie_id} {rack}\n" for bookie_id, rack in racks.items()))


RACK_AWARE = {"policy": PlacementPolicy.RACK_AWARE, "rack_table_file": "racks.txt"}


async def test_every_write_quorum_of_a_new_ledger_spans_two_racks(fakes: Fakes) -> None:
    await fakes.bookies(*RACKS)
    client = await client_with(fakes, table(RACKS), **RACK_AWARE)
    for _ in range(10):
        async with await client.create(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2) as writer:
            assert "b4" in (await fakes.metadata(writer.ledger_id)).last_segment.ensemble


async def test_a_successor_keeps_the_racks_of_the_write_quorum(fakes: Fakes) -> None:
    client = await client_with(fakes, table(RACKS | {"b5": "/r2"}), **RACK_AWARE)
    survey = await client.ports.placement.survey(["b2", "b3", "b4"])
    metadata = new_ledger(("b1", "b5"), 2, 2, DigestType.CRC32C, b"")
    for _ in range(10):
        replacements = Replacements(client.ports, 1, metadata, survey)
        assert replacements.choose(("b1", "b5"), {1: "b5"}) == {1: "b4"}


async def test_a_writer_that_must_break_a_rule_logs_it(fakes: Fakes, caplog: pytest.LogCaptureFixture) -> None:
    await fakes.bookies("b1", "b2")
    client = await client_with(fakes, table(RACKS), **RACK_AWARE)
    with caplog.at_level(logging.WARNING):
        async with await client.create(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2) as writer:
            pass
    assert f"ledger {writer.ledger_id} breaks placement rules: racks per write quorum: " in caplog.text


async def test_with_enforced_rules_a_writer_fails(fakes: Fakes) -> None:
    await fakes.bookies("b1", "b2")
    client = await client_with(fakes, table(RACKS), is_enforced=True, **RACK_AWARE)
    with pytest.raises(
        NotEnoughBookiesError, match=r"breaks a placement rule: racks per write quorum: .* 1 rack instead"
    ):
        await client.create(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
    survey = await client.ports.placement.survey(["b1", "b2"])
    replacements = Replacements(client.ports, 1, new_ledger(("b1", "b4"), 2, 2, DigestType.CRC32C, b""), survey)
    with pytest.raises(NotEnoughBookiesError, match="no bookie can replace b4: every choice breaks a placement rule"):
        replacements.choose(("b1", "b4"), {1: "b4"})


async def test_a_ledger_of_an_isolated_namespace_stays_in_its_groups(fakes: Fakes) -> None:
    await fakes.bookies("b1", "b2", "b3")
    path = await pulsar_node(fakes, {"gold": {"b1": {"rack": "/r1"}, "b3": {}}, "default": {"b2": {}}})
    client = await client_with(fakes, pulsar_bookies_path=path)
    for _ in range(5):
        async with await client.create(
            ensemble_size=2, write_quorum_size=2, ack_quorum_size=2, custom_metadata=GOLD
        ) as writer:
            assert {"b1", "b3"} == (await fakes.metadata(writer.ledger_id)).bookies()


async def test_a_missing_node_of_pulsar_is_a_wrong_setting(fakes: Fakes) -> None:
    client = await client_with(fakes, pulsar_bookies_path="/none/bookies")
    with pytest.raises(ConfigurationError, match="there is no node /none/bookies with Pulsar's racks"):
        await client.ports.placement.survey(["b1"])


PULSAR = {"default": {"b1": {"rack": "/r1"}, "b2": {"rack": "/r1"}, "b4": {"rack": "/r2"}}, "gold": {"b3": {}}}
FROM_PULSAR = "isolation groups come from Pulsar's node NODE"
TABLE = {"rack_table_file": "racks.txt"}
RANDOM = {"policy": PlacementPolicy.RANDOM}
ONE_RACK = {"default": {"b1": {"rack": "r"}, "b2": {"rack": "/r"}}}


@pytest.mark.parametrize(
    ("node", "settings", "is_path_set", "min_racks", "groups", "origin"),
    [
        (None, {}, False, 0, 0, "bookies are chosen at random: no source of racks is set, and there is no node NODE"),
        (PULSAR, {}, False, 2, 2, f"racks and {FROM_PULSAR} (racks: 2, isolation groups: 2)"),
        (
            *(ONE_RACK, {}, False, 0, 1),
            f"{FROM_PULSAR} (racks: 1, isolation groups: 1); racks do not matter: its bookies are not in two racks",
        ),
        (PULSAR, RANDOM, False, 0, 0, ""),
        (PULSAR, TABLE, False, 2, 0, "racks come from the table racks.txt"),
        (
            *(PULSAR, TABLE, True, 2, 2),
            f"racks and {FROM_PULSAR} (racks: 2, isolation groups: 2) and the table racks.txt",
        ),
        (
            *(PULSAR, RANDOM, True, 0, 2),
            f'{FROM_PULSAR} (racks: 2, isolation groups: 2); racks do not matter: policy is "random"',
        ),
    ],
)
async def test_the_node_of_pulsar_is_found_beside_the_ledgers_root(
    fakes: Fakes,
    node: object,
    settings: dict[str, object],
    is_path_set: bool,
    min_racks: int,
    groups: int,
    origin: str,
) -> None:
    if node is not None:
        path = await beside_the_root(fakes, json.dumps(node).encode())
        if is_path_set:
            settings = settings | {"pulsar_bookies_path": path}
    client = await client_with(fakes, table(RACKS), **settings)
    survey = await client.ports.placement.survey(["b1", "b4"])
    assert survey.rules.min_racks_per_write_quorum == min_racks
    assert len(survey.groups) == groups
    assert survey.origin == origin.replace("NODE", f"{fakes.ledgers.root}-pulsar/bookies")


async def test_a_rack_of_bookies_that_were_removed_does_not_count(fakes: Fakes) -> None:
    """Nobody deletes their entries from Pulsar's node. A bookie that is down has its cookie, and its rack counts."""
    node = {"default": {"b1": {"rack": "r"}, "b2": {"rack": "r"}, "gone": {"rack": "s"}}}
    await beside_the_root(fakes, json.dumps(node).encode())
    client = await client_with(fakes)
    survey = await client.ports.placement.survey(["b1", "b2"])
    assert survey.rules.min_racks_per_write_quorum == 0
    assert survey.origin.endswith(
        "(racks: 1, isolation groups: 1); racks do not matter: its bookies are not in two racks"
    )
    await client.held_store.create(f"{fakes.ledgers.root}-pulsar/ledgers/cookies/gone", make_parents=True)
    again = await client_with(fakes)
    survey = await again.ports.placement.survey(["b1", "b2"])
    assert survey.rules.min_racks_per_write_quorum == 2
    assert "(racks: 2, isolation groups: 1)" in survey.origin


async def test_a_found_node_that_is_not_pulsars_stops_with_a_sentence(fakes: Fakes) -> None:
    await beside_the_root(fakes, b'["other"]')
    client = await client_with(fakes)
    with pytest.raises(
        ConfigurationError, match=r'cannot use the node .*-pulsar/bookies: .* set policy = "random" below'
    ):
        await client.ports.placement.survey(["b1"])


async def test_free_space_comes_from_the_bookies(fakes: Fakes) -> None:
    full, free, silent = await fakes.bookies("full", "free", "silent")
    full.space, free.space = (100, 5), (100, 50)
    await silent.stop()
    client = await client_with(fakes, free_space_reserve_fraction=0.1)
    async with await client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as writer:
        assert (await fakes.metadata(writer.ledger_id)).bookies() == {"free"}
    with pytest.raises(NotEnoughBookiesError, match=r"1 no space above its reserve, 1 did not report its free space"):
        await client.create(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)


async def test_a_survey_is_read_again_when_it_is_old_or_a_bookie_is_new(fakes: Fakes) -> None:
    clock = SteppedClock()
    client = await fakes.client()
    files = Files("b1 /r1\n")
    placement = placement_on(PlacementConfig(**RACK_AWARE), sources(client, files, clock))  # type: ignore[arg-type]
    assert (await placement.survey(["b1"])).rack_of("b1") == "/r1"
    files.table = "b1 /r2\nb2 /r2\n"
    assert (await placement.survey(["b1"])).rack_of("b1") == "/r1"
    assert (await placement.survey(["b1", "b2"])).rack_of("b2") == "/r2"
    files.table = "b1 /r3\n"
    clock.advance(SURVEY_AGE_S_MAX + 1)
    survey = await placement.survey(["b1"])
    assert survey.rack_of("b1") == "/r3"
    assert survey.writable == {"b1"}


async def test_a_script_is_asked_for_hosts_and_not_for_too_many_at_once(fakes: Fakes) -> None:
    await fakes.bookies("named")
    client = await fakes.client()
    files = Files(racks={"127.0.0.1": "/here", "10.0.0.1": "/there"})
    config = PlacementConfig(policy=PlacementPolicy.RACK_AWARE, rack_script="rack-of")
    placement = placement_on(config, sources(client, files))
    others = [f"10.0.0.{number}:3181" for number in range(SCRIPT_ARGUMENTS_MAX)]
    survey = await placement.survey(["named", "gone", *others])
    assert [len(hosts) for hosts in files.asked] == [SCRIPT_ARGUMENTS_MAX, 1]
    racks = {bookie_id: survey.rack_of(bookie_id) for bookie_id in ("named", "10.0.0.1:3181", "gone")}
    assert racks == {"named": "/here", "10.0.0.1:3181": "/there", "gone": None}


async def test_random_placement_reads_nothing(fakes: Fakes) -> None:
    client = await fakes.client()
    files = Files()
    config = PlacementConfig(policy=PlacementPolicy.RANDOM, rack_script="rack-of")
    placement = placement_on(config, sources(client, files))
    await beside_the_root(fakes, b"not Pulsar's")
    survey = await placement.survey(["b1"])
    assert survey == BookieSurvey(writable=frozenset({"b1"}), are_rules_known=True)
    assert files.asked == []


def test_the_settings_are_those_of_java() -> None:
    config = PlacementConfig(policy=PlacementPolicy.RACK_AWARE, rack_script="rack-of")
    assert rules_of(config, is_rack_aware=True) == PlacementRules(min_racks_per_write_quorum=2)
    enforced = PlacementConfig(policy=PlacementPolicy.RACK_AWARE, rack_script="rack-of", is_enforced=True)
    assert rules_of(enforced, is_rack_aware=True) == PlacementRules(
        min_racks_per_write_quorum=2, needs_known_rack=True, is_strict=True
    )
    with pytest.raises(ValueError, match="rack-aware placement needs racks"):
        PlacementConfig(policy=PlacementPolicy.RACK_AWARE)
    assert rules_of(PlacementConfig(), is_rack_aware=False) == PlacementRules()


async def test_the_rules_that_a_stored_ledger_breaks_are_found_by_segment(fakes: Fakes) -> None:
    client = await client_with(fakes, table(RACKS), **RACK_AWARE)
    _, metadata = await fakes.create(("b1", "b4"), 2, 2)
    metadata = replace_bookies(metadata, 7, {1: "b2"})
    broken = await client.ports.placement.broken_rules(metadata, ["b1", "b4"])
    assert broken is not None
    assert {first: [str(each) for each in rules] for first, rules in broken.items()} == {
        7: ["racks per write quorum: b1, b2: 1 rack instead of 2"]
    }


async def test_without_rules_nothing_is_broken_only_if_racks_are_known_not_to_matter(fakes: Fakes) -> None:
    _, metadata = await fakes.create(("b1", "b2"), 2, 2)

    async def broken(**settings: object) -> object:
        client = await client_with(fakes, None, **settings)
        return await client.ports.placement.broken_rules(metadata, ["b1", "b2"])

    assert await broken() is None, "another client may know racks"
    assert await broken(policy=PlacementPolicy.RANDOM) == {}
    path = await pulsar_node(fakes, {"default": {"b1": {"rack": "/r1"}, "b2": {"rack": "/r1"}}})
    assert await broken(pulsar_bookies_path=path) == {}


@pytest.mark.parametrize("text", ["/", ""])
async def test_a_rack_beside_one_that_is_no_rack_still_counts(
    fakes: Fakes, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    await beside_the_root(fakes, json.dumps({"default": {"b1": {"rack": "/r1"}, "b2": {"rack": text}}}).encode())
    clock = SteppedClock()
    placement = placement_on(PlacementConfig(), sources(await fakes.client(), clock=clock))
    problem = f'bookie b2 has the rack "{text}", which counts as /default-rack: write /RACK, or /REGION/RACK'
    with caplog.at_level(logging.WARNING):
        survey = await placement.survey(["b1", "b2", "b3"])
        clock.advance(SURVEY_AGE_S_MAX + 1)
        await placement.survey(["b1", "b2", "b3"])
    assert survey.rules.min_racks_per_write_quorum == 2
    assert survey.view().rack_of("b2") == "/default-rack"
    assert survey.origin.endswith(f"; {problem}")
    assert [each.getMessage() for each in caplog.records] == [problem], "once, not at each survey"


async def test_a_node_without_any_rack_is_no_source_and_a_removed_bookie_no_problem(fakes: Fakes) -> None:
    node = {"default": {"b1": {"rack": "/"}, "b2": {"rack": None}, "gone": {"rack": "/a/b"}}}
    await beside_the_root(fakes, json.dumps(node).encode())
    client = await client_with(fakes)
    survey = await client.ports.placement.survey(["b1", "b2"])
    assert not survey.rules.has_racks
    assert [each.bookie_id for each in survey.rack_problems] == ["b1"]


async def test_racks_of_two_depths_from_tables_and_scripts_are_named(fakes: Fakes) -> None:
    racks = {"b1": "/r1", "b2": "/eu/r2", "b3": "/r3"}
    client = await client_with(fakes, table(racks), **RACK_AWARE)
    survey = await client.ports.placement.survey(list(racks))
    assert [each.bookie_id for each in survey.rack_problems] == ["b2"]
    files = Files(racks={"10.0.0.1": "/", "10.0.0.2": "/r2"})
    client = await client_with(fakes, files, policy=PlacementPolicy.RACK_AWARE, rack_script="rack-of")
    survey = await client.ports.placement.survey(["10.0.0.1:3181", "10.0.0.2:3181"])
    assert [each.bookie_id for each in survey.rack_problems] == ["10.0.0.1:3181"]
    assert survey.rules.min_racks_per_write_quorum == 2
