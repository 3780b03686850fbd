from __future__ import annotations

import pytest

from bkctl.runtime.ledger.metadata import is_valid_bookie_id, parse_host_and_port


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
