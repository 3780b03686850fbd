"""A finding of an audit; and what its inventory found, if one was taken. Pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from bkctl.runtime.replication.cluster_audit.inventory_tables import (
    AFTER_END,
    BAD_COPIES,
    ELSEWHERE,
    LedgerHead,
    UnnamedRange,
)
from bkctl.runtime.replication.cluster_audit.tables import NO_OWNER, AuditReport, BookieReplication
from bkctl.runtime.replication.judge.advice import Advice, causes_text, explain_command, show_command, these_bookies
from bkctl.storage.severity import Severity
from bkctl.storage.words import counted, listed

OWNERS_SHOWN_MAX = 5
_IDS_MAX = 10
_READ_ALL = "bkctl audit --inventory --read --all-entries"


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
    if ledgers := report.summary.lost_entry_ledgers:
        lost = {row.ledger_id: row for row in report.lost_ranges}
        entries = counted(report.summary.lost_entries or 0, "entry", "entries")
        sentence = f"{counted(ledgers, 'ledger has', 'ledgers have')} {entries} without a good copy on any bookie: "
        sentence += f"{listed(lost, total=ledgers)}; see bkctl help lost-entries"
        command = f"bkctl ledger verify {_first_ids(lost)}" if lost else None
        yield finding_of(Advice(Severity.CRITICAL, "entries_without_copy", sentence, command), ledgers, lost.values())
    yield from _bad(report)
    yield from _unknown(report)
    if ledgers := report.summary.unknown_ends:  # bookies that lost a log cannot say: acknowledged entries may be gone
        ids = [row.ledger_id for row in report.unknown_ends]
        sentence = f"the end of {counted(ledgers, 'open ledger')} is unknown, and was left out: too few bookies say "
        sentence += f"which entries are confirmed: {listed(ids, total=ledgers)}"
        advice = Advice(Severity.WARNING, "unknown_ends", sentence, explain_command(ids))
        yield finding_of(advice, ledgers, report.unknown_ends)
    yield from _unnamed(report)


def _first_ids(ledger_ids: Iterable[int]) -> str:
    return " ".join(map(str, [*ledger_ids][:_IDS_MAX]))


def _bad(report: AuditReport) -> Iterator[AuditFinding]:
    """Copies that bookies do not hold, or not as they should, without those that no other copy can replace."""
    summary = report.summary
    lost_copies = [row for row in report.bad_copy_ranges if row.is_lost]
    bad = {row.ledger_id: row for row in report.bad_copy_ranges if not row.is_lost}
    ledgers = (summary.bad_copy_ledgers or 0) - len({row.ledger_id for row in lost_copies} - bad.keys())
    if not ledgers:
        return
    kinds = {name.removesuffix("_copies"): sum(getattr(row, name) for row in report.holdings) for name in BAD_COPIES}
    for row in lost_copies:
        kinds[row.copy] -= row.copies
    what = ", ".join(f"{number:,} {name}" for name, number in kinds.items() if number)
    total = counted(sum(kinds.values()), "bad copy", "bad copies")
    sentence = f"{counted(ledgers, 'ledger has', 'ledgers have')} {total}: {what}"
    is_sample = summary.inventory == "sampled"
    if is_sample:
        sentence += "; this was a sample, so others may be bad, too"
    unclosed = {row.ledger_id: row for row in bad.values() if row.is_open}
    if len(unclosed) < ledgers:
        command = f"{_READ_ALL} --out DIR"
        if summary.bad_copies_file is not None and not is_sample:  # of a sample, the whole ledgers are to be recovered
            command = f"bkctl recover ledger --from-file {shlex.quote(summary.bad_copies_file)}"
        elif ledgers <= _IDS_MAX and bad:
            command = f"bkctl recover ledger {' '.join(map(str, bad))}"
        yield finding_of(Advice(Severity.WARNING, "bad_copies", sentence, command), ledgers, bad.values())
    if unclosed:  # recover ledger leaves the last segment of a ledger alone that is not closed
        if len(unclosed) < ledgers:
            sentence = f"bad copies are in the open last segment of {counted(len(unclosed), 'ledger')}"
        without_end = {row.ledger_id for row in report.unknown_ends}
        command = explain_command(list(unclosed)) or ""
        if closable := [each for each in unclosed if each not in without_end]:
            sentence += f"; close {'it' if len(unclosed) == 1 else 'them'} first, then bkctl recover ledger"
            command = f"bkctl ledger close {_first_ids(closable)}"
        advice = Advice(Severity.WARNING, "bad_open_copies", sentence, command)
        yield finding_of(advice, len(unclosed), unclosed.values())


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
    if unread:  # to read again helps only later
        bookies = these_bookies(list(unread), "cannot be read", "cannot be read")
        sentence = f"{counted(copies['unread'], 'copy is', 'copies are')} unknown: {bookies}: {causes_text(unread)}"
        yield AuditFinding(Advice(Severity.WARNING, "unread_copies", sentence, show_command(sorted(unread))))
    if without:
        bookies = these_bookies(without, "gives", "give")
        sentence = f"{counted(copies['without'], 'copy is', 'copies are')} unknown: {bookies} no list of entries, as "
        sentence += "Java's DbLedgerStorage never does; read them"
        yield AuditFinding(Advice(Severity.WARNING, "no_lists", sentence, "bkctl audit --inventory --read"))
    if sampled := copies["sampled"]:
        expected, verb = counted(report.summary.expected_copies or 0, "copy"), "is" if sampled == 1 else "are"
        sentence = f"{sampled:,} of {expected} {verb} unknown: neither read nor listed"
        yield AuditFinding(Advice(Severity.INFORMATION, "unknown_copies", sentence, _READ_ALL))


def _why_unread(bookie: BookieReplication) -> str | None:
    """Why nothing can be read from a bookie; None if it answers."""
    return "not registered" if bookie.mode == "unregistered" else bookie.refusal or bookie.no_answer


def _unnamed(report: AuditReport) -> Iterator[AuditFinding]:
    def found(copy: str) -> tuple[dict[int, UnnamedRange], str]:
        rows = [row for row in report.unnamed_ranges if row.copy == copy]
        bookie_ids = sorted({row.bookie_id for row in rows})
        return {row.ledger_id: row for row in rows}, these_bookies(bookie_ids, "lists", "list")

    if ledgers := report.summary.after_end_ledgers:  # a writer left them, or the ledger ends too early
        rows, bookies = found(AFTER_END)
        sentence = (
            f"{bookies} entries after the end of {counted(ledgers, 'closed ledger')}, as when a writer was stopped"
        )
        advice = Advice(Severity.INFORMATION, "copies_after_end", sentence, explain_command(list(rows)))
        yield finding_of(advice, ledgers, rows.values())
    if ledgers := report.summary.elsewhere_ledgers:  # no command: a bookie itself deletes what a repair moved away
        rows, bookies = found(ELSEWHERE)
        which = counted(ledgers, "ledger")
        sentence = f"{bookies} entries of {which} that the metadata places elsewhere, as after a repair"
        yield finding_of(Advice(Severity.INFORMATION, "copies_elsewhere", sentence), ledgers, rows.values())
