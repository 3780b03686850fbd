"""Which findings of an audit make its exit code 10: the option ``--fail-on``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.rendering import time_text
from bkctl.storage.words import counted, duration

if TYPE_CHECKING:
    from bkctl.runtime.replication.cluster_audit.tables import AuditSummary

FINDING_KINDS = (
    "unavailable", "lost", "at_risk", "one_copy", "under_replicated", "unclosable", "unwritable", "unreplaceable",
    "ack_quorum_one", "write_quorum_one", "misplaced", "one_rack",
)  # fmt: skip
"""Counts of ledgers in ``AuditSummary``, the worst first."""
INVENTORY_KINDS = ("lost_entries", "bad_copies", "unknown_copies")
"""Counts of entries and copies there, which are known if an inventory was taken."""

FAIL_ON_DEFAULT = "unavailable,at_risk,under_replicated,lost_entries,bad_copies"

FailOn: TypeAlias = Annotated[
    str,
    typer.Option(
        "--fail-on", metavar="KIND,...", show_default=False, help="Findings for exit code 10 (default: missing copies)"
    ),
]


def parse_fail_on(text: str) -> tuple[str, ...]:
    """The kinds in the value of ``--fail-on``; InvalidArgumentError."""
    kinds = tuple(kind.strip().replace("-", "_") for kind in text.split(","))
    for kind in kinds:
        if kind not in FINDING_KINDS + INVENTORY_KINDS:
            raise InvalidArgumentError(f"--fail-on {kind!r}: choose from {', '.join(FINDING_KINDS + INVENTORY_KINDS)}")
    return kinds


def require_inventory(kinds: Sequence[str], *, has_inventory: bool) -> tuple[str, ...]:
    """The kinds that a report with or without an inventory has; InvalidArgumentError unless it has all that the caller
    asked for."""
    rest = tuple(kind for kind in kinds if has_inventory or kind not in INVENTORY_KINDS)
    if len(rest) < len(kinds) and tuple(kinds) != parse_fail_on(FAIL_ON_DEFAULT):
        unknown = next(kind for kind in kinds if kind not in rest)
        raise InvalidArgumentError(f"--fail-on {unknown} needs an audit with --inventory")
    return rest


def verdict(context: CommandContext, summary: AuditSummary, kinds: Sequence[str]) -> Outcome:
    """FINDINGS if a ledger is of one of the kinds, or if it is unknown whether one is.

    A report of an older snapshot than the newest never passes as one of the cluster.
    """
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
    counts = {kind: getattr(summary, kind) for kind in kinds}
    for kind, count in counts.items():
        if count is None:
            context.console.warn(
                f"{kind} is unknown: no rack is known, or all registered bookies are in one; so the exit code is that "
                "of a finding"
            )
    is_unsure = summary.unreadable > 0 or summary.skipped_snapshots > 0
    is_found = is_unsure or any(count is None or count > 0 for count in counts.values())
    return Outcome.FINDINGS if is_found else Outcome.OK
