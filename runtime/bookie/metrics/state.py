"""Metrics of the bookie as a whole: mode, directories, sessions, repair."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from typing import Final

from runtime.bookie.disks.modes import ReadOnlyReason
from runtime.bookie.disks.rules import DiskSample, DiskState
from runtime.bookie.metrics.metric import PATH, AnyMetric, Scope, counter, gauge
from runtime.bookie.metrics.scopes import BOOKIE, INDEX_DISKS, LEDGER_DISKS
from runtime.bookie.view import BookieView
from runtime.metadata.bookies.registration import BookieMode


def _server_status(view: BookieView) -> int:
    if not view.registration.is_registered:
        return -1
    return int(view.parts.modes.mode is BookieMode.WRITABLE)


def _used_percent(sample: DiskSample) -> float:
    return 100 * sample.used_fraction


def _writable_directories(view: BookieView, *, is_index: bool) -> int:
    """Ledger or index directories whose disks are not full."""
    samples, verdict = view.disks.samples, view.disks.verdict
    if samples is None or verdict is None:
        return 0
    first = len(samples.journals) + (len(samples.ledgers) if is_index else 0)
    states = verdict.states[first : first + len(samples.ledgers)]
    return sum(state is not DiskState.FULL for state in states)


def _separate_index(view: BookieView) -> Iterable[tuple[tuple[str, ...], BookieView]]:
    return [((), view)] if view.config.storage.index_directories else []


def _reasons(view: BookieView) -> Iterable[tuple[tuple[str, ...], bool]]:
    return [((reason.name.lower(),), reason in view.parts.modes.reasons) for reason in ReadOnlyReason]


def _build(view: BookieView) -> Iterable[tuple[tuple[str, ...], int]]:
    return [((view.ports.release.removeprefix("bkctl "), platform.python_version()), 1)]


_SEPARATE_INDEX: Final = Scope((), _separate_index)
"""The bookie, if its index directories are not its ledger directories."""
_REASONS: Final = Scope(("reason",), _reasons)
_BUILD: Final = Scope(("version", "python"), _build)


STATE: Final[tuple[AnyMetric, ...]] = (
    gauge("bookie_SERVER_STATUS", BOOKIE, "1 if writable, 0 if read-only, -1 if not registered.", _server_status),
    gauge(
        "bookie_ledger_num_dirs",
        BOOKIE,
        "Ledger directories in the settings.",
        lambda view: len(view.config.storage.ledger_directories),
    ),
    gauge(
        "bookie_ledger_writable_dirs",
        BOOKIE,
        "Ledger directories whose disk is not full.",
        lambda view: _writable_directories(view, is_index=False),
    ),
    gauge(
        f"bookie_ledger_dir_{PATH}_usage",
        LEDGER_DISKS,
        "Used space on the disk of a ledger directory, in percent, at the last check.",
        _used_percent,
    ),
    gauge(
        "bookie_index_num_dirs",
        _SEPARATE_INDEX,
        "Index directories in the settings; only if they are not the ledger directories.",
        lambda view: len(view.config.storage.index_directories),
    ),
    gauge(
        "bookie_index_writable_dirs",
        _SEPARATE_INDEX,
        "Index directories whose disk is not full; only if they are not the ledger directories.",
        lambda view: _writable_directories(view, is_index=True),
    ),
    gauge(
        f"bookie_index_dir_{PATH}_usage",
        INDEX_DISKS,
        "Used space on the disk of an index directory, in percent; only if it is not a ledger directory.",
        _used_percent,
    ),
    gauge(
        "bookie_JOURNAL_DIRS",
        BOOKIE,
        "Journal directories in the settings.",
        lambda view: len(view.config.storage.journal_directories),
    ),
    gauge("bkctl_build_info", _BUILD, "Always 1; the labels are the versions of bkctl and Python.", lambda one: one),
    gauge(
        "bkctl_uptime_seconds",
        BOOKIE,
        "Seconds since the bookie began to start.",
        lambda view: (view.ports.clock.monotonic_ns() - view.began_ns) / 1e9,
    ),
    gauge("bkctl_read_only_reason", _REASONS, "1 for each reason why the bookie is read-only, else 0.", int),
    gauge("bkctl_connections", BOOKIE, "Open connections of clients.", lambda view: view.listener.connection_count),
    gauge(
        "bkctl_zookeeper_session",
        BOOKIE,
        "1 while the bookie has a ZooKeeper session, else 0.",
        lambda view: int(view.store.session_id != 0),
    ),
    counter(
        "bkctl_zookeeper_sessions_lost",
        BOOKIE,
        "ZooKeeper sessions that expired.",
        lambda view: view.registration.sessions_lost_count,
    ),
    gauge(
        "bkctl_integrity_repair_due",
        BOOKIE,
        "1 while entries may be missing here and are being fetched from other bookies, else 0.",
        lambda view: int(view.integrity.is_due),
    ),
    counter(
        "bkctl_integrity_rounds", BOOKIE, "Rounds of the repair of lost entries.", lambda view: view.integrity.rounds
    ),
    counter(
        "bkctl_integrity_ledgers_checked",
        BOOKIE,
        "Ledgers compared with other bookies by the repair.",
        lambda view: view.integrity.ledgers_checked,
    ),
    gauge(
        "bkctl_integrity_ledgers_failed",
        BOOKIE,
        "Ledgers that the last round of the repair could not restore.",
        lambda view: view.integrity.ledgers_failed,
    ),
    counter(
        "bkctl_integrity_entries_fetched",
        BOOKIE,
        "Lost entries that were fetched from other bookies.",
        lambda view: view.integrity.entries_fetched,
    ),
    counter(
        "bkctl_integrity_bytes_fetched",
        BOOKIE,
        "Bytes of lost entries that were fetched from other bookies.",
        lambda view: view.integrity.bytes_fetched,
    ),
    gauge(
        "bkctl_index_rebuild_running",
        BOOKIE,
        "1 while the location index is being rebuilt, else 0.",
        lambda view: int(view.online_rebuild.is_running),
    ),
    gauge(
        "bkctl_index_rebuild_work",
        BOOKIE,
        "Work of the present or last index rebuild: bytes of logs read plus rows written and verified.",
        lambda view: view.online_rebuild.work_done,
    ),
)
