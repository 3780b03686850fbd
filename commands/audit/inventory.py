"""What ``bkctl audit --inventory`` asks bookies for, and the file of bad copies for ``bkctl recover ledger``."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

import msgspec

from bkctl.commands.audit.inventory_options import InventoryFlags
from bkctl.commands.config import Settings
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.findings_file import new_findings_file
from bkctl.commands.parse import drawn_seed, parse_duration_s, parse_rate_limit, parse_share, read_named_file
from bkctl.commands.session import Session
from bkctl.runtime.errors import ConflictError
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.new_file import whole_file, write_whole
from bkctl.runtime.replication.cluster_audit.checked_ledgers import (
    CheckedLedgers,
    CheckedLedgersFormatError,
    decode_checked,
    encode_checked,
)
from bkctl.runtime.replication.cluster_audit.inventory import InventoryWay, findings_of
from bkctl.runtime.replication.cluster_audit.tables import AuditReport, AuditSummary
from bkctl.runtime.replication.config import CopyPace
from bkctl.runtime.replication.judge.check_scope import Sample
from bkctl.runtime.replication.survey.inventory import InventoryRequest, InventoryTurn
from bkctl.storage.adapters.given_files import DATA_BYTES_MAX
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


_OPTIONS = {
    InventoryWay.LISTED: "--inventory alone",
    InventoryWay.SAMPLED: "--inventory --read",
    InventoryWay.ALL_ENTRIES: "--inventory --read --all-entries",
}


def read_checked(path: str, root: str, instance_id: str | None, way: InventoryWay) -> CheckedLedgers:
    """What is in the file; nothing if it does not exist yet. InvalidArgumentError if it is damaged, or no such file;
    ConflictError if it is of another cluster, or of inventories that prove more or less."""
    if not os.path.exists(path):
        directory = os.path.dirname(os.path.realpath(path))
        if not os.path.isdir(directory):
            raise InvalidArgumentError(f"--checked-file {path}: there is no directory {directory}")
        return CheckedLedgers(root=root, instance_id=instance_id, way=way.value)
    if not os.path.isfile(path):
        raise InvalidArgumentError(f"--checked-file {path} is not a regular file: name another one")
    try:
        found = decode_checked(read_named_file(path, bytes_max=DATA_BYTES_MAX))
    except CheckedLedgersFormatError as error:
        raise InvalidArgumentError(
            f"--checked-file {path}: {error}; name another file: it will begin with all ledgers"
        ) from error
    if (found.root, found.instance_id) != (root, instance_id):
        raise ConflictError(
            f"--checked-file {path} is of another cluster ({found.root}, instance {found.instance_id}): use a file for "
            "each cluster"
        )
    if found.way != way.value:
        ways = {each.value: options for each, options in _OPTIONS.items()}
        raise ConflictError(
            f"--checked-file {path} is of inventories with {ways.get(found.way, found.way)}, not with {_OPTIONS[way]}: "
            "use another file"
        )
    return found


class _NotReplaced(Exception):  # noqa: N818  it is not a failure
    """Ends an attempt to write before the file is replaced."""


def require_writable(path: str, checked: CheckedLedgers) -> None:
    """InvalidArgumentError unless the file could be replaced now. It stays as it is, also if it does not exist."""
    try:
        with suppress(_NotReplaced), whole_file(path) as write:
            write(encode_checked(checked))
            raise _NotReplaced
    except OSError as error:
        raise InvalidArgumentError(f"{_not_written(path, error)}: choose another place") from error


def write_checked(path: str, checked: CheckedLedgers) -> None:
    """Replace the file, all or nothing; BkctlError."""
    try:
        write_whole(path, encode_checked(checked))
    except OSError as error:
        raise BkctlError(_not_written(path, error)) from error


def _not_written(path: str, error: OSError) -> str:
    return f"--checked-file {path} cannot be written: {error.strerror}"
