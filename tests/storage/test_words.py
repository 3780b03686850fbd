"""The words that all messages take from one module."""

from __future__ import annotations

import pytest

from bkctl.storage.words import counted, decimal, duration, enumerated, exact_size, first_lines, listed, percent, size


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB"), (2**70, "1048576.0 PiB"), (None, "-")],
)
def test_sizes(value: int | None, text: str) -> None:
    assert size(value) == text


def test_exact_sizes() -> None:
    assert [exact_size(each) for each in (5, 1024, 1025, 4 << 20, 3 << 29)] == [
        "5",
        "1 KiB",
        "1025",
        "4 MiB",
        "1536 MiB",
    ]


def test_shares_and_numbers() -> None:
    assert [percent(value) for value in (0, 0.5, 1, None)] == ["0.0 %", "50.0 %", "100.0 %", "-"]
    assert [percent(value) for value in (0.01, 0.0005, 0.00123)] == ["1.0 %", "0.05 %", "0.12 %"]
    assert [decimal(value) for value in (1234.5678, 2.0, 0, None)] == ["1,234.568", "2", "0", "-"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (172_800, "2 days"), (None, "-")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_counted_nouns() -> None:
    assert (counted(0, "ledger"), counted(1, "ledger"), counted(2, "ledger")) == ("0 ledgers", "1 ledger", "2 ledgers")
    assert (counted(1, "bad copy"), counted(5, "bad copy"), counted(5, "key")) == (
        "1 bad copy",
        "5 bad copies",
        "5 keys",
    )
    assert counted(2000, "ledger is", "ledgers are") == "2,000 ledgers are"


def test_lists_are_cut() -> None:
    assert listed([]) == ""
    assert listed(range(5)) == "0, 1, 2, 3, 4"
    assert listed(range(2000)) == "0, 1, 2, 3, 4 and 1,995 more"
    assert listed({7: "a", 8: "b"}, 1) == "7 and 1 more"
    assert listed(("a: b", "c: d", "e: f"), 2, separator="; ") == "a: b; c: d; and 1 more"
    assert listed(("1-2", "4-5"), 1, noun="range") == "1-2 and 1 more range"
    assert listed(("1", "2"), total=7) == "1, 2 and 5 more"


def test_lines_are_cut() -> None:
    assert first_lines(["a", "b"]) == ["a", "b"]
    assert first_lines(["a", "b", "c"], 2) == ["a", "b", "and 1 more"]
    assert first_lines(["a"] * 4, 1, noun="owner", which="of the file") == ["a", "and 3 more owners of the file"]


def test_names_in_a_sentence() -> None:
    assert [enumerated(["a", "b", "c"][:count]) for count in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert enumerated(["a", "b"], "or") == "a or b"
    assert enumerated(["a", "b", "c", "d"], "or", 2) == "a, b or 2 more"
