"""Isolation groups: what ledgers demand, and which bookies Pulsar's own steps admit."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.placement.isolation import (
    CUSTOM_METADATA_KEY,
    IsolationDemand,
    admitted_bookies,
    isolation_demand,
)

POLICY = "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy"
OLD_POLICY = "org.apache.pulsar.zookeeper.ZkIsolatedBookieEnsemblePlacementPolicy"


def custom(policy: str | None, properties: object) -> list[tuple[str, bytes]]:
    text = json.dumps({"policyClass": policy, "properties": properties}, indent=2)
    return [("application", b"pulsar"), (CUSTOM_METADATA_KEY, text.encode())]


@pytest.mark.parametrize("policy", [POLICY, OLD_POLICY])
@pytest.mark.parametrize(
    ("primary", "secondary", "demand"),
    [
        ("g1,g2", "g3", IsolationDemand(frozenset({"g1", "g2"}), frozenset({"g3"}))),
        (" g1 , ", None, IsolationDemand(frozenset({"g1"}))),
        (["g1", "g2"], [], IsolationDemand(frozenset({"g1", "g2"}))),
        ("", "", IsolationDemand(frozenset())),
        (None, None, IsolationDemand(frozenset())),
        ("*", "*", IsolationDemand(frozenset({"*"}), frozenset({"*"}))),
    ],
)
def test_the_groups_are_in_the_custom_metadata(
    policy: str, primary: object, secondary: object, demand: IsolationDemand
) -> None:
    properties = {"isolationBookieGroups": primary, "secondaryIsolationBookieGroups": secondary}
    assert isolation_demand(custom(policy, properties)) == demand


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [("application", b"pulsar")],
        [(CUSTOM_METADATA_KEY, b"")],
        [(CUSTOM_METADATA_KEY, b"\xff{}")],
        [(CUSTOM_METADATA_KEY, b"[]")],
        [(CUSTOM_METADATA_KEY, b'{"policyClass": 7}')],
        custom("org.example.OtherPolicy", {"isolationBookieGroups": "g1"}),
        custom(None, {"isolationBookieGroups": "g1"}),
        custom(POLICY, None),
    ],
)
def test_other_ledgers_demand_none(metadata: list[tuple[str, bytes]]) -> None:
    assert isolation_demand(metadata) is None


@given(st.binary(max_size=40))
def test_any_bytes_are_a_demand_or_none(value: bytes) -> None:
    assert isinstance(isolation_demand([(CUSTOM_METADATA_KEY, value)]), IsolationDemand | None)


IDS = st.sampled_from("abcdef")
NAMES = ("g1", "g2", "g3")


@given(
    st.dictionaries(st.sampled_from(NAMES), st.frozensets(IDS)),
    st.frozensets(st.sampled_from([*NAMES, "unknown"])),
    st.frozensets(st.sampled_from(NAMES)),
    st.frozensets(IDS),
    st.integers(1, 5),
)
def test_the_steps_of_pulsar_admit_the_same_bookies(
    groups: dict[str, frozenset[str]],
    primary: frozenset[str],
    secondary: frozenset[str],
    known: frozenset[str],
    size: int,
) -> None:
    def members(names: frozenset[str]) -> set[str]:
        return {bookie for name in names for bookie in groups.get(name, ())}

    excluded = members(frozenset(groups) - primary) | known
    excluded -= members(primary)
    count = len(members(primary) & known)
    if count < size:
        count += len(members(secondary) - (members(primary) & known))
        excluded -= members(secondary)
    if count < size:
        excluded -= known - members(frozenset(groups))
    admitted = admitted_bookies(IsolationDemand(primary, secondary), groups, known, size)
    assert admitted == (known - excluded if groups else None)


def test_all_bookies_are_admitted_for_a_star_and_without_a_demand() -> None:
    groups = {"g1": frozenset("ab")}
    assert admitted_bookies(None, groups, "abc", 2) is None
    assert admitted_bookies(IsolationDemand(frozenset({"*"})), groups, "abc", 2) is None
    assert admitted_bookies(IsolationDemand(frozenset({"none"}), frozenset({"*"})), groups, "abc", 2) is None
    assert admitted_bookies(IsolationDemand(frozenset()), groups, "abc", 2) == frozenset("c")
