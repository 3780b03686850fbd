"""The tables of the report page, and the reasons why each of their ledgers is listed. Pure."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from bkctl.runtime.placement.isolation import IsolationDemand
from bkctl.runtime.replication.cluster_audit.comparison import AuditChanges, LedgerChange
from bkctl.runtime.replication.cluster_audit.inventory_tables import (
    AFTER_END,
    BAD_COPIES,
    BadCopyRange,
    LostRange,
    UnknownEnd,
    UnnamedRange,
)
from bkctl.runtime.replication.cluster_audit.tables import (
    TABLES,
    AuditReport,
    AuditSummary,
    ListedLedger,
    MisplacedLedger,
    UnderReplicatedLedger,
)
from bkctl.runtime.replication.judge.no_live_copy import bookies_to_start, start_words
from bkctl.runtime.replication.judge.verdict import ReplicationState
from bkctl.storage.words import counted, enumerated, size

TABLE_ROWS_MAX = 1000
"""Rows of one table on the page; a page of all of them would be too large for a browser."""
PRINTED_ROWS_MAX = 50
"""Rows of one table on paper; the style of the page hides the others there."""

_TIME_LIMIT_MS = 253_402_300_800_000
"""The year 10000: metadata may contain any number."""

TITLES = {
    "under_replicated": "Ledgers with missing copies",
    "unreadable": "Ledgers whose metadata cannot be read",
    "lost_ranges": "Entries without a good copy",
    "bad_copy_ranges": "Bad copies",
    "unknown_ends": "Ledgers whose end is unknown",
    "losses": "What if these bookies were lost",
    "bookies": "Bookies",
    "holdings": "What bookies hold",
    "unnamed_ranges": "Copies that the metadata does not name",
    "racks": "Racks",
    "groups": "Isolation groups",
    "owners": "Owners",
    "misplaced": "Ledgers that break placement rules",
    "ack_quorum_one": "Ledgers with an ack quorum of 1",
    "oldest_open": "Oldest ledgers that are not closed",
}
"""The tables of the page, in its order."""

_NOTES = {
    "losses": "Ledgers that would get into this state, if a bookie or a whole rack were lost in addition to those that "
    "are gone now.",
    "holdings": "Read copies are proven to be good. Listed ones are in the index of their bookie, which does not prove "
    "that its entry log has them.",
    "unnamed_ranges": "Entries that bookies list although the metadata places them elsewhere, or after the end of a "
    "closed ledger. This is no proof that they are not needed.",
    "changes": "A ledger that is healed has all copies again, or was deleted.",
}

_COLUMNS = {
    "under_replicated": (
        *("ledger_id", "replication", "live_copies_min", "expected_copies", "payload_bytes"),
        *("missing_bookies", "owner"),
    ),
    "holdings": (
        *("bookie_id", "ledgers", "expected_copies", "read_copies", "listed_copies", "unknown_copies"),
        *BAD_COPIES,
    ),
    "lost_ranges": ("ledger_id", "first_entry_id", "last_entry_id", "entries", "owner"),
    "bad_copy_ranges": (
        *("ledger_id", "bookie_id", "copy", "known_by", "first_entry_id", "last_entry_id", "copies", "owner"),
    ),
    "bookies": (
        *("bookie_id", "mode", "rack", "ledgers", "open_ledgers", "under_replicated_write_sets"),
        *("last_copy_ledgers", "payload_bytes"),
    ),
    "owners": (
        *("owner", "ledgers", "open_ledgers", "oldest_open_ms", "payload_bytes", "copy_bytes"),
        *("under_replicated", "at_risk", "unavailable"),
    ),
    "misplaced": (
        *("ledger_id", "ledger_state", "write_sets", "racks_min", "isolation_groups", "outside_bookies"),
        *("payload_bytes", "owner"),
    ),
    "ack_quorum_one": ("ledger_id", "ledger_state", "created_ms", "payload_bytes", "owner"),
    "oldest_open": ("ledger_id", "ledger_state", "created_ms", "ack_quorum_size", "is_closable", "owner"),
}
"""The columns of tables that have more than a window has room for; report.json has the others."""

_STATE_FIELDS = frozenset({"replication", "mode", "ledger_state", "before", "now"})
_HEADINGS = {
    "replication": "state",
    "live_copies_min": "live copies",
    "expected_copies": "copies wanted",
    "payload_bytes": "bytes",
    "copy_bytes": "bytes of all copies",
    "created_ms": "created",
    "under_replicated_write_sets": "write sets that miss copies",
    "last_copy_ledgers": "ledgers with their last copy here",
    "ack_quorum_size": "ack quorum",
    "is_closable": "can be closed",
    "racks_min": "fewest racks",
    "outside_bookies": "bookies outside of them",
    "outside_ledgers": "ledgers with copies outside",
}


_LEDGER_TABLES = (
    *("under_replicated", "unreadable", "lost_ranges", "bad_copy_ranges", "unknown_ends"),
    "unnamed_ranges",
    *("misplaced", "ack_quorum_one", "oldest_open"),
)
"""The tables whose rows are about ledgers."""


class PageCell(msgspec.Struct, frozen=True):
    """A cell: its text, the number that it is sorted by (None: sorted as text), and the ledger that it links to."""

    text: str
    number: int | None = None
    ledger_id: int | None = None


class PageTable(msgspec.Struct, frozen=True):
    """A table of the page. ``numbers``: columns that are sorted by number. ``rows_stored``: rows in report.json.
    ``rows_total`` counts rows left out there, too."""

    name: str
    title: str
    note: str
    headings: tuple[str, ...]
    numbers: frozenset[int]
    rows: tuple[tuple[PageCell, ...], ...]
    rows_stored: int
    rows_total: int


class LedgerReasons(msgspec.Struct, frozen=True):
    """Why a ledger is on the page, as sentences."""

    ledger_id: int
    sentences: tuple[str, ...]


def page_tables(report: AuditReport) -> list[PageTable]:
    """All tables that have rows."""
    return [page_table(report, name) for name in TITLES if _rows(report, name)]


def page_table(report: AuditReport, name: str) -> PageTable:
    """One of the report's tables, at most ``TABLE_ROWS_MAX`` rows of it."""
    fields = _COLUMNS.get(name, TABLES[name].__struct_fields__)
    rows_stored = len(_rows(report, name))
    rows_total = _total(report.summary, name, rows_stored)
    return _table(name, TITLES[name], fields, _shown_rows(report, name), (rows_stored, rows_total))


