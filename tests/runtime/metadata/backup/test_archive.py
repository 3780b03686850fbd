from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.errors import ConflictError, MetadataFormatError
from bkctl.runtime.metadata.backup.archive import (
    FORMAT_WITH_LOGS,
    ArchivedLog,
    ArchiveHeader,
    ArchiveNode,
    ArchiveReader,
    ArchiveWriter,
)
from bkctl.storage.adapters.filesystem import OsFileSystem

HEADER = ArchiveHeader(root="/ledgers", instance_id="i", layout="hierarchical", created="2026-01-01T00:00:00Z")
NODES = [
    ArchiveNode("", 0, 1, b""),
    ArchiveNode("00", 0, 2, b""),
    ArchiveNode("00/0000", 0, 3, b""),
    ArchiveNode("00/0000/L0000", 4, 5, bytes(range(256))),
    ArchiveNode("000", 0, 6, b""),
    ArchiveNode("cookies", 1, 7, b"x" * 100),
]


def write(path: Path) -> bytes:
    with ArchiveWriter(OsFileSystem(), str(path), HEADER) as writer:
        for node in NODES:
            writer.add(node)
        writer.finish(1)
    return path.read_bytes()


def read(path: Path) -> tuple[ArchiveHeader, list[ArchiveNode]]:
    with ArchiveReader(OsFileSystem(), str(path)) as reader:
        nodes = list(reader.nodes())
        assert reader.end is not None
        assert reader.end.nodes == len(nodes)
        return reader.header, nodes


def with_logs(lines: list[bytes], *names: str) -> list[bytes]:
    """The lines of format 2."""
    logs = [json.dumps({"log": name, "data": "eA=="}, separators=(",", ":")).encode() + b"\n" for name in names]
    return [lines[0].replace(b'"format":1', b'"format":2'), *logs, *lines[1:]]


def lines_of(data: bytes) -> list[bytes]:
    return gzip.decompress(data).splitlines(keepends=True)


