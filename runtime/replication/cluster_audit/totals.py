"""Sums over any number of ledgers, in bounded memory, which can be merged with those of other ledgers.

The result does not depend on how the ledgers are divided, or on their order. Of owners that are too many, and of lists
that are too long, the first ones in a fixed order remain; those that are dropped in a part would be dropped in the
whole as well.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

from bkctl.runtime.replication.cluster_audit.tables import (
    EXAMPLES_MAX,
    FINDINGS_MAX,
    OTHER_OWNERS,
    OWNERS_MAX,
    BookieReplication,
    GroupReplication,
    ListedLedger,
    LossEffect,
    MisplacedLedger,
    OpenLedgerAges,
    OwnerReplication,
    RackReplication,
    UnderReplicatedLedger,
    UnreadableLedger,
)
from bkctl.runtime.replication.judge.verdict import ReplicationState

_SEVERITY = {state.value: -position for position, state in enumerate(ReplicationState)}


class AuditTotals(msgspec.Struct):
    """The sums. ``findings_max``, ``examples_max`` and ``owners_max`` are the limits of the report's lists.

    ``counts``: of ledgers, entries and bytes, by the fields of ``AuditSummary`` with these names, and
    ``replicated_now`` and ``empty_now``: of the ledgers looked up. ``sizes``: ledgers by the size of their ensembles;
    ``losses`` are by
    ``loss_key``; ``racks`` by path, "" if unknown, and ``groups`` by name, both with counts of ledgers only. Lists and
    owners may be longer than their limits until ``shorten``.
    """

    findings_max: int = FINDINGS_MAX
    examples_max: int = EXAMPLES_MAX
    owners_max: int = OWNERS_MAX
    counts: dict[str, int] = {}
    sizes: dict[int, int] = {}
    bookies: dict[str, BookieReplication] = {}
    racks: dict[str, RackReplication] = {}
    groups: dict[str, GroupReplication] = {}
    owners: dict[str, OwnerReplication] = {}
    other_owners: OwnerReplication = msgspec.field(default_factory=lambda: OwnerReplication(OTHER_OWNERS))
    ages: dict[str, OpenLedgerAges] = {}
    losses: dict[str, LossEffect] = {}
    under_replicated: list[UnderReplicatedLedger] = []
    unreadable: list[UnreadableLedger] = []
    misplaced: list[MisplacedLedger] = []
    ack_quorum_one: list[ListedLedger] = []
    oldest_open: list[ListedLedger] = []

    def merge(self, other: AuditTotals) -> None:
        """Add the totals of other ledgers."""
        for name, number in other.counts.items():
            self.count(name, number)
        for size, number in other.sizes.items():
            self.sizes[size] = self.sizes.get(size, 0) + number
        self.other_owners.add(other.other_owners)
        for name in _ROWS:
            rows = getattr(self, name)
            for key, row in getattr(other, name).items():
                if key in rows:
                    rows[key].add(row)
                else:
                    rows[key] = row
        for name in LISTS:
            getattr(self, name).extend(getattr(other, name))
        self.shorten()

    def count(self, name: str, number: int = 1) -> None:
        """Add to one of the counts."""
        self.counts[name] = self.counts.get(name, 0) + number

    def list_ledger(self, name: str, found: Any) -> None:
        """Append to one of the lists."""
        rows = getattr(self, name)
        rows.append(found)
        if len(rows) >= 2 * self._limit(name) + 1:
            self._shorten_list(name)

    def owner(self, name: str) -> OwnerReplication:
        """The row of an owner; the one of all others if there are too many already."""
        found = self.owners.get(name)
        if found is None:
            found = self.owners[name] = OwnerReplication(name)
            if len(self.owners) > 2 * self.owners_max:
                self._shorten_owners()
                found = self.owners.get(name, self.other_owners)
        return found

    def shorten(self) -> None:
        """Cut everything to its limit."""
        for name in LISTS:
            self._shorten_list(name)
        self._shorten_owners()

    def _limit(self, name: str) -> int:
        return self.findings_max if name in _FINDINGS else self.examples_max

    def _shorten_list(self, name: str) -> None:
        rows = getattr(self, name)
        rows.sort(key=LISTS[name])
        del rows[self._limit(name) :]

    def _shorten_owners(self) -> None:
        for name in sorted(self.owners)[self.owners_max :]:
            self.other_owners.add(self.owners.pop(name))


def loss_key(kind: str, name: str) -> str:
    """The key of a loss."""
    return f"{kind} {name}"


_ROWS = ("bookies", "racks", "groups", "owners", "ages", "losses")
"""The sums by a key."""
LISTS: dict[str, Callable[[Any], Any]] = {
    "under_replicated": lambda found: (_SEVERITY[found.replication], found.ledger_id),
    "unreadable": attrgetter("ledger_id"),
    "misplaced": attrgetter("ledger_id"),
    "ack_quorum_one": attrgetter("ledger_id"),
    "oldest_open": lambda found: (found.created_ms is None, found.created_ms, found.ledger_id),
}
"""The lists of ledgers, with the order in which they are kept."""
_FINDINGS = frozenset({"under_replicated", "unreadable"})
