"""Metrics of an autorecovery daemon. Those that a Java daemon also has keep its names; the others begin with bkctl_.

Values of the auditor exist only while this process is the auditor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from runtime.admin.exposition import MetricsText
from runtime.admin.metric import AnyMetric, Metric, Scope, counter, gauge
from runtime.autorecovery.auditor import Auditor
from runtime.autorecovery.daemon import AutorecoveryDaemon
from runtime.metadata.replication.recovery_notes import (
    CopyCheckCounts,
    LaneStatus,
    LedgerCount,
    PlacementCheckNote,
    ReplicaCountNote,
    WorkerStatus,
)
from runtime.ports import Clock


def _auditor(daemon: AutorecoveryDaemon) -> Auditor | None:
    found = None if daemon.office is None else daemon.office.auditor
    return found if isinstance(found, Auditor) else None


def _auditors(daemon: AutorecoveryDaemon) -> Iterable[tuple[tuple[str, ...], Auditor]]:
    auditor = _auditor(daemon)
    return [] if auditor is None else [((), auditor)]


def _lanes(daemon: AutorecoveryDaemon) -> Iterable[tuple[tuple[str, ...], LaneStatus]]:
    auditor = _auditor(daemon)
    return [] if auditor is None else [((lane.status.name,), lane.status) for lane in auditor.lanes]


def _workers(daemon: AutorecoveryDaemon) -> Iterable[tuple[tuple[str, ...], WorkerStatus]]:
    return [] if daemon.worker is None else [((), daemon.worker.status())]


def _replicas(daemon: AutorecoveryDaemon) -> Iterable[tuple[tuple[str, ...], ReplicaCountNote]]:
    auditor = _auditor(daemon)
    return [] if auditor is None or auditor.replicas.result is None else [((), auditor.replicas.result)]


def _placements(daemon: AutorecoveryDaemon) -> Iterable[tuple[tuple[str, ...], PlacementCheckNote]]:
    auditor = _auditor(daemon)
    return [] if auditor is None or auditor.placement.result is None else [((), auditor.placement.result)]


def _copy_counts(daemon: AutorecoveryDaemon) -> Iterable[tuple[tuple[str, ...], CopyCheckCounts]]:
    auditor = _auditor(daemon)
    return [] if auditor is None or auditor.copies.progress is None else [((), auditor.copies.progress.found)]


def _backlogs(daemon: AutorecoveryDaemon) -> Iterable[tuple[tuple[str, ...], int]]:
    auditor = _auditor(daemon)
    return [] if auditor is None or auditor.backlog.ledgers is None else [((), auditor.backlog.ledgers)]


def _daemons(daemon: AutorecoveryDaemon) -> Iterable[tuple[tuple[str, ...], AutorecoveryDaemon]]:
    return [((), daemon)]


_DAEMON: Final = Scope((), _daemons)
_AUDITOR: Final = Scope((), _auditors)
_LANE: Final = Scope(("lane",), _lanes)
_WORKER: Final = Scope((), _workers)
_REPLICAS: Final = Scope((), _replicas)
_PLACEMENT: Final = Scope((), _placements)
_BACKLOG: Final = Scope((), _backlogs)
_COPIES: Final = Scope((), _copy_counts)


def _ledgers(name: str, meaning: str, read: Callable[[ReplicaCountNote], LedgerCount]) -> Metric[ReplicaCountNote]:
    return gauge(name, _REPLICAS, f"{meaning}, at the last count of replicas.", lambda note: read(note).ledgers)


_JAVA: Final[tuple[AnyMetric, ...]] = (
    _ledgers(
        "auditor_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY",
        "Ledgers with an entry without a live copy",
        lambda note: note.no_copy,
    ),
    _ledgers(
        "auditor_NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY",
        "Ledgers with an entry with fewer live copies than the ack quorum",
        lambda note: note.below_ack_quorum,
    ),
    _ledgers(
        "auditor_NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY",
        "Ledgers with an entry with fewer live copies than the write quorum",
        lambda note: note.below_write_quorum,
    ),
    gauge(
        "auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY",
        _PLACEMENT,
        "Ledgers that break a placement rule, at the last check.",
        lambda note: note.broken.ledgers,
    ),
    counter(
        "auditor_NUM_LEDGERS_CHECKED",
        _COPIES,
        "Ledgers whose copies the present round has checked.",
        lambda counts: counts.ledgers,
    ),
    counter(
        "replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED",
        _WORKER,
        "Ledgers that were repaired.",
        lambda status: status.ledgers_repaired,
    ),
    counter(
        "replication_worker_NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER",
        _WORKER,
        "Repairs that failed and wait for another attempt.",
        lambda status: status.ledgers_failed,
    ),
)

_WORK: Final[tuple[AnyMetric, ...]] = (
    gauge(
        "bkctl_replication_worker_ledgers_waiting",
        _WORKER,
        "Marked ledgers that this worker knows and has not begun.",
        lambda status: status.waiting,
    ),
    gauge(
        "bkctl_replication_worker_ledgers_held",
        _WORKER,
        "Ledgers that this worker repairs now.",
        lambda status: len(status.held),
    ),
    counter(
        "bkctl_replication_worker_bytes_copied",
        _WORKER,
        "Bytes of entries that were copied.",
        lambda status: status.bytes_copied,
    ),
    counter(
        "bkctl_replication_worker_copies_breaking_placement",
        _WORKER,
        "Lost copies that went to a wrong rack or region, because no bookie kept the placement rules.",
        lambda status: status.copies_breaking_placement,
    ),
)


def _own(now_ms: Callable[[], int]) -> tuple[AnyMetric, ...]:
    def age_s(time_ms: int | None) -> float:
        return -1 if time_ms is None else max(0, now_ms() - time_ms) / 1000

    def idle_s(status: WorkerStatus) -> float:
        if not status.waiting and not status.held:
            return 0
        return -1 if status.finished_ms is None else age_s(status.finished_ms)

    return (
        gauge("bkctl_autorecovery_is_auditor", _DAEMON, "1 while this process is the auditor.", _is_auditor),
        gauge("bkctl_autorecovery_problems", _DAEMON, "What fails now; the status names it.", _problems),
        gauge("bkctl_auditor_bookies_lost", _AUDITOR, "Known bookies that are not registered.", _lost),
        gauge("bkctl_auditor_is_alarm", _AUDITOR, "1 while too many bookies are gone, so nothing is marked.", _alarm),
        gauge("bkctl_auditor_ledgers_marked", _BACKLOG, "Marked ledgers of the cluster, counted every 30 s.", float),
        gauge("bkctl_auditor_ledgers_lost", _AUDITOR, "Ledgers with entries without a copy, at the last pass.", _gone),
        gauge("bkctl_auditor_ledgers_unreadable", _AUDITOR, "Ledgers with unreadable metadata.", _unreadable),
        _ledgers("bkctl_auditor_ledgers_with_one_copy", "Ledgers with one live copy", lambda note: note.one_copy),
        gauge(
            "bkctl_auditor_copies_bad",
            _COPIES,
            "Copies that the present round found missing or damaged.",
            lambda counts: counts.copies_bad,
        ),
        gauge(
            "bkctl_auditor_copies_unknown",
            _COPIES,
            "Copies that the present round could not read: while there are any, no check is complete.",
            lambda counts: counts.copies_unknown,
        ),
        gauge(
            "bkctl_auditor_lane_success_age_seconds",
            _LANE,
            "Time since a run of this task of the auditor last succeeded, -1 if none has.",
            lambda status: age_s(status.succeeded_ms),
        ),
        counter(
            "bkctl_auditor_lane_failures",
            _LANE,
            "Runs of this task of the auditor that failed or hung.",
            lambda status: status.failures,
        ),
        gauge(
            "bkctl_replication_worker_idle_seconds",
            _WORKER,
            "Time since a marked ledger was finished while others wait, -1 if none was; 0 if none waits.",
            idle_s,
        ),
    )


def _is_auditor(daemon: AutorecoveryDaemon) -> float:
    return _auditor(daemon) is not None


def _problems(daemon: AutorecoveryDaemon) -> float:
    return len(daemon.all_problems)


def _lost(auditor: Auditor) -> float:
    return auditor.figures().bookies_lost


def _alarm(auditor: Auditor) -> float:
    return auditor.figures().is_alarm


def _gone(auditor: Auditor) -> float:
    return auditor.figures().ledgers_lost


def _unreadable(auditor: Auditor) -> float:
    return auditor.figures().ledgers_unreadable


def catalogue_of(now_ms: Callable[[], int]) -> tuple[AnyMetric, ...]:
    """All metrics of a daemon; ages are computed with ``now_ms``."""
    return (*_JAVA, *_own(now_ms), *_WORK)


def daemon_metrics(daemon: AutorecoveryDaemon, clock: Clock) -> MetricsText:
    """Everything that ``/metrics`` of one daemon shows."""
    return MetricsText(daemon, catalogue_of(clock.now_ms), clock.monotonic_ns)
