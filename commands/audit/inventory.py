"""What ``bkctl audit --inventory`` asks bookies for, and the file of bad copies for ``bkctl recover ledger``."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from bkctl.commands.audit.checked_file import read_checked, require_writable, write_checked
from bkctl.commands.audit.inventory_options import InventoryFlags
from bkctl.commands.config import Settings
from bkctl.commands.findings_file import new_findings_file
from bkctl.commands.parse import drawn_seed, parse_duration_s, parse_rate_limit, parse_share
from bkctl.commands.session import Session
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.replication.cluster_audit.inventory import InventoryWay, findings_of
from bkctl.runtime.replication.cluster_audit.tables import AuditReport, AuditSummary
from bkctl.runtime.replication.config import CopyPace
from bkctl.runtime.replication.judge.check_scope import Sample
from bkctl.runtime.replication.survey.inventory import InventoryRequest, InventoryTurn
from bkctl.storage.errors import BkctlError

_EACH_MIN = 8
"""Entries that ``--read`` reads of each segment on each bookie, in addition to the first and the last."""


class InventoryPlan(NamedTuple):
    """What the options ask for. ``time_limit_s`` and ``checked_file``: both or none."""

    request: InventoryRequest
    time_limit_s: float | None = None
    checked_file: str | None = None

    def for_cluster(self, session: Session, instance_id: str | None) -> InventoryRequest:
        """The request to bookies of this cluster; errors of ``read_checked`` and ``require_writable``."""
        if self.time_limit_s is None or self.checked_file is None:
            return self.request
        checked = read_checked(self.checked_file, session.root, instance_id, self.request.way)
        require_writable(self.checked_file, checked)
        return msgspec.structs.replace(self.request, turn=InventoryTurn(self.time_limit_s, checked.runs))

    def remember(self, report: AuditReport) -> None:
        """Note in the file which ledgers were examined, after the report was printed; BkctlError."""
        if self.checked_file is None:
            return
        summary = report.summary
        try:
            checked = read_checked(self.checked_file, _root_of(summary), summary.instance_id, self.request.way)
            now = checked.with_run(summary.judged_at_ms, report.checked_ranges, report.tried_ranges)
            write_checked(self.checked_file, now)
        except BkctlError as error:
            raise BkctlError(
                f"{error}; the report is complete, but the next inventory will begin as this one did"
            ) from error


def inventory_plan(flags: InventoryFlags, settings: Settings) -> InventoryPlan | None:
    """What to ask bookies for; None: nothing. InvalidArgumentError."""
    if not flags.is_inventory:
        return None
    way, sample = InventoryWay.LISTED, None
    if flags.is_read:
        way = InventoryWay.ALL_ENTRIES if flags.is_all_entries else InventoryWay.SAMPLED
    if way is InventoryWay.SAMPLED:
        share, each_min = (0.0, _EACH_MIN) if flags.sample is None else (parse_share(flags.sample), 0)
        sample = Sample(share, drawn_seed(flags.seed), each_min=each_min)
    rate, per_bookie = parse_rate_limit(flags.rate), parse_rate_limit(flags.rate_per_bookie)
    pace = CopyPace(bytes_per_s=rate, bytes_per_s_per_bookie=per_bookie)
    request = InventoryRequest(
        way=way, sample=sample, pace=pace, config=settings.replication, is_all_bookies=flags.is_all_bookies
    )
    time_limit_s = None if flags.time_limit is None else parse_duration_s(flags.time_limit)
    return InventoryPlan(request, time_limit_s, flags.checked_file)


def write_bad_copies(report: AuditReport) -> None:
    """Write the file that the report names, if it names one; OSError."""
    summary = report.summary
    if summary.bad_copies_file is None:
        return
    with new_findings_file(summary.bad_copies_file, _root_of(summary), summary.instance_id) as write:
        write(findings_of(report.bad_copy_ranges))


def _root_of(summary: AuditSummary) -> str:
    assert summary.metadata_uri is not None, "an inventory needs a cluster"
    return parse_metadata_uri(summary.metadata_uri).root
