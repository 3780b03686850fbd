"""A cluster's metadata in a file: what describes the cluster and its bookies, and the ledgers, piece by piece.

The file has the form of a ZooKeeper snapshot. A snapshot is fuzzy: ZooKeeper writes it while clients change nodes, so
it may have some changes and not others that were made before them. Each node in it is whole.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

import msgspec

from bkctl.runtime.config import LayoutConfig
from bkctl.runtime.errors import ClusterNotFoundError, MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.metadata_format import decode_ledger_metadata
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.format import decode_mark, parse_mark_name
from bkctl.runtime.metadata.replication.marks import ListedMark
from bkctl.runtime.metadata.snapshot.format import FileNode
from bkctl.runtime.metadata.snapshot.node_file import NodePiece, SnapshotFile, SnapshotSurvey
from bkctl.runtime.metadata.snapshot.store import FileStore
from bkctl.runtime.metadata.store import Versioned


class ClusterFile(msgspec.Struct, frozen=True):
    """Where a plain snapshot file has the ledgers of a cluster."""

    path: str
    root: str
    tree: LedgerTree
    pieces: tuple[NodePiece, ...]

    @property
    def nodes(self) -> int:
        """Nodes in the file, other than ledgers included."""
        return sum(piece.nodes for piece in self.pieces)


def describes_cluster(root: str, *others: str) -> Callable[[bytes], bool]:
    """True for the paths of the few nodes that describe a cluster, its bookies, and whether autorecovery is enabled and
    has an auditor, and for ``others``."""
    paths = Paths(root)
    autorecovery = (paths.replication_disabled, paths.pulsar_auditor)
    whole = frozenset(path.encode() for path in (root, paths.layout, paths.instance_id, *autorecovery, *others))
    beginnings = tuple(path.encode() for path in (paths.available, paths.cookies, paths.auditor_election))
    return lambda path: path.startswith(beginnings) or path in whole


async def find_cluster(
    path: str, survey: SnapshotSurvey, root: str, wanted_tree: LedgerTree | None, layout_config: LayoutConfig
) -> tuple[ClusterFile, FileStore]:
    """The cluster in a file of which ``survey`` kept what ``describes_cluster``; the store has these nodes.

    ``wanted_tree``: the layout in the metadata URI. ClusterNotFoundError, ConfigurationError when the layouts differ,
    MetadataFormatError.
    """
    store = FileStore(survey.kept)
    if await store.exists(root) is None:
        raise ClusterNotFoundError(root, path)
    ledgers = await open_ledger_store(store, root, wanted_tree, layout_config=layout_config)
    return ClusterFile(path, root, ledgers.tree, survey.pieces), store


class LedgersInFile:
    """The ledgers of a file, in the form in which ``LedgerStore`` has those of ZooKeeper."""

    def __init__(self, file: SnapshotFile, cluster: ClusterFile) -> None:
        self._file = file
        self._cluster = cluster

    def by_piece(self) -> Iterator[AsyncGenerator[tuple[int, Versioned[LedgerMetadata] | MetadataFormatError], None]]:
        """Every ledger of each piece with its metadata, or the reason why that cannot be read."""
        return (self._read(piece) for piece in self._cluster.pieces)

    async def _read(
        self, piece: NodePiece
    ) -> AsyncGenerator[tuple[int, Versioned[LedgerMetadata] | MetadataFormatError], None]:
        prefix = f"{self._cluster.root}/"
        for node in self._file.nodes(piece):
            ledger_id = self._ledger_id(node.path, prefix)
            if ledger_id is None:
                continue
            try:
                metadata = decode_ledger_metadata(node.data)
            except MetadataFormatError as error:
                yield ledger_id, type(error)(f"ledger {ledger_id}: {error}", node.path)
            else:
                yield ledger_id, Versioned(metadata, node.version, node.ctime_ms)

    def _ledger_id(self, path: str, prefix: str) -> int | None:
        return self._cluster.tree.parse_ledger_path(path[len(prefix) :]) if path.startswith(prefix) else None


class MarksInFile:
    """The marks of under-replicated ledgers in a file."""

    def __init__(self, file: SnapshotFile, root: str) -> None:
        self._file = file
        self._paths = Paths(root)

    def read_all(self, pieces: Iterable[NodePiece]) -> Iterator[ListedMark]:
        """Every mark in these pieces; nodes with other names are left out."""
        prefix = f"{self._paths.under_replicated_ledgers}/"
        for piece in pieces:
            for node in self._file.nodes(piece):
                if not node.path.startswith(prefix):
                    continue
                ledger_id = parse_mark_name(node.path.rpartition("/")[2])
                if ledger_id is not None and node.path == self._paths.mark(ledger_id):
                    yield _listed_mark(ledger_id, node)


def _listed_mark(ledger_id: int, node: FileNode) -> ListedMark:
    try:
        mark = decode_mark(node.data)
    except MetadataFormatError as error:
        problem = MetadataFormatError(f"{node.path}: {error}", node.path)
        return ListedMark(ledger_id, None, node.version, node.mtime_ms, problem)
    return ListedMark(ledger_id, mark, node.version, node.mtime_ms)
