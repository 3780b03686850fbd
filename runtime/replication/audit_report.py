"""What an audit says in the end: totals, one row per bookie, one per ledger that misses copies. Pure.

``AuditTotals`` takes the rows of one ledger at a time and keeps counters, so the pass over millions of ledgers needs
memory only for what it reports. The same report is computed by Spark in ``spark_reports``; both are held equal by test.
This module runs inside Spark executors too: see ``runtime.replication.audit``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from runtime.replication.audit import UNDER_REPLICATED_STATES, ReplicationRow, ReplicationState

SEVERITY: dict[ReplicationState, int] = {
    ReplicationState.EMPTY: 0,
    ReplicationState.REPLICATED: 1,
    ReplicationState.UNDER_REPLICATED: 2,
    ReplicationState.AT_RISK: 3,
    ReplicationState.UNAVAILABLE: 4,
    ReplicationState.UNREADABLE: 5,
}
"""A ledger is in the worst state of its write sets."""

RowT = TypeVar("RowT")


class BookieReplication(msgspec.Struct, frozen=True):
    """One bookie's part: what the metadata places on it, and what hangs on it.

    ``mode``: "writable", "read_only", or "unregistered" (ledgers name it). ``entry_copies`` counts complete segments
    and ``payload_bytes`` closed ledgers only. ``last_copy_ledgers`` have entries whose only live copy
    is here: they become unreadable if this bookie goes.
    """

    bookie_id: str
    mode: str
    ledgers: int = 0
    write_sets: int = 0
    under_replicated_write_sets: int = 0
    last_copy_ledgers: int = 0
    entry_copies: int = 0
    payload_bytes: int = 0


class UnderReplicatedLedger(msgspec.Struct, frozen=True):
    """A ledger with fewer live copies than its write quorum somewhere; ``replication`` is its worst write set's state.

    ``entry_count``: entries in the affected write sets, as far as known (open segments count 0).
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
    """A ledger whose metadata could not be read, and why: its copies are unknown."""

    ledger_id: int
    problem: str


