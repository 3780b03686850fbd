"""What metrics have values for: the bookie, its ledger directories, its journals, its disks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias, TypeVar

from runtime.bookie.collection.metrics import LogMetrics
from runtime.bookie.disks.rules import DiskSample
from runtime.bookie.metrics.metric import Scope
from runtime.bookie.view import BookieView
from runtime.bookie.serving.group_commit import GroupCommit
from storage.engine.engine import LedgerDirectoryEngine

T = TypeVar("T")

_Values: TypeAlias = tuple[str, ...]


class CollectedDirectory(NamedTuple):
    """A ledger directory as the collector sees it."""

    engine: LedgerDirectoryEngine
    logs: LogMetrics


_LOOP: Final = ("0", "event-loop")
"""Java has pools of threads where this bookie has one event loop. Dashboards add up over these labels."""


def _bookie(view: BookieView) -> Iterable[tuple[_Values, BookieView]]:
    return [((), view)]


def _directories(view: BookieView) -> Iterable[tuple[_Values, LedgerDirectoryEngine]]:
    storage = view.config.storage
    pairs = zip(storage.paired_index_directories, storage.ledger_directories, strict=True)
    return zip(pairs, view.parts.storage.engines, strict=True)


def _journals(view: BookieView) -> Iterable[tuple[_Values, GroupCommit]]:
    return (((str(index),), journal) for index, journal in enumerate(view.parts.path.journals))


def _collections(view: BookieView) -> Iterable[tuple[_Values, CollectedDirectory]]:
    storage, collector = view.parts.storage, view.parts.collector
    parts = map(CollectedDirectory, storage.engines, collector.log_metrics)
    return ((values, part) for (values, _), part in zip(_directories(view), parts, strict=True))


def _ledger_disks(view: BookieView) -> Iterable[tuple[_Values, DiskSample]]:
    if view.disks.samples is not None:
        yield from zip(_paths(view.config.storage.ledger_directories), view.disks.samples.ledgers, strict=True)


def _index_disks(view: BookieView) -> Iterable[tuple[_Values, DiskSample]]:
    if view.disks.samples is not None and view.config.storage.index_directories:
        yield from zip(_paths(view.config.storage.index_directories), view.disks.samples.indexes, strict=True)


def _paths(directories: Iterable[str]) -> Iterator[_Values]:
    return ((directory,) for directory in directories)


def on_loop(scope: Scope[T]) -> Scope[T]:
    """The same scope for what Java counts per thread: with the labels of a thread."""

    def parts(view: BookieView) -> Iterator[tuple[_Values, T]]:
        return (((*values, *_LOOP), part) for values, part in scope.parts(view))

    return Scope((*scope.labels, "thread", "threadPool"), parts)


BOOKIE: Final = Scope((), _bookie)
DIRECTORIES: Final = Scope(("indexDir", "ledgerDir"), _directories)
COLLECTED_DIRECTORIES: Final = Scope(("indexDir", "ledgerDir"), _collections)
JOURNALS: Final = Scope(("journalIndex",), _journals)
LEDGER_DISKS: Final = Scope((), _ledger_disks)
"""The directory is in the name."""
INDEX_DISKS: Final = Scope((), _index_disks)
"""Like ``LEDGER_DISKS``; none if the index directories are the ledger directories."""
