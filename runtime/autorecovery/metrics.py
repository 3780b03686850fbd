"""Metrics of an autorecovery daemon. Those that a Java daemon also has keep its names; the others begin with bkctl_.

Values of the auditor exist only while this process is the auditor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from bkctl.runtime.admin.metric import AnyMetric, Scope
from bkctl.runtime.autorecovery.auditor import Auditor
from bkctl.runtime.autorecovery.daemon import AutorecoveryDaemon
from bkctl.runtime.metadata.replication.recovery_notes import LaneStatus, WorkerStatus

T = TypeVar("T")


def _part(read: Callable[[AutorecoveryDaemon], T | None]) -> Scope[T]:
    """The scope of metrics of one part of the daemon, if it is there; no labels."""

    def parts(daemon: AutorecoveryDaemon) -> Iterator[tuple[tuple[str, ...], T]]:
        found = read(daemon)
        if found is not None:
            yield (), found

    return Scope((), parts)


def _of_auditor(read: Callable[[Auditor], T | None]) -> Scope[T]:
    """The same of one part of the auditor."""
    return _part(lambda daemon: None if daemon.auditor is None else read(daemon.auditor))


def _lanes(daemon: AutorecoveryDaemon) -> Iterable[tuple[tuple[str, ...], LaneStatus]]:
    lanes = () if daemon.auditor is None else daemon.auditor.lanes
    return [((lane.status.name,), lane.status) for lane in lanes]


def _refused(daemon: AutorecoveryDaemon) -> Iterable[tuple[tuple[str, ...], int]]:
    return [((bookie_id,), count) for bookie_id, count in sorted(daemon.refused.items())]


_DAEMON: Final = _part(lambda daemon: daemon)
_AUDITOR: Final = _of_auditor(lambda auditor: auditor)
_LIVENESS: Final = _of_auditor(lambda auditor: auditor.liveness)
_LANE: Final = Scope(("lane",), _lanes)
_WORKER: Final = _part(lambda daemon: None if daemon.worker is None else daemon.worker.status())
_REPLICAS: Final = _of_auditor(lambda auditor: auditor.replicas.result)
_PLACEMENT: Final = _of_auditor(lambda auditor: auditor.placement.result)
_BACKLOG: Final = _of_auditor(lambda auditor: auditor.marked)
_COPIES: Final = _of_auditor(lambda auditor: None if (found := auditor.copies.progress) is None else found.found)


# fmt: off
# A metric takes at most three lines here; the formatter would use six.
_PLAIN: Final[tuple[AnyMetric, ...]] = (
    _REPLICAS.gauge("auditor_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY",
        "Ledgers with an entry without a live copy, at the last count of replicas.",
        lambda note: note.no_copy.ledgers),
    _REPLICAS.gauge("auditor_NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY",
        "Ledgers with an entry with fewer live copies than the ack quorum, at the last count of replicas.",
        lambda note: note.below_ack_quorum.ledgers),
    _REPLICAS.gauge("auditor_NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY",
        "Ledgers with an entry with fewer live copies than the write quorum, at the last count of replicas.",
        lambda note: note.below_write_quorum.ledgers),
    _PLACEMENT.gauge("auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY",
        "Ledgers that break a placement rule, at the last check.", lambda note: note.broken.ledgers),
    _COPIES.counter("auditor_NUM_LEDGERS_CHECKED",
        "Ledgers whose copies the present round has checked.", lambda counts: counts.ledgers),
    _WORKER.counter("replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED",
        "Ledgers that were repaired.", lambda status: status.ledgers_repaired),
    _WORKER.counter("replication_worker_NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER",
        "Repairs that failed and wait for another attempt.", lambda status: status.ledgers_failed),
    _DAEMON.gauge("bkctl_autorecovery_is_auditor",
        "1 while this process is the auditor.", lambda daemon: daemon.auditor is not None),
    _DAEMON.gauge("bkctl_autorecovery_problems",
        "What fails now; the status names it.", lambda daemon: len(daemon.all_problems)),
    Scope(("bookie",), _refused).counter("bkctl_autorecovery_refused",
        "Requests that failed because the bookie and the daemon do not accept each other: TLS, login or role.", float),
    _LIVENESS.gauge("bkctl_auditor_bookies_lost",
        "Known bookies that are not registered.", lambda liveness: len(liveness.lost)),
    _LIVENESS.gauge("bkctl_auditor_is_alarm",
        "1 while too many bookies are gone, so nothing is marked.", lambda liveness: liveness.verdict.is_alarm),
    _BACKLOG.gauge("bkctl_auditor_ledgers_marked", "Marked ledgers of the cluster, counted every 30 s.", float),
    _AUDITOR.gauge("bkctl_auditor_ledgers_lost", "Ledgers with entries without a copy, at the last pass.",
        lambda auditor: 0 if auditor.last_pass is None else auditor.last_pass.lost),
    _AUDITOR.gauge("bkctl_auditor_ledgers_unreadable", "Ledgers with unreadable metadata.",
        lambda auditor: 0 if auditor.last_pass is None else auditor.last_pass.unreadable),
    _REPLICAS.gauge("bkctl_auditor_ledgers_with_one_copy",
        "Ledgers with one live copy, at the last count of replicas.", lambda note: note.one_copy.ledgers),
    _COPIES.gauge("bkctl_auditor_copies_bad",
        "Copies that the present round found missing or damaged.", lambda counts: counts.copies_bad),
    _COPIES.gauge("bkctl_auditor_copies_unknown",
        "Copies that the present round could not read: while there are any, no check is complete.",
        lambda counts: counts.copies_unknown),
)
_WORK: Final[tuple[AnyMetric, ...]] = (
    _WORKER.gauge("bkctl_replication_worker_ledgers_waiting",
        "Marked ledgers that this worker knows and has not begun.", lambda status: status.waiting),
    _WORKER.gauge("bkctl_replication_worker_ledgers_held",
        "Ledgers that this worker repairs now.", lambda status: len(status.held)),
    _WORKER.counter("bkctl_replication_worker_bytes_copied",
        "Bytes of entries that were copied.", lambda status: status.bytes_copied),
    _WORKER.counter("bkctl_replication_worker_copies_breaking_placement",
        "Lost copies that went to a wrong rack or region, because no bookie kept the placement rules.",
        lambda status: status.copies_breaking_placement),
)


def catalogue_of(now_ms: Callable[[], int]) -> tuple[AnyMetric, ...]:
    """All metrics of a daemon; ages are computed with ``now_ms``."""

    def age_s(time_ms: int | None) -> float:
        return -1 if time_ms is None else max(0, now_ms() - time_ms) / 1000

    def idle_s(status: WorkerStatus) -> float:
        return age_s(status.finished_ms) if status.waiting or status.held else 0

    return (
        *_PLAIN,
        _LANE.gauge("bkctl_auditor_lane_success_age_seconds",
            "Time since a run of this task of the auditor last succeeded, -1 if none has.",
            lambda status: age_s(status.succeeded_ms)),
        _LANE.counter("bkctl_auditor_lane_failures",
            "Runs of this task of the auditor that failed or hung.", lambda status: status.failures),
        _WORKER.gauge("bkctl_replication_worker_idle_seconds",
            "Time since a marked ledger was finished while others wait, -1 if none was; 0 if none waits.", idle_s),
        *_WORK,
    )
