"""Snapshot files of ZooKeeper, written as a server of release 3.9 writes them, of clusters with any number of ledgers.

The format was read off files of a real server, and a test lets a real server load what is written here. Nodes are made
one after the other: memory does not grow with their number. As in a real file, a directory comes before what is in it,
and the children of a directory are in no order.
"""

from __future__ import annotations

import itertools
import random
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata, LedgerState, Segment
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.bookies.cookies import Cookie, encode_cookie
from bkctl.runtime.metadata.bookies.service_info import encode_service_info, rpc_service_info
from bkctl.runtime.metadata.ledgers.layout import SHORT_ID_LIMIT, LedgerLayout, LedgerTree, encode_layout
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.format import UnderReplicationMark, encode_mark, encode_vote
from bkctl.runtime.metadata.replication.format import encode_layout as encode_replication_layout
from tests.runtime.replication.samples import demand_of

T = TypeVar("T")

LEDGERS_PER_BUCKET = 10_000

_HEADER = struct.pack(">4siq", b"ZKSN", 2, -1)
_NUMBER = struct.Struct(">i")
_LONG = struct.Struct(">q")
_STAT = struct.Struct(">qqqqiiiqq")
_SEAL_PATH = b"/"
_OPEN_ACL = 1
_NO_ACL = -1
_DIGEST_VERSION_UNKNOWN = 99
"""No release computes digests of this version, so a server that loads the file compares none."""
_BUFFER_BYTES = 1 << 20


class SnapshotNode(msgspec.Struct, frozen=True, gc=False):
    """One node. ``owner`` is the session of an ephemeral node; ``children_count`` becomes its counter of changes."""

    path: str
    data: bytes = b""
    owner: int = 0
    version: int = 0
    children_count: int = 0
    time_ms: int = 1_700_000_000_000
    has_acl: bool = True


