"""What metrics have values for: a part of the bookie, its ledger directories, its journals, its disks.

A part that the boot has not created yet has no values, so its metrics are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias, TypeVar

from bkctl.runtime.admin.metric import Scope
from bkctl.runtime.bookie.collection.metrics import CollectionTimings, DirectoryTimings, LogMetrics
from bkctl.runtime.bookie.disks.rules import DiskSample, DiskVerdict
from bkctl.runtime.bookie.serving.group_commit import GroupCommit
from bkctl.runtime.bookie.view import BookieView
from bkctl.storage.engine.engine import LedgerDirectoryEngine

T = TypeVar("T")

_Values: TypeAlias = tuple[str, ...]
_LOOP: Final = ("0", "event-loop")
"""Java has pools of threads where this bookie has one event loop. Dashboards add up over these labels."""


class CollectedDirectory(NamedTuple):
    """A ledger directory as the collector sees it."""

    engine: LedgerDirectoryEngine
    logs: LogMetrics
    timings: DirectoryTimings
    collection: CollectionTimings


class CheckedDisks(NamedTuple):
    """Disks of the ledger directories, or of the index directories, at the last check."""

    samples: tuple[DiskSample, ...]
    full_count: int


def part(read: Callable[[BookieView], T | None]) -> Scope[T]:
    """The scope of metrics of one part of the bookie; no labels."""

    def parts(view: BookieView) -> Iterator[tuple[_Values, T]]:
        found = read(view)
        if found is not None:
            yield (), found

    return Scope((), parts)


def on_loop(scope: Scope[T]) -> Scope[T]:
    """The same scope for what Java counts per thread: with the labels of a thread."""

    def parts(view: BookieView) -> Iterator[tuple[_Values, T]]:
        return (((*values, *_LOOP), part) for values, part in scope.parts(view))

    return Scope((*scope.labels, "thread", "threadPool"), parts)


def _by_path(disks: Callable[[BookieView], CheckedDisks | None]) -> Scope[DiskSample]:
    """The directory is in the name of the metric."""

    def parts(view: BookieView) -> Iterator[tuple[_Values, DiskSample]]:
        found = disks(view)
        for sample in () if found is None else found.samples:
            yield (sample.directory.removesuffix("/current"),), sample

    return Scope((), parts)


def _directories(view: BookieView) -> Iterable[tuple[_Values, LedgerDirectoryEngine]]:
    storage = view.config.storage
    pairs = zip(storage.effective_index_directories, storage.ledger_directories, strict=True)
    return () if view.storage is None else zip(pairs, view.storage.engines, strict=True)


def _collected_directories(view: BookieView) -> Iterable[tuple[_Values, CollectedDirectory]]:
    if (collector := view.collector) is not None:
        directories = zip(_directories(view), collector.log_metrics, collector.directory_timings, strict=True)
        for (values, engine), logs, timings in directories:
            yield values, CollectedDirectory(engine, logs, timings, collector.timings)


def _journals(view: BookieView) -> Iterable[tuple[_Values, GroupCommit]]:
    journals = () if view.path is None else view.path.journals
    return (((str(index),), journal) for index, journal in enumerate(journals))


def _ledger_disks(view: BookieView) -> CheckedDisks | None:
    disks = view.disks
    if disks is None or disks.samples is None or disks.verdict is None:
        return None
    return _checked(disks.samples.ledgers, disks.verdict)


def _index_disks(view: BookieView) -> CheckedDisks | None:
    """None if the index directories are the ledger directories."""
    disks = view.disks
    if disks is None or disks.samples is None or disks.verdict is None or not view.config.storage.index_directories:
        return None
    return _checked(disks.samples.indexes, disks.verdict)


def _checked(samples: tuple[DiskSample, ...], verdict: DiskVerdict) -> CheckedDisks:
    return CheckedDisks(samples, sum(sample in verdict.full for sample in samples))


BOOKIE: Final = part(lambda view: view)
LEDGER_DISKS: Final = part(_ledger_disks)
INDEX_DISKS: Final = part(_index_disks)
LEDGER_PATHS: Final = _by_path(_ledger_disks)
INDEX_PATHS: Final = _by_path(_index_disks)
LISTENER: Final = part(lambda view: view.listener)
REQUEST_PATH: Final = part(lambda view: view.path)
SESSION: Final = part(lambda view: view.store)
REGISTRATION: Final = part(lambda view: view.registration)
INTEGRITY: Final = part(lambda view: view.integrity_progress)
COLLECTOR: Final = part(lambda view: None if view.collector is None else view.collector.metrics)
AUTORECOVERY: Final = part(lambda view: view.ports.autorecovery)
INDEX_REBUILD: Final = part(lambda view: view.online_rebuild)
DIRECTORIES: Final = Scope(("indexDir", "ledgerDir"), _directories)
COLLECTED_DIRECTORIES: Final = Scope(("indexDir", "ledgerDir"), _collected_directories)
JOURNALS: Final = Scope(("journalIndex",), _journals)
