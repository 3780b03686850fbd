"""Words of the command line, right and wrong."""

from __future__ import annotations

import pytest

from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.parse import parse_duration_s, parse_entry_range, parse_ledger_id, parse_size_bytes
from bkctl.storage.ids import LEDGER_ID_MAX


@pytest.mark.parametrize(
    ("text", "ledger_id"),
    [
        ("0", 0),
        ("007", 7),
        ("0x1F", 31),
        ("0XFf", 255),
        (str(LEDGER_ID_MAX), LEDGER_ID_MAX),
        ("00000000-0000-0000-0000-00000000002a", 42),
    ],
)
def test_ledger_ids(text: str, ledger_id: int) -> None:
    assert parse_ledger_id(text) == ledger_id


NO_LEDGER_IDS = ["", "-1", "1.0", "abc", "0x", "0xg", "1e3", " 1", "\u0661", "0000-0000"]
NO_LEDGER_IDS += [str(LEDGER_ID_MAX + 1), "9" * 5000, "00000000-0000-0001-0000-000000000000"]


@pytest.mark.parametrize("text", NO_LEDGER_IDS)
def test_what_is_no_ledger_id_is_named(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="ledger id"):
        parse_ledger_id(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10.0), ("1.5s", 1.5), ("500ms", 0.5), ("2m", 120.0), ("1h", 3600.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


def test_a_duration_that_no_timer_takes_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="use at most 876000h"):
        parse_duration_s("876001h")


@pytest.mark.parametrize("text", ["", "0", "0s", "-1s", "1d", "s", "1 s", "inf", "9" * 400, f"0.{'1' * 5000}"])
def test_what_is_no_duration_is_named(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a duration"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("0", 0), ("100", 100), ("4k", 4096), ("1KiB", 1024), ("2MB", 2 << 20), ("1g", 1 << 30)]
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "k", "-1", "1.5k", "1t", "1 k", "9" * 5000])
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a size"):
        parse_size_bytes(text)


@pytest.mark.parametrize(
    ("text", "entries"), [(None, (0, None)), ("5", (5, 5)), ("5-9", (5, 9)), ("5-", (5, None)), ("0-0", (0, 0))]
)
def test_entry_ranges(text: str | None, entries: tuple[int, int | None]) -> None:
    assert parse_entry_range(text) == entries


@pytest.mark.parametrize("text", ["", "-5", "a", "1-2-3", "9-5", "1,2"])
def test_what_is_no_entry_range_is_named(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="entry range"):
        parse_entry_range(text)