def changes_table(changes: AuditChanges) -> PageTable:
    """The ledgers that changed."""
    rows, number = changes.ledgers[:TABLE_ROWS_MAX], len(changes.ledgers)
    return _table("changes", "Changed ledgers", LedgerChange.__struct_fields__, rows, (number, number))


def ledger_reasons(report: AuditReport) -> list[LedgerReasons]:
    """What the report knows about each ledger in the tables of the page, in the order in which they are there."""
    found: dict[int, list[str]] = {}
    verifiable = set[int]()
    for name in _LEDGER_TABLES:
        for row in _shown_rows(report, name):
            ledger_id: int = row.ledger_id  # type: ignore[attr-defined]
            sentences = found.setdefault(ledger_id, [])
            sentences += [each for each in _reasons(name, row) if each not in sentences]
            if isinstance(row, LostRange | BadCopyRange):
                verifiable.add(ledger_id)
    for ledger_id in verifiable:
        found[ledger_id].append(f"bkctl ledger verify {ledger_id} shows its bad copies")
    return [LedgerReasons(ledger_id, tuple(sentences)) for ledger_id, sentences in found.items()]


def _reasons(name: str, row: object) -> Iterator[str]:
    match row:
        case UnderReplicatedLedger():
            yield from _missing_copies(row)
        case LostRange():
            which = f"entries {row.first_entry_id:,} to {row.last_entry_id:,}"
            which = f"entry {row.first_entry_id:,}" if row.first_entry_id == row.last_entry_id else which
            yield f"no bookie has a good copy of {which}"
        case BadCopyRange():
            yield f"some of its copies on {row.bookie_id} are {row.copy}"
        case UnknownEnd():
            yield f"entries from {row.first_entry_id:,} on were not examined: {row.problem}"
        case UnnamedRange():
            where = "after its end" if row.copy == AFTER_END else "that the metadata places elsewhere"
            yield f"{row.bookie_id} lists entries {where}"
        case MisplacedLedger():
            yield from _broken_rules(row)
        case ListedLedger():
            if row.ack_quorum_size == 1:
                yield "its ack quorum is 1: an acknowledged entry may have had one copy"
            if name == "oldest_open":
                yield from _not_closed(row.ledger_state, row.is_closable)
        case _:
            yield f"its metadata cannot be read: {getattr(row, 'problem', '')}"


