"""``bkctl autorecovery repair-marks``: clear marks that need no repair, and list hopeless ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import Outcome, PlanShown
from bkctl.commands.rendering import Column, Lines, Table, time_text
from bkctl.commands.safety.gate import Change, nothing_to_change, open_change
from bkctl.commands.safety.plan import Plan, PlanFinding
from bkctl.commands.session import Session, open_session
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.store import Node
from bkctl.runtime.replication.judge.copies import CopyDefect
from bkctl.runtime.replication.judge.marks import MarkFinding
from bkctl.runtime.replication.run.mark_repair import ClearOutcome, JudgedMark, MarkRepair
from bkctl.storage.severity import Severity
from bkctl.storage.words import counted, duration, first_lines, listed

_PLAN_TABLE = Table(
    "Changes",
    Column("action", "ACTION"),
    Column("ledger_id", "LEDGER", is_right=True),
    Column("state", "REASON"),
    Column("missing_bookies", "MISSING", priority=1),
    Column("owner", "OWNER", priority=2),
)
_LEFT_TABLE = Table(
    "Marks",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("state", "STATE"),
    Column("hopeless", "HOPELESS", is_wide=True),
    Column("age_s", "AGE", duration, is_right=True),
    Column("owner", "OWNER", priority=1),
    Column("missing_bookies", "MISSING", is_wide=True),
    Column("reason", "REASON"),
    name="ledger_id",
)


@command("repair-marks", example="autorecovery repair-marks --deep --dry-run", effect=Effect.HARMFUL, is_cut=True)
async def repair_marks(
    context: CommandContext,
    deep: Annotated[bool, typer.Option("--deep", help="Read the copies of the named bookies")] = False,
) -> Outcome:
    """Clear marks of under-replicated ledgers that need no repair, and list the others with the reason.

    Cleared, with a copy in the trash: marks of deleted ledgers; marks whose bookies should no longer store any entry;
    marks without a bookie if the placement rules hold. --deep reads the copies of the bookies that a mark names, and
    clears the mark if all are good: a bookie that is up again may lack entries. Copies nothing. Ledgers that a worker
    has locked are left. Exits with 10 if a ledger cannot be repaired at all, for example because no live bookie has a
    copy, or if --deep could not read copies; with 11 if bookies refuse this client.
    """
    async with open_session(context) as session:
        repair = await mark_repair(context, session)
        with context.console.progress("examining marks") as progress:
            judged = await repair.examine(
                session.foreign, is_deep=deep, on_judged=lambda count: progress.update(count, count)
            )
        clearable = [each for each in judged if each.verdict.is_clearable]
        plan = _plan(session, judged, clearable, is_deep=deep)
        totals = {"marks": len(judged), "hopeless": sum(each.verdict.is_hopeless for each in judged)}
        outcomes: dict[int, ClearOutcome] = {}
        try:
            if not clearable:
                nothing_to_change(context, plan, table=_PLAN_TABLE, totals=totals)
            else:
                async with open_change(context, plan, session.store, table=_PLAN_TABLE, totals=totals) as change:
                    await _clear(context, repair, clearable, change, outcomes)
                    cleared = _count_cleared(outcomes)
                    change.details |= {"cleared": cleared, "left": len(judged) - cleared}
        except PlanShown:
            # What could not be read makes the plan incomplete: it ends like the change.
            return _outcome(judged) if _unread(judged) else Outcome.OK
        return _print_result(context, session, judged, outcomes)


async def _clear(
    context: CommandContext,
    repair: MarkRepair,
    clearable: Sequence[JudgedMark],
    change: Change,
    outcomes: dict[int, ClearOutcome],
) -> None:
    """Clear these marks; what became of them is put into ``outcomes``."""
    with context.console.progress("clearing marks") as progress:

        def keep(nodes: Sequence[tuple[str, Node]]) -> None:
            change.require_lock()
            change.trash.keep_all("delete", nodes)

        def note(ledger_id: int, outcome: ClearOutcome) -> None:
            outcomes[ledger_id] = outcome
            progress.update(len(outcomes), len(clearable))

        await repair.clear(clearable, keep, note)


async def mark_repair(context: CommandContext, session: Session) -> MarkRepair:
    """The examination and clearing of marks with the parts of a session."""
    ports = (await session.client()).ports
    return MarkRepair(ports, session.store, await session.locks(), context.settings.replication)


def _plan(session: Session, judged: Sequence[JudgedMark], clearable: Sequence[JudgedMark], *, is_deep: bool) -> Plan:
    items = [
        {
            "action": "clear mark",
            "path": Paths(session.root).mark(each.ledger_id),
            "expected_version": each.mark.version,
            "ledger_id": str(each.ledger_id),
            "state": each.verdict.state.value,
            "missing_bookies": None if each.mark.mark is None else list(each.mark.mark.missing_bookies),
            "owner": each.owner,
        }
        for each in clearable
    ]
    count = counted(len(judged), "mark")
    summary = [f"will clear {len(items)} of {count}" if items else f"nothing to clear: {count} examined"]
    summary += [
        f"{counted(number, 'mark')}: {state}"
        for state, number in Counter(each.verdict.state.value for each in judged).items()
    ]
    unchecked = 0 if is_deep else _count_unchecked(judged)
    if unchecked:
        marks = counted(unchecked, "mark names", "marks name")
        summary.append(f"{marks} bookies whose copies were not checked: --deep reads them")
    hopeless = [each for each in judged if each.verdict.is_hopeless]
    sentences = [
        f"ledger {each.ledger_id}{f' ({each.owner})' if each.owner else ''} cannot be repaired: {each.verdict.detail}"
        for each in hopeless
    ]
    summary += first_lines(sentences, which="that cannot be repaired")
    findings = _unread_findings(judged)
    return session.plan(summary=summary, findings=findings, items=items, arguments={"deep": is_deep})


def _unread_findings(judged: Sequence[JudgedMark]) -> list[PlanFinding]:
    reasons = {defect.bookie_id: defect.reason for defect in _unread(judged)}
    if not reasons:
        return []
    ledgers = counted(sum(bool(_unread([each])) for each in judged), "marked ledger")
    why = listed([f"{bookie_id}: {reasons[bookie_id]}" for bookie_id in sorted(reasons)])
    return [PlanFinding(Severity.WARNING, f"copies of {ledgers} are unknown: {why}")]


def _print_result(
    context: CommandContext, session: Session, judged: Sequence[JudgedMark], outcomes: dict[int, ClearOutcome]
) -> Outcome:
    cleared = _count_cleared(outcomes)
    left = [each for each in judged if not _is_cleared(outcomes.get(each.ledger_id))]
    left.sort(key=lambda each: (not each.verdict.is_hopeless, each.mark.marked_ms))
    rows = [_row(session, each, outcomes.get(each.ledger_id)) for each in left]
    hopeless = sum(each.verdict.is_hopeless for each in left)
    body = {"marks": len(judged), "cleared": cleared, "left": len(left), "hopeless": hopeless}
    body["copies_not_checked"] = _count_unchecked(left)
    details = context.console.cut({"items": rows})
    lines = Lines(_LEFT_TABLE, rows)
    context.console.record("MarkRepair", body, name="cleared", details=details, lines=lines)
    context.console.table(_LEFT_TABLE.titled("Marks that stay"), rows)
    return _outcome(left)


def _outcome(left: Sequence[JudgedMark]) -> Outcome:
    unread = _unread(left)
    if any(each.verdict.is_hopeless for each in left):
        return Outcome.FINDINGS
    if unread and all(defect.is_refused for defect in unread):
        return Outcome.UNAUTHORIZED
    return Outcome.FINDINGS if unread else Outcome.OK


def _unread(judged: Sequence[JudgedMark]) -> list[CopyDefect]:
    return [defect for each in judged if each.check for defect in each.check.defects if defect.is_unknown]


def _row(session: Session, judged: JudgedMark, outcome: ClearOutcome | None) -> dict[str, object]:
    """A mark that stays. An outcome means that it should have been cleared."""
    mark, verdict = judged.mark, judged.verdict
    reason = verdict.detail if mark.problem is None else f"{verdict.detail} ({mark.problem})"
    return {
        "ledger_id": str(judged.ledger_id),
        "state": verdict.state.value if outcome is None else outcome.value,
        "hopeless": verdict.is_hopeless,
        "reason": reason if outcome is None else "it changed after it was examined: run the command again",
        "owner": judged.owner,
        "missing_bookies": None if mark.mark is None else list(mark.mark.missing_bookies),
        "marked_at": time_text(mark.marked_ms),
        "age_s": session.age_s(mark.marked_ms),
    }


def _count_unchecked(judged: Sequence[JudgedMark]) -> int:
    return sum(each.verdict.state is MarkFinding.COPIES_UNKNOWN for each in judged)


def _count_cleared(outcomes: dict[int, ClearOutcome]) -> int:
    return sum(map(_is_cleared, outcomes.values()))


def _is_cleared(outcome: ClearOutcome | None) -> bool:
    return outcome is not None and outcome.is_cleared
