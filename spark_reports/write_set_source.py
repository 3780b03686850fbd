"""Spark data sources over the ledgers of a cluster, which the executors read.

``bookkeeper_write_sets``: one row per write set of every ledger, with the columns of
``bkctl.spark_reports.rows.WRITE_SET_SCHEMA``.

    spark.dataSource.register(WriteSetSource)
    frame = spark.read.format("bookkeeper_write_sets").option("metadata_uri", uri).load()

A partition is a group of subtrees of the ledger tree. The driver lists the subtrees only. Each executor lists and
fetches its own ledgers from ZooKeeper, through one session per running partition and with its part of the request
budget. Of a snapshot file of ZooKeeper, a partition is a group of pieces; all executors read the same file. Readers are
pickled and hold settings only.

Options: ``metadata_uri``; ``zookeeper``, a ``ZooKeeperConfig`` as JSON, whose request budget is that of all partitions
together, and whose secrets are those of the executors' machines unless ``with_secrets`` carries them;
``outage_max_s``, how long a reader waits for ZooKeeper in the middle, default 600; ``running_partitions``, how many
of them run at once, default 1; ``partitions_max``, default four times that.

``path``: instead of ZooKeeper, read a file of those that ``bkctl audit --from`` takes, which every executor has there
or, if it is no absolute path, under this name by ``SparkContext.addFile``. One task reads a compressed file or a
backup; others are divided. ``ledgers_root``: the root in it, default that of the backup, of the metadata URI, or
/ledgers.

``facts``, an ``AuditFacts`` as JSON: what is known about bookies.

``AuditReader`` is for ``bkctl audit`` itself: executors send totals, which are no rows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing, asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.budgeted_store import BudgetedStore
from bkctl.runtime.metadata.ledgers.ledgers import FoundLedgers, LedgerStore, open_ledger_store
from bkctl.runtime.metadata.outage import OutageWait
from bkctl.runtime.metadata.request_budget import share_of_budget
from bkctl.runtime.metadata.snapshot.cluster import ClusterFile, LedgersInFile
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.uri import MetadataUri, parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts
from bkctl.runtime.replication.cluster_audit.inventory import InventoryTotals
from bkctl.runtime.replication.cluster_audit.totals import AuditTotals
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.judge.verdict import WriteSetRow
from bkctl.spark_reports.counting import Examination, count_ledgers, read_write_sets
from bkctl.spark_reports.live import LiveLookup
from bkctl.spark_reports.newest_file import AddedPath, NewestFile, open_newest, open_snapshot, path_here
from bkctl.spark_reports.rows import WRITE_SET_SCHEMA, write_set_batch
from bkctl.spark_reports.secrets import Secrets

T = TypeVar("T")

SOURCE_NAME = "bookkeeper_write_sets"

ROWS_PER_BATCH = 8192

_OUTAGE_MAX_S = str(ReplicationConfig().metadata_outage_max_s)
_CONNECT_MAX_S = 60.0
"""Longest wait for the first connection of a reader. The driver was connected a moment before."""

_NO_FACTS = '{"registrations": {"writable": [], "read_only": []}, "now_ms": 0}'


class SourceSettings(msgspec.Struct, frozen=True):
    """Options of the source, parsed. Ledgers are in ``cluster``, in the file at ``path``, or in ZooKeeper.

    ``out_directory``: where an audit writes Parquet files of all write sets; None: nowhere.
    """

    metadata_uri: str | None
    zookeeper: ZooKeeperConfig
    running_partitions: int
    partitions_max: int
    facts: AuditFacts
    outage_max_s: float
    out_directory: str | None = None
    cluster: ClusterFile | None = None
    path: str | None = None
    ledgers_root: str | None = None

    @property
    def uri(self) -> MetadataUri | None:
        """The metadata URI, if there is one."""
        return None if self.metadata_uri is None else parse_metadata_uri(self.metadata_uri)

    def open_file(self) -> AbstractContextManager[NewestFile]:
        """Open the file at ``path``, which is given."""
        assert self.path is not None
        source = AddedPath(self.path)
        return open_newest(source, self.uri, self.ledgers_root, here=path_here)

    def budget_shares(self, partition_count: int) -> int:
        """In how many parts the request budget goes: one for each partition that runs at the same time."""
        return max(1, min(partition_count, self.running_partitions))


def parse_settings(options: Mapping[str, str]) -> SourceSettings:
    """Options as Spark hands them over; ConfigurationError."""
    uri, path = options.get("metadata_uri") or None, options.get("path") or None
    if uri is not None:
        parse_metadata_uri(uri)
    elif path is None:
        raise ConfigurationError(f"the data source {SOURCE_NAME} needs the option metadata_uri or path")
    running = _positive(options, "running_partitions", 1)
    return SourceSettings(
        metadata_uri=uri,
        zookeeper=_decoded(options, "zookeeper", "{}", ZooKeeperConfig),
        running_partitions=running,
        partitions_max=_positive(options, "partitions_max", 4 * running),
        facts=_decoded(options, "facts", _NO_FACTS, AuditFacts),
        outage_max_s=_decoded(options, "outage_max_s", _OUTAGE_MAX_S, float),
        path=path,
        ledgers_root=options.get("ledgers_root") or None,
    )


def _decoded(options: Mapping[str, str], name: str, default: str, kind: type[T]) -> Any:
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


class LedgersPartition(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """What one task reads: subtrees of the ledger tree or, of a file, a cluster with some of its pieces.

    ``budget_shares``: how many tasks share the request budget with it.
    """

    def __init__(self, number: int, subtrees: tuple[str, ...], cluster: ClusterFile | None, budget_shares: int) -> None:
        super().__init__(number)
        self.number = number
        self.subtrees = subtrees
        self.cluster = cluster
        self.budget_shares = budget_shares


class WriteSetSource(DataSource):  # type: ignore[misc]
    """``bookkeeper_write_sets``, see the module docstring."""

    _name, _schema = SOURCE_NAME, WRITE_SET_SCHEMA
    _secrets = Secrets()

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
        return WriteSetReader(self._settings, self._secrets)


def with_secrets(source: type[WriteSetSource], secrets: Secrets) -> type[WriteSetSource]:
    """The source, with secrets for its executors: ``take_secrets`` collects them. To be registered instead of it.

    Such a class exists in no module, so that Spark's pickle carries all of it.
    """

    class WithSecrets(source):  # type: ignore[misc, valid-type]
        _secrets = secrets

    return WithSecrets


class WriteSetReader(DataSourceReader):  # type: ignore[misc]
    """Plans partitions on the driver, reads them on the executors. Holds settings only: it is pickled."""

    def __init__(self, settings: SourceSettings, secrets: Secrets | None = None) -> None:
        self._settings = settings
        self._secrets = secrets or Secrets()

    def partitions(self) -> Sequence[InputPartition]:
        """Groups of subtrees or pieces; one empty partition for a cluster without ledgers."""
        settings = self._settings
        if settings.cluster is None and settings.path is None:
            groups = in_groups(asyncio.run(self._subtrees()), settings.partitions_max)
            shares = settings.budget_shares(len(groups))
            return [LedgersPartition(number, group, None, shares) for number, group in enumerate(groups)]
        cluster, can_be_divided = (settings.cluster, True) if settings.cluster else asyncio.run(_survey(settings))
        pieces = in_groups(cluster.pieces, settings.partitions_max if can_be_divided else 1)
        shares = settings.budget_shares(len(pieces))
        return [
            LedgersPartition(number, (), msgspec.structs.replace(cluster, pieces=group), shares)
            for number, group in enumerate(pieces)
        ]

    async def _subtrees(self) -> list[str]:
        async with open_ledgers(self._settings, self._secrets) as ledgers:
            return await ledgers.subtrees()

    def read(self, partition: LedgersPartition) -> Iterator[pa.RecordBatch]:
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

    async def _batches(self, partition: LedgersPartition) -> AsyncGenerator[pa.RecordBatch, None]:
        rows: list[WriteSetRow] = []
        async with aclosing(self._ledger_rows(partition)) as ledger_rows:
            async for more in ledger_rows:
                rows.extend(more)
                if len(rows) >= ROWS_PER_BATCH:
                    yield write_set_batch(rows)
                    rows = []
        yield write_set_batch(rows)

    async def _ledger_rows(self, partition: LedgersPartition) -> AsyncGenerator[list[WriteSetRow], None]:
        async with self._found_ledgers(partition) as all_found:
            for found in all_found:
                async with aclosing(read_write_sets(found)) as ledger_rows:
                    async for rows in ledger_rows:
                        yield rows

    @asynccontextmanager
    async def _found_ledgers(self, partition: LedgersPartition) -> AsyncIterator[Iterable[FoundLedgers]]:
        cluster = partition.cluster
        if cluster is not None:
            with open_snapshot(path_here(cluster.path), shown=cluster.path) as (file, _):
                yield LedgersInFile(file, cluster).by_piece()
            return
        async with self._open_live(partition) as ledgers:
            yield (ledgers.read_all(subtree) for subtree in partition.subtrees)

    def _open_live(self, partition: LedgersPartition) -> AbstractAsyncContextManager[LedgerStore]:
        return open_ledgers(self._settings, self._secrets, partition.budget_shares)


class PartTotals(msgspec.Struct, frozen=True):
    """What a task sends to the driver, as JSON. ``held`` None: no inventory is taken."""

    judged: AuditTotals
    held: InventoryTotals | None = None


class AuditReader(WriteSetReader):
    """Judges the ledgers on the executors, and sums them up."""

    name = "bookkeeper_audit"

    def totals(self, partition: LedgersPartition) -> bytes:
        """``PartTotals`` of the partition as JSON, to be merged."""
        return msgspec.json.encode(asyncio.run(self._count(partition)))

    async def _count(self, partition: LedgersPartition) -> PartTotals:
        settings = self._settings
        async with self._opened(partition) as (groups, lookup, inventory):
            totals = await count_ledgers(
                groups,
                settings.facts,
                out_directory=settings.out_directory,
                part_number=partition.number,
                lookup=lookup,
                inventory=inventory,
            )
        return PartTotals(*totals)

    @asynccontextmanager
    async def _opened(self, partition: LedgersPartition) -> AsyncIterator[OpenedPart]:
        settings, lookup = self._settings, None
        if partition.cluster is not None and settings.metadata_uri is not None:
            lookup = LiveLookup(lambda: self._open_live(partition))
        async with self._found_ledgers(partition) as groups:
            yield groups, lookup, None


OpenedPart: TypeAlias = tuple[Iterable[FoundLedgers], LiveLookup | None, Examination | None]
"""The ledgers of a partition, and what ``count_ledgers`` does with them."""


@asynccontextmanager
async def open_ledgers(
    settings: SourceSettings, secrets: Mapping[str, str], shares_count: int = 1
) -> AsyncIterator[LedgerStore]:
    """The ledgers of a cluster, over a new session with one of ``shares_count`` equal parts of the request budget."""
    async with open_store(settings, secrets, shares_count) as (store, uri):
        yield await open_ledger_store(store, uri.root, uri.tree, layout_config=settings.zookeeper.layout)


@asynccontextmanager
async def open_store(
    settings: SourceSettings, secrets: Mapping[str, str], shares_count: int = 1
) -> AsyncIterator[tuple[MetadataStore, MetadataUri]]:
    """A new session with one of ``shares_count`` equal parts of the request budget."""
    uri, config, clock = settings.uri, settings.zookeeper, LoopClock()
    assert uri is not None

    async def connect() -> ZooKeeperStore:
        return await ZooKeeperStore.connect(uri.servers, config, os.environ | secrets)

    async def probe() -> None:
        await (await connect()).close()

    first = OutageWait(probe, clock, min(settings.outage_max_s, _CONNECT_MAX_S), lambda _: None)
    session, budget = await first.outlast(connect), share_of_budget(clock, config, shares_count)
    outage = OutageWait(lambda: session.exists("/"), clock, settings.outage_max_s, lambda _: None)
    async with BudgetedStore(session, budget, outage) as store:
        yield store, uri


async def _survey(settings: SourceSettings) -> tuple[ClusterFile, bool]:
    """The cluster in the file at ``path``, and whether tasks can read pieces of it."""
    with settings.open_file() as found:
        # By the path of the file, not of its directory: tasks must not choose a newer one.
        cluster, _ = await found.cluster(settings.uri, settings.zookeeper.layout)
        return cluster, found.plain.is_original


def in_groups(parts: Sequence[T], groups_max: int) -> list[tuple[T, ...]]:
    """Deal parts out to at most ``groups_max`` groups; neighbours, often of one age, to different ones."""
    count = max(1, min(len(parts), groups_max))
    return [tuple(parts[start::count]) for start in range(count)]
