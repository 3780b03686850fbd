"""The verdict on a ledger: how well each of its write sets that store entries is replicated, and the worst. Pure.

The plain audit and the Spark executors both call ``judge_ledger``. Copies are counted per write set against the
registered bookies, writable and read-only, and not by ensemble membership: a ledger of four bookies and three copies
that lost one bookie has write sets with two and write sets with three live copies. Source: replication sections 2, 3
and 7.2 (a read-only bookie is alive).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping

import msgspec

from runtime.ledger.metadata import LedgerMetadata
from runtime.ledger.write_set import write_set
from runtime.replication.fragments import EntryRange, segment_entries

COUNT_MAX = 2**56
"""Entries or bytes of one ledger above which the metadata is not believed: the sum over 100 ledgers fits 64 bits."""


class ReplicationState(enum.Enum):
    """How well a write set is replicated, from good to bad. The values are those in the reports."""

    EMPTY = "empty"
    """The ledger is closed and stores no entry: nothing can be lost."""
    REPLICATED = "replicated"
    """All Qw copies are on registered bookies."""
    UNDER_REPLICATED = "under_replicated"
    """Fewer than Qw live copies, at least Qa."""
    AT_RISK = "at_risk"
    """Fewer than Qa live copies, at least one."""
    UNAVAILABLE = "unavailable"
    """No live copy."""
    UNREADABLE = "unreadable"
    """The metadata of the ledger could not be read; ``problem`` says why."""


UNDER_REPLICATED_STATES = frozenset(
    {ReplicationState.UNDER_REPLICATED, ReplicationState.AT_RISK, ReplicationState.UNAVAILABLE}
)
"""States in which copies are missing."""

_SEVERITY = {state: position for position, state in enumerate(ReplicationState)}


class WriteSetRow(msgspec.Struct, frozen=True, gc=False):
    """What the metadata says of one write set of one segment; liveness is judged later, see ``replication_of``.

    Every ledger has at least one row. A closed ledger without entries, and one whose metadata cannot be read
    (``problem``), have exactly one, with an empty ``write_set``.

    ``segment_last_entry_id`` and ``entry_count`` are None in the open segment of a ledger that is not closed: any of
    its write sets may hold entries. ``payload_bytes`` is the ledger's payload shared out over its entries, one copy
    counted; None while the ledger is not closed. Both are None where the metadata states what no ledger can have.
    """

    ledger_id: int
    ledger_state: str | None = None
    ensemble_size: int | None = None
    write_quorum_size: int | None = None
    ack_quorum_size: int | None = None
    segment_first_entry_id: int | None = None
    segment_last_entry_id: int | None = None
    write_set: tuple[str, ...] = ()
    entry_count: int | None = None
    payload_bytes: int | None = None
    problem: str | None = None


class ReplicationRow(msgspec.Struct, frozen=True, gc=False):
    """A write set judged against the live bookies. ``expected_copies`` is Qw; both counts are 0 without a write set."""

    write_set: WriteSetRow
    expected_copies: int
    live_copies: int
    missing_bookies: tuple[str, ...]
    replication: ReplicationState


class LedgerVerdict(msgspec.Struct, frozen=True, gc=False):
    """The verdict on one ledger: its write sets, each judged, and the state of the worst."""

    rows: tuple[ReplicationRow, ...]
    replication: ReplicationState


def write_set_rows(ledger_id: int, metadata: LedgerMetadata) -> list[WriteSetRow]:
    """Rows of one ledger, in segment order and then by the first entry that uses the write set.

    Write sets of the same bookies are one row: with E = Qw there is one per segment, otherwise at most E.
    """
    state = metadata.state.name.lower()
    size, write_quorum, ack_quorum = metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size
    rows = []
    for segment_index, segment in enumerate(metadata.segments):
        is_open = segment_index == len(metadata.segments) - 1 and not metadata.is_closed
        entries = segment_entries(metadata, segment_index)
        for bookies, entry_count in _write_sets(metadata, segment.ensemble, entries, is_open=is_open).items():
            rows.append(
                WriteSetRow(
                    ledger_id,
                    state,
                    size,
                    write_quorum,
                    ack_quorum,
                    segment_first_entry_id=segment.first_entry_id,
                    segment_last_entry_id=None if is_open else entries.last_entry_id,
                    write_set=bookies,
                    entry_count=None if is_open else _plausible(entry_count),
                    payload_bytes=_payload_share(metadata, entry_count),
                )
            )
    return rows or [WriteSetRow(ledger_id, state, size, write_quorum, ack_quorum, entry_count=0, payload_bytes=0)]


def judge_ledger(rows: Iterable[WriteSetRow], live_bookies: Collection[str]) -> LedgerVerdict:
    """Judge all write sets of one ledger. ``live_bookies``: the registered ones, writable and read-only; pass a set."""
    judged = tuple(replication_of(row, live_bookies) for row in rows)
    return LedgerVerdict(judged, max((row.replication for row in judged), key=_SEVERITY.__getitem__))


def replication_of(row: WriteSetRow, live_bookies: Collection[str]) -> ReplicationRow:
    """Judge one write set. A bookie that is in it twice is one copy."""
    if row.problem is not None:
        return ReplicationRow(row, 0, 0, (), ReplicationState.UNREADABLE)
    if not row.write_set:
        return ReplicationRow(row, 0, 0, (), ReplicationState.EMPTY)
    assert row.write_quorum_size is not None
    assert row.ack_quorum_size is not None
    bookies = dict.fromkeys(row.write_set)
    missing = tuple(bookie_id for bookie_id in bookies if bookie_id not in live_bookies)
    live_copies = len(bookies) - len(missing)
    if live_copies >= row.write_quorum_size:
        state = ReplicationState.REPLICATED
    elif live_copies == 0:
        state = ReplicationState.UNAVAILABLE
    elif live_copies < row.ack_quorum_size:
        state = ReplicationState.AT_RISK
    else:
        state = ReplicationState.UNDER_REPLICATED
    return ReplicationRow(row, row.write_quorum_size, live_copies, missing, state)


def _write_sets(
    metadata: LedgerMetadata, ensemble: tuple[str, ...], entries: EntryRange, *, is_open: bool
) -> Mapping[tuple[str, ...], int]:
    """Distinct write sets that store entries of the segment, each with its number of entries, in order of first use.

    In an open segment the number of entries is unknown; all E of them count as used.
    """
    size, quorum = metadata.ensemble_size, metadata.write_quorum_size
    counts: dict[tuple[str, ...], int] = {}
    keys: dict[frozenset[str], tuple[str, ...]] = {}
    used = size if is_open else min(size, entries.count)
    for entry_id in range(entries.first_entry_id, entries.first_entry_id + used):
        bookies = tuple(ensemble[index] for index in write_set(entry_id, size, quorum))
        key = keys.setdefault(frozenset(bookies), bookies)
        # Entries entry_id, entry_id + E, entry_id + 2E, ... share the write set.
        counts[key] = counts.get(key, 0) + (entries.last_entry_id - entry_id) // size + 1
    return counts


def _payload_share(metadata: LedgerMetadata, entry_count: int) -> int | None:
    """None for a ledger that is not closed, and for a length or an end that no ledger can have."""
    total = metadata.entry_count
    if not total or total > COUNT_MAX or not 0 <= metadata.length <= COUNT_MAX:
        return None
    return metadata.length * min(entry_count, total) // total


def _plausible(entry_count: int) -> int | None:
    return entry_count if entry_count <= COUNT_MAX else None