class AuditSummary(msgspec.Struct, frozen=True):
    """Counts of ledgers (by worst write set), and of bookies. Byte and entry counts are of closed ledgers, one copy.

    ``bookies_named_unregistered`` are named by a ledger and not registered. A bookie that is down and holds nothing is
    in none of these counts: no copy depends on it.
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
        """Whether any ledger misses a copy or could not be read."""
        return self.under_replicated + self.at_risk + self.unavailable + self.unreadable > 0


class AuditReport(msgspec.Struct, frozen=True):
    """Result of an audit. Lists are sorted by their id; the two lists of ledgers may be cut, see ``is_truncated``."""

    summary: AuditSummary
    bookies: tuple[BookieReplication, ...]
    under_replicated: tuple[UnderReplicatedLedger, ...]
    unreadable: tuple[UnreadableLedger, ...]
    is_truncated: bool = False
    """There are more ledgers with findings than the lists hold; the summary counts them all."""


class _BookieCounts:
    __slots__ = ("entry_copies", "last_copy_ledgers", "ledgers", "payload_bytes", "under_replicated", "write_sets")

    def __init__(self) -> None:
        self.ledgers = 0
        self.write_sets = 0
        self.under_replicated = 0
        self.last_copy_ledgers = 0
        self.entry_copies = 0
        self.payload_bytes = 0


class AuditTotals:
    """Adds up the rows of an audit, ledger by ledger."""

    def __init__(self, writable: Sequence[str], read_only: Sequence[str], *, findings_max: int = 100_000) -> None:
        """``findings_max`` bounds each of the two lists of ledgers that the report carries."""
        self._modes = dict.fromkeys(read_only, "read_only") | dict.fromkeys(writable, "writable")
        self._bookies: dict[str, _BookieCounts] = {bookie_id: _BookieCounts() for bookie_id in self._modes}
        self._states: Counter[ReplicationState] = Counter()
        self._open_ledgers = 0
        self._entries = 0
        self._payload_bytes = 0
        self._findings_max = findings_max
        self._under_replicated: list[UnderReplicatedLedger] = []
        self._unreadable: list[UnreadableLedger] = []

    def add_ledger(self, rows: Sequence[ReplicationRow]) -> None:
        """Count all rows of one ledger; call once per ledger."""
        first = rows[0].write_set
        worst = max((row.replication for row in rows), key=SEVERITY.__getitem__)
        self._states[worst] += 1
        if first.ledger_state not in {None, "closed"}:
            self._open_ledgers += 1
        else:
            self._entries += sum(row.write_set.entry_count or 0 for row in rows)
            self._payload_bytes += sum(row.write_set.payload_bytes or 0 for row in rows)
        self._count_bookies(rows)
        if worst in UNDER_REPLICATED_STATES:
            _append_bounded(self._under_replicated, under_replicated_ledger(rows), self._findings_max)
        elif worst is ReplicationState.UNREADABLE:
            unreadable = UnreadableLedger(first.ledger_id, first.problem or "")
            _append_bounded(self._unreadable, unreadable, self._findings_max)

    def _count_bookies(self, rows: Sequence[ReplicationRow]) -> None:
        seen: set[str] = set()
        last_copies: set[str] = set()
        for row in rows:
            is_under_replicated = row.replication in UNDER_REPLICATED_STATES
            for bookie_id in dict.fromkeys(row.write_set.write_set):
                counts = self._bookies.setdefault(bookie_id, _BookieCounts())
                counts.write_sets += 1
                counts.under_replicated += is_under_replicated
                counts.entry_copies += row.write_set.entry_count or 0
                counts.payload_bytes += row.write_set.payload_bytes or 0
                seen.add(bookie_id)
                if row.live_copies == 1 and bookie_id not in row.missing_bookies:
                    last_copies.add(bookie_id)
        for bookie_id in seen:
            self._bookies[bookie_id].ledgers += 1
        for bookie_id in last_copies:
            self._bookies[bookie_id].last_copy_ledgers += 1

    def report(self) -> AuditReport:
        """The result so far."""
        bookies = tuple(
            BookieReplication(
                bookie_id=bookie_id,
                mode=self._modes.get(bookie_id, "unregistered"),
                ledgers=counts.ledgers,
                write_sets=counts.write_sets,
                under_replicated_write_sets=counts.under_replicated,
                last_copy_ledgers=counts.last_copy_ledgers,
                entry_copies=counts.entry_copies,
                payload_bytes=counts.payload_bytes,
            )
            for bookie_id, counts in sorted(self._bookies.items())
        )
        return audit_report(
            states={state.value: count for state, count in self._states.items()},
            open_ledgers=self._open_ledgers,
            entries=self._entries,
            payload_bytes=self._payload_bytes,
            bookies=bookies,
            under_replicated=self._under_replicated,
            unreadable=self._unreadable,
        )


def audit_report(
    *,
    states: dict[str, int],
    open_ledgers: int,
    entries: int,
    payload_bytes: int,
    bookies: Sequence[BookieReplication],
    under_replicated: Sequence[UnderReplicatedLedger],
    unreadable: Sequence[UnreadableLedger],
) -> AuditReport:
    """Put a report together from counts: ``states`` maps state names to ledgers (by worst write set)."""
    modes = Counter(bookie.mode for bookie in bookies)
    missing_copies = sum(states.get(state.value, 0) for state in UNDER_REPLICATED_STATES)
    summary = AuditSummary(
        ledgers=sum(states.values()),
        open_ledgers=open_ledgers,
        empty=states.get("empty", 0),
        replicated=states.get("replicated", 0),
        under_replicated=states.get("under_replicated", 0),
        at_risk=states.get("at_risk", 0),
        unavailable=states.get("unavailable", 0),
        unreadable=states.get("unreadable", 0),
        entries=entries,
        payload_bytes=payload_bytes,
        bookies_writable=modes["writable"],
        bookies_read_only=modes["read_only"],
        bookies_named_unregistered=modes["unregistered"],
    )
    return AuditReport(
        summary=summary,
        bookies=tuple(sorted(bookies, key=lambda bookie: bookie.bookie_id)),
        under_replicated=tuple(sorted(under_replicated, key=lambda ledger: ledger.ledger_id)),
        unreadable=tuple(sorted(unreadable, key=lambda ledger: ledger.ledger_id)),
        is_truncated=len(under_replicated) < missing_copies or len(unreadable) < summary.unreadable,
    )


def under_replicated_ledger(rows: Sequence[ReplicationRow]) -> UnderReplicatedLedger:
    """Sum up one ledger of which at least one write set misses copies."""
    affected = [row for row in rows if row.replication in UNDER_REPLICATED_STATES]
    assert affected, "only a ledger that misses copies is summed up"
    first = affected[0].write_set
    assert first.ledger_state is not None
    assert first.ack_quorum_size is not None
    return UnderReplicatedLedger(
        ledger_id=first.ledger_id,
        ledger_state=first.ledger_state,
        replication=max((row.replication for row in affected), key=SEVERITY.__getitem__).value,
        expected_copies=affected[0].expected_copies,
        live_copies_min=min(row.live_copies for row in affected),
        ack_quorum_size=first.ack_quorum_size,
        write_sets=len(affected),
        entry_count=sum(row.write_set.entry_count or 0 for row in affected),
        missing_bookies=tuple(sorted({bookie_id for row in affected for bookie_id in row.missing_bookies})),
    )


def _append_bounded(rows: list[RowT], row: RowT, count_max: int) -> None:
    if len(rows) < count_max:
        rows.append(row)
