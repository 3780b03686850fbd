from __future__ import annotations

from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.ledger.pulsar_owner import (
    PulsarLedgerOwner,
    PulsarTopic,
    PulsarUse,
    pulsar_owner,
    schema_at,
    topics_at,
)

PULSAR = {"application": b"pulsar"}
TOPIC = PulsarTopic("t/n", "a b")
KEYS = [
    "application",
    "pulsar/managed-ledger",
    "pulsar/cursor",
    "pulsar/compactedTopic",
    "pulsar/schemaId",
    "pulsar/delayedIndexTopic",
    "pulsar/delayedIndexBucketKey",
]


@pytest.mark.parametrize(
    ("labels", "use", "topic"),
    [
        ({"pulsar/managed-ledger": b"t/n/persistent/a+b"}, PulsarUse.DATA, TOPIC),
        ({"pulsar/managed-ledger": b"t/n/persistent/a%20b", "pulsar/cursor": b"c"}, PulsarUse.CURSOR, TOPIC),
        ({"pulsar/managed-ledger": b"t/c/n/persistent/a+b"}, PulsarUse.DATA, PulsarTopic("t/c/n", "a b")),
        ({"pulsar/managed-ledger": b"t/persistent/persistent/x"}, PulsarUse.DATA, PulsarTopic("t/persistent", "x")),
        ({"pulsar/managed-ledger": b"t/n/persistent/persistent"}, PulsarUse.DATA, PulsarTopic("t/n", "persistent")),
        ({"pulsar/managed-ledger": b"t/c/persistent/persistent/x"}, PulsarUse.DATA, PulsarTopic("t/c/persistent", "x")),
        ({"pulsar/compactedTopic": b"persistent://t/n/a b"}, PulsarUse.COMPACTED, TOPIC),
        ({"pulsar/compactedTopic": b"persistent://t/n/a%20b"}, PulsarUse.COMPACTED, PulsarTopic("t/n", "a%20b")),
        ({"pulsar/compactedTopic": b"persistent://t/c/n/x"}, PulsarUse.COMPACTED, PulsarTopic("t/c/n", "x")),
        ({"pulsar/schemaId": b"t/n/a+b"}, PulsarUse.SCHEMA, TOPIC),
        ({"pulsar/delayedIndexTopic": b"persistent://t/n/a b"}, PulsarUse.BUCKET, TOPIC),
    ],
)
def test_owners(labels: dict[str, bytes], use: PulsarUse, topic: PulsarTopic) -> None:
    assert pulsar_owner(PULSAR | labels) == PulsarLedgerOwner(use, topic)
    assert pulsar_owner(labels) is None, "another application may use such keys"
    assert pulsar_owner({"application": b"x"} | labels) is None


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"pulsar/cursor": b"c"},
        {"pulsar/delayedIndexBucketKey": b"t/n/x"},
        {"pulsar/managed-ledger": b"t/n/persistent/x", "pulsar/schemaId": b"t/n/x"},
        {"pulsar/schemaId": b"t/n/x", "pulsar/cursor": b"c"},
        {"pulsar/managed-ledger": b""},
        {"pulsar/managed-ledger": b"t/n/x"},
        {"pulsar/managed-ledger": b"t/n/persistent/"},
        {"pulsar/managed-ledger": b"t//persistent/x"},
        {"pulsar/managed-ledger": b"t/n/persistent/x/y"},
        {"pulsar/managed-ledger": b"t/n/persistent/\xff"},
        {"pulsar/compactedTopic": b"persistent://t/c/n/a/b"},
        {"pulsar/compactedTopic": b"non-persistent://t/n/x"},
        {"pulsar/schemaId": b"x"},
    ],
)
def test_an_owner_in_doubt_is_not_known(labels: dict[str, bytes]) -> None:
    assert pulsar_owner(PULSAR | labels) is None


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_topic_is_the_same_in_paths_and_names(name: str) -> None:
    path = f"t/n/persistent/{quote_plus(name)}"
    owner = pulsar_owner(PULSAR | {"pulsar/managed-ledger": path.encode()})
    assert owner is not None
    assert owner.topic == PulsarTopic("t/n", name)
    assert (owner.topic, []) in topics_at(path.split("/"))
    assert schema_at(["t", "n", quote_plus(name)]) == owner.topic
    if "/" not in name:
        named = pulsar_owner(PULSAR | {"pulsar/compactedTopic": f"persistent://t/n/{name}".encode()})
        assert named is not None
        assert named.topic == owner.topic


def test_a_path_may_be_of_two_topics() -> None:
    parts = ["t", "n", "persistent", "persistent", "x"]
    assert topics_at(parts) == [(PulsarTopic("t/n", "persistent"), ["x"]), (PulsarTopic("t/n/persistent", "x"), [])]
    assert topics_at(["t", "n", "persistent"]) == topics_at(["t", "n"]) == topics_at([""]) == []


@given(st.dictionaries(st.sampled_from(KEYS), st.binary(max_size=40)))
def test_any_labels(labels: dict[str, bytes]) -> None:
    owner = pulsar_owner(PULSAR | labels)
    assert owner is None or (owner.topic.name and 2 <= len(owner.topic.namespace.split("/")) <= 3)


@given(st.lists(st.sampled_from(["", "t", "n", "persistent", "x%", "%ff"]), min_size=1, max_size=8))
def test_any_path(parts: list[str]) -> None:
    assert len(topics_at(parts)) <= 2
    schema_at(parts)
