"""Spark data sources over the bookies and the marks of a cluster; options as those of ``bookkeeper_write_sets``.

``bookkeeper_bookies``: one row per bookie that is registered or has a cookie (``BookieRow``). Racks come from the
option ``facts`` if it has a survey, else from Pulsar's node; free space only from ``facts``. Of a backup, the mode is
null.

``bookkeeper_marks``: one row per mark of an under-replicated ledger.

One task reads all bookies, and one all marks: there are few of them.

    register_sources(spark)
    spark.read.format("bookkeeper_bookies").option("metadata_uri", uri).load()
    spark.read.format("bookkeeper_marks").load("/backups/snapshot.5f00012a3c")
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from bkctl.runtime.metadata.bookies.bookie_rows import BookieRow, read_bookies
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.marks import ListedMark, list_marks
from bkctl.runtime.metadata.snapshot.cluster import MarksInFile
from bkctl.runtime.metadata.snapshot.node_file import SnapshotFile
from bkctl.spark_reports.rows import schema_of
from bkctl.spark_reports.write_set_source import (
    ROWS_PER_BATCH,
    LedgersPartition,
    WriteSetReader,
    WriteSetSource,
    open_store,
)
from bkctl.storage.adapters.filesystem import OsFileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOOKIES_NAME = "bookkeeper_bookies"
MARKS_NAME = "bookkeeper_marks"


class MarkRow(msgspec.Struct, frozen=True):
    """A mark. ``marked_ms``: when the last bookie was added to it; ``problem``: why its bookies cannot be read."""

    ledger_id: int
    missing_bookies: tuple[str, ...]
    marked_ms: int
    problem: str | None


BOOKIE_SCHEMA = schema_of(BookieRow)
MARK_SCHEMA = schema_of(MarkRow)


def register_sources(session: SparkSession) -> None:
    """Register all sources in a session."""
    for source in (WriteSetSource, BookieSource, MarkSource):
        session.dataSource.register(source)


class BookieSource(WriteSetSource):
    """``bookkeeper_bookies``, see the module docstring."""

    _name, _schema = BOOKIES_NAME, BOOKIE_SCHEMA

    def reader(self, schema: object) -> BookieReader:  # noqa: ARG002  the source has one schema
        """Reader for an executor."""
        return BookieReader(self._settings, self._secrets)


class MarkSource(WriteSetSource):
    """``bookkeeper_marks``, see the module docstring."""

    _name, _schema = MARKS_NAME, MARK_SCHEMA

    def reader(self, schema: object) -> MarkReader:  # noqa: ARG002  the source has one schema
        """Reader for an executor."""
        return MarkReader(self._settings, self._secrets)


class BookieReader(WriteSetReader):
    """Reads all bookies in one task."""

    def partitions(self) -> Sequence[InputPartition]:
        """One."""
        return [LedgersPartition(0, (), None, 1)]

    async def _batches(self, partition: LedgersPartition) -> AsyncGenerator[pa.RecordBatch, None]:
        yield pa.RecordBatch.from_pylist(
            [msgspec.to_builtins(row) for row in await self._bookies(partition)], schema=BOOKIE_SCHEMA
        )

    async def _bookies(self, partition: LedgersPartition) -> list[BookieRow]:
        settings = self._settings
        if settings.path is None:
            async with open_store(settings, self._secrets, partition.budget_shares) as (store, uri):
                return await read_bookies(store, uri.root, settings.facts.survey)
        with settings.open_file() as found:
            _, nodes = await found.cluster(settings.uri, settings.zookeeper.layout)
            is_backup = found.plain.backup_root is not None
            return await read_bookies(nodes, found.root, settings.facts.survey, has_registrations=not is_backup)


class MarkReader(WriteSetReader):
    """Reads all marks in one task."""

    def partitions(self) -> Sequence[InputPartition]:
        """One."""
        return [LedgersPartition(0, (), None, 1)]

    async def _batches(self, partition: LedgersPartition) -> AsyncGenerator[pa.RecordBatch, None]:
        rows: list[dict[str, object]] = []
        async with aclosing(self._marks(partition)) as marks:
            async for found in marks:
                rows.append(msgspec.to_builtins(_mark_row(found)))
                if len(rows) >= ROWS_PER_BATCH:
                    yield pa.RecordBatch.from_pylist(rows, schema=MARK_SCHEMA)
                    rows = []
        yield pa.RecordBatch.from_pylist(rows, schema=MARK_SCHEMA)

    async def _marks(self, partition: LedgersPartition) -> AsyncGenerator[ListedMark, None]:
        settings = self._settings
        if settings.path is None:
            async with (
                open_store(settings, self._secrets, partition.budget_shares) as (store, uri),
                aclosing(list_marks(store, uri.root, ForeignNames())) as marks,
            ):
                async for found in marks:
                    yield found
            return
        with settings.open_file() as opened, SnapshotFile(OsFileSystem(), opened.plain.path, shown=opened.path) as file:
            await opened.cluster(None, settings.zookeeper.layout)
            for found in MarksInFile(file, opened.root).read_all(opened.survey.pieces):
                yield found


def _mark_row(found: ListedMark) -> MarkRow:
    missing = () if found.mark is None else found.mark.missing_bookies
    return MarkRow(found.ledger_id, missing, found.marked_ms, None if found.problem is None else str(found.problem))
