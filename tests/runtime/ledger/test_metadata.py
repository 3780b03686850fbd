from __future__ import annotations

import msgspec
import pytest

from runtime.ledger.changes import new_ledger
from runtime.ledger.metadata import DigestType, is_valid_bookie_id, owner_labels, parse_host_and_port

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


@pytest.mark.parametrize("text", ["10.0.0.1:3181", "bk-one_1", "a", "[::1]:3181", "x@y", "readonly2"])
def test_valid(text: str) -> None:
    assert is_valid_bookie_id(text)


@pytest.mark.parametrize("text", ["", "a/b", "a,b", "a b", "b\u00fc", "readonly", "ReadOnly", "a\n", ".", ".."])
def test_invalid(text: str) -> None:
    assert not is_valid_bookie_id(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:3181", ("10.0.0.1", 3181)),
        ("bk.example.com:1", ("bk.example.com", 1)),
        ("bk-1", None),
        ("bk:0", None),
        ("bk:65536", None),
        (":3181", None),
        ("bk:", None),
    ],
)
def test_host_and_port(text: str, expected: tuple[str, int] | None) -> None:
    assert parse_host_and_port(text) == expected
