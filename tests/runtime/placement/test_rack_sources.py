"""Racks from Pulsar's node, from tables, from scripts."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.errors import ConfigurationError, MetadataFormatError
from bkctl.runtime.placement.rack_sources import (
    PulsarBookies,
    decode_pulsar_bookies,
    decode_rack_table,
    decode_script_answer,
    rack_problems,
)

NODE = """{"default": {"10.0.0.1:3181": {"rack": "/rack1", "hostname": "bk1"}},
 "gold": {"bk2.example:3181": {"rack": "eu/r2", "hostname": null}, "bk-3": {"rack": "r3/"}}}"""


def test_pulsar_keeps_racks_and_groups_in_one_node() -> None:
    found = decode_pulsar_bookies(NODE.encode())
    assert found.groups == {
        "default": frozenset({"10.0.0.1:3181"}),
        "gold": frozenset({"bk2.example:3181", "bk-3"}),
    }
    assert found.racks.rack_of(["10.0.0.1:3181"]) == "/rack1"
    assert found.racks.rack_of(["bk2.example:3181"]) == "/eu/r2"
    assert found.racks.rack_of(["bk-3"]) == "/r3"
    assert found.racks.rack_of(["bk1"]) is None, "the host name is never used to match"


def test_a_rack_applies_to_the_other_bookies_of_its_host() -> None:
    found = decode_pulsar_bookies(b'{"g": {"h:1": {"rack": "/r1"}, "h:2": {"rack": "/r2"}}}')
    assert found.racks.rack_of(["h:2", "h"]) == "/r2"
    assert found.racks.rack_of(["h:3", "h"]) == "/r1"


@pytest.mark.parametrize("rack", ["", "/", None])
def test_an_empty_rack_is_no_rack(rack: str | None) -> None:
    node = json.dumps({"g": {"b1": {"rack": rack}, "b2": None}}).encode()
    found = decode_pulsar_bookies(node)
    assert found.racks.racks == {}
    assert found.groups == {"g": frozenset({"b1", "b2"})}


def test_a_bookie_in_two_groups_has_the_rack_of_the_first() -> None:
    found = decode_pulsar_bookies(b'{"z": {"b": {"rack": "/z"}}, "a": {"b": {}}, "c": {"b": {"rack": "/c"}}}')
    assert found.racks.rack_of(["b"]) == "/c"
    assert all(members == {"b"} for members in found.groups.values())


@pytest.mark.parametrize("data", [b"", b"{}"])
def test_an_empty_node_has_no_groups(data: bytes) -> None:
    assert decode_pulsar_bookies(data).groups == {}


@given(st.binary(max_size=40))
def test_any_bytes_are_a_node_or_a_format_error(data: bytes) -> None:
    with contextlib.suppress(MetadataFormatError):
        assert isinstance(decode_pulsar_bookies(data), PulsarBookies)


def test_a_table_has_a_bookie_or_host_and_a_rack_on_each_line() -> None:
    table = decode_rack_table("# racks\n\nb1:3181\t/r1  # first\n10.0.0.2 eu/r2/\nb1:3181 r1\n")
    assert table.racks == {"b1:3181": "/r1", "10.0.0.2": "/eu/r2"}
    assert table.rack_of(["b2:3181", "10.0.0.2"]) == "/eu/r2"
    assert table.rack_of(["b2:3181"]) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("b1 /r1\nb2", "line 2: write a bookie"),
        ("b1 /r1 /r2", "line 1: write a bookie"),
        ("b1 /", "line 1: write a bookie"),
        ("b1 /r1\nb1 /r2", "line 2: b1 has another rack"),
    ],
)
def test_a_line_that_cannot_be_decoded_is_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        decode_rack_table(text)


def test_a_script_prints_one_rack_for_each_host() -> None:
    table = decode_script_answer(["h1", "h2", "h3"], "/r1\n eu/r2 /\n")
    assert table.racks == {"h1": "/r1", "h2": "/eu/r2"}
    assert table.invalid == {"h3": "/"}


@pytest.mark.parametrize("output", ["", "/r1", "/r1 /r2 /r3"])
def test_any_other_number_of_racks_is_an_error(output: str) -> None:
    with pytest.raises(ConfigurationError, match="racks for 2 hosts"):
        decode_script_answer(["h1", "h2"], output)


def problems_of(racks: dict[str, str | None]) -> dict[str, str]:
    node = {"default": {bookie_id: {"rack": rack} for bookie_id, rack in racks.items()}}
    table = decode_pulsar_bookies(json.dumps(node).encode()).racks
    names = {bookie_id: (bookie_id, bookie_id.partition(":")[0]) for bookie_id in racks}
    return {each.bookie_id: each.problem for each in rack_problems([table], names)}


def test_racks_that_are_no_paths_are_named() -> None:
    assert problems_of({"a:1": "/r1", "b:1": "/", "c:1": "", "d:1": None, "e:1": "r2/"}) == {
        "b:1": 'the rack "/", which counts as /default-rack: write /RACK, or /REGION/RACK',
        "c:1": 'the rack "", which counts as /default-rack: write /RACK, or /REGION/RACK',
    }
    assert problems_of({"a:1": "/r1", "a:2": "/"}) == {}, "Pulsar looks up hosts, and this host has a rack"


def test_racks_of_another_depth_than_most_are_named() -> None:
    refused = 'the rack "/eu/r3", which Java refuses: 2 other bookies have the form /RACK, use one form'
    assert problems_of({"a:1": "/r1", "b:1": "/r2", "c:1": "/eu/r3", "d:1": None}) == {"c:1": refused}
    refused = 'the rack "/r3", which Java refuses: 2 other bookies have the form /REGION/RACK, use one form'
    assert problems_of({"a:1": "/eu/r1", "b:1": "us/r2", "c:1": "/r3"}) == {"c:1": refused}
    assert list(problems_of({"a:1": "/eu/r1", "b:1": "/r2"})) == ["a:1"], "of as many, the shorter form stays"
    assert problems_of({"a:1": "/eu/r1", "b:1": "/us/r2"}) == {}


def test_an_answer_of_a_script_that_is_no_rack_is_named_unless_a_table_has_one() -> None:
    script = decode_script_answer(["h1", "h2"], "/ /")
    table = decode_rack_table("h2 /r2")
    names = {"b1": ("b1", "h1"), "b2": ("b2", "h2")}
    assert [each.bookie_id for each in rack_problems([table, script], names)] == ["b1"]
