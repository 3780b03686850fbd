"""Shared by the commands that recover and decommission bookies: their parts, plans and reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from commands.context import CommandContext
from commands.errors import Outcome
from commands.outages import report_outage
from commands.parse import parse_duration_s
from commands.progress import Progress
from commands.rendering import Column, Table, counted, decimal, size
from commands.session import Session
from commands.shared_options import setting_option
from runtime.replication.config import PlacementMode, ReplicationConfig, VerifyMode

if TYPE_CHECKING:
    from commands.safety.gate import Change
    from commands.safety.plan import Plan
    from runtime.metadata.ledgers.ledgers import LedgerStore
    from runtime.replication.bookie_recovery import BookieRecovery, RecoveryProgress
    from runtime.replication.recovery_report import RecoveryPlan, RecoveryReport

PlacementChoice = Annotated[PlacementMode | None, setting_option(ReplicationConfig, "placement", "MODE")]

VerifyChoice = Annotated[VerifyMode | None, setting_option(ReplicationConfig, "verify", "MODE")]

PLAN_TABLE = Table(
    "Changes",
    Column("action", "ACTION"),
    Column("ledger_id", "LEDGER", is_right=True),
    Column("state", "STATE"),
    Column("fragments", "FRAGMENTS", is_right=True, priority=2),
    Column("entries", "ENTRIES", is_right=True, priority=1),
    Column("surviving_copies", "COPIES LEFT", is_right=True),
    Column("needs_fencing", "FENCED FIRST", priority=3),
)
FAILURE_TABLE = Table(
    "Failures",
    Column("reason", "REASON"),
    Column("count", "LEDGERS", is_right=True),
    Column("ledger_ids", "LEDGER IDS"),
    Column("detail", "FIRST"),
)


def _rule_counts(counts: object) -> str:
    assert isinstance(counts, dict)
    return ", ".join(f"{rule}: {count}" for rule, count in counts.items()) or "0"


REPORT_SHOW = {
    "bytes": size,
    "seconds": decimal,
    "mebibytes_per_second": decimal,
    "copies_breaking_placement": _rule_counts,
}
_IDS_SHOWN_MAX = 10


class ReplicationAccess(NamedTuple):
    """Recovery of the bookies of one cluster."""

    recovery: BookieRecovery
    session: Session
    ledgers: LedgerStore
    placement: PlacementMode = PlacementMode.STRICT

    @property
    def is_best_effort(self) -> bool:
        """Whether targets may break placement rules."""
        return self.placement is PlacementMode.BEST_EFFORT

    def change_plan(
        self,
        found: RecoveryPlan,
        *,
        more_summary: Sequence[str] = (),
        more_items: Sequence[dict[str, Any]] = (),
    ) -> Plan:
        """A recovery as a plan that can be shown, saved, compared and confirmed like that of any other command."""
        items = [
            {"action": "recover", "path": self.ledgers.path(int(str(row["ledger_id"]))), **row}
            for row in plan_rows(found)
        ]
        return self.session.plan(
            subject=", ".join(found.bookie_ids),
            summary=(*plan_summary(found, is_best_effort=self.is_best_effort), *more_summary),
            items=(*items, *more_items),
            arguments={"bookie_ids": list(found.bookie_ids), "placement": self.placement.value},
        )

    def open_change(
        self, context: CommandContext, plan: Plan, found: RecoveryPlan
    ) -> AbstractAsyncContextManager[Change]:
        """The gate for a plan about these bookies: locks only them, and waits out an outage."""
        from commands.safety.gate import open_change

        return open_change(
            context,
            plan,
            self.session.store,
            bookie_ids=found.bookie_ids,
            table=PLAN_TABLE,
            totals=plan_body(found),
            outlast=self.recovery.outage.outlast,
        )


async def replication_access(
    context: CommandContext,
    session: Session,
    outage_max: str | None,
    placement: PlacementMode | None,
    verify: VerifyMode | None = None,
) -> ReplicationAccess:
    """Parts for one run; InvalidArgumentError, ClusterNotFoundError.

    ``outage_max`` is the duration given by ``--metadata-outage-max``, ``placement`` the value of ``--placement``,
    ``verify`` that of ``--verify``; None: those of the settings.
    """
    import asyncio

    from runtime.metadata.replication.lock import ReplicationLocks
    from runtime.net.host import canonical_host_name
    from runtime.replication.bookie_recovery import BookieRecovery

    config = context.settings.replication
    if outage_max is not None:
        config = msgspec.structs.replace(config, metadata_outage_max_s=parse_duration_s(outage_max))
    if placement is not None:
        config = msgspec.structs.replace(config, placement=placement)
    if verify is not None:
        config = msgspec.structs.replace(config, verify=verify)
    ports = (await session.client()).ports
    locks = ReplicationLocks(session.store, session.root, await asyncio.to_thread(canonical_host_name))
    on_outage = partial(report_outage, context.console)
    recovery = BookieRecovery(ports, session.registrations, session.cookies, locks, config, on_outage)
    return ReplicationAccess(recovery, session, ports.ledgers, config.placement)


def note_end(change: Change, body: dict[str, object], outcome: Outcome) -> None:
    """Record the result in the audit trail."""
    change.details |= body
    change.result = {Outcome.OK: "done", Outcome.PARTIAL: "partial"}.get(outcome, "failed")


def progress_reporter(progress: Progress) -> Callable[[RecoveryProgress], None]:
    """Callback that shows the progress of a recovery on a progress bar."""

    def report(moment: RecoveryProgress) -> None:
        note = f"{counted(moment.entries_copied, 'entry', 'entries')}, {size(moment.bytes_copied)}"
        if moment.ledgers_failed:
            note += f", {moment.ledgers_failed} failed"
        if moment.current_ledgers:
            note += f"; at ledger {moment.current_ledgers[0]}"
        progress.update(moment.ledgers_done, moment.ledgers_total, note)

    return report


def waiting_sentence(bookie_id: str) -> str:
    """Explain the wait while the session of a killed bookie lasts."""
    return f"bookie {bookie_id} does not respond but is still registered: waiting for its session to end"


def plan_body(plan: RecoveryPlan) -> dict[str, object]:
    """A plan as a structured result."""
    return {
        "bookie_ids": list(plan.bookie_ids),
        "registered": list(plan.registered),
        "ledgers_scanned": plan.ledgers_scanned,
        "ledgers": len(plan.ledgers),
        "fragments": plan.fragments,
        "entries": plan.entries,
        "ledgers_fenced_first": sum(ledger.needs_fencing for ledger in plan.ledgers),
        "ledgers_without_live_copy": len(plan.without_live_copy),
        "ledgers_without_target": plan.ledgers_without_target,
        "ledgers_unreadable": len(plan.unreadable),
        "fragments_breaking_placement": plan.broken_rules,
        "targets": list(plan.targets),
    }


def plan_rows(plan: RecoveryPlan) -> list[dict[str, object]]:
    """The ledgers of a plan, in the order of work."""
    return [
        {
            "ledger_id": str(ledger.ledger_id),
            "expected_version": ledger.metadata_version,
            "state": ledger.ledger_state,
            "fragments": len(ledger.fragments),
            "entries": None if ledger.needs_fencing else sum(part.entries or 0 for part in ledger.fragments),
            "surviving_copies": ledger.surviving_copies,
            "needs_fencing": ledger.needs_fencing,
        }
        for ledger in plan.ledgers
    ]


def plan_summary(plan: RecoveryPlan, *, is_best_effort: bool = False) -> list[str]:
    """A plan in sentences, for the operator who must confirm it."""
    bookies = ", ".join(plan.bookie_ids)
    scanned = counted(plan.ledgers_scanned, "ledger")
    movable = plan.without(plan.without_live_copy)
    summary = []
    if movable.ledgers:
        summary.append(
            f"will recover {len(movable.ledgers)} of {scanned} from {bookies}: "
            f"{counted(movable.fragments, 'fragment')}, {counted(movable.entries, 'entry', 'entries')} to copy to "
            f"{counted(len(plan.targets), 'bookie')}"
        )
    elif not plan.ledgers:
        summary.append(f"nothing to recover: none of {scanned} needs to be moved from {bookies}")
    if plan.without_live_copy:
        summary.append(
            f"will not move {counted(len(plan.without_live_copy), 'ledger')} completely unless a bookie comes back: "
            "some entries have no live copy"
        )
    if fenced := sum(ledger.needs_fencing for ledger in plan.ledgers):
        summary.append(f"will fence and close {counted(fenced, 'open ledger')} first, which stops the writers")
    if plan.ledgers_without_target:
        summary.append(
            f"{counted(plan.ledgers_without_target, 'ledger')} cannot be recovered: no writable bookie is outside "
            "their ensembles (add a bookie)"
        )
    if plan.broken_rules:
        summary.append(
            f"no target keeps the placement rules for some fragments ({_rule_counts(plan.broken_rules)}); they are "
            + ("copied all the same" if is_best_effort else "left alone without --placement best-effort")
        )
    if plan.unreadable:
        summary.append(f"will skip {counted(len(plan.unreadable), 'ledger')}: the metadata cannot be read")
    return summary


def report_body(report: RecoveryReport) -> dict[str, object]:
    """A report as a structured result; ``ledgers`` is the sum of those repaired, by any process, deleted and failed."""
    return {
        "bookie_ids": list(report.bookie_ids),
        "ledgers": report.ledgers,
        "ledgers_repaired": report.ledgers_repaired,
        "ledgers_repaired_by_others": report.ledgers_repaired_by_others,
        "ledgers_deleted": report.ledgers_deleted,
        "ledgers_failed": report.ledgers_failed,
        "ledgers_unreadable": report.ledgers_unreadable,
        "ledgers_closed": report.ledgers_closed,
        "fragments": report.fragments,
        "entries": report.entries,
        "bytes": report.bytes_copied,
        "seconds": round(report.seconds, 3),
        "mebibytes_per_second": round(report.mebibytes_per_second, 3),
        "verify": report.verify.value,
        "bad_copies_found": len(report.defects),
        "copies_breaking_placement": dict(report.broken_rules),
    }


def failure_rows(report: RecoveryReport) -> list[dict[str, object]]:
    """One row per reason, with the ids of the ledgers."""
    details = {failure.reason.value: f"{failure.place}: {failure.bare_detail}" for failure in reversed(report.failures)}
    return [
        {
            "reason": reason,
            "count": len(ledger_ids),
            "ledger_ids": [str(ledger_id) for ledger_id in ledger_ids],
            "detail": details[reason],
        }
        for reason, ledger_ids in report.failures_by_reason.items()
    ]


def print_report(
    context: CommandContext, kind: str, body: dict[str, object], failures: Sequence[dict[str, object]]
) -> None:
    """Print a report; in table format, with the failures below it."""
    context.console.record(kind, body, show=REPORT_SHOW, details={"failures": failures})
    shown = [row | {"ledger_ids": shortened(row["ledger_ids"])} for row in failures]
    context.console.table(FAILURE_TABLE, shown)


def shortened(ledger_ids: object) -> str:
    """The first ids, and how many more there are."""
    assert isinstance(ledger_ids, (list, tuple))
    text = ", ".join(map(str, ledger_ids[:_IDS_SHOWN_MAX]))
    return f"{text} and {len(ledger_ids) - _IDS_SHOWN_MAX} more" if len(ledger_ids) > _IDS_SHOWN_MAX else text
