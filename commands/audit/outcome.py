"""The exit code of an audit, by the kinds of ``--fail-on``, and why it is one of a finding."""

from __future__ import annotations

from collections.abc import Sequence

from bkctl.commands.audit.findings import FINDING_KINDS, INVENTORY_KINDS, SEVERITY_KINDS
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import Outcome
from bkctl.commands.rendering import time_text
from bkctl.runtime.replication.cluster_audit.findings import audit_findings
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from bkctl.storage.severity import worst
from bkctl.storage.words import counted, duration

_NO_RACKS = "no rack is known, or all registered bookies are in one"
_NO_GROUPS = "no isolation group is known"
_UNKNOWN = {"outside_groups": _NO_GROUPS, "misplaced": f"{_NO_GROUPS}; {_NO_RACKS}"}
"""Why a count is None."""


def outcome(context: CommandContext, report: AuditReport, kinds: Sequence[str]) -> Outcome:
    """FINDINGS if a ledger is of one of the kinds, or if it is unknown whether one is; or a finding is as severe.

    A report of an older snapshot than the newest never passes as one of the cluster.
    """
    summary = report.summary
    if summary.file_written_ms is not None and context.console.is_for_people:
        age = duration(max(0, summary.judged_at_ms - summary.file_written_ms) // 1000)
        context.console.say(
            f"{summary.ledgers_from} is of {time_text(summary.file_written_ms)}, {age} before the audit: of the "
            f"{counted(summary.ledgers, 'ledger')}, {summary.as_of_file:,} are as of that time, and so are "
            f"{summary.replicated_as_of_file:,} of the {summary.replicated:,} replicated ones"
        )
    if summary.skipped_snapshots:
        context.console.warn(
            f"{counted(summary.skipped_snapshots, 'newer snapshot')} could not be read, and the report is of "
            f"{summary.ledgers_from}: so the exit code is that of a finding"
        )
    if summary.not_looked_up:
        context.console.warn(
            f"{counted(summary.not_looked_up, 'ledger')} with findings that miss no copy were not looked up in "
            "ZooKeeper, because there are too many: the report has their state in the file"
        )
    counts = {kind: getattr(summary, kind) for kind in kinds if kind in FINDING_KINDS + INVENTORY_KINDS}
    if "unknown_copies" in counts:  # nor is it known how many copies follow an unknown end
        counts["unknown_ends"] = summary.unknown_ends
    for kind, count in counts.items():
        if count is None:
            reason = _UNKNOWN.get(kind, _NO_RACKS)
            context.console.warn(f"{kind} is unknown: {reason}; so the exit code is that of a finding")
    is_unsure = summary.unreadable > 0 or summary.skipped_snapshots > 0
    limits = [SEVERITY_KINDS[kind] for kind in kinds if kind in SEVERITY_KINDS]
    found = worst(each.advice.severity for each in audit_findings(report))
    is_severe = found is not None and any(found >= limit for limit in limits)
    is_found = is_unsure or is_severe or any(count is None or count > 0 for count in counts.values())
    return Outcome.FINDINGS if is_found else Outcome.OK
