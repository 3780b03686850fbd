"""What ``--from`` accepts: directories of ZooKeeper, compressed files of a real server, backups; and what it
refuses."""

from __future__ import annotations

import gzip
import logging
import tempfile
from pathlib import Path

import pytest

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.backup.archive import ArchiveHeader, ArchiveNode, ArchiveWriter
from bkctl.runtime.metadata.snapshot.format import MAGIC, FileNode
from bkctl.runtime.metadata.snapshot.node_file import SnapshotFile
from bkctl.runtime.metadata.snapshot.opening import LocalPath, PlainFile, open_plain, read_newest
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.storage.adapters.filesystem import OsFileSystem
from tests.runtime.bookie.small_disk import small_disk
from tests.snapshot_files import SampleCluster, cluster_nodes, write_snapshot
from tests.zookeeper_servers import secured_server

FS = OsFileSystem()


def write(path: Path) -> bytes:
    with path.open("wb") as file:
        write_snapshot(file, cluster_nodes(SampleCluster(ledgers=300)))
    return path.read_bytes()


def nodes(path: str) -> dict[str, FileNode]:
    with SnapshotFile(FS, path) as file:
        return {node.path: node for piece in file.survey(lambda _: False).pieces for node in file.nodes(piece)}


def find_snapshot(path: Path) -> tuple[str, int]:
    """The newest whole one, and how many newer ones are not."""

    def read(found: LocalPath) -> str:
        with tempfile.TemporaryDirectory() as directory:
            nodes(open_plain(FS, found.path, directory).path)
        return found.path

    return read_newest(LocalPath(FS, str(path)), read)


