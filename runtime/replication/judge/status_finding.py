"""What a status says is wrong, and how it names times and bookies. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

_NAMED_MAX = 5


class Urgency(enum.IntEnum):
    """How urgent a finding is."""

    OK = 0
    NOTICE = 1
    WARNING = 2
    CRITICAL = 3


class StatusFinding(msgspec.Struct, frozen=True):
    """A finding: ``part`` is a stable name, ``command`` shows more or fixes it."""

    severity: Urgency
    part: str
    sentence: str
    command: str


def age_text(seconds: float) -> str:
    """Seconds as the largest unit that fits."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"


def age(now_ms: int, since_ms: int) -> str:
    """Time since then; 0 when the clocks disagree."""
    return age_text(max(0, now_ms - since_ms) / 1000)


def first_names(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more


def these_bookies(bookie_ids: Sequence[str], singular: str, plural: str) -> str:
    """Bookies with their verb, like "bookie b1:3181 is"."""
    if len(bookie_ids) == 1:
        return f"bookie {bookie_ids[0]} {singular}"
    return f"{len(bookie_ids)} bookies ({first_names(bookie_ids)}) {plural}"
