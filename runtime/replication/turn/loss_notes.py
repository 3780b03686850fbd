"""Accepted losses while ledgers are repaired: losing an entry that is copied, or a bookie that gets copies, is another
loss. So the acceptance ends before a copy counts: in the same transaction, if the metadata names a new bookie."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import msgspec

from bkctl.runtime.errors import BadVersionError, NoNodeError
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.store import CheckNode, DeleteNode, MetadataStore, NodeWrite, Versioned
from bkctl.runtime.replication.judge.fragments import EntryRange, in_and_out_of, lost_entries

_RANGES_MAX = 1000


class LossNotes:
    """The notes of one cluster."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._notes = RecoveryNotes(store, root).given_up
        self._keys: Collection[str] = ()
        self._is_watched = False
        """Whether the store will report the next new note, and has reported none since the list was read."""
        self._listing = asyncio.Lock()

    async def find(self, ledger_id: int) -> Versioned[GivenUpNote] | None:
        """The note of a ledger, with all changes that are older than the last answer of the metadata store.

        Reads nothing for a ledger without one, while no change was reported: the store reports one before it answers
        anything later.
        """
        async with self._listing:
            if not self._is_watched:
                await self._list()
        if str(ledger_id) not in self._keys:
            return None
        found = await self._notes.find_or_problem(str(ledger_id))
        return found if isinstance(found, Versioned) else None

    async def _list(self) -> None:
        is_changed = False

        def note_change() -> None:
            nonlocal is_changed
            is_changed = True
            self._is_watched = False

        keys = None
        while keys is None:
            try:
                keys = await self._store.children(self._notes.path, note_change)
            except NoNodeError:
                keys = [] if await self._store.exists(self._notes.path, note_change) is None else None
        self._keys, self._is_watched = frozenset(keys), not is_changed

    def ending(
        self, ledger_id: int, note: Versioned[GivenUpNote], present: Sequence[EntryRange], bookie_ids: Collection[str]
    ) -> NodeWrite:
        """Ends the acceptance of the ``present`` entries, and of what these bookies have, in a transaction that needs
        the rest of the note as it is."""
        rest, path = _without(note.value, present, bookie_ids), self._notes.path_of(str(ledger_id))
        if rest == note.value:
            return CheckNode(path, note.version)
        if not rest.member_since and not rest.lost:
            return DeleteNode(path, note.version)
        return self._notes.replacement(str(ledger_id), rest, note.version)

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
