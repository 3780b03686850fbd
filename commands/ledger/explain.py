"""``bkctl ledger explain``: why a ledger is not fully replicated, or cannot be closed or recovered."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import msgspec
import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import Outcome
from bkctl.commands.ledger.rows import detail
from bkctl.commands.parse import all_ledger_ids, parse_bookie_id
from bkctl.commands.rendering import Column, Lines, Table, state_words, time_text
from bkctl.commands.session import open_session
from bkctl.commands.several import each_in_turn
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.judge.explanation import LedgerExplanation
from bkctl.runtime.replication.judge.explanation import explain as explain_facts
from bkctl.runtime.replication.judge.ledger_facts import LedgerFacts, OutsideCopies, end_of, is_bad
from bkctl.runtime.replication.survey.ledger_facts import LedgerFactsReader
from bkctl.storage.severity import Severity
from bkctl.storage.words import enumerated, size

_ASK_TIMEOUT_S = 3.0
_BODY_KEYS = (
    *("ledger_id", "state", "owner", "created", "ensemble_size", "write_quorum_size", "ack_quorum_size"),
    *("segments", "entries", "length_bytes"),
)
_MEMBER_TABLE = Table(
    "Bookies of the ledger",
    Column("bookie_id", "BOOKIE"),
    Column("registered", "REGISTERED"),
    Column("rack", "RACK", priority=2),
    Column("answers", "ANSWERS"),
    Column("last_entry_id", "LAST ENTRY", is_right=True, priority=1),
    Column("last_add_confirmed", "LAST CONFIRMED", is_right=True, priority=1),
    Column("segments", "SEGMENTS", is_right=True, priority=3),
    Column("problem", "PROBLEM"),
)
_COPY_TABLE = Table(
    "Copies",
    Column("first_entry_id", "FROM ENTRY", is_right=True),
    Column("last_entry_id", "TO ENTRY", is_right=True),
    Column("bookie_id", "BOOKIE"),
    Column("entries", "ENTRIES", is_right=True),
    Column("first_copy", "FIRST ENTRY"),
    Column("last_copy", "LAST ENTRY"),
)
_OUTSIDE_TABLE = Table(
    "Bookies outside of the ensemble, asked for entries without a live copy",
    Column("bookie_id", "BOOKIE"),
    Column("asked", "ASKED FOR", is_right=True),
    Column("found", "FOUND", is_right=True),
    Column("first_found", "FIRST", is_right=True),
    Column("last_found", "LAST", is_right=True),
    Column("problem", "PROBLEM"),
)
_CANDIDATE_TABLE = Table(
    "Possible replacements",
    Column("first_entry_id", "FROM ENTRY", is_right=True),
    Column("replaces", "REPLACES"),
    Column("bookie_id", "BOOKIE"),
    Column("rack", "RACK", priority=2),
    Column("free_bytes", "FREE", size, is_right=True, priority=1),
    Column("refused_by", "REFUSED BY"),
)


@command("explain", example="ledger explain 17", is_cut=True)
async def explain(
    context: CommandContext,
    ledgers: Annotated[list[str], typer.Argument(metavar="LEDGER...", help="Ledger ids: decimal, 0x... or UUID")],
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="ID", help="Treat this bookie as gone; repeatable")
    ] = None,
) -> Outcome:
    """Explain why ledgers lack copies, or cannot be closed or recovered.

    Shows bookies and what they answer, whether each has the first and last entry that it should have, marks and
    locks, which bookies could take missing copies and which rule refuses the others, and what would happen next. If
    no live bookie of an ensemble has an entry, asks all others for it, a few at a time, of up to 16 segments; a
    recovery leaves such entries where they are. Changes and fences nothing. Exits with 10 if a problem is a warning or
    worse. bkctl ledger verify reads every entry.
    """
    ledger_ids = all_ledger_ids(ledgers)
    ignored = frozenset(map(parse_bookie_id, without or ()))
    async with open_session(context) as session:
        client = await session.client()
        ports = dataclasses.replace(client.ports, bookies=session.bookies(timeout_max_s=_ASK_TIMEOUT_S))
        reader = LedgerFactsReader(ports, session.store, context.settings.replication, session.foreign)

        async def explain_one(text: str | None) -> Outcome:
            ledger_id = int(text or 0)
            stored = await ports.ledgers.read(ledger_id)
            with context.console.progress("asking the bookies"):
                facts = await reader.facts(ledger_id, stored, ignored)
            found = explain_facts(facts)
            _print(context, stored, facts, found)
            is_bad = found.severity is not None and found.severity >= Severity.WARNING
            return Outcome.FINDINGS if is_bad else Outcome.OK

        return await each_in_turn(context, list(map(str, ledger_ids)), explain_one)


def _print(
    context: CommandContext,
    stored: Versioned[LedgerMetadata],
    facts: LedgerFacts,
    found: LedgerExplanation,
) -> None:
    console = context.console
    members = _member_rows(facts)
    copies = _copy_rows(facts)
    candidates = [msgspec.to_builtins(each) | {"first_entry_id": str(each.first_entry_id)} for each in found.candidates]
    outside = [_outside_row(each) for each in facts.outside]
    lists = console.cut({"bookies": members, "copies": copies, "outside": outside, "candidates": candidates})
    details = {**lists, "problems": list(found.problems), "next_steps": list(found.next_steps)}
    body = _body(stored, facts, found)
    is_well = not found.problems and found.is_closable is not False
    first = facts.seen if is_well else found.next_steps[0]
    state = state_words(found.replication.value)
    if found.unknown_on:
        state += f" by the registrations, but its copies on {enumerated(found.unknown_on)} are unknown"
    console.sentences(f"ledger {facts.ledger_id} is {state}: {first}")
    console.record(
        "LedgerExplanation",
        body,
        name="ledger_id",
        show={"length_bytes": size, "replication": state_words},
        details=details,
        lines=Lines(_MEMBER_TABLE, members),
    )
    console.table(_MEMBER_TABLE, members)
    bad = {each.bookie_id for segment in facts.segments for each in segment.copies if is_bad(each)}
    console.table(_COPY_TABLE, sorted(copies, key=lambda row: row["bookie_id"] not in bad))
    console.table(_OUTSIDE_TABLE, outside)
    console.table(_CANDIDATE_TABLE, candidates)
    sections = ("Problems", "PROBLEM", found.problems), ("What would happen next", "STEP", found.next_steps)
    for title, heading, sentences in sections:
        console.table(Table(title, Column("sentence", heading)), [{"sentence": each} for each in sentences])


def _body(stored: Versioned[LedgerMetadata], facts: LedgerFacts, found: LedgerExplanation) -> dict[str, object]:
    full = detail(facts.ledger_id, stored)
    end = end_of(facts.metadata, facts.answers)
    state = facts.autorecovery
    mark, lock = state.mark, state.lock
    return {
        **{key: full[key] for key in _BODY_KEYS},
        "last_add_confirmed": str(end) if end >= 0 else None,
        "replication": found.replication.value,
        "unknown_on": list(found.unknown_on),
        "closable": found.is_closable,
        "missing_answers": list(found.missing_answers),
        "marked": mark is not None,
        "marked_at": None if mark is None else time_text(mark.marked_ms),
        "marked_missing": None if mark is None or mark.mark is None else list(mark.mark.missing_bookies),
        "locked_by": None if lock is None else lock.holder,
        "locked_since": None if lock is None else time_text(lock.since_ms),
        "autorecovery_enabled": state.is_enabled,
        "auditor": state.auditor,
    }


def _member_rows(facts: LedgerFacts) -> list[dict[str, Any]]:
    rows = []
    for bookie_id in sorted(facts.metadata.bookies()):
        answer = facts.answers.get(bookie_id)
        is_writable = bookie_id in facts.registrations.writable
        registered = "writable" if is_writable else "read-only" if answer is not None else "no"
        row: dict[str, Any] = {
            "bookie_id": bookie_id,
            "registered": registered,
            "rack": facts.survey.rack_of(bookie_id),
            "answers": None if answer is None else answer.is_valid,
            "last_entry_id": None,
            "last_add_confirmed": None,
            "segments": sum(bookie_id in segment.ensemble for segment in facts.segments),
            "problem": None if answer is None else answer.problem,
        }
        if answer is not None and answer.is_valid:
            row["last_entry_id"] = str(answer.last_entry_id) if answer.last_entry_id >= 0 else None
            row["last_add_confirmed"] = str(answer.last_add_confirmed) if answer.last_add_confirmed >= 0 else None
        rows.append(row)
    return rows


def _copy_rows(facts: LedgerFacts) -> list[dict[str, Any]]:
    rows = []
    for segment in facts.segments:
        last = segment.entries.last_entry_id
        for copy in segment.copies:
            is_asked = copy.bookie_id in facts.answers and not facts.answers[copy.bookie_id].is_silent
            rows.append(
                {
                    "first_entry_id": str(segment.entries.first_entry_id),
                    "last_entry_id": None if segment.is_open else str(last),
                    "bookie_id": copy.bookie_id,
                    "entries": copy.entries,
                    "first_copy": copy.first.value if copy.first is not None and is_asked else None,
                    "last_copy": copy.last.value if copy.last is not None and is_asked else None,
                }
            )
    return rows


def _outside_row(copies: OutsideCopies) -> dict[str, Any]:
    return {
        "bookie_id": copies.bookie_id,
        "asked": len(copies.asked),
        "found": len(copies.found),
        "first_found": str(copies.found[0]) if copies.found else None,
        "last_found": str(copies.found[-1]) if copies.found else None,
        "problem": copies.problem,
    }
