"""The likely name for a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable


def near_miss(name: str, known: Iterable[str], *, similarity_min: float) -> str | None:
    """The known name that is most like ``name``, if any is by at least this (1.0: but for upper and lower case)."""
    from difflib import get_close_matches  # most invocations have nothing to ask

    by_lower_case = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), by_lower_case, n=1, cutoff=similarity_min)
    return by_lower_case[found[0]] if found else None
