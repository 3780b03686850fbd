"""The reports of one cluster as a series: what changed over many runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bkctl.runtime.errors import ConflictError
from bkctl.runtime.replication.cluster_audit.inventory import InventoryWay, knows_all_copies
from bkctl.runtime.replication.cluster_audit.tables import AuditReport


class AuditRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one report adds to the trend. ``run``: the name of its directory.

    ``missing_copies``: ledgers with fewer live copies than Qw, ``lost`` ones included. ``copies`` and ``live_copies``
    are of entries of complete segments. ``bad_copies``, ``lost_entries``: None unless an inventory has read all copies.
    Bytes are those of ``AuditReport``: of all copies, for each owner and bookie.
    """

    run: str
    judged_at_ms: int
    instance_id: str | None
    ledgers: int
    missing_copies: int
    lost: int
    copies: int
    live_copies: int
    copy_bytes: int
    bad_copies: int | None = None
    lost_entries: int | None = None
    owners: dict[str, int]
    bookies: dict[str, int]


def run_of(report: AuditReport, run: str) -> AuditRun:
    """The run that made this report."""
    rows = msgspec.to_builtins([report.summary, report.bookies, report.owners])
    return run_of_rows(run, *rows)


def run_of_rows(
    run: str, summary: Mapping[str, Any], bookies: Sequence[Mapping[str, Any]], owners: Sequence[Mapping[str, Any]]
) -> AuditRun:
    """The run from rows of its tables; older reports have no ``instance_id`` or inventory."""
    is_whole = summary.get("inventory") == InventoryWay.ALL_ENTRIES.value
    is_whole = is_whole and knows_all_copies(summary)
    return AuditRun(
        run=run,
        judged_at_ms=summary["judged_at_ms"],
        instance_id=summary.get("instance_id"),
        ledgers=summary["ledgers"],
        missing_copies=summary["under_replicated"] + summary["at_risk"] + summary["unavailable"],
        lost=summary["lost"],
        copies=sum(each["entry_copies"] for each in bookies),
        live_copies=sum(each["entry_copies"] for each in bookies if each["mode"] != "unregistered"),
        copy_bytes=summary["copy_bytes"],
        bad_copies=summary["bad_copies"] if is_whole else None,
        lost_entries=summary["lost_entries"] if is_whole else None,
        owners={each["owner"]: each["copy_bytes"] for each in owners},
        bookies={each["bookie_id"]: each["payload_bytes"] for each in bookies},
    )


def earlier_runs(runs: Iterable[AuditRun], before_ms: int) -> tuple[AuditRun, ...]:
    """The runs before this time, the oldest first; ConflictError if they are of different clusters."""
    found = sorted((each for each in runs if each.judged_at_ms < before_ms), key=lambda each: each.judged_at_ms)
    known = {each.instance_id: each.run for each in found if each.instance_id is not None}
    if len(known) > 1:
        first, second = list(known.items())[:2]
        raise ConflictError(
            f"{first[1]} is of the cluster with the instance id {first[0]}, and {second[1]} of {second[0]}: keep the "
            "reports of each cluster in a directory of its own"
        )
    return tuple(found)
