"""The verdict on a ledger: the replication state of each write set that stores entries, and the worst of them. Pure.

The plain audit and the Spark executors both call ``judge_ledger``. It counts copies per write set on registered
bookies, writable or read-only, not per ensemble. For example, a ledger with E = 4 and Qw = 3 that lost one bookie has
write sets with two and with three live copies. Source: replication sections 2, 3 and 7.2 (a read-only bookie is
alive).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Container, Iterable, Mapping

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.owner import owner_of
from bkctl.runtime.ledger.write_set import negatives_needed, write_set
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote, bookies_given_up
from bkctl.runtime.placement.isolation import IsolationDemand, isolation_demand
from bkctl.runtime.replication.judge.fragments import EntryRange, segment_entries

COUNT_MAX = 2**56
"""Limit of plausible entry and byte counts of one ledger; sums over 100 ledgers fit in 64 bits."""


class ReplicationState(enum.Enum):
    """Replication state of a write set, from best to worst. The values appear in reports."""

    EMPTY = "empty"
    """The ledger is closed and has no entries, so nothing can be lost."""
    REPLICATED = "replicated"
    """All Qw copies are on registered bookies."""
    GIVEN_UP = "given_up"
    """An operator accepted the loss of what its missing bookies had, and no recovery can replace these."""
    UNDER_REPLICATED = "under_replicated"
    """Fewer than Qw live copies, but at least Qa."""
    AT_RISK = "at_risk"
    """Fewer than Qa live copies, but at least one."""
    UNAVAILABLE = "unavailable"
    """No live copy."""
    UNREADABLE = "unreadable"
    """The ledger's metadata could not be read; ``problem`` contains the reason."""


UNDER_REPLICATED_STATES = frozenset(
    {ReplicationState.UNDER_REPLICATED, ReplicationState.AT_RISK, ReplicationState.UNAVAILABLE}
)
"""States in which copies are missing that something can be done about."""

_SEVERITY = {state: position for position, state in enumerate(ReplicationState)}


class WriteSetRow(msgspec.Struct, frozen=True, gc=False):
    """One write set of one segment according to the metadata. ``replication_of`` adds which bookies are live.

    Every ledger has at least one row. A closed ledger without entries, and one whose metadata cannot be read, have
    exactly one, with an empty ``write_set``. The columns from ``created_ms`` on are the same in all rows of a ledger.
    """

    ledger_id: int
    ledger_state: str | None = None
    """None if unreadable, like the sizes."""
    ensemble_size: int | None = None
    """E."""
    write_quorum_size: int | None = None
    """Qw."""
    ack_quorum_size: int | None = None
    """Qa."""
    segment_first_entry_id: int | None = None
    """None without a write set."""
    segment_last_entry_id: int | None = None
    """None also in the last segment of an open ledger."""
    write_set: tuple[str, ...] = ()
    """Its bookies; empty if there is none."""
    entry_count: int | None = None
    """None in the last segment of an open ledger, or if the metadata is impossible."""
    payload_bytes: int | None = None
    """Its share of the ledger's bytes; None if it is open, or the length is impossible."""
    problem: str | None = None
    """Why the metadata cannot be read, or None."""
    created_ms: int | None = None
    """None if neither the metadata nor its node has a time."""
    owner: str | None = None
    """In words; None if the custom metadata names none."""
    digest: str | None = None
    """``crc32c``, ``crc32``, ``hmac`` or ``dummy``; None if unknown."""
    length: int | None = None
    """Bytes of the whole ledger; None if it is open, or it is impossible."""
    isolation: IsolationDemand | None = None

    @property
    def isolation_groups(self) -> tuple[str, ...] | None:
        """Primary groups that the ledger demands; empty: bookies in no group; None: it demands none."""
        return None if self.isolation is None else tuple(sorted(self.isolation.primary))

    @property
    def secondary_groups(self) -> tuple[str, ...] | None:
        """In the same form."""
        return None if self.isolation is None else tuple(sorted(self.isolation.secondary))


class ReplicationRow(msgspec.Struct, frozen=True, gc=False):
    """A write set and its live copies."""

    write_set: WriteSetRow
    expected_copies: int
    """Qw; 0 without a write set."""
    live_copies: int
    missing_bookies: tuple[str, ...]
    """Those that are not registered, without ``removed`` ones."""
    replication: ReplicationState
    """State of the write set."""
    removed: tuple[str, ...] = ()
    """Those that were given up, and that nothing replaces: some of their entries of the segment have no live copy."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The bookies of the write set without those that were given up."""
        gone = self.missing_bookies if self.replication is ReplicationState.GIVEN_UP else self.removed
        return tuple(each for each in self.write_set.write_set if each not in gone)


