"""Full disks of bookies, and what to do. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from bkctl.runtime.replication.judge.advice import Advice, these_bookies
from bkctl.storage.severity import Severity
from bkctl.storage.words import percent

DISK_WARNING_FRACTION = 0.90
DISK_CRITICAL_FRACTION = 0.95
"""Java's defaults of diskUsageWarnThreshold and diskUsageThreshold; at the second a bookie becomes read-only."""

_OUT_OF_SPACE = frozenset({"disk_full", "no_room", "journal_full"})
"""Of the reasons that a bookie gives."""
_FULL_DISK = "bkctl help full-disk"


def why_out_of_space(read_only_reasons: Mapping[str, str]) -> str | None:
    """Of the reasons for read-only mode, a word and a text for each, the one that is about space; None: none is."""
    return next((text for word, text in read_only_reasons.items() if word in _OUT_OF_SPACE), None)


def used_fraction(total_bytes: int | None, free_bytes: int | None) -> float | None:
    """Used part of the disks of a bookie; None if unknown."""
    return None if not total_bytes or free_bytes is None else 1 - free_bytes / total_bytes


def disk_findings(used: Mapping[str, float | None], out_of_space: Mapping[str, str]) -> Iterator[Advice]:
    """``used``: part of the disks of each bookie that is used. ``out_of_space``: why bookies are read-only.

    A single bookie with full disks is no emergency: writers use the others, and no copy is lost.
    """
    if out_of_space:
        ids = list(out_of_space)
        sentence = f"{these_bookies(ids, 'is', 'are')} read-only: {out_of_space[ids[0]]}"
        yield Advice(Severity.WARNING, "bookies_out_of_space", sentence, _FULL_DISK)
    for severity, limit, end in (
        (Severity.CRITICAL, DISK_CRITICAL_FRACTION, math.inf),
        (Severity.WARNING, DISK_WARNING_FRACTION, DISK_CRITICAL_FRACTION),
    ):
        full = [bookie_id for bookie_id, fraction in used.items() if fraction is not None and limit <= fraction < end]
        if full:
            sentence = f"disks of {these_bookies(full, 'are', 'are')} at least {percent(limit)} full"
            yield Advice(severity if len(full) > 1 else Severity.WARNING, "disks", sentence, _FULL_DISK)