class SampleCluster(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster in a file looks like. The same values give the same bytes.

    The last ``lost_bookies`` have a cookie and no registration, the ``read_only_bookies`` before them are read-only.
    Bookies are in racks in turn, and with ``isolation_groups`` in these, too: each ledger demands one of them, and has
    its bookies anywhere. Shares are of all ledgers.
    """

    ledgers: int
    tree: LedgerTree = LedgerTree.LONG_HIERARCHICAL
    root: str = "/ledgers"
    bookies: int = 12
    racks: int = 3
    isolation_groups: int = 0
    read_only_bookies: int = 1
    lost_bookies: int = 1
    ensemble_size: int = 3
    write_quorum_size: int = 3
    ack_quorum_size: int = 2
    first_ledger_id: int = 0
    marks: int = 10
    has_auditor: bool = False
    open_share: float = 0.01
    second_segment_share: float = 0.1
    session_timeout_ms: int = 30_000
    seed: int = 1

    @property
    def bookie_ids(self) -> list[str]:
        """All of them, in order."""
        return [_bookie_id(number) for number in range(self.bookies)]

    @property
    def registered_ids(self) -> list[str]:
        """Those that are up, the read-only ones last."""
        return self.bookie_ids[: self.bookies - self.lost_bookies]

    @property
    def read_only_ids(self) -> list[str]:
        """Those that are up and take no entries."""
        return self.registered_ids[len(self.registered_ids) - self.read_only_bookies :]

    @property
    def sessions(self) -> dict[int, int]:
        """The session of each bookie that is up, and its time-out in milliseconds."""
        return {_session_of(number): self.session_timeout_ms for number in range(len(self.registered_ids))}

    def random_source(self) -> random.Random:
        """Chance that is the same each time."""
        return random.Random(self.seed)


def write_snapshot(
    file: BinaryIO, nodes: Iterable[SnapshotNode], sessions: Mapping[int, int] | None = None, *, last_zxid: int = 1
) -> int:
    """Write a file with these nodes, parents before children, and return their number. ``sessions``: see above.

    The root and ZooKeeper's own nodes are added. ``last_zxid`` is what a file's name ends with, in hexadecimal.
    """
    output = _SealedOutput(file)
    output.write(_HEADER)
    output.write(_NUMBER.pack(len(sessions or {})))
    for session, timeout_ms in (sessions or {}).items():
        output.write(_LONG.pack(session) + _NUMBER.pack(timeout_ms))
    output.write(_NUMBER.pack(1) + _LONG.pack(_OPEN_ACL) + _NUMBER.pack(1) + _NUMBER.pack(31))
    output.write(_text("world") + _text("anyone"))
    count = 0
    for node in itertools.chain(_OWN_NODES, nodes):
        output.write(_encode_node(node, last_zxid))
        count += 1
    output.write(_text("/"))
    output.seal()
    output.write(_LONG.pack(last_zxid) + _NUMBER.pack(_DIGEST_VERSION_UNKNOWN) + _LONG.pack(0))
    output.seal()
    output.write(_LONG.pack(last_zxid))
    output.seal()
    output.flush()
    return count - len(_OWN_NODES)


def write_for_server(root: Path, cluster: SampleCluster) -> None:
    """Write the cluster where ``EmbeddedZooKeeper.start`` finds it in its data directory ``root``."""
    directory = root / "data" / "version-2"
    directory.mkdir(parents=True)
    with open(directory / "snapshot.1", "wb") as file:
        write_snapshot(file, cluster_nodes(cluster), cluster.sessions)


_OWN_NODES = (
    SnapshotNode("", has_acl=False),
    SnapshotNode("/zookeeper", has_acl=False),
    SnapshotNode("/zookeeper/config"),
    SnapshotNode("/zookeeper/quota", has_acl=False),
)


class _SealedOutput:
    """Writes large parts, and the checksum of all that was written when asked for it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._buffer = bytearray()
        self._checksum = 1

    def write(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= _BUFFER_BYTES:
            self.flush()

    def seal(self) -> None:
        self.flush()
        self.write(_LONG.pack(self._checksum) + _text("/"))

    def flush(self) -> None:
        self._checksum = zlib.adler32(self._buffer, self._checksum)
        self._file.write(self._buffer)
        self._buffer.clear()


def _text(text: str) -> bytes:
    return _bytes(text.encode())


def _bytes(data: bytes) -> bytes:
    return _NUMBER.pack(len(data)) + data


def _encode_node(node: SnapshotNode, zxid: int) -> bytes:
    acl = _OPEN_ACL if node.has_acl else _NO_ACL
    stat = _STAT.pack(
        zxid, zxid, node.time_ms, node.time_ms, node.version, node.children_count, 0, node.owner, zxid
    )  # fmt: skip
    return b"".join((_text(node.path), _bytes(node.data), _LONG.pack(acl), stat))


def cluster_nodes(cluster: SampleCluster) -> Iterator[SnapshotNode]:
    """All nodes of a cluster, and the node with the racks of Pulsar outside of its root."""
    paths, source = Paths(cluster.root), cluster.random_source()
    buckets = _bucket_tree(cluster)
    yield SnapshotNode("/bookies", _racks(cluster))
    yield SnapshotNode(cluster.root, children_count=buckets.children_count + 6)
    yield SnapshotNode(paths.layout, encode_layout(LedgerLayout(cluster.tree)))
    yield SnapshotNode(paths.instance_id, b"7f3a0c1e-0b3d-4d2a-9a51-3a1f0c9d2b11")
    yield from _bookie_nodes(cluster, paths)
    yield from _mark_nodes(cluster, paths)
    yield from _nodes_in(cluster, cluster.root, buckets, source)


def ledgers_of(cluster: SampleCluster) -> Iterator[tuple[int, LedgerMetadata]]:
    """The ledgers of the cluster in the order of its nodes, for a test that computes for itself what is in a file."""
    for node in cluster_nodes(cluster):
        relative = node.path.removeprefix(cluster.root + "/")
        ledger_id = cluster.tree.parse_ledger_path(relative)
        if ledger_id is not None:
            yield ledger_id, random_metadata(ledger_id, cluster)


def random_metadata(ledger_id: int, cluster: SampleCluster) -> LedgerMetadata:
    """Metadata as Pulsar's brokers write it: mostly closed, some after a change of the ensemble."""
    source = random.Random(cluster.seed << 40 | ledger_id)
    start = source.randrange(cluster.bookies)
    ensemble = tuple(_bookie_id((start + index) % cluster.bookies) for index in range(cluster.ensemble_size))
    last_entry_id = source.randrange(50_000)
    segments = [Segment(0, ensemble)]
    if source.random() < cluster.second_segment_share:
        spare = _bookie_id((start + cluster.ensemble_size) % cluster.bookies)
        segments.append(Segment(last_entry_id // 2 + 1, (spare, *ensemble[1:])))
    is_open = source.random() < cluster.open_share
    topic = ledger_id % 1_000
    return LedgerMetadata(
        ensemble_size=cluster.ensemble_size,
        write_quorum_size=cluster.write_quorum_size,
        ack_quorum_size=cluster.ack_quorum_size,
        segments=tuple(segments),
        state=LedgerState.OPEN if is_open else LedgerState.CLOSED,
        last_entry_id=-1 if is_open else last_entry_id,
        length=0 if is_open else (last_entry_id + 1) * source.randrange(1, 4096),
        digest_type=DigestType.CRC32C,
        password=b"",
        ctime_ms=1_600_000_000_000 + ledger_id,
        custom_metadata=(
            ("application", b"pulsar"),
            ("component", b"managed-ledger"),
            ("pulsar/managed-ledger", b"tenant-%d/ns/persistent/topic-%d" % (topic % 10, topic)),
            *_demand(ledger_id, cluster),
        ),
    )


def _bookie_id(number: int) -> str:
    return f"bookie-{number:03}.example:3181"


def _session_of(number: int) -> int:
    return 0x100000000000000 + number


def _racks(cluster: SampleCluster) -> bytes:
    racks = {each: {"rack": f"/rack{number % cluster.racks}"} for number, each in enumerate(cluster.bookie_ids)}
    if not cluster.isolation_groups:
        return msgspec.json.encode({"default": racks})
    groups: dict[str, dict[str, dict[str, str]]] = {}
    for number, (bookie_id, info) in enumerate(racks.items()):
        groups.setdefault(_group(number, cluster), {})[bookie_id] = info
    return msgspec.json.encode(groups)


def _group(number: int, cluster: SampleCluster) -> str:
    return f"group-{number % cluster.isolation_groups}"


def _demand(ledger_id: int, cluster: SampleCluster) -> list[tuple[str, bytes]]:
    if not cluster.isolation_groups:
        return []
    return [demand_of([_group(ledger_id, cluster)])]


def _bookie_nodes(cluster: SampleCluster, paths: Paths) -> Iterator[SnapshotNode]:
    read_only_ids = cluster.read_only_ids
    yield SnapshotNode(paths.available, children_count=len(cluster.registered_ids) + 1)
    yield SnapshotNode(paths.read_only, children_count=len(read_only_ids))
    for number, bookie_id in enumerate(cluster.registered_ids):
        path = paths.read_only_bookie(bookie_id) if bookie_id in read_only_ids else paths.writable_bookie(bookie_id)
        info = rpc_service_info(bookie_id.partition(":")[0], 3181)
        yield SnapshotNode(path, encode_service_info(info), owner=_session_of(number))
    yield SnapshotNode(paths.cookies, children_count=cluster.bookies)
    for bookie_id in cluster.bookie_ids:
        cookie = Cookie(bookie_id=bookie_id, journal_directories=("/journal",), ledger_directories=("/ledgers",))
        yield SnapshotNode(paths.cookie(bookie_id), encode_cookie(cookie))


def _mark_nodes(cluster: SampleCluster, paths: Paths) -> Iterator[SnapshotNode]:
    yield SnapshotNode(paths.under_replication, children_count=3)
    yield SnapshotNode(paths.under_replication_layout, encode_replication_layout())
    yield SnapshotNode(paths.replication_locks)
    yield SnapshotNode(paths.under_replicated_ledgers, children_count=1)
    if cluster.has_auditor:
        yield SnapshotNode(paths.auditor_election, children_count=1)
        vote = encode_vote(cluster.bookie_ids[0])
        yield SnapshotNode(f"{paths.auditor_election}/V_0000000000", vote, owner=_session_of(0))
    made = set()
    for ledger_id in range(cluster.first_ledger_id, cluster.first_ledger_id + min(cluster.marks, cluster.ledgers)):
        directory = paths.mark_directory(ledger_id)
        for level in range(4, 0, -1):
            parent = directory.rsplit("/", level - 1)[0]
            if parent not in made:
                made.add(parent)
                yield SnapshotNode(parent, children_count=1)
        mark = UnderReplicationMark((cluster.bookie_ids[-1],), 1_700_000_000_000)
        yield SnapshotNode(paths.mark(ledger_id), encode_mark(mark))


class _Bucket(msgspec.Struct):
    """A directory of the ledger tree: directories in it, or the ids of the ledgers in it."""

    directories: dict[str, _Bucket] = {}
    ledger_ids: range = range(0)

    @property
    def children_count(self) -> int:
        return len(self.directories) + len(self.ledger_ids)


def _bucket_tree(cluster: SampleCluster) -> _Bucket:
    """The root of the ledgers. Directories alone are kept: one of 10,000 ledgers needs no more than their range."""
    top = _Bucket()
    end = cluster.first_ledger_id + cluster.ledgers
    first = cluster.first_ledger_id
    while first < end:
        limit = SHORT_ID_LIMIT if first < SHORT_ID_LIMIT else end  # where the hierarchical layout changes its form
        ids = range(first, min(end, limit, first - first % LEDGERS_PER_BUCKET + LEDGERS_PER_BUCKET))
        *names, _ = cluster.tree.ledger_path(first).split("/")
        bucket = top
        for name in names:
            bucket = bucket.directories.setdefault(name, _Bucket())
        bucket.ledger_ids = range(bucket.ledger_ids.start if bucket.ledger_ids else first, ids.stop)
        first = ids.stop
    return top


def _nodes_in(cluster: SampleCluster, path: str, bucket: _Bucket, source: random.Random) -> Iterator[SnapshotNode]:
    for name in _shuffled(list(bucket.directories), source):
        directory = bucket.directories[name]
        yield SnapshotNode(f"{path}/{name}", children_count=directory.children_count)
        yield from _nodes_in(cluster, f"{path}/{name}", directory, source)
    for ledger_id in _shuffled(list(bucket.ledger_ids), source):
        metadata = random_metadata(ledger_id, cluster)
        yield SnapshotNode(
            f"{cluster.root}/{cluster.tree.ledger_path(ledger_id)}",
            encode_ledger_metadata(metadata),
            version=1 if metadata.is_closed else 0,
            time_ms=metadata.ctime_ms or 0,
        )


def _shuffled(items: list[T], source: random.Random) -> Sequence[T]:
    source.shuffle(items)
    return items
