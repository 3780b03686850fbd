"""``bkctl audit --from``: the cluster in a file, and what is known about its bookies."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from bkctl.commands.audit.facts import AuditQuestions, read_facts, with_request
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import unreadable_file
from bkctl.commands.event_loop import run_to_end, sigterm_as_error
from bkctl.commands.outages import report_outage
from bkctl.commands.progress import Progress
from bkctl.commands.session import Session, open_session
from bkctl.runtime.client.placement import pulsar_bookies_path
from bkctl.runtime.errors import ConfigurationError, ConflictError
from bkctl.runtime.metadata.cluster.root import read_instance_id
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.snapshot.cluster import ClusterFile, LedgersInFile
from bkctl.runtime.metadata.snapshot.node_file import SnapshotFile
from bkctl.runtime.metadata.snapshot.opening import LocalPath, SnapshotPath
from bkctl.runtime.metadata.snapshot.store import FileStore
from bkctl.runtime.metadata.uri import MetadataUri, parse_metadata_uri
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from bkctl.spark_reports.audit import audit_plainly
from bkctl.spark_reports.hadoop_files import HadoopPath, fetch_file
from bkctl.spark_reports.live import LiveLookup
from bkctl.spark_reports.newest_file import NewestFile, open_newest
from bkctl.storage.adapters.filesystem import OsFileSystem

if TYPE_CHECKING:
    from pyspark import SparkContext


class LedgerProgress:
    """``total``: about how many ledgers there are; None: unknown."""

    def __init__(self, progress: Progress, total: int | None) -> None:
        self._progress = progress
        self._total = total
        self._examined = 0

    def note_examined(self) -> None:
        """One more ledger is done."""
        self._examined += 1
        self.show(self._examined)

    def show(self, done: int) -> None:
        """Ledgers read so far."""
        of_total = "" if self._total is None else f" of about {max(self._total, done):,}"
        self._progress.update(done, self._total, count=f"{done:,}{of_total} ledgers")

    def show_parts(self, done: int, parts: int) -> None:
        """Parts read so far; they have about the same number of ledgers."""
        if self._total is None:
            self._progress.update(done, parts, count=f"{done} of {parts} parts, number of ledgers unknown")
        else:
            self.show(self._total * done // parts)


@contextmanager
def open_cluster_file(
    context: CommandContext, path: str, ledgers_root: str | None, spark: SparkContext | None = None
) -> Iterator[tuple[ClusterFile, AuditFacts]]:
    """The cluster in a snapshot, the newest whole snapshot of a directory, or a backup. Unpacked copies end with the
    block.

    Its root is ``ledgers_root``, else that of the backup, of the metadata URI, or /ledgers. ``spark``: for a path
    that Hadoop reads; all executors get the file.
    """
    text = context.settings.metadata_uri
    uri = None if text is None else parse_metadata_uri(text)
    name = path if spark is not None else os.path.abspath(path)
    source: SnapshotPath = LocalPath(OsFileSystem(), name) if spark is None else HadoopPath(spark, path)
    with ExitStack() as at_end:
        opening = open_newest(
            source,
            uri,
            ledgers_root,
            here=str if spark is None else partial(fetch_file, spark),
            racks_path=partial(pulsar_bookies_path, context.settings.client.placement),
            warn=context.console.warn,
        )
        try:
            # Outside of the event loop: reading a file must not delay a signal.
            with sigterm_as_error(), context.console.progress("reading"):
                newest = at_end.enter_context(opening)
        except OSError as error:
            raise unreadable_file(path, error) from error
        yield run_to_end(_describe, context, newest, uri)


async def _describe(
    context: CommandContext, newest: NewestFile, uri: MetadataUri | None
) -> tuple[ClusterFile, AuditFacts]:
    """With a metadata URI the bookies are those of now, otherwise those in the file."""
    path, plain, nodes, root, skipped = newest
    cluster, store = await newest.cluster(uri, context.settings.zookeeper.layout)
    cluster = msgspec.structs.replace(cluster, path=plain.path)
    # The time of the file itself is that of a copy, perhaps, which would make old ledgers look young.
    written_ms = plain.backup_ms or nodes.newest_ms or None
    ledgers_from = f"{'snapshot' if plain.backup_root is None else 'backup'} {path}"
    if uri is not None:
        async with open_session(context) as session:
            await _require_same_cluster(path, store, root, session)
            facts = await read_facts(context, session)
        from_live = {"ledgers_from": ledgers_from, "skipped_snapshots": skipped, "file_written_ms": written_ms}
        return cluster, msgspec.structs.replace(facts, **from_live)
    if plain.backup_root is not None:
        raise ConfigurationError(
            f"{path} is a backup, which has no registrations of bookies: use --metadata-uri to read those of now"
        )
    async with AsyncExitStack() as at_end:
        session = Session(context, store, MetadataUri(servers="", root=root, tree=cluster.tree), at_end)
        facts = await read_facts(context, session, is_live=False)
    from_file = {"ledgers_from": ledgers_from, "bookies_from": ledgers_from, "skipped_snapshots": skipped}
    from_file |= {"file_written_ms": written_ms}
    return cluster, msgspec.structs.replace(facts, **from_file)


async def _require_same_cluster(path: str, store: FileStore, root: str, session: Session) -> None:
    """Every ledger of another cluster would count as deleted. Without instance ids, the times of creation decide."""
    in_file = await read_instance_id(store, root)
    if in_file != session.instance_id:
        raise ConflictError(
            f"{path} is of the cluster with the instance id {in_file or '(none)'}, but the metadata URI is of the one "
            f"with {session.instance_id or '(none)'}: use the metadata URI of the same cluster"
        )
    roots = await store.exists(root), await session.store.exists(session.root)
    if in_file is None and len({None if stat is None else stat.ctime_ms for stat in roots}) > 1:
        raise ConflictError(
            f"{path} is of another cluster: {root} in it was not created at the same time as {session.root} now; use "
            "the metadata URI of the same cluster"
        )


async def audit_file(
    context: CommandContext, cluster: ClusterFile, facts: AuditFacts, request: AuditQuestions, out: str | None
) -> AuditReport:
    """The audit of a file in this process."""
    lookup = None
    if context.settings.metadata_uri is not None:
        lookup = LiveLookup(lambda: _live_ledgers(context))
    with SnapshotFile(OsFileSystem(), cluster.path) as file, context.console.progress("auditing") as progress:
        return await audit_plainly(
            LedgersInFile(file, cluster).by_piece(),
            with_request(facts, request),
            out_directory=out,
            lookup=lookup,
            on_progress=LedgerProgress(progress, cluster.nodes).show,
            extras=request.extras(context),
        )


@asynccontextmanager
async def _live_ledgers(context: CommandContext) -> AsyncIterator[LedgerStore]:
    async with open_session(context, on_outage=partial(report_outage, context.console)) as session:
        yield await session.ledgers()
