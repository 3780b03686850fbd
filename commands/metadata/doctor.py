"""``bkctl metadata doctor``: problems below the ledgers root, their effects, and how to fix them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Annotated

import typer

from bkctl.commands.bookie.read_only_reasons import find_leaving, with_reasons
from bkctl.commands.command import command
from bkctl.commands.config import OutputForm
from bkctl.commands.console import Console
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.parse import near_miss
from bkctl.commands.rendering import Column, Table
from bkctl.commands.session import ANSWER_TIMEOUT_S, Session, open_session
from bkctl.commands.table_layout import wrapped
from bkctl.runtime.errors import MetadataError
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.cluster.operation_lock import moved_bookies
from bkctl.runtime.metadata.doctor.catalogue import RULES, MetadataFinding
from bkctl.runtime.metadata.doctor.doctor import KEPT_MAX, DoctorReport, examine_cluster
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.recovery_status import RecoveryStatus, is_repaired, read_recovery_status
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.replication.judge.cluster_facts import BookieFacts
from bkctl.runtime.replication.judge.drained_bookies import LeavingBookie
from bkctl.runtime.replication.judge.needed_bookies import Idle, NeededBookies
from bkctl.storage.severity import Severity
from bkctl.storage.words import counted

_TABLE = Table(
    "MetadataFindingList",
    Column("severity", "SEVERITY"),
    Column("rule", "RULE"),
    Column("path", "ZNODE"),
    Column("problem", "PROBLEM"),
    Column("consequence", "CONSEQUENCE"),
    Column("cure", "FIX"),
    name="path",
)
_RULE_TABLE = Table("Findings of one rule", Column("path", "ZNODE"), Column("problem", "PROBLEM"))
_LINE_MAX = 110
_INDENT = "  "
_SIMILARITY_MIN = 0.6
_WITHOUT_PERMISSION = "node-without-permission"
_WORST_FIRST = sorted(Severity, reverse=True)
_STREAMED = {OutputForm.JSONL, OutputForm.CSV, OutputForm.NAME}


@command("doctor", example="metadata doctor --severity warning", is_cut=True)
async def examine(
    context: CommandContext,
    severity: Annotated[
        Severity,
        typer.Option("--severity", metavar="MIN", help="Minimum severity: critical, warning or information"),
    ] = Severity.INFORMATION,
    rule: Annotated[
        list[str] | None, typer.Option("--rule", metavar="RULE", help="Only findings of this rule; repeatable")
    ] = None,
) -> Outcome:
    """Read all metadata of the cluster and report problems, each with its znode and the fix.

    Reads only. Nodes that disappear or are fixed during the scan are not reported. Copies of entries are not counted;
    bkctl audit does that. Nodes that this user may not read are always reported. --limit limits the findings that are
    listed; all are counted. Exits with 10 if a finding is a warning or worse, and with 11 if this user may not read a
    node and nothing is critical.
    """
    is_wanted = _filter(severity, rule)
    zookeeper, limit = context.settings.zookeeper, context.settings.limit
    async with open_session(context, must_exist=False, warns_of_restore=False) as session:
        with context.console.progress("reading the metadata") as progress:
            report = await examine_cluster(
                session.store,
                session.root,
                session.uri.tree,
                LoopClock(),
                await _down_rules(context, session),
                layout_config=zookeeper.layout,
                is_wanted=is_wanted,
                racks_path=context.settings.client.placement.pulsar_bookies_path,
                kept_max=max(KEPT_MAX, limit or 0),
                on_progress=progress.update,
            )
    findings = report.findings if limit is None else report.findings[:limit]
    _print(context, report, findings, str(session.uri))
    if report.counts.get(_WITHOUT_PERMISSION) and not report.count(Severity.CRITICAL):
        return Outcome.UNAUTHORIZED
    has_damage = any(report.count(each) for each in Severity if each >= Severity.WARNING)
    return Outcome.FINDINGS if has_damage else Outcome.OK


async def _down_rules(context: CommandContext, session: Session) -> NeededBookies:
    """How bad it is that bookies are down. What damaged metadata does not show is no reason to call it worse."""
    registrations, recovery, is_at_work, idle = None, RecoveryStatus(), True, dict[str, Idle]()
    serving, leaving = frozenset[str](), tuple[LeavingBookie, ...]()
    foreign = ForeignNames(lambda _: None)  # they are findings
    with contextlib.suppress(MetadataError):
        registrations = await session.registrations.snapshot()
        recovery = await read_recovery_status(session.store, session.root, foreign, session.ledgers)
        is_at_work = await is_repaired(session.store, session.root, foreign, recovery)
        down = frozenset(await session.registrations.with_cookie()) - registrations.live
        serving = await session.find_serving(down)
        asked = await _idle_bookies(context, session, registrations, down - serving)
        moving, removed = await moved_bookies(session.store, session.root)
        idle = {each.bookie_id: each.why_idle(moving) for each in asked}
        leaving = await find_leaving(session, asked, moving, removed)
    return NeededBookies(
        frozenset() if registrations is None else registrations.live,
        writable=None if registrations is None else registrations.writable,
        given_up=recovery.given_up,
        maintenance=recovery.maintenance,
        now_ms=session.now_ms,
        is_repaired=is_at_work,
        idle=idle,
        returned=dict(recovery.returned),
        serving=serving,
        leaving=leaving,
    )


async def _idle_bookies(
    context: CommandContext, session: Session, registrations: Registrations, down: Collection[str]
) -> tuple[BookieFacts, ...]:
    modes = dict.fromkeys(registrations.read_only, False) | dict.fromkeys(sorted(down))
    bookies = [BookieFacts(bookie_id, is_writable=mode, has_cookie=True) for bookie_id, mode in modes.items()]
    return await with_reasons(context, session, bookies, ANSWER_TIMEOUT_S)


def _filter(severity_min: Severity, rule_ids: list[str] | None) -> Callable[[MetadataFinding], bool]:
    for rule_id in rule_ids or ():
        if rule_id not in RULES:
            meant = near_miss(rule_id, RULES, similarity_min=_SIMILARITY_MIN)
            hint = "" if meant is None else f"did you mean {meant}? "
            raise InvalidArgumentError(f"unknown rule '{rule_id}': {hint}bkctl help metadata-doctor lists all")
    chosen = frozenset(rule_ids or RULES)

    def is_wanted(found: MetadataFinding) -> bool:
        if found.rule.id == _WITHOUT_PERMISSION:  # it may hide any other finding
            return True
        return found.severity >= severity_min and found.rule.id in chosen

    return is_wanted


def _print(
    context: CommandContext, report: DoctorReport, findings: Sequence[MetadataFinding], metadata_uri: str
) -> None:
    console = context.console
    rows = [_row(found) for found in findings]
    is_truncated = len(findings) < sum(report.counts.values())
    if console.form in _STREAMED:
        console.say(_summary(report))
        console.rows(_TABLE, rows, is_truncated=is_truncated)
        return
    body = {
        "metadata_uri": metadata_uri,
        "instance_id": report.instance_id,
        "layout": report.tree.value,
        "looked_at": dict(report.looked_at),
        "findings_count": {severity.value: report.count(severity) for severity in _WORST_FIRST},
    }
    details = {"rules": dict(report.counts), "findings": rows, "truncated": is_truncated}
    if not console.is_for_people:
        console.record("MetadataDoctorReport", body, details=details)
        return
    console.verdict(*_verdict(report))
    for rule_id in dict.fromkeys(found.rule.id for found in findings):
        of_rule = [found for found in findings if found.rule.id == rule_id]
        if of_rule:
            heading = _heading(console, of_rule[0], report.counts[rule_id])
            console.table(_RULE_TABLE.titled(heading), [_row(found) for found in of_rule])
    console.sentences("")
    console.record("MetadataDoctorReport", body)


def _verdict(report: DoctorReport) -> tuple[Severity | None, str]:
    """The worst severity and its first finding; None if there is none."""
    nodes = counted(sum(report.looked_at.values()), "node")
    if not report.findings:
        return None, f"no problem was found in {nodes}"
    worst = report.findings[0]
    others = sum(report.counts.values()) - 1
    more = f", and {counted(others, 'more finding')}" if others else ""
    return worst.severity, f"{worst.path}: {worst.problem.removesuffix('.')}{more}"


def _row(found: MetadataFinding) -> dict[str, object]:
    return {
        "severity": found.severity.value,
        "rule": found.rule.id,
        "path": found.path,
        "problem": found.problem,
        "consequence": found.rule.consequence,
        "cure": found.cure,
    }


def _heading(console: Console, first: MetadataFinding, count: int) -> str:
    rule, width = first.rule, min(_LINE_MAX, console.width or _LINE_MAX)
    lines = [f"{first.severity.name} {rule.id}: {counted(count, 'finding')}"]
    texts = console.completed({"consequence": rule.consequence, "cure": first.cure})
    for text in (texts["consequence"], f"Fix{' of the first' if count > 1 else ''}: {texts['cure']}"):
        lines += [f"{_INDENT}{line}" for line in wrapped(str(text), width - len(_INDENT))]
    return "\n".join(lines)


def _summary(report: DoctorReport) -> str:
    kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in report.looked_at.items())
    counts = ", ".join(f"{report.count(severity)} {severity.value}" for severity in _WORST_FIRST)
    return f"checked {counted(sum(report.looked_at.values()), 'node')} ({kinds}); findings: {counts}"
