"""Spark data sources over the ledgers of a cluster, which the executors read.

``bookkeeper_write_sets``: one row per write set of every ledger, with the columns of
``spark_reports.rows.WRITE_SET_SCHEMA``.

    spark.dataSource.register(WriteSetSource)
    frame = spark.read.format("bookkeeper_write_sets").option("metadata_uri", uri).load()

``bookkeeper_audit``: one row per partition, the totals of its ledgers as JSON (``AuditTotals``), to be merged.

A partition is a group of subtrees of the ledger tree. The driver lists the subtrees only. Each executor lists and
fetches its own ledgers from ZooKeeper, through one session per running partition and with its part of the request
budget. Readers are pickled and hold settings only.

Options: ``metadata_uri`` (required); ``zookeeper``, a ``ZooKeeperConfig`` as JSON, whose request budget is that of all
partitions together; ``running_partitions``, how many of them run at once, default 1; ``partitions_max``, default four
times that. For the audit also ``live_bookies``, a JSON list of the registered ones, and ``out_directory``: a
directory for Parquet files of all write sets; empty for none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, MutableMapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from runtime.config import ZooKeeperConfig
from runtime.errors import ConfigurationError
from runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from runtime.metadata.request_budget import BudgetedStore, share_of_budget
from runtime.metadata.uri import parse_metadata_uri
from runtime.metadata.zookeeper.store import ZooKeeperStore
from runtime.replication.audit import WriteSetRow
from spark_reports.counting import count_ledgers, read_write_sets
from spark_reports.rows import WRITE_SET_SCHEMA, write_set_batch

T = TypeVar("T")

SOURCE_NAME = "bookkeeper_write_sets"
AUDIT_NAME = "bookkeeper_audit"

ROWS_PER_BATCH = 8192

_TOTALS_SCHEMA = pa.schema([("totals", pa.binary())])


class SourceSettings(msgspec.Struct, frozen=True):
    """Options of the source, parsed."""

    metadata_uri: str
    zookeeper: ZooKeeperConfig
    running_partitions: int
    partitions_max: int
    live_bookies: frozenset[str]
    out_directory: str | None

    def budget_shares(self, partition_count: int) -> int:
        """In how many parts the request budget goes: one for each partition that runs at the same time."""
        return max(1, min(partition_count, self.running_partitions))


def parse_settings(options: Mapping[str, str]) -> SourceSettings:
    """Options as Spark hands them over; ConfigurationError."""
    uri = options.get("metadata_uri")
    if not uri:
        raise ConfigurationError(f"the data source {SOURCE_NAME} needs the option metadata_uri")
    parse_metadata_uri(uri)
    running = _positive(options, "running_partitions", 1)
    return SourceSettings(
        metadata_uri=uri,
        zookeeper=_decoded(options, "zookeeper", "{}", ZooKeeperConfig),
        running_partitions=running,
        partitions_max=_positive(options, "partitions_max", 4 * running),
        live_bookies=_decoded(options, "live_bookies", "[]", frozenset[str]),
        out_directory=options.get("out_directory") or None,
    )


def _decoded(options: Mapping[str, str], name: str, default: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(options.get(name, default), type=kind)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"option {name} of the data source: {error}") from error


def _positive(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) == 0:
        raise ConfigurationError(f"option {name} of the data source must be a positive number, not {text!r}")
    return int(text)


class SubtreesPartition(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Subtrees of the ledger tree that one task reads, and how many tasks share the request budget with it."""

    def __init__(self, number: int, subtrees: tuple[str, ...], budget_shares: int) -> None:
        super().__init__(subtrees)
        self.number = number
        self.subtrees = subtrees
        self.budget_shares = budget_shares


