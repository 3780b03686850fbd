"""Metrics of the bookie as a whole: mode, directories, repair."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from typing import Final

from bkctl.runtime.admin.metric import PATH, Scope
from bkctl.runtime.bookie.disks.modes import ReadOnlyReason
from bkctl.runtime.bookie.disks.rules import DiskSample
from bkctl.runtime.bookie.metrics.scopes import (
    AUTORECOVERY,
    BOOKIE,
    INDEX_DISKS,
    INDEX_PATHS,
    INDEX_REBUILD,
    INTEGRITY,
    LEDGER_DISKS,
    LEDGER_PATHS,
    LISTENER,
    CheckedDisks,
)
from bkctl.runtime.bookie.troubles import Trouble
from bkctl.runtime.bookie.view import BookieView
from bkctl.runtime.metadata.bookies.registration import BookieMode


def _server_status(view: BookieView) -> int:
    if view.registration is None or not view.registration.is_registered:
        return -1
    return int(view.modes.mode is BookieMode.WRITABLE)


def _used_percent(sample: DiskSample) -> float:
    return 100 * sample.used_fraction


def _directory_count(disks: CheckedDisks) -> int:
    return len(disks.samples)


def _writable_count(disks: CheckedDisks) -> int:
    return len(disks.samples) - disks.full_count


def _reasons(view: BookieView) -> Iterable[tuple[tuple[str, ...], bool]]:
    return [((reason.name.lower(),), reason in view.modes.reasons) for reason in ReadOnlyReason]


def _build(view: BookieView) -> Iterable[tuple[tuple[str, ...], int]]:
    return [((view.ports.release.removeprefix("bkctl "), platform.python_version()), 1)]


def _trouble_s(view: BookieView) -> Iterable[tuple[tuple[str, ...], float]]:
    now_ms = view.ports.clock.now_ms()
    return [
        ((trouble.value,), max(0.001, (now_ms - found.since_ms) / 1000) if found else 0)
        for trouble, found in ((trouble, view.troubles.get(trouble)) for trouble in Trouble)
    ]


_REASONS: Final = Scope(("reason",), _reasons)
_TROUBLES: Final = Scope(("trouble",), _trouble_s)
_BUILD: Final = Scope(("version", "python"), _build)


STATE: Final = (
    BOOKIE.gauge("bookie_SERVER_STATUS", "1 if writable, 0 if read-only, -1 if not registered.", _server_status),
    LEDGER_DISKS.gauge(
        "bookie_ledger_num_dirs",
        "Ledger directories in the settings.",
        _directory_count,
    ),
    LEDGER_DISKS.gauge(
        "bookie_ledger_writable_dirs",
        "Ledger directories whose disk is not full.",
        _writable_count,
    ),
    LEDGER_PATHS.gauge(
        f"bookie_ledger_dir_{PATH}_usage",
        "Used space on the disk of a ledger directory, in percent, at the last check.",
        _used_percent,
    ),
    INDEX_DISKS.gauge(
        "bookie_index_num_dirs",
        "Index directories in the settings; only if they are not the ledger directories.",
        _directory_count,
    ),
    INDEX_DISKS.gauge(
        "bookie_index_writable_dirs",
        "Index directories whose disk is not full; only if they are not the ledger directories.",
        _writable_count,
    ),
    INDEX_PATHS.gauge(
        f"bookie_index_dir_{PATH}_usage",
        "Used space on the disk of an index directory, in percent; only if it is not a ledger directory.",
        _used_percent,
    ),
    BOOKIE.gauge(
        "bookie_JOURNAL_DIRS",
        "Journal directories in the settings.",
        lambda view: len(view.config.storage.journal_directories),
    ),
    _BUILD.gauge("bkctl_build_info", "Always 1; the labels are the versions of bkctl and Python.", lambda one: one),
    BOOKIE.gauge(
        "bkctl_uptime_seconds",
        "Seconds since the bookie began to start.",
        lambda view: (view.ports.clock.now_ms() - view.started_ms) / 1000,
    ),
    BOOKIE.duration("bkctl_event_loop_delay", "How late timers of the event loop fire.", lambda view: view.loop_delay),
    _REASONS.gauge("bkctl_read_only_reason", "1 for each reason why the bookie is read-only, else 0.", int),
    _TROUBLES.gauge(
        "bkctl_trouble_seconds",
        "For how long a disk has hung, ZooKeeper was out of reach or refused to register the mode, or entries were not "
        "restored; 0 if all is well.",
        float,
    ),
    LISTENER.gauge("bkctl_connections", "Open connections of clients.", lambda listener: listener.connection_count),
    INTEGRITY.gauge(
        "bkctl_integrity_repair_due",
        "1 while entries may be missing here and are being fetched from other bookies, else 0.",
        lambda progress: int(progress.is_due),
    ),
    INTEGRITY.counter(
        "bkctl_integrity_rounds", "Rounds of the repair of lost entries.", lambda progress: progress.rounds
    ),
    INTEGRITY.counter(
        "bkctl_integrity_ledgers_checked",
        "Ledgers compared with other bookies by the repair.",
        lambda progress: progress.ledgers_checked,
    ),
    INTEGRITY.gauge(
        "bkctl_integrity_ledgers_failed",
        "Ledgers that the last round of the repair could not restore.",
        lambda progress: progress.ledgers_failed,
    ),
    INTEGRITY.counter(
        "bkctl_integrity_entries_fetched",
        "Lost entries that were fetched from other bookies.",
        lambda progress: progress.entries_fetched,
    ),
    INTEGRITY.counter(
        "bkctl_integrity_bytes_fetched",
        "Bytes of lost entries that were fetched from other bookies.",
        lambda progress: progress.bytes_fetched,
    ),
    AUTORECOVERY.gauge(
        "bkctl_autorecovery_is_running",
        "1 while the autorecovery daemon of this bookie runs and reports, else 0.",
        lambda daemon: bool(daemon.metrics),
    ),
    AUTORECOVERY.counter(
        "bkctl_autorecovery_restarts",
        "How often the autorecovery daemon of this bookie ended and was started again.",
        lambda daemon: daemon.restarts,
    ),
    INDEX_REBUILD.gauge(
        "bkctl_index_rebuild_running",
        "1 while the location index is being rebuilt, else 0.",
        lambda rebuild: int(rebuild.is_running),
    ),
    INDEX_REBUILD.gauge(
        "bkctl_index_rebuild_step_share",
        "Share of the present step of the index rebuild that is done; 0 if that is not known.",
        lambda rebuild: rebuild.step_share,
    ),
)