class LedgerVerdict(msgspec.Struct, frozen=True, gc=False):
    """The verdict on one ledger: its judged write sets, and the state of the worst one."""

    rows: tuple[ReplicationRow, ...]
    replication: ReplicationState


def write_set_rows(ledger_id: int, metadata: LedgerMetadata, node_ctime_ms: int | None = None) -> list[WriteSetRow]:
    """Rows of one ledger, ordered by segment and then by the first entry that uses the write set.

    Write sets with the same bookies share one row, so a segment has one row if E = Qw, otherwise at most E.
    ``node_ctime_ms``: creation time of its node, which applies if the metadata has none.
    """
    digest_type = metadata.digest_type
    ledger = WriteSetRow(
        ledger_id,
        metadata.state.name.lower(),
        metadata.ensemble_size,
        metadata.write_quorum_size,
        metadata.ack_quorum_size,
        entry_count=0,
        payload_bytes=0,
        created_ms=metadata.created_ms(node_ctime_ms),
        owner=owner_of(dict(metadata.custom_metadata)),
        digest=None if digest_type is None else digest_type.name.lower(),
        length=metadata.length if metadata.is_closed and 0 <= metadata.length <= COUNT_MAX else None,
        isolation=isolation_demand(metadata.custom_metadata),
    )
    rows = []
    for segment_index, segment in enumerate(metadata.segments):
        is_open = segment_index == len(metadata.segments) - 1 and not metadata.is_closed
        entries = segment_entries(metadata, segment_index)
        for bookies, entry_count in _write_sets(metadata, segment.ensemble, entries, is_open=is_open).items():
            rows.append(
                msgspec.structs.replace(
                    ledger,
                    segment_first_entry_id=segment.first_entry_id,
                    segment_last_entry_id=None if is_open else entries.last_entry_id,
                    write_set=bookies,
                    entry_count=None if is_open else entry_count if entry_count <= COUNT_MAX else None,
                    payload_bytes=_payload_share(metadata, entry_count),
                )
            )
    return rows or [ledger]


def judge_ledger(
    rows: Iterable[WriteSetRow], live_bookies: Container[str], given_up: Collection[str] = ()
) -> LedgerVerdict:
    """Judge all write sets of one ledger. ``live_bookies``: all registered ones, writable or read-only, as a set.

    ``given_up``: bookies that an operator gave up with what they have of this ledger.
    """
    judged = tuple(replication_of(row, live_bookies, given_up) for row in rows)
    if given_up:
        judged = _without_removed(judged, given_up)
    return LedgerVerdict(judged, max((row.replication for row in judged), key=_SEVERITY.__getitem__))


def judge_metadata(
    ledger_id: int, metadata: LedgerMetadata, live_bookies: Container[str], note: GivenUpNote | None = None
) -> LedgerVerdict:
    """The verdict on one ledger. ``note``: of the bookies that an operator gave up with what they have of it."""
    return judge_rows(write_set_rows(ledger_id, metadata), live_bookies, note)


def judge_rows(rows: Iterable[WriteSetRow], live_bookies: Container[str], note: GivenUpNote | None) -> LedgerVerdict:
    """The same by its write sets. A ledger that misses nothing but entries that were lost when it was closed is given
    up, though its metadata does not show it."""
    found = judge_ledger(rows, live_bookies, bookies_given_up(note))
    if note is None or not note.lost or found.replication is not ReplicationState.REPLICATED:
        return found
    if any(not set(note.closed_without).isdisjoint(row.write_set.write_set) for row in found.rows):
        return found  # one of the lost bookies is back, perhaps with these entries
    return msgspec.structs.replace(found, replication=ReplicationState.GIVEN_UP)


def wanted_members(rows: Iterable[ReplicationRow], members: Collection[str]) -> frozenset[str]:
    """The ``members`` of a ledger that it still needs: all but those that were given up in all segments with entries.

    They are not in the cluster once they have no cookie: no process waits for them, starts or replaces them.
    """
    stored, needed = set[str](), set[str]()
    for row in rows:
        stored.update(row.write_set.write_set)
        needed.update(row.needed)
    return frozenset(set(members) - stored | needed)


def members_without_copies(rows: Iterable[ReplicationRow]) -> frozenset[str]:
    """The bookies that are missing where entries have too few live copies, but for losses that were accepted."""
    lacking = (row for row in rows if row.replication in UNDER_REPLICATED_STATES)
    return frozenset(bookie_id for row in lacking for bookie_id in row.missing_bookies)


def removed_members(rows: Iterable[ReplicationRow]) -> frozenset[tuple[int | None, str]]:
    """The bookies that were given up, each with the first entry of the segment."""
    return frozenset(
        (row.write_set.segment_first_entry_id, bookie_id)
        for row in rows
        for bookie_id in set(row.write_set.write_set).difference(row.needed)
    )


