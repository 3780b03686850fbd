"""Random placement: which bookies a new segment uses. Source: protocol sections 4.3 and 9.

Pure: the writable bookies and the randomness are arguments. No bookie appears twice in an ensemble. The same seed and
the same bookies give the same answer whatever the order they come in.
"""

from __future__ import annotations

import random
from collections.abc import Iterable


def choose_ensemble(
    writable: Iterable[str], size: int, exclude: Iterable[str], random_source: random.Random
) -> tuple[str, ...] | None:
    """An ensemble of ``size`` writable bookies outside ``exclude``; None when there are too few."""
    candidates = _candidates(writable, exclude)
    return tuple(random_source.sample(candidates, size)) if len(candidates) >= size else None


def choose_replacement(
    writable: Iterable[str], ensemble: Iterable[str], exclude: Iterable[str], random_source: random.Random
) -> str | None:
    """A writable bookie that is neither in the ensemble nor excluded; None when there is none."""
    candidates = _candidates(writable, [*ensemble, *exclude])
    return random_source.choice(candidates) if candidates else None


def _candidates(writable: Iterable[str], exclude: Iterable[str]) -> list[str]:
    return sorted(set(writable).difference(exclude))
