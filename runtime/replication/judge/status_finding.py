"""What a status says is wrong, and how it names times and bookies. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bkctl.storage.severity import Severity
from bkctl.storage.words import counted, duration, listed


class StatusFinding(msgspec.Struct, frozen=True):
    """A finding: ``part`` is a stable name, ``command`` shows more or fixes it."""

    severity: Severity
    part: str
    sentence: str
    command: str


def age(now_ms: int, since_ms: int) -> str:
    """Time since then; 0 when the clocks disagree."""
    return duration(max(0, now_ms - since_ms) / 1000)


def these_bookies(bookie_ids: Sequence[str], singular: str, plural: str) -> str:
    """Bookies with their verb, like "bookie b1:3181 is"."""
    if len(bookie_ids) == 1:
        return f"bookie {bookie_ids[0]} {singular}"
    return f"{counted(len(bookie_ids), 'bookie')} ({listed(bookie_ids)}) {plural}"