def _missing_copies(row: UnderReplicatedLedger) -> Iterator[str]:
    sets = counted(row.write_sets, "write set has", "write sets have")
    yield (
        f"{sets} fewer than {counted(row.expected_copies, 'live copy', 'live copies')}; the fewest: "
        f"{row.live_copies_min} (ack quorum {row.ack_quorum_size})"
    )
    if row.missing_bookies:
        are = "is" if len(row.missing_bookies) == 1 else "are"
        yield f"{enumerated(row.missing_bookies)} {are} not registered"
    if row.replication == ReplicationState.GIVEN_UP.value:
        yield "an operator accepted the loss of the entries without a live copy"
    elif row.is_lost:
        yield "a write set has no bookie that is registered or has a cookie: its entries are lost"
    elif row.no_copy_sets:
        to_start = bookies_to_start(Counter(map(frozenset, row.no_copy_sets)))
        yield f"some entries have no live copy: {start_words(to_start)}"
    yield from _not_closed(row.ledger_state, row.is_closable)


def _broken_rules(row: MisplacedLedger) -> Iterator[str]:
    if row.racks_min is not None:
        yield (
            "some of its copies are in fewer racks or regions than the placement rules ask for; the narrowest write "
            f"set is in {counted(row.racks_min, 'known rack')}"
        )
    if row.outside_bookies:
        demand = IsolationDemand(frozenset(row.isolation_groups), frozenset(row.secondary_groups))
        are = "is" if len(row.outside_bookies) == 1 else "are"
        yield f"{enumerated(row.outside_bookies)} {are} not in its isolation groups ({demand})"


def _not_closed(state: str, is_closable: bool | None) -> Iterator[str]:
    if is_closable is not None:
        able = "can be closed" if is_closable else "cannot be closed: too few of its last bookies are registered"
        yield f"it is {state.replace('_', ' ')}, and {able}"


def _rows(report: AuditReport, name: str) -> Sequence[msgspec.Struct]:
    """The rows that the page counts: a bookie that is down, or a rack with only such, is not lost in addition."""
    if name != "losses":
        return getattr(report, name)  # type: ignore[no-any-return]
    registered = [each for each in report.bookies if each.mode != "unregistered"]
    here = {("bookie", each.bookie_id) for each in registered} | {("rack", each.rack) for each in registered}
    return [each for each in report.losses if each.kind == "set" or (each.kind, each.name) in here]


def _shown_rows(report: AuditReport, name: str) -> Sequence[msgspec.Struct]:
    rows = _rows(report, name)
    if name == "under_replicated":
        severity = {state.value: -number for number, state in enumerate(ReplicationState)}
        rows = sorted(rows, key=lambda row: severity[row.replication])  # type: ignore[attr-defined]
    return rows[:TABLE_ROWS_MAX]


def _table(
    name: str, title: str, fields: Sequence[str], found: Sequence[msgspec.Struct], numbers: tuple[int, int]
) -> PageTable:
    """``numbers``: of rows in report.json, and of all."""
    rows = tuple(tuple(_cell(field, getattr(row, field)) for field in fields) for row in found)
    return PageTable(
        name=name,
        title=title,
        note=_NOTES.get(name, ""),
        headings=tuple(_HEADINGS.get(field) or _heading(field) for field in fields),
        numbers=frozenset(index for row in rows for index, cell in enumerate(row) if cell.number is not None),
        rows=rows,
        rows_stored=numbers[0],
        rows_total=numbers[1],
    )


def _heading(field: str) -> str:
    for end, words in (("_bytes", " bytes"), ("_ms", ""), ("_id", ""), ("_size", "")):
        if field.endswith(end):
            field = field.removesuffix(end) + words
    return field.removeprefix("is_").replace("_", " ")


def _cell(field: str, value: object) -> PageCell:
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    return PageCell(_text(field, value), number, number if field == "ledger_id" else None)


def _text(field: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if not isinstance(value, int) or field == "ledger_id":
        text = "" if value is None else str(value)
        return text.replace("_", "-") if field in _STATE_FIELDS else text
    if field.endswith("_ms"):
        return time_words(value)
    return size(value) if field.endswith("_bytes") else f"{value:,}"


def time_words(time_ms: int) -> str:
    """Minutes, in UTC."""
    if not 0 <= time_ms < _TIME_LIMIT_MS:
        return str(time_ms)
    return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M")


def _total(summary: AuditSummary, name: str, rows: int) -> int:
    match name:
        case "under_replicated":
            return summary.under_replicated + summary.at_risk + summary.unavailable + summary.given_up
        case "oldest_open":
            return summary.open_ledgers
        case "unreadable" | "misplaced" | "ack_quorum_one" | "unknown_ends":
            return getattr(summary, name) or 0
        case _:
            return rows
