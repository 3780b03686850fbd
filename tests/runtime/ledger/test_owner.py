from __future__ import annotations

import msgspec

from runtime.ledger.changes import new_ledger
from runtime.ledger.metadata import DigestType
from runtime.ledger.owner import owner_labels

LEDGER = new_ledger(("b1",), 1, 1, DigestType.CRC32C, b"")


def labels(**custom: bytes) -> dict[str, str]:
    pairs = tuple((key.replace("__", "/"), value) for key, value in custom.items())
    return owner_labels(msgspec.structs.replace(LEDGER, custom_metadata=pairs))


def test_labels_of_pulsar_in_a_steady_order() -> None:
    found = labels(pulsar__schemaId=b"s", other=b"x", component=b"schema", pulsar__cursor=b"c", application=b"pulsar")
    assert list(found.items()) == [
        ("application", "pulsar"),
        ("component", "schema"),
        ("pulsar/cursor", "c"),
        ("pulsar/schemaId", "s"),
    ]


def test_nobody() -> None:
    assert labels() == labels(other=b"x") == {}


def test_a_label_cannot_steer_the_terminal() -> None:
    assert labels(application=b"a\x1b[2Jb\nc\xff") == {"application": "a\ufffd[2Jb\ufffdc\ufffd"}
