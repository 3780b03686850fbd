from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.ledger.owner import owner_group, owner_of

TOPIC = {"pulsar/managed-ledger": b"acme/shop/persistent/orders%2Feu+1-partition-0"}
KEYS = [
    "application",
    "component",
    "pulsar/managed-ledger",
    "pulsar/cursor",
    "pulsar/compactedTopic",
    "pulsar/compactedTo",
    "pulsar/schemaId",
    "pulsar/delayedIndexBucketKey",
    "pulsar/delayedIndexTopic",
    "pulsar/delayedIndexCursor",
    "other",
]


def of_pulsar(component: bytes, **keys: bytes) -> str | None:
    own = {"pulsar/" + key.replace("_", "-"): value for key, value in keys.items()}
    return owner_of({"application": b"pulsar", "component": component} | own)


def test_topics_and_cursors() -> None:
    name = "topic persistent://acme/shop/orders/eu 1-partition-0"
    managed = {"application": b"pulsar", "component": b"managed-ledger"} | TOPIC
    assert owner_of(managed) == name
    assert owner_of(managed | {"pulsar/cursor": b"audit%20log"}) == f"cursor audit log of {name}"
    assert of_pulsar(b"managed-ledger", cursor=b"s") == "cursor s"
    assert owner_of(TOPIC) == name, "the keys are enough"


def test_a_topic_of_the_older_form_has_a_cluster() -> None:
    assert of_pulsar(b"managed-ledger", managed_ledger=b"t/us-west/ns/persistent/a") == (
        "topic persistent://t/us-west/ns/a"
    )


@pytest.mark.parametrize("name", [b"a", b"a/b", b"t/ns/topics/a", b"t/ns/persistent/a/b/c", b"/", b"////"])
def test_a_managed_ledger_that_is_not_a_topic(name: bytes) -> None:
    assert of_pulsar(b"managed-ledger", managed_ledger=name) == f"managed ledger {name.decode()}"


def test_ledgers_of_other_components() -> None:
    assert of_pulsar(b"compacted-ledger", compactedTopic=b"persistent://t/ns/a%2Fb", compactedTo=b"\x08\xff") == (
        "compacted topic persistent://t/ns/a%2Fb"
    )
    assert of_pulsar(b"schema", schemaId=b"t/ns/a%2Fb") == "schema of t/ns/a/b"
    bucket = {"delayedIndexBucketKey": b"delayed_1_2"}
    assert of_pulsar(b"delayed-index-bucket", **bucket) == "delayed-delivery bucket delayed_1_2"
    full = bucket | {"delayedIndexTopic": b"persistent://t/ns/a", "delayedIndexCursor": b"s%2B"}
    assert of_pulsar(b"delayed-index-bucket", **full) == (
        "delayed-delivery bucket of topic persistent://t/ns/a, cursor s+"
    )
    assert of_pulsar(b"new-kind") == "application pulsar, component new-kind"


@pytest.mark.parametrize(
    ("metadata", "group"),
    [
        (TOPIC, "acme/shop"),
        (TOPIC | {"pulsar/cursor": b"of topic persistent://x/y/z"}, "acme/shop"),
        ({"pulsar/cursor": b"s"}, "(cursor)"),
        ({"pulsar/managed-ledger": b"t/us-west/ns/persistent/a"}, "t/us-west"),
        ({"pulsar/managed-ledger": b"my ledger"}, "(managed ledger)"),
        ({"pulsar/compactedTopic": b"persistent://t/ns/a%2Fb"}, "t/ns"),
        ({"pulsar/compactedTopic": b"odd"}, "(compacted managed ledger)"),
        ({"pulsar/schemaId": b"t/ns/a%2Fb"}, "t/ns"),
        ({"pulsar/schemaId": b"odd"}, "(schema)"),
        ({"pulsar/delayedIndexBucketKey": b"delayed_1"}, "(delayed-delivery bucket)"),
        ({"pulsar/delayedIndexTopic": b"persistent://t/ns/a", "pulsar/delayedIndexCursor": b"c"}, "t/ns"),
        ({"application": b"x", "component": b"y"}, "application x"),
    ],
)
def test_owners_are_grouped_by_namespace(metadata: dict[str, bytes], group: str) -> None:
    owner = owner_of(metadata)
    assert owner is not None
    assert owner_group(owner) == group


def test_other_applications() -> None:
    assert owner_of({"application": b"table-service"}) == "application table-service"
    assert owner_of({"application": b"x", "component": b"y"} | TOPIC) == "application x, component y"
    assert owner_of({}) is None
    assert owner_of({"other": b"x", "component": b"schema", "application": b""}) is None


def test_an_owner_cannot_change_the_terminal() -> None:
    assert owner_of({"application": b"a\x1b[2Jb\nc\xff"}) == "application a\ufffd[2Jb\ufffdc\ufffd"
    assert of_pulsar(b"schema", schemaId=b"%1b%0a%ff") == "schema of \ufffd\ufffd\ufffd"


@given(st.dictionaries(st.sampled_from(KEYS), st.binary(max_size=40)))
def test_any_bytes(custom_metadata: dict[str, bytes]) -> None:
    owner = owner_of(custom_metadata)
    assert owner is None or (owner != "" and owner.isprintable())
