"""Report of an audit: totals, one row per bookie, one row per ledger with missing copies. Pure.

``AuditTotals`` sums the verdicts on ledgers in counters, so an audit of millions of ledgers needs little memory. Each
Spark executor sums its own ledgers, and ``AuditTotals.merge`` combines the totals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from runtime.replication.audit import UNDER_REPLICATED_STATES, LedgerVerdict, ReplicationState

FINDINGS_MAX = 100_000
"""Maximum rows of each list of ledgers in a report."""


class BookieReplication(msgspec.Struct):
    """Data of one bookie according to the metadata.

    ``mode``: "writable", "read_only", or "unregistered" (referenced by ledgers). ``entry_copies`` counts complete
    segments only, ``payload_bytes`` closed ledgers only. ``last_copy_ledgers`` have entries whose only live copy is on
    this bookie: they become unreadable if it fails.
    """

    bookie_id: str
    mode: str = "unregistered"
    ledgers: int = 0
    write_sets: int = 0
    under_replicated_write_sets: int = 0
    last_copy_ledgers: int = 0
    entry_copies: int = 0
    payload_bytes: int = 0


class UnderReplicatedLedger(msgspec.Struct, frozen=True):
    """A ledger with a write set that has fewer than Qw live copies; ``replication``: state of the worst write set.

    ``entry_count``: entries in the affected write sets, as far as known (open segments count as 0).
    """

    ledger_id: int
    ledger_state: str
    replication: str
    expected_copies: int
    live_copies_min: int
    ack_quorum_size: int
    write_sets: int
    entry_count: int
    missing_bookies: tuple[str, ...]


class UnreadableLedger(msgspec.Struct, frozen=True):
    """A ledger whose metadata could not be read, with the reason. Its copies are unknown."""

    ledger_id: int
    problem: str


class AuditSummary(msgspec.Struct, frozen=True):
    """Counts of ledgers (by worst write set) and of bookies. Bytes and entries are those of closed ledgers, one copy.

    ``bookies_named_unregistered``: bookies that ledgers reference but that are not registered. A bookie that is down
    and has no data is in none of the counts.
    """

    ledgers: int
    open_ledgers: int
    empty: int
    replicated: int
    under_replicated: int
    at_risk: int
    unavailable: int
    unreadable: int
    entries: int
    payload_bytes: int
    bookies_writable: int
    bookies_read_only: int
    bookies_named_unregistered: int

    @property
    def has_findings(self) -> bool:
        """Whether any ledger has missing copies or could not be read."""
        return self.under_replicated + self.at_risk + self.unavailable + self.unreadable > 0


class AuditReport(msgspec.Struct, frozen=True):
    """Result of an audit. Lists are sorted by id; the two lists of ledgers may be truncated (``is_truncated``)."""

    summary: AuditSummary
    bookies: tuple[BookieReplication, ...]
    under_replicated: tuple[UnderReplicatedLedger, ...]
    unreadable: tuple[UnreadableLedger, ...]
    is_truncated: bool = False
    """There are more ledgers with findings than in the lists; the summary counts all of them."""


class AuditTotals(msgspec.Struct):
    """Sums the verdicts on any number of ledgers. ``findings_max`` limits each of the two lists of ledgers."""

    findings_max: int = FINDINGS_MAX
    states: dict[str, int] = {}
    """Number of ledgers by the state of their worst write set."""
    open_ledgers: int = 0
    entries: int = 0
    payload_bytes: int = 0
    bookies: dict[str, BookieReplication] = {}
    under_replicated: list[UnderReplicatedLedger] = []
    unreadable: list[UnreadableLedger] = []

    def add_ledger(self, verdict: LedgerVerdict) -> None:
        """Count one ledger."""
        first = verdict.rows[0].write_set
        state = verdict.replication
        self.states[state.value] = self.states.get(state.value, 0) + 1
        if first.ledger_state not in {None, "closed"}:
            self.open_ledgers += 1
        else:
            self.entries += sum(row.write_set.entry_count or 0 for row in verdict.rows)
            self.payload_bytes += sum(row.write_set.payload_bytes or 0 for row in verdict.rows)
        self._count_bookies(verdict)
        if state in UNDER_REPLICATED_STATES and len(self.under_replicated) < self.findings_max:
            self.under_replicated.append(under_replicated_ledger(verdict))
        elif state is ReplicationState.UNREADABLE and len(self.unreadable) < self.findings_max:
            self.unreadable.append(UnreadableLedger(first.ledger_id, first.problem or ""))

    def merge(self, other: AuditTotals) -> None:
        """Add the totals of other ledgers. If a list becomes too long, it keeps the lowest ledger ids."""
        for state, count in other.states.items():
            self.states[state] = self.states.get(state, 0) + count
        self.open_ledgers += other.open_ledgers
        self.entries += other.entries
        self.payload_bytes += other.payload_bytes
        for bookie_id, counts in other.bookies.items():
            own = self.bookies.setdefault(bookie_id, BookieReplication(bookie_id))
            for name in _COUNTS:
                setattr(own, name, getattr(own, name) + getattr(counts, name))
        by_id = _by_ledger_id
        self.under_replicated = sorted(self.under_replicated + other.under_replicated, key=by_id)[: self.findings_max]
        self.unreadable = sorted(self.unreadable + other.unreadable, key=by_id)[: self.findings_max]

    def _count_bookies(self, verdict: LedgerVerdict) -> None:
        seen: set[str] = set()
        last_copies: set[str] = set()
        for row in verdict.rows:
            is_under_replicated = row.replication in UNDER_REPLICATED_STATES
            for bookie_id in dict.fromkeys(row.write_set.write_set):
                counts = self.bookies.get(bookie_id)
                if counts is None:
                    counts = self.bookies[bookie_id] = BookieReplication(bookie_id)
                counts.write_sets += 1
                counts.under_replicated_write_sets += is_under_replicated
                counts.entry_copies += row.write_set.entry_count or 0
                counts.payload_bytes += row.write_set.payload_bytes or 0
                seen.add(bookie_id)
                if row.live_copies == 1 and bookie_id not in row.missing_bookies:
                    last_copies.add(bookie_id)
        for bookie_id in seen:
            self.bookies[bookie_id].ledgers += 1
        for bookie_id in last_copies:
            self.bookies[bookie_id].last_copy_ledgers += 1

    def report(self, writable: Sequence[str], read_only: Sequence[str]) -> AuditReport:
        """The result so far, including registered bookies without data."""
        modes = dict.fromkeys(read_only, "read_only") | dict.fromkeys(writable, "writable")
        idle = {bookie_id: BookieReplication(bookie_id) for bookie_id in modes}
        bookies = tuple(
            msgspec.structs.replace(counts, mode=modes.get(bookie_id, "unregistered"))
            for bookie_id, counts in sorted((idle | self.bookies).items())
        )
        counted = Counter(bookie.mode for bookie in bookies)
        missing_copies = sum(self.states.get(state.value, 0) for state in UNDER_REPLICATED_STATES)
        summary = AuditSummary(
            ledgers=sum(self.states.values()),
            open_ledgers=self.open_ledgers,
            **{state.value: self.states.get(state.value, 0) for state in ReplicationState},
            entries=self.entries,
            payload_bytes=self.payload_bytes,
            bookies_writable=counted["writable"],
            bookies_read_only=counted["read_only"],
            bookies_named_unregistered=counted["unregistered"],
        )
        return AuditReport(
            summary=summary,
            bookies=bookies,
            under_replicated=tuple(sorted(self.under_replicated, key=_by_ledger_id)),
            unreadable=tuple(sorted(self.unreadable, key=_by_ledger_id)),
            is_truncated=len(self.under_replicated) < missing_copies or len(self.unreadable) < summary.unreadable,
        )


_COUNTS = tuple(name for name in BookieReplication.__struct_fields__ if name not in {"bookie_id", "mode"})


def under_replicated_ledger(verdict: LedgerVerdict) -> UnderReplicatedLedger:
    """Summarize a ledger of which at least one write set has missing copies."""
    affected = [row for row in verdict.rows if row.replication in UNDER_REPLICATED_STATES]
    assert affected, "only a ledger that misses copies is summarized"
    first = affected[0].write_set
    assert first.ledger_state is not None
    assert first.ack_quorum_size is not None
    return UnderReplicatedLedger(
        ledger_id=first.ledger_id,
        ledger_state=first.ledger_state,
        replication=verdict.replication.value,
        expected_copies=affected[0].expected_copies,
        live_copies_min=min(row.live_copies for row in affected),
        ack_quorum_size=first.ack_quorum_size,
        write_sets=len(affected),
        entry_count=sum(row.write_set.entry_count or 0 for row in affected),
        missing_bookies=tuple(sorted({bookie_id for row in affected for bookie_id in row.missing_bookies})),
    )


def _by_ledger_id(found: UnderReplicatedLedger | UnreadableLedger) -> int:
    return found.ledger_id
