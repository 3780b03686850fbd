"""Snapshot files: every node is in one piece, and a file that is not whole is never read as one that is."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.snapshot.format import SEAL_BYTES, FileNode
from bkctl.runtime.metadata.snapshot.node_file import NodePiece, SnapshotFile, SnapshotSurvey
from bkctl.storage.adapters.filesystem import OsFileSystem
from tests.snapshot_files import SampleCluster, SnapshotNode, cluster_nodes, write_snapshot

CLUSTER = SampleCluster(ledgers=40, bookies=4)


@pytest.fixture
def nodes() -> list[SnapshotNode]:
    """Nodes of a small cluster, one that is larger than what is read at once, and one with a name of many bytes."""
    large = SnapshotNode("/large", random.Random(1).randbytes(9_000), owner=7, version=3)
    return [*cluster_nodes(CLUSTER), large, SnapshotNode("/\N{PILE OF POO}", time_ms=5)]


@pytest.fixture
def path(tmp_path: Path, nodes: Sequence[SnapshotNode]) -> str:
    path = tmp_path / "snapshot.1"
    with path.open("wb") as file:
        write_snapshot(file, nodes, CLUSTER.sessions)
    return str(path)


def survey(path: str, piece_bytes: int = 1) -> SnapshotSurvey:
    with SnapshotFile(OsFileSystem(), path) as file:
        return file.survey(lambda each: each == b"/large", piece_bytes=piece_bytes)


def read(path: str, pieces: Sequence[NodePiece]) -> list[FileNode]:
    with SnapshotFile(OsFileSystem(), path) as file:
        return list(itertools.chain.from_iterable(map(file.nodes, pieces)))


def sampled(size: int) -> list[int]:
    """Every offset near the beginning and the end, some between them."""
    return [*range(600), *range(600, size - 100, 17), *range(size - 100, size)]


def error_of(path: str, data: bytes) -> str | None:
    """The error when the file has these bytes."""
    Path(path).write_bytes(data)
    try:
        survey(path)
    except MetadataFormatError as error:
        return str(error)
    return None


def test_the_pieces_have_every_node_once(tmp_path: Path, nodes: list[SnapshotNode]) -> None:
    """Nodes that are larger than what is read at once, and nodes across its borders."""
    source = random.Random(2)
    nodes += [
        SnapshotNode(f"/large/{number}", source.randbytes(size))
        for number, size in enumerate([3_000_000] * 4 + [9_000_000] + [1_000] * 3_000 + [5_000_000])
    ]
    path = str(tmp_path / "snapshot.2")
    with open(path, "wb") as output:
        write_snapshot(output, nodes)
    expected = [FileNode(node.path, node.data, node.version, node.time_ms, node.time_ms, node.owner) for node in nodes]
    own = ["", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"]

    for piece_bytes, pieces_count in ((1, 6), (10_000_000, 2), (10**9, 1)):
        found = survey(path, piece_bytes)
        assert len(found.pieces) >= pieces_count
        everything = read(path, found.pieces)
        assert [node.path for node in everything[:4]] == own
        assert everything[4:] == expected
        assert [len(read(path, [piece])) for piece in found.pieces] == [piece.nodes for piece in found.pieces]
        assert found.kept == tuple(node for node in expected if node.path == "/large")


def test_a_file_that_is_cut_anywhere_is_damaged(path: str) -> None:
    """Except after the first seal: the nodes before it are complete, as in a file of an old release."""
    whole = Path(path).read_bytes()
    errors = {size: error_of(path, whole[:size]) for size in sampled(len(whole))}
    accepted = [len(whole) - size for size, error in errors.items() if error is None]
    for size, error in errors.items():
        if error is not None:
            assert error.startswith(f"snapshot {path} is damaged at byte ")
            assert int(error.split("at byte ")[1].split(":")[0]) <= size
    # The file ends with a zxid of 8 bytes, its seal, and before them 20 bytes of a digest and their seal.
    assert accepted == [8 + 20 + 2 * SEAL_BYTES, 8 + SEAL_BYTES]


def test_a_changed_byte_is_noticed_wherever_it_is(path: str) -> None:
    whole = bytearray(Path(path).read_bytes())
    for offset in sampled(len(whole)):
        damaged = whole.copy()
        damaged[offset] ^= 0x40
        Path(path).write_bytes(damaged)
        with pytest.raises(MetadataFormatError, match="is damaged at byte"):
            survey(path)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "at byte 0: it is truncated"),
        (b"PK\x03\x04" + bytes(100), "at byte 0: it is not a ZooKeeper snapshot"),
        (b"ZKLG" + bytes(100), "at byte 0: it is not a ZooKeeper snapshot"),
        (b"ZKSN\0\0\0\x01" + bytes(100), "at byte 4: its version is 1, not 2"),
        (b"ZKSN\0\0\0\x02" + bytes(8) + b"\xff\xff\xff\xff", "at byte 16: a count is -1"),
    ],
)
def test_another_file_is_no_snapshot(tmp_path: Path, data: bytes, text: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(MetadataFormatError, match=text):
        survey(str(path))


def test_a_piece_that_does_not_begin_at_a_node_is_damage(path: str) -> None:
    (piece,) = survey(path, 10**9).pieces
    with pytest.raises(MetadataFormatError, match="is damaged at byte"):
        read(path, [NodePiece(piece.start + 1, piece.end, 1)])
    with pytest.raises(MetadataFormatError, match="is damaged at byte"):
        read(path, [NodePiece(piece.start, piece.end - 1, 1)])
