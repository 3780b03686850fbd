"""Stored copies of entries as the rules see them. Pure.

Source: replication section 3, the classification rule. OK with a correct digest is present; OK with a wrong one is
corrupt; "no such entry" and "no such ledger" are missing; everything else is unknown and never counts as missing
(bk#1197: one timeout marked thousands of healthy ledgers). An error answer, for example for a damaged record in an
entry log, is a separate state, because that bookie is up.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from bkctl.runtime.protocol.entry_body import DecodedEntry
from bkctl.runtime.replication.judge.fragments import EntryRange


class CopyState(enum.Enum):
    """State of one bookie's copy of an entry."""

    PRESENT = "present"
    MISSING = "missing"
    CORRUPT = "corrupt"
    UNREACHABLE = "unreachable"
    """No answer: no connection, a timeout, or too many requests. The copy may be good."""
    FAILED = "failed"
    """The bookie answered with an error: the copy is damaged on disk or possibly lost, or the read was rejected."""
    DIFFERENT = "different"
    """The digest is correct, but payload or length differ from the other copies."""


class ListedCopies(msgspec.Struct, frozen=True):
    """The entries of a ledger that a bookie lists, compared with those that it should store, up to the end of the
    ledger: its last entry, or the last add confirmed.

    ``elsewhere``: entries up to there that the metadata places on other bookies. ``after_end``: entries after the last
    one of a closed ledger. Lists with too many ranges end early.
    """

    missing: tuple[EntryRange, ...] = ()
    elsewhere: tuple[EntryRange, ...] = ()
    after_end: tuple[EntryRange, ...] = ()


class Copy(msgspec.Struct, frozen=True):
    """One bookie's copy of one entry. ``body`` and ``entry`` are set if it is present, otherwise ``reason``.

    ``is_damaged``: the state is FAILED because the bookie cannot read the copy from its disk. ``is_refused``: it is
    UNREACHABLE because the bookie does not accept this client.
    """

    bookie_id: str
    state: CopyState
    reason: str = ""
    body: bytes = b""
    entry: DecodedEntry | None = None
    is_damaged: bool = False
    is_refused: bool = False

    @property
    def content(self) -> tuple[int, bytes] | None:
        """Length and payload, which all good copies of an entry share; None without a good copy."""
        return None if self.entry is None else (self.entry.length, self.entry.payload)

    @property
    def has_bad_record(self) -> bool:
        """Whether its bookie has a record of the entry that is not good, and may serve it after a good one was added
        (H18)."""
        return self.state is CopyState.CORRUPT or self.is_damaged


def compared_copies(copies: Sequence[Copy]) -> list[Copy]:
    """The copies; those that differ from the majority are marked.

    Payload and length must be equal. The last add confirmed inside an entry may differ, because Java's recovery and
    re-replication write their own (replication section 4). Without a majority the first copy counts as correct.
    """
    contents = [copy.content for copy in copies if copy.content is not None]
    if len(contents) < 2 or all(content == contents[0] for content in contents):
        return list(copies)
    majority = max(contents, key=contents.count)
    return [
        copy
        if copy.content is None or copy.content == majority
        else msgspec.structs.replace(
            copy, state=CopyState.DIFFERENT, reason="payload or length differs from the other copies"
        )
        for copy in copies
    ]