@pytest.mark.cluster
@pytest.mark.parametrize(("method", "ending"), [("gz", ".gz"), ("snappy", ".snappy")])
async def test_a_compressed_snapshot_of_a_real_server(tmp_path: Path, method: str, ending: str) -> None:
    with secured_server(tmp_path / "server", {}, {"zookeeper.snapshot.compression.method": method}) as server:
        async with await ZooKeeperStore.connect(server.address) as store:
            for number in range(200):
                await store.create(f"/node-{number}", b"data" * number)
            server.kill()
            server.start()
            server.wait_for_mode("standalone")
        found, _ = find_snapshot(tmp_path / "server" / "data")
        assert found.endswith(ending)
        plain = open_plain(FS, found, str(tmp_path))
        assert {path: node.data for path, node in nodes(plain.path).items() if path.startswith("/node")} == {
            f"/node-{number}": b"data" * number for number in range(200)
        }
        assert plain.backup_root is None

        packed = Path(found).read_bytes()
        for size in (20, len(packed) // 2, len(packed) - 3):
            (tmp_path / "cut").write_bytes(packed[:size])
            (tmp_path / str(size)).mkdir()
            with pytest.raises(MetadataFormatError, match=r"cut is damaged|snapshot is damaged"):
                nodes(open_plain(FS, str(tmp_path / "cut"), str(tmp_path / str(size))).path)


def test_a_plain_snapshot_is_read_where_it_is(tmp_path: Path) -> None:
    write(tmp_path / "any-name")
    assert open_plain(FS, str(tmp_path / "any-name"), "/nowhere") == PlainFile(
        str(tmp_path / "any-name"), is_original=True
    )


def test_of_a_directory_the_newest_complete_snapshot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "version-2"
    directory.mkdir()
    data = write(directory / "snapshot.ff")
    (directory / "snapshot.9f").write_bytes(data)
    (directory / "snapshot.100").write_bytes(data[:-1])
    (directory / "log.200").write_bytes(data)
    (directory / "snapshot.300.tmp").write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert find_snapshot(tmp_path) == (f"{directory}/snapshot.ff", 1)
    assert caplog.messages == [f"{directory}/snapshot.100 is not complete: reading an older snapshot"]
    (directory / "snapshot.101.gz").write_bytes(gzip.compress(data))
    assert find_snapshot(directory) == (f"{directory}/snapshot.101.gz", 0)


def test_a_damaged_snapshot_is_skipped_in_a_directory_and_refused_by_its_own_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a server does: truncated, or with another byte in the middle, also within a whole compressed file."""
    data = write(tmp_path / "snapshot.1")
    middle = len(data) // 2
    changed = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    packed = gzip.compress(data)
    damaged = [("2.gz", packed[: len(packed) // 2]), ("3", changed), ("4.gz", gzip.compress(changed)), ("5.gz", b"x")]
    for number, content in damaged:
        (tmp_path / f"snapshot.{number}").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert find_snapshot(tmp_path) == (str(tmp_path / "snapshot.1"), 4)
    assert len(caplog.messages) == 4
    for (number, _), message in zip(reversed(damaged), caplog.messages, strict=True):
        assert "damaged" in message
        assert message.endswith(": reading an older snapshot")
        if number != "4.gz":  # its unpacked copy has another name here
            assert f"{tmp_path}/snapshot.{number} " in message
        with pytest.raises(MetadataFormatError):
            find_snapshot(tmp_path / f"snapshot.{number}")


def test_a_directory_without_snapshots(tmp_path: Path) -> None:
    (tmp_path / "snapshot.1").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="there is no complete snapshot file in it"):
        find_snapshot(tmp_path)


def backup(path: Path) -> list[ArchiveNode]:
    found = [ArchiveNode("", 3, 4, b""), ArchiveNode("00", 0, 5, b""), ArchiveNode("00/0000", 1, 2, b"x" * 99)]
    header = ArchiveHeader(root="/a/ledgers", instance_id=None, layout="hierarchical", created="now")
    with ArchiveWriter(FS, str(path), header) as writer:
        for node in found:
            writer.add(node)
        writer.finish(0)
    return found


def test_a_backup_becomes_a_snapshot_that_only_its_owner_reads(tmp_path: Path) -> None:
    expected = backup(tmp_path / "backup.gz")
    plain = open_plain(FS, str(tmp_path / "backup.gz"), str(tmp_path))
    assert plain.backup_root == "/a/ledgers"
    assert Path(plain.path).stat().st_mode & 0o077 == 0
    assert list(nodes(plain.path).values()) == [
        FileNode(f"/a/ledgers/{node.path}".rstrip("/"), node.data, node.version, node.ctime_ms, node.ctime_ms, 0)
        for node in expected
    ]


def test_a_damaged_backup_is_refused(tmp_path: Path) -> None:
    backup(tmp_path / "whole")
    lines = gzip.decompress((tmp_path / "whole").read_bytes()).splitlines(keepends=True)
    (tmp_path / "backup.gz").write_bytes(gzip.compress(b"".join(lines[:-1])))
    with pytest.raises(MetadataFormatError, match=r"backup.gz is damaged: it is truncated"):
        open_plain(FS, str(tmp_path / "backup.gz"), str(tmp_path))


def test_another_compressed_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"some text"))
    with pytest.raises(MetadataFormatError, match=r"log.gz: what is packed in it is not a ZooKeeper snapshot"):
        open_plain(FS, str(tmp_path / "log.gz"), str(tmp_path))


@pytest.mark.parametrize("beginning", [b"", MAGIC])
def test_a_small_file_that_unpacks_to_gigabytes_is_refused_before_it_fills_the_disk(
    tmp_path: Path, beginning: bytes
) -> None:
    with gzip.open(tmp_path / "bomb.gz", "wb") as file:
        file.write(beginning)
        for _ in range(256):
            file.write(bytes(1024 * 1024))
    with pytest.raises(MetadataFormatError, match=r"not a ZooKeeper snapshot|more than 200 times its size"):
        open_plain(FS, str(tmp_path / "bomb.gz"), str(tmp_path))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 100 * 1024 * 1024


@pytest.mark.parametrize("is_backup", [True, False])
def test_a_full_disk_names_the_setting_for_another_directory(tmp_path: Path, is_backup: bool) -> None:
    if is_backup:
        backup(tmp_path / "packed.gz")
    else:
        (tmp_path / "packed.gz").write_bytes(gzip.compress(write(tmp_path / "snapshot")))
    with small_disk(tmp_path / "disk") as disk:
        disk.use(1.0)
        with pytest.raises(OSError, match="set TMPDIR to another directory"):
            open_plain(FS, str(tmp_path / "packed.gz"), str(disk.path))
