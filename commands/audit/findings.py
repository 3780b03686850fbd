"""Which findings of an audit make its exit code 10: the option ``--fail-on``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import typer

from bkctl.commands.errors import InvalidArgumentError
from bkctl.storage.severity import Severity

FINDING_KINDS = (
    "unavailable", "lost", "at_risk", "one_copy", "under_replicated", "unclosable", "unwritable", "unreplaceable",
    "ack_quorum_one", "write_quorum_one", "misplaced", "too_few_racks", "outside_groups",
    "one_rack",
)  # fmt: skip
"""Counts of ledgers in ``AuditSummary``, the worst first."""
INVENTORY_KINDS = ("lost_entries", "bad_copies", "unknown_copies")
"""Counts of entries and copies there, which are known if an inventory was taken."""

FAIL_ON_DEFAULT = "warning"
SEVERITY_KINDS = {each.value: each for each in (Severity.WARNING, Severity.CRITICAL)}
"""Kinds too: any finding that is this or worse."""

FailOn: TypeAlias = Annotated[
    str,
    typer.Option(
        "--fail-on",
        metavar="KIND,...",
        show_default=False,
        help="Findings for exit code 10 (default: warning)",
    ),
]


def parse_fail_on(text: str) -> tuple[str, ...]:
    """The kinds in the value of ``--fail-on``; InvalidArgumentError."""
    kinds = tuple(kind.strip().replace("-", "_") for kind in text.split(","))
    for kind in kinds:
        if kind not in SEVERITY_KINDS and kind not in FINDING_KINDS + INVENTORY_KINDS:
            choices = ", ".join((*SEVERITY_KINDS, *FINDING_KINDS, *INVENTORY_KINDS))
            raise InvalidArgumentError(f"--fail-on {kind!r}: choose from {choices}")
    return kinds


def require_inventory(kinds: Sequence[str], *, has_inventory: bool) -> None:
    """InvalidArgumentError if a kind is known from an inventory alone, and none was taken."""
    for kind in kinds:
        if kind in INVENTORY_KINDS and not has_inventory:
            raise InvalidArgumentError(f"--fail-on {kind} needs an audit with --inventory")