def test_what_was_written_comes_back_any_number_of_times(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    first = write(path)
    assert read(path) == (HEADER, NODES)
    with ArchiveReader(OsFileSystem(), str(path)) as reader:
        assert list(reader.nodes()) == list(reader.nodes()) == NODES
    assert os.listdir(tmp_path) == ["a.gz"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert write(tmp_path / "b.gz") == first, "the same cluster gives the same bytes"


def test_logs_have_lines_of_their_own_before_the_nodes(tmp_path: Path) -> None:
    path, logs = tmp_path / "a.gz", [ArchivedLog("a", b"x"), ArchivedLog("b", b"x")]
    header = msgspec.structs.replace(HEADER, format=FORMAT_WITH_LOGS)
    with ArchiveWriter(OsFileSystem(), str(path), header) as writer:
        for log in logs:
            writer.add_log(log)
        for node in NODES:
            writer.add(node)
        writer.finish(1)
    with ArchiveReader(OsFileSystem(), str(path)) as reader:
        assert list(reader.logs()) == logs
        assert list(reader.nodes()) == NODES
    assert lines_of(path.read_bytes())[:-1] == with_logs(lines_of(write(tmp_path / "b.gz")), "a", "b")[:-1]
    path.write_bytes(
        forge(lines_of(path.read_bytes()), lambda all_of: [all_of[0].replace(b":2,", b":3,"), *all_of[1:]])
    )
    with pytest.raises(MetadataFormatError, match="has format 3, and this bkctl knows 2: use a newer one"):
        read(path)


def test_the_format_as_documented(tmp_path: Path) -> None:
    """By gzip and json alone, as a second implementation would read it."""
    header, *nodes, end = lines_of(write(tmp_path / "a.gz"))
    assert json.loads(header) == {
        "apiVersion": "bkctl/v1",
        "kind": "ClusterBackup",
        "format": 1,
        "root": "/ledgers",
        "instance_id": "i",
        "layout": "hierarchical",
        "created": "2026-01-01T00:00:00Z",
    }
    assert json.loads(nodes[1]) == {"path": "00", "version": 0, "ctime_ms": 2, "data": ""}
    digest = hashlib.sha256(b"".join([header, *nodes])).hexdigest()
    assert json.loads(end) == {"kind": "ClusterBackupEnd", "nodes": 6, "ledgers": 1, "sha256": digest}
    assert end.startswith(b'{"kind"')


def test_every_flipped_bit_is_found_or_harmless(tmp_path: Path) -> None:
    """Harmless is what says nothing of the contents: time, level and system in the header, the last byte's padding."""
    path = tmp_path / "a.gz"
    data = write(path)
    harmless = {*range(10), len(data) - 9}
    unseen = set()
    for index in range(len(data)):
        for bit in range(8):
            path.write_bytes(data[:index] + bytes([data[index] ^ (1 << bit)]) + data[index + 1 :])
            with contextlib.suppress(MetadataFormatError):
                assert read(path) == (HEADER, NODES)
                unseen.add(index)
    assert unseen <= harmless


def test_every_cut_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    data = write(path)
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(MetadataFormatError, match=r"backup .* is damaged"):
            read(path)


def test_more_behind_the_end_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    data = write(path)
    for more in (b"x", gzip.compress(b"{}\n"), data):
        path.write_bytes(data + more)
        with pytest.raises(MetadataFormatError, match=r"backup .* is damaged"):
            read(path)


def forge(lines: list[bytes], edit: Callable[[list[bytes]], list[bytes]]) -> bytes:
    """A whole archive with other lines and the right hash: what no hash can find."""
    header_and_nodes = edit(lines[:-1])
    end = {
        "kind": "ClusterBackupEnd",
        "nodes": len(header_and_nodes) - 1,
        "ledgers": 1,
        "sha256": hashlib.sha256(b"".join(header_and_nodes)).hexdigest(),
    }
    return gzip.compress(b"".join([*header_and_nodes, json.dumps(end, separators=(",", ":")).encode() + b"\n"]))


def line(path: str, **fields: object) -> bytes:
    return json.dumps({"path": path, "version": 0, "ctime_ms": 0, "data": "", **fields}).encode() + b"\n"


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda lines: [lines[0], *lines[2:]], id="no root"),
        pytest.param(lambda lines: [*lines[:3], *lines[4:]], id="parent missing"),
        pytest.param(lambda lines: [*lines[:4], lines[3], *lines[4:]], id="twice"),
        pytest.param(lambda lines: [*lines, line("00")], id="out of order"),
        pytest.param(lambda lines: [*lines, line("../x")], id="outside the root"),
        pytest.param(lambda lines: [*lines, line("/x")], id="absolute"),
        pytest.param(lambda lines: [*lines, line("x//y")], id="empty part"),
        pytest.param(lambda lines: [*lines, line("x\x00y")], id="bad character"),
        pytest.param(lambda lines: [*lines, line("x", data="*")], id="no base64"),
        pytest.param(lambda lines: [*lines, line("x", data=7)], id="no text"),
        pytest.param(lambda lines: [*lines, line("x", acl="open")], id="unknown field"),
        pytest.param(lambda lines: [lines[0], b'{"log":"a","data":""}\n', *lines[1:]], id="logs in format 1"),
        pytest.param(lambda lines: [*with_logs(lines, "a/b")], id="no name of a log"),
        pytest.param(lambda lines: [*lines, b'{"log":"a","data":""}\n'], id="a log after the nodes"),
        pytest.param(lambda lines: [lines[0].replace(b'"format":1', b'"format":0'), *lines[1:]], id="no format"),
        pytest.param(lambda lines: [lines[0].replace(b"ClusterBackup", b"LedgerList"), *lines[1:]], id="other kind"),
        pytest.param(lambda lines: lines[:1], id="nothing"),
        pytest.param(lambda lines: [*lines, b"x" * (5 * 2**20) + b"\n"], id="endless line"),
    ],
)
def test_what_no_backup_of_ours_holds_is_refused(tmp_path: Path, edit: Callable[[list[bytes]], list[bytes]]) -> None:
    path = tmp_path / "a.gz"
    lines = lines_of(write(path))
    path.write_bytes(forge(lines, lambda unchanged: unchanged))
    if len(edit(lines[:-1])) > 1:
        assert read(path) == (HEADER, NODES)
    path.write_bytes(forge(lines, edit))
    with pytest.raises(MetadataFormatError, match=r"backup .* is damaged"):
        read(path)


def test_a_wrong_count_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    lines = lines_of(write(path))
    path.write_bytes(gzip.compress(b"".join([*lines[:-1], lines[-1].replace(b'"nodes":6', b'"nodes":5')])))
    with pytest.raises(MetadataFormatError, match="count"):
        read(path)


def test_no_file_is_ever_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    write(path)
    with pytest.raises(ConflictError, match="already exists: specify a new file"):
        write(path)
    late = tmp_path / "b.gz"
    with ArchiveWriter(OsFileSystem(), str(late), HEADER) as writer:
        late.write_bytes(b"somebody was faster")
        with pytest.raises(ConflictError, match="already exists: specify a new file"):
            writer.finish(0)
    assert late.read_bytes() == b"somebody was faster"
    assert sorted(os.listdir(tmp_path)) == ["a.gz", "b.gz"]


def test_what_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    with ArchiveWriter(OsFileSystem(), str(tmp_path / "a.gz"), HEADER) as writer:
        writer.add(NODES[0])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("room", [0, 10, 200_000])
def test_a_full_disk_leaves_nothing(tmp_path: Path, room: int) -> None:
    path = tmp_path / "a.gz"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with ArchiveWriter(OsFileSystem(), str(path), HEADER) as writer:
            with pytest.raises(OSError, match="File too large") as raised:
                writer.add(ArchiveNode("", 0, 0, os.urandom(900_000)))
            assert os.listdir(tmp_path) != []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(raised.value.filename).startswith(str(path))
    assert os.listdir(tmp_path) == []
