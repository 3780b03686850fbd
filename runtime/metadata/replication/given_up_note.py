"""The note of a loss that an operator accepted: which bookies are given up with what they have of a ledger."""

from __future__ import annotations

from collections.abc import Set

import msgspec


class GivenUpNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ledger that was closed, or is being closed, without the answers of lost bookies that may have its end, or that
    keeps entries which only such bookies had.

    ``member_since``: when the cookie of each of them was created, in ms since 1970; None: it had none. With another
    cookie it is a new, empty bookie. ``runs``: how often each had replaced its note of garbage collection, -1: it had
    none; not in notes of an older bkctl. ``user``: who accepted the loss; empty in notes of an older bkctl. ``lost``:
    the first and the last entry of each range before its end of which no bookie had a copy when it was closed
    ``closed_without`` these bookies, nor got one since: a copy and the end of its acceptance are one transaction.
    """

    written_ms: int
    member_since: dict[str, int | None]
    runs: dict[str, int] = {}
    user: str = ""
    lost: tuple[tuple[int, int], ...] = ()
    closed_without: tuple[str, ...] = ()
    back: frozenset[str] = frozenset()
    """Those that have run since with their old cookie, so they are missed again. Never stored: see ``with_back``."""


def bookies_given_up(note: GivenUpNote | None) -> Set[str]:
    """The bookies that were given up with what they had of a ledger; none without a note of it."""
    return frozenset() if note is None else note.member_since.keys() - note.back