class WriteSetSource(DataSource):  # type: ignore[misc]
    """``bookkeeper_write_sets``, see the module docstring."""

    _name, _schema = SOURCE_NAME, WRITE_SET_SCHEMA

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._settings = parse_settings(options)

    @classmethod
    def name(cls) -> str:
        """Format name."""
        return cls._name

    def schema(self) -> object:
        """Spark schema of the rows."""
        return from_arrow_schema(self._schema)

    def reader(self, schema: object) -> WriteSetReader:  # noqa: ARG002  the source has one schema
        """Reader for the executors."""
        return WriteSetReader(self._settings)


class AuditSource(WriteSetSource):
    """``bookkeeper_audit``, see the module docstring."""

    _name, _schema = AUDIT_NAME, _TOTALS_SCHEMA

    def reader(self, schema: object) -> AuditReader:  # noqa: ARG002  the source has one schema
        """Reader for the executors."""
        return AuditReader(self._settings)


class WriteSetReader(DataSourceReader):  # type: ignore[misc]
    """Plans partitions on the driver, reads them on the executors. Holds settings only: it is pickled."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        """Groups of subtrees; one empty partition for a cluster without ledgers."""
        groups = group_subtrees(asyncio.run(self._subtrees()), self._settings.partitions_max)
        shares = self._settings.budget_shares(len(groups))
        return [SubtreesPartition(number, group, shares) for number, group in enumerate(groups)]

    async def _subtrees(self) -> list[str]:
        async with open_ledgers(self._settings.metadata_uri, self._settings.zookeeper) as ledgers:
            return await ledgers.subtrees()

    def read(self, partition: SubtreesPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of the partition's ledgers."""
        batches = self._batches(partition)
        with asyncio.Runner() as runner:
            try:
                while True:
                    try:
                        batch = runner.run(anext(batches))
                    except StopAsyncIteration:
                        return
                    yield batch
            finally:
                runner.run(batches.aclose())

    async def _batches(self, partition: SubtreesPartition) -> AsyncGenerator[pa.RecordBatch, None]:
        rows: list[WriteSetRow] = []
        async with aclosing(self._ledger_rows(partition)) as ledger_rows:
            async for more in ledger_rows:
                rows.extend(more)
                if len(rows) >= ROWS_PER_BATCH:
                    yield write_set_batch(rows)
                    rows = []
        yield write_set_batch(rows)

    async def _ledger_rows(self, partition: SubtreesPartition) -> AsyncGenerator[list[WriteSetRow], None]:
        settings = self._settings
        async with open_ledgers(settings.metadata_uri, settings.zookeeper, partition.budget_shares) as ledgers:
            for subtree in partition.subtrees:
                async with aclosing(read_write_sets(ledgers, subtree)) as ledger_rows:
                    async for rows in ledger_rows:
                        yield rows


class AuditReader(WriteSetReader):
    """Judges the ledgers on the executors, and sums them up."""

    async def _batches(self, partition: SubtreesPartition) -> AsyncGenerator[pa.RecordBatch, None]:
        settings, rows = self._settings, self._ledger_rows(partition)
        totals = await count_ledgers(
            rows, settings.live_bookies, out_directory=settings.out_directory, part_number=partition.number
        )
        yield pa.RecordBatch.from_pydict({"totals": [msgspec.json.encode(totals)]}, schema=_TOTALS_SCHEMA)


@asynccontextmanager
async def open_ledgers(metadata_uri: str, config: ZooKeeperConfig, shares_count: int = 1) -> AsyncIterator[LedgerStore]:
    """The ledgers of a cluster, over a new session with one of ``shares_count`` equal parts of the request budget."""
    uri = parse_metadata_uri(metadata_uri)
    session = await ZooKeeperStore.connect(uri.servers, config)
    async with BudgetedStore(session, share_of_budget(config, shares_count)) as store:
        yield await open_ledger_store(store, uri.root, uri.tree, layout_config=config.layout)


def group_subtrees(subtrees: Sequence[str], groups_max: int) -> list[tuple[str, ...]]:
    """Deal the subtrees out to at most ``groups_max`` groups; neighbours, often of one age, to different ones."""
    count = max(1, min(len(subtrees), groups_max))
    return [tuple(subtrees[start::count]) for start in range(count)]
