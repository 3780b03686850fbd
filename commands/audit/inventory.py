"""What ``bkctl audit --inventory`` asks bookies for, and the file of bad copies for ``bkctl recover ledger``."""

from __future__ import annotations

from bkctl.commands.audit.inventory_options import InventoryFlags
from bkctl.commands.config import Settings
from bkctl.commands.findings_file import new_findings_file
from bkctl.commands.parse import drawn_seed, parse_bytes_per_second, parse_share
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.replication.cluster_audit.inventory import InventoryWay, findings_of
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from bkctl.runtime.replication.judge.check_scope import Sample
from bkctl.runtime.replication.policy import CopyPace
from bkctl.runtime.replication.survey.inventory import InventoryRequest

_EACH_MIN = 8
"""Entries that ``--read`` reads of each segment on each bookie, in addition to the first and the last."""


def inventory_request(flags: InventoryFlags, settings: Settings) -> InventoryRequest | None:
    """What to ask bookies for; None: nothing. InvalidArgumentError."""
    if not flags.is_inventory:
        return None
    way, sample = InventoryWay.LISTED, None
    if flags.is_read:
        way = InventoryWay.ALL_ENTRIES if flags.is_all_entries else InventoryWay.SAMPLED
    if way is InventoryWay.SAMPLED:
        share, each_min = (0.0, _EACH_MIN) if flags.sample is None else (parse_share(flags.sample), 0)
        sample = Sample(share, drawn_seed(flags.seed), each_min=each_min)
    rate, per_bookie = (
        None if text is None else parse_bytes_per_second(text) for text in (flags.rate, flags.rate_per_bookie)
    )
    pace = CopyPace(bytes_per_s=rate, bytes_per_s_per_bookie=per_bookie)
    return InventoryRequest(way=way, sample=sample, pace=pace, config=settings.replication)


def write_bad_copies(report: AuditReport) -> None:
    """Write the file that the report names, if it names one; OSError."""
    summary = report.summary
    if summary.bad_copies_file is None:
        return
    assert summary.metadata_uri is not None, "an inventory needs a cluster"
    root = parse_metadata_uri(summary.metadata_uri).root
    with new_findings_file(summary.bad_copies_file, root, summary.instance_id) as write:
        write(findings_of(report.bad_copy_ranges))
