"""Words that users read: sizes, shares, durations, counted nouns, and lists that are cut. Pure.

All messages, plans, tables and findings take them from here, so that the same value reads the same everywhere.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Final

UNKNOWN: Final = "-"
"""Text of a value that is not known, in tables."""

SHOWN_MAX: Final = 5
"""How many names a message lists unless it says otherwise."""

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(value: object) -> str:
    """Bytes with a binary unit: ``1.5 MiB``."""
    if not isinstance(value, (int, float)):
        return UNKNOWN
    number, unit = float(value), 0
    while abs(number) >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.1f} {_UNITS[unit]}" if unit else f"{number:.0f} B"


def exact_size(size_bytes: float) -> str:
    """Bytes in the largest unit of which they are a whole number, for limits: ``4 KiB``; without a unit if none is."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        factor = 1024**power
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{int(size_bytes // factor)} {unit}"
    return str(size_bytes)


def percent(value: object) -> str:
    """A fraction of one as a percentage; two digits of one that is below 1 %."""
    if not isinstance(value, (int, float)):
        return UNKNOWN
    return f"{value * 100:.2g} %" if 0 < value < 0.01 else f"{value * 100:.1f} %"


def decimal(value: object) -> str:
    """A number with at most three decimal digits."""
    return f"{value:,.3f}".rstrip("0").rstrip(".") if isinstance(value, (int, float)) else UNKNOWN


def duration(value: object) -> str:
    """Seconds in the largest unit of which there are two, rounded: ``90 min``."""
    if not isinstance(value, (int, float)):
        return UNKNOWN
    for unit, unit_s in (("days", 86_400), ("h", 3600), ("min", 60)):
        if value >= 2 * unit_s:
            return f"{value / unit_s:.0f} {unit}"
    return f"{value:.0f} s"


def capitalized(text: str) -> str:
    """The text with a capital at its beginning; the rest, such as names, stays as it is."""
    return f"{text[:1].upper()}{text[1:]}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``1 ledger``, ``2,000 ledgers``; ``plural`` if it is irregular, or if a verb follows."""
    return f"{number:,} {noun if number == 1 else plural or _plural(noun)}"


def _plural(noun: str) -> str:
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"


def listed(
    items: Collection[object], shown_max: int = SHOWN_MAX, *, separator: str = ", ", total: int = 0, noun: str = ""
) -> str:
    """The first items, and how many more there are: ``1, 2, 3 and 5 more``.

    ``total``: how many there are, if not all are given. ``noun``: what the others are, if the items do not say that.
    """
    text = separator.join(map(str, islice(items, shown_max)))
    rest = max(total, len(items)) - min(shown_max, len(items))
    if not rest:
        return text
    return f"{text}{'' if separator == ', ' else separator.rstrip()} and {_more(rest, noun)}"


def first_lines(lines: Collection[str], shown_max: int = SHOWN_MAX, *, noun: str = "", which: str = "") -> list[str]:
    """The first lines, and one that says how many more there are: ``and 5 more ledgers that are open``."""
    rest = len(lines) - shown_max
    more = [f"and {_more(rest, noun)}{which and f' {which}'}"] if rest > 0 else []
    return [*islice(lines, shown_max), *more]


def enumerated(names: Collection[str], word: str = "and", shown_max: int | None = None) -> str:
    """At least one name as part of a sentence: ``b1, b2 and b3``, ``b1, b2 or 3 more``."""
    shown = list(names)[:shown_max]
    if rest := len(names) - len(shown):
        shown.append(f"{rest:,} more")
    *first, last = shown
    return f"{', '.join(first)} {word} {last}" if first else last


def named(noun: str, names: Collection[str]) -> str:
    """Things with their names: ``bookie b1``, ``bookies b1 and b2``."""
    return f"{noun if len(names) == 1 else _plural(noun)} {enumerated(names, shown_max=SHOWN_MAX)}"


def _more(number: int, noun: str) -> str:
    return counted(number, f"more {noun}") if noun else f"{number:,} more"
