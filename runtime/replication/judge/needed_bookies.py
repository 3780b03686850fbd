"""How bad it is that ledgers reference bookies that are down, for the metadata doctor: as in the status. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.replication.recovery_notes import GivenUpNote
from bkctl.runtime.replication.judge.advice import down_severity
from bkctl.runtime.replication.judge.verdict import (
    ReplicationRow,
    ReplicationState,
    judge_ledger,
    wanted_members,
    write_set_rows,
)
from bkctl.storage.severity import Severity


class NeededBookies:
    """Collects what ledgers need, then says how bad it is that bookies are down."""

    def __init__(
        self,
        live: Collection[str],
        *,
        given_up: Mapping[int, GivenUpNote] = MappingProxyType({}),
        awaited: Collection[str] = (),
        is_repaired: bool = True,
    ) -> None:
        """``live``: all registered bookies. ``awaited``: those in maintenance. ``is_repaired``: see
        ``down_severity``."""
        self._live = live
        self._given_up = given_up
        self._awaited = awaited
        self._is_repaired = is_repaired
        self._has_live_copies = True

    def needed(self, ledger_id: int, metadata: LedgerMetadata) -> frozenset[str]:
        """The bookies that a ledger needs: all that its metadata names, but for those whose loss was accepted."""
        members = metadata.bookies()
        if members.issubset(self._live):
            return members
        note = self._given_up.get(ledger_id)
        given_up = () if note is None else note.member_since
        verdict = judge_ledger(write_set_rows(ledger_id, metadata), self._live, given_up)
        if verdict.replication is ReplicationState.UNAVAILABLE:
            self._has_live_copies = False
        return wanted_members(verdict.rows, members, given_up)

    def severity(self, bookie_id: str, down: int) -> Severity:
        """Of one of the ``down`` bookies that ledgers need, once all ledgers were added."""
        return down_severity(
            down,
            is_awaited=bookie_id in self._awaited,
            is_repaired=self._is_repaired,
            has_live_copies=self._has_live_copies,
        )


def movable_members(
    metadata: LedgerMetadata, missing: Collection[str], writable: Collection[str], rows: Iterable[ReplicationRow]
) -> frozenset[str]:
    """The ``missing`` bookies of segments that a recovery can move: each entry has a live copy, and there are enough
    other writable bookies for all copies to be made."""
    lost = {each.write_set.segment_first_entry_id for each in rows if each.replication is ReplicationState.UNAVAILABLE}
    found = set[str]()
    for segment in metadata.segments:
        gone = set(segment.ensemble).intersection(missing)
        if segment.first_entry_id not in lost and len(set(writable).difference(segment.ensemble)) >= len(gone):
            found |= gone
    return frozenset(found)
