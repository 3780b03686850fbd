"""Losses that an operator accepted, by closing ledgers without lost bookies or by decommissioning these. Pure.

They are information everywhere, and no advice says to start the bookies that were given up. If one is back, that is a
warning: its garbage collection will delete what it has.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.replication.recovery_notes import GivenUpNote
from bkctl.runtime.replication.judge.advice import Advice, explain_command
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.judge.verdict import ReplicationState
from bkctl.storage.severity import Severity
from bkctl.storage.words import SHOWN_MAX, counted, listed

_IDS_KEPT_MAX = 10


class AcceptedLosses(msgspec.Struct, frozen=True, kw_only=True):
    """Ledgers of which an operator gave up the bookies with the only copies. ``written_ms``, ``user``: of the last."""

    ledgers: int = 0
    first_ids: tuple[int, ...] = ()
    written_ms: int | None = None
    user: str = ""


class GivenUpLedger(msgspec.Struct, frozen=True):
    """A ledger of which an operator gave up the bookies ``gone``, which are not registered."""

    metadata: LedgerMetadata
    gone: frozenset[str]
    replication: ReplicationState

    @property
    def is_whole(self) -> bool:
        """Whether all entries without a live copy are accepted as lost."""
        return self.replication is not ReplicationState.UNAVAILABLE

    def covers(self, entries: Iterable[EntryRange]) -> bool:
        """Whether no other bookie should have any of these entries."""
        size = self.metadata.ensemble_size  # the write sets repeat after as many entries
        return all(
            self._is_lost(entry_id)
            for each in entries
            for entry_id in range(each.first_entry_id, min(each.last_entry_id + 1, each.first_entry_id + size))
        )

    def _is_lost(self, entry_id: int) -> bool:
        ensemble = self.metadata.segment_of(entry_id).ensemble
        members = write_set(entry_id, *self.metadata.sizes)
        return self.gone.issuperset(ensemble[each] for each in members)


def accepted_losses(notes: Mapping[int, GivenUpNote]) -> AcceptedLosses:
    """What these notes say."""
    if not notes:
        return AcceptedLosses()
    last = max(notes.values(), key=lambda note: note.written_ms)
    ids = tuple(sorted(notes)[:_IDS_KEPT_MAX])
    return AcceptedLosses(ledgers=len(notes), first_ids=ids, written_ms=last.written_ms, user=last.user)


def accepted_on(written_ms: int, user: str) -> str:
    """When a loss was accepted, and by whom, like "loss accepted on 2026-05-01 by ops"."""
    day = datetime.datetime.fromtimestamp(written_ms / 1000, datetime.UTC).strftime("%Y-%m-%d")
    return f"loss accepted on {day}" + (f" by {user}" if user else "")


def loss_accepted(found: AcceptedLosses) -> Advice:
    """Nothing is to be done: the ledgers are kept for what is left of them, or can be deleted."""
    names = listed(found.first_ids, total=found.ledgers)
    sentence = f"{counted(found.ledgers, 'ledger has', 'ledgers have')} entries that no bookie has"
    if found.written_ms is not None:
        last = "" if found.ledgers == 1 else "the last "
        sentence += f", {last}{accepted_on(found.written_ms, found.user)}"
    command = explain_command(found.first_ids, "bkctl audit")
    return Advice(Severity.INFORMATION, "loss_accepted", f"{sentence}: {names}" if names else sentence, command)


def save_command(ledger_id: int | str, options: str) -> str:
    """The command that saves entries of a ledger in a file: whole, which they are not in text for people."""
    return f"bkctl ledger read {ledger_id} {options} -o jsonl > ledger-{ledger_id}.jsonl"


def is_back(bookie_id: str, ledger_ids: Sequence[int | str], total: int = 0) -> Advice:
    """A bookie that was given up serves again: until it deletes its entries, or it or a ledger is removed, they can be
    saved. ``total``: of ledgers, if not all are named here."""
    number = max(total, len(ledger_ids))
    which = f"{counted(number, 'ledger')}: {listed(ledger_ids, total=number)}"
    sentence = f"bookie {bookie_id} is back, which was given up for {which}; it may have entries that the others do not"
    sentence += " have, and its garbage collection will delete them: save them now, then "
    sentence += f"bkctl ledger delete {' '.join(map(str, ledger_ids[:SHOWN_MAX]))} or bkctl decommission {bookie_id} "
    sentence += "ends this"
    command = save_command(ledger_ids[0], f"--from-bookie {bookie_id}")
    return Advice(Severity.WARNING, "given_up_bookie", sentence, command)
