"""Writes down which bookies an operator gives up, with what they have of which ledgers."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from typing import TypeAlias

import msgspec

from bkctl.runtime.errors import ConflictError
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.store import SetNode, Versioned
from bkctl.runtime.ports import Clock
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.turn.loss_notes import ranges_of

_NOTES_IN_FLIGHT_MAX = 64
_ATTEMPTS_MAX = 10
_Since: TypeAlias = tuple[int | None, int]


@dataclasses.dataclass(frozen=True)
class GivenUpRecord:
    """The notes of one operator. Each keeps what was given up of its ledger before."""

    notes: RecoveryNotes
    clock: Clock
    user: str

    async def note_all(self, bookies_of: Mapping[int, Collection[str]]) -> None:
        """Note that this operator accepts the loss of what these bookies have of each ledger."""
        since = await self._since(frozenset[str]().union(*bookies_of.values()))

        async def note(ledger_id: int) -> None:
            await self._note(ledger_id, {each: since[each] for each in bookies_of[ledger_id]})

        async with aclosing(pipelined(each_of(bookies_of), note, _NOTES_IN_FLIGHT_MAX)) as noted:
            async for _ in noted:
                pass

    async def note_close(self, ledger_id: int, bookie_ids: Collection[str], lost: Sequence[EntryRange]) -> SetNode:
        """The same before a close without these bookies. Returns what the transaction of the close adds to the note:
        without the close, another process may close the ledger with the ``lost`` entries."""
        since = await self._since(bookie_ids)
        noted = await self._note(ledger_id, since)
        closed = msgspec.structs.replace(noted.value, closed_without=tuple(since), lost=ranges_of(lost))
        return self.notes.given_up.replacement(str(ledger_id), closed, noted.version)

    async def _since(self, bookie_ids: Collection[str]) -> dict[str, _Since]:
        """Cookies and runs of lost bookies: a run after this ends what is accepted."""
        notes = self.notes
        return {
            each: (await notes.registrations.member_since(each), await notes.collection.version(each))
            for each in sorted(bookie_ids)
        }

    async def forget(self, ledger_id: int) -> None:
        """The ledger could not be closed."""
        await self.notes.given_up.remove(str(ledger_id))

    async def _note(self, ledger_id: int, since: Mapping[str, _Since]) -> Versioned[GivenUpNote]:
        key = str(ledger_id)
        for _ in range(_ATTEMPTS_MAX):
            found = await self.notes.given_up.find_or_problem(key)
            known = found.value if isinstance(found, Versioned) else GivenUpNote(written_ms=0, member_since={})
            note = msgspec.structs.replace(
                known,
                written_ms=self.clock.now_ms(),
                member_since=known.member_since | {each: cookie_ms for each, (cookie_ms, _) in since.items()},
                runs=known.runs | {each: run for each, (_, run) in since.items()},
                user=self.user,
            )
            if isinstance(found, Versioned):
                if await self.notes.given_up.replace(key, note, found.version):
                    return Versioned(note, found.version + 1)
            elif found is None:
                if await self.notes.given_up.add(key, note):
                    return Versioned(note, 0)
            else:
                await self.notes.given_up.remove(key)  # it cannot be read
        raise ConflictError(f"the note of the accepted loss of ledger {ledger_id} keeps changing")