def bytes_on(rows: Iterable[WriteSetRow], bookie_ids: frozenset[str]) -> int:
    """Payload bytes of a closed ledger that the metadata places on these bookies, as far as they are known."""
    return sum((row.payload_bytes or 0) * len(bookie_ids.intersection(row.write_set)) for row in rows)


def live_copies(ledger_id: int, metadata: LedgerMetadata, live_bookies: Collection[str]) -> int:
    """Live copies of the entries that have the fewest."""
    rows = judge_metadata(ledger_id, metadata, live_bookies).rows
    return min(row.live_copies if row.write_set.write_set else row.write_set.write_quorum_size or 0 for row in rows)


def replication_of(row: WriteSetRow, live_bookies: Container[str], given_up: Collection[str] = ()) -> ReplicationRow:
    """Judge one write set. A bookie that occurs in it twice counts as one copy."""
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
    elif all(bookie_id in given_up for bookie_id in missing) and (
        live_copies == 0 or not _can_be_replaced(row, live_bookies)
    ):
        state = ReplicationState.GIVEN_UP
    elif live_copies == 0:
        state = ReplicationState.UNAVAILABLE
    elif live_copies < row.ack_quorum_size:
        state = ReplicationState.AT_RISK
    else:
        state = ReplicationState.UNDER_REPLICATED
    return ReplicationRow(row, row.write_quorum_size, live_copies, missing, state)


def _can_be_replaced(row: WriteSetRow, live_bookies: Container[str]) -> bool:
    """Whether the live bookies can end the segment: only then its missing ones are replaced."""
    assert row.write_quorum_size is not None
    assert row.ack_quorum_size is not None
    quorums = row.write_quorum_size, row.ack_quorum_size
    return row.segment_last_entry_id is not None or has_enough_answers(row.write_set, *quorums, live_bookies)


def _without_removed(rows: tuple[ReplicationRow, ...], given_up: Collection[str]) -> tuple[ReplicationRow, ...]:
    """Note which missing bookies were given up with entries of their segment that have no live copy.

    A bookie is replaced with all its entries of a segment. So one that had entries without a copy stays a member, and
    its other entries keep the live copies that they have: write sets that miss nothing else are given up, too.
    """
    lost = {
        (row.write_set.segment_first_entry_id, bookie_id)
        for row in rows
        if row.replication in {ReplicationState.GIVEN_UP, ReplicationState.UNAVAILABLE}
        for bookie_id in row.missing_bookies
        if bookie_id in given_up
    }

    def judged(row: ReplicationRow) -> ReplicationRow:
        start = row.write_set.segment_first_entry_id
        removed = tuple(each for each in row.missing_bookies if (start, each) in lost)
        if not removed:
            return row
        if removed == row.missing_bookies:
            return msgspec.structs.replace(row, replication=ReplicationState.GIVEN_UP)
        missing = tuple(each for each in row.missing_bookies if each not in removed)
        return msgspec.structs.replace(row, missing_bookies=missing, removed=removed)

    return tuple(map(judged, rows))


def has_enough_answers(
    write_set: Iterable[str], write_quorum_size: int, ack_quorum_size: int, live_bookies: Container[str]
) -> bool:
    """Whether the live bookies of a write set can prove that an entry was never acknowledged, so that the ledger can
    be closed before it. A bookie that occurs in it twice answers for both positions."""
    answers = sum(bookie_id in live_bookies for bookie_id in write_set)
    return answers >= negatives_needed(write_quorum_size, ack_quorum_size)


def _write_sets(
    metadata: LedgerMetadata, ensemble: tuple[str, ...], entries: EntryRange, *, is_open: bool
) -> Mapping[tuple[str, ...], int]:
    """Distinct write sets that store entries of the segment, with their numbers of entries, in order of first use.

    In an open segment the number of entries is unknown; all E write sets count as used.
    """
    size, quorum = metadata.sizes
    counts: dict[tuple[str, ...], int] = {}
    keys: dict[tuple[str, ...], tuple[str, ...]] = {}
    used = size if is_open else min(size, entries.count)
    for entry_id in range(entries.first_entry_id, entries.first_entry_id + used):
        bookies = tuple(ensemble[index] for index in write_set(entry_id, size, quorum))
        key = keys.setdefault(tuple(sorted(bookies)), bookies)
        # Entries entry_id, entry_id + E, entry_id + 2E, ... share the write set.
        counts[key] = counts.get(key, 0) + (entries.last_entry_id - entry_id) // size + 1
    return counts


def _payload_share(metadata: LedgerMetadata, entry_count: int) -> int | None:
    """Payload bytes of ``entry_count`` entries; None if the ledger is not closed, or its length or end is invalid."""
    total = metadata.entry_count
    if not total or total > COUNT_MAX or not 0 <= metadata.length <= COUNT_MAX:
        return None
    return metadata.length * min(entry_count, total) // total
