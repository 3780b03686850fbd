"""A finding of an audit; and what its inventory found, if one was taken. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from bkctl.runtime.replication.cluster_audit.inventory_tables import AFTER_END, BAD_COPIES, ELSEWHERE, UnnamedRange
from bkctl.runtime.replication.cluster_audit.table_bases import LedgerHead
from bkctl.runtime.replication.cluster_audit.tables import NO_OWNER, AuditReport, BookieReplication
from bkctl.runtime.replication.judge.advice import Advice
from bkctl.runtime.replication.judge.copy_advice import (
    bad_copies,
    bad_open_copies,
    copies_after_end,
    copies_elsewhere,
    no_good_copy,
    unknown_copies,
    unknown_ends,
    unread_copies,
    without_lists,
)

OWNERS_SHOWN_MAX = 5


class OwnerCount(msgspec.Struct, frozen=True):
    """How many of the listed ledgers of a finding are of one owner, in words (None: their metadata names none)."""

    owner: str
    ledgers: int


class AuditFinding(msgspec.Struct, frozen=True):
    """Advice, and the number of ledgers that it is about; None: it is about bookies.

    ``owners``: those with the most of these ledgers, at most ``OWNERS_SHOWN_MAX``; ``owners_total``: of how many.
    """

    advice: Advice
    ledgers: int | None = None
    owners: tuple[OwnerCount, ...] = ()
    owners_total: int = 0


def finding_of(advice: Advice, ledgers: int, rows: Iterable[LedgerHead]) -> AuditFinding:
    """Advice about so many ledgers, with the owners of those that are listed."""
    owners = Counter(row.owner or NO_OWNER for row in rows)
    first = sorted(owners.items(), key=lambda each: (-each[1], each[0]))[:OWNERS_SHOWN_MAX]
    return AuditFinding(advice, ledgers, tuple(OwnerCount(*each) for each in first), len(owners))


def held_findings(report: AuditReport) -> Iterator[AuditFinding]:
    """What the inventory found, if one was taken."""
    summary, rows = report.summary, report.holdings
    if summary.lost_entry_ledgers:
        lost = {row.ledger_id: row for row in report.lost_ranges}
        advice = no_good_copy(summary.lost_entries or 0, list(lost), summary.lost_entry_ledgers)
        yield finding_of(advice, summary.lost_entry_ledgers, lost.values())
    lost_copies = [row for row in report.bad_copy_ranges if row.is_lost]  # which no other copy can replace
    bad = {row.ledger_id: row for row in report.bad_copy_ranges if not row.is_lost}
    if ledgers := (summary.bad_copy_ledgers or 0) - len({row.ledger_id for row in lost_copies} - bad.keys()):
        unclosed = {row.ledger_id: row for row in bad.values() if row.is_open}
        kinds = {name.removesuffix("_copies"): sum(getattr(row, name) for row in rows) for name in BAD_COPIES}
        for row in lost_copies:
            kinds[row.copy] -= row.copies
        is_sample, file = summary.inventory == "sampled", summary.bad_copies_file
        advice = bad_copies(kinds, list(bad), ledgers, file, is_sample=is_sample)
        if len(unclosed) < ledgers:
            yield finding_of(advice, ledgers, bad.values())
        if unclosed:
            first = advice.sentence if len(unclosed) == ledgers else None
            closable = [each for each in unclosed if each not in {row.ledger_id for row in report.unknown_ends}]
            yield finding_of(bad_open_copies(list(unclosed), closable, first), len(unclosed), unclosed.values())
    yield from _unknown(report)
    if summary.unknown_ends:
        ledger_ids = [row.ledger_id for row in report.unknown_ends]
        yield finding_of(unknown_ends(summary.unknown_ends, ledger_ids), summary.unknown_ends, report.unknown_ends)
    yield from _unnamed(report)


def _unknown(report: AuditReport) -> Iterator[AuditFinding]:
    """Copies that were neither read nor listed, by what helps: bookies that can be read, lists, or more reads."""
    causes = {each.bookie_id: _why_unread(each) for each in report.bookies}
    copies: Counter[str] = Counter()
    unread: dict[str, str] = {}
    without: list[str] = []
    for row in report.holdings:
        if not row.unknown_copies:
            continue
        cause = causes.get(row.bookie_id)
        if cause is None and not row.lists_unanswered:  # it was to be read, or else its list would count
            cause = "it did not answer all requests"
        if cause is not None:
            unread[row.bookie_id] = cause
            copies["unread"] += row.unknown_copies
        elif not row.read_copies:
            without.append(row.bookie_id)
            copies["without"] += row.unknown_copies
        else:
            copies["sampled"] += row.unknown_copies
    if unread:
        yield AuditFinding(unread_copies(copies["unread"], unread))
    if without:
        yield AuditFinding(without_lists(copies["without"], without))
    if copies["sampled"]:
        yield AuditFinding(unknown_copies(copies["sampled"], report.summary.expected_copies or 0))


def _why_unread(bookie: BookieReplication) -> str | None:
    """Why nothing can be read from a bookie; None if it answers."""
    return "not registered" if bookie.mode == "unregistered" else bookie.refusal or bookie.no_answer


def _unnamed(report: AuditReport) -> Iterator[AuditFinding]:
    """Copies that the metadata does not name."""

    def found(copy: str) -> tuple[dict[int, UnnamedRange], list[str]]:
        rows = [row for row in report.unnamed_ranges if row.copy == copy]
        return {row.ledger_id: row for row in rows}, sorted({row.bookie_id for row in rows})

    if ledgers := report.summary.after_end_ledgers:
        rows, bookie_ids = found(AFTER_END)
        yield finding_of(copies_after_end(ledgers, list(rows), bookie_ids), ledgers, rows.values())
    if ledgers := report.summary.elsewhere_ledgers:
        rows, bookie_ids = found(ELSEWHERE)
        yield finding_of(copies_elsewhere(ledgers, bookie_ids), ledgers, rows.values())
