"""Accepted losses while ledgers are repaired: losing an entry that is copied, or a bookie that gets copies, is another
loss. So the acceptance ends before a copy counts: in the same transaction, if the metadata names a new bookie."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import msgspec

from bkctl.runtime.errors import BadVersionError
from bkctl.runtime.metadata.replication.recovery_notes import GivenUpNote, NoteDirectory
from bkctl.runtime.metadata.store import CheckNode, DeleteNode, NodeWrite, Versioned
from bkctl.runtime.ports import Clock
from bkctl.runtime.replication.judge.fragments import EntryRange, in_and_out_of, lost_entries
from bkctl.runtime.replication.turn.bookies import REFRESH_S

_RANGES_MAX = 1000


class LossNotes:
    """The notes of one cluster."""

    def __init__(self, notes: NoteDirectory[GivenUpNote], clock: Clock) -> None:
        self._notes = notes
        self._clock = clock
        self._ids: Collection[int] = ()
        self._listed_ns: int | None = None
        self._listing = asyncio.Lock()

    async def find(self, ledger_id: int, *, is_certain: bool) -> Versioned[GivenUpNote] | None:
        """The note of a ledger. Unless it must be ``is_certain``, it is read only if a recent list has it."""
        if not is_certain:
            async with self._listing:
                now_ns = self._clock.monotonic_ns()
                if self._listed_ns is None or now_ns - self._listed_ns > REFRESH_S * 1e9:
                    self._ids, self._listed_ns = await self._notes.ledger_ids(), now_ns
            if ledger_id not in self._ids:
                return None
        found = await self._notes.find_or_problem(str(ledger_id))
        return found if isinstance(found, Versioned) else None

    def ending(
        self, ledger_id: int, note: Versioned[GivenUpNote], present: Sequence[EntryRange], bookie_ids: Collection[str]
    ) -> NodeWrite:
        """Ends the acceptance of the ``present`` entries, and of what these bookies have, in a transaction that needs
        the rest of the note as it is."""
        rest, key = _without(note.value, present, bookie_ids), str(ledger_id)
        if rest == note.value:
            return CheckNode(self._notes.path_of(key), note.version)
        if not rest.member_since and not rest.lost:
            return DeleteNode(self._notes.path_of(key), note.version)
        return self._notes.replacement(key, rest, note.version)

    async def end(self, ledger_id: int, note: Versioned[GivenUpNote], present: Sequence[EntryRange]) -> None:
        """End it now; BadVersionError if the note has changed."""
        rest, key = _without(note.value, present, ()), str(ledger_id)
        if rest != note.value and not await self._notes.replace(key, rest, note.version):
            raise BadVersionError("the note of an accepted loss has changed", self._notes.path_of(key))


def ranges_of(lost: Sequence[EntryRange]) -> tuple[tuple[int, int], ...]:
    """As in a note, which has the first of them: a check finds more as lost."""
    return tuple((each.first_entry_id, each.last_entry_id) for each in lost[:_RANGES_MAX])


def _without(note: GivenUpNote, present: Sequence[EntryRange], bookie_ids: Collection[str]) -> GivenUpNote:
    _, rest = in_and_out_of(lost_entries(note), present)
    member_since = {each: cookie_ms for each, cookie_ms in note.member_since.items() if each not in bookie_ids}
    return msgspec.structs.replace(note, lost=ranges_of(rest), member_since=member_since)
