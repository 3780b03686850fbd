"""Whether bookies can take the copies of lost members of a ledger, for its explanation. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec


class CandidateVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a bookie could take the copies of a lost member. ``refused_by`` None: it could.

    The verdict is for all segments with this ensemble; ``first_entry_id`` is that of the first.
    """

    first_entry_id: int
    replaces: str
    bookie_id: str
    rack: str | None
    free_bytes: int | None
    refused_by: str | None
    is_refused_by_rule: bool


def why_refused(refused: Sequence[CandidateVerdict]) -> str:
    """The reasons with the number of bookies, and how to accept broken rules."""
    reasons = {each.bookie_id: (each.refused_by or "").partition(":")[0] for each in refused}
    counts = ", ".join(f"{count} {reason}" for reason, count in Counter(reasons.values()).items())
    consent = "; --placement best-effort accepts broken rules"
    return f" ({counts or 'no bookie is writable'})" + (consent if any(e.is_refused_by_rule for e in refused) else "")
