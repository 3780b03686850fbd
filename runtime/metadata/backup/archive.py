"""The archive of a cluster's metadata: gzip over lines of JSON. Format, writer and reader.

    {"apiVersion": "bkctl/v1", "kind": "ClusterBackup", "format": 1, "root", "instance_id", "layout", "created"}
        and "maintenance", if a bookie is in maintenance
    {"log", "data"}                                               one line per log of ledgers, only in format 2
    {"path", "version", "ctime_ms", "data"}                       one line per node, depth first, names ascending
    {"kind": "ClusterBackupEnd", "nodes", "ledgers", "sha256"}    hash of all bytes before this line

Paths are relative to the ledgers root, the root itself being ""; ``data`` is base64. An archive without its last line
is incomplete and invalid. An archive with logs has format 2, so that older releases, which would lose the logs, refuse
it. It has passwords in clear text, so only the owner of the file may read it.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Iterator
from typing import Final, Literal, Self, TypeVar

import msgspec

from bkctl.runtime.errors import MetadataError, MetadataFormatError
from bkctl.runtime.metadata.replication.recovery_notes import MaintenanceNote
from bkctl.runtime.metadata.store import check_path
from bkctl.runtime.new_file import put_in_place, require_absent
from bkctl.storage.json_text import JsonTextError, decode_json
from bkctl.storage.ports import Buffer, File, FileSystem

LineT = TypeVar("LineT")

_LINE_BYTES_MAX = 4 * 1024 * 1024
"""Longest line that a reader accepts; a node holds 1 MiB at most."""

FORMAT_WITH_LOGS: Final = 2

_COMPRESSION_LEVEL = 6
_GZIP_WINDOW_BITS = 31
"""zlib's code for the gzip container; zlib writes neither name nor time, so equal contents are equal files."""

_WRITE_BYTES = 256 * 1024
_READ_BYTES = 256 * 1024


class ArchiveHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """First line: the cluster and the time. ``layout`` is its name in metadata URIs.

    ``maintenance``: the notes of bookies in maintenance, which are not below the root.
    """

    apiVersion: Literal["bkctl/v1"] = "bkctl/v1"  # noqa: N815  spelling of the structured output contract
    kind: Literal["ClusterBackup"] = "ClusterBackup"
    format: Literal[1, 2] = 1
    root: str
    instance_id: str | None
    layout: str
    created: str
    maintenance: dict[str, MaintenanceNote] | msgspec.UnsetType = msgspec.UNSET


class ArchivedLog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The node of a log of ledgers, which is not below the root; ``log`` is its name."""

    log: str
    data: bytes


class _FormatLine(msgspec.Struct):
    format: int


class ArchiveNode(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A node; ``path`` is relative to the root, ``version`` and ``ctime_ms`` are those it had in the cluster."""

    path: str
    version: int
    ctime_ms: int
    data: bytes


class ArchiveEnd(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Last line."""

    kind: Literal["ClusterBackupEnd"] = "ClusterBackupEnd"
    nodes: int
    ledgers: int
    sha256: str


class ArchiveWriter:
    """Writes an archive to a temporary file and renames it when complete; never overwrites a file.

    Use it as ``with``; without ``finish`` the file is deleted. OSError; ConflictError when the name is taken.
    """

    def __init__(self, fs: FileSystem, path: str, header: ArchiveHeader) -> None:
        require_absent(fs, path)
        self._fs = fs
        self._path = path
        self._file = fs.create_temporary(path)
        self._written_bytes = 0
        self._compressor = zlib.compressobj(_COMPRESSION_LEVEL, zlib.DEFLATED, _GZIP_WINDOW_BITS)
        self._pending = bytearray()
        self._hash = hashlib.sha256()
        self._nodes_count = 0
        self._put(header)

    def add(self, node: ArchiveNode) -> None:
        """Append a node; its path must be greater than those before."""
        self._put(node)
        self._nodes_count += 1

    def add_log(self, log: ArchivedLog) -> None:
        """Append a log, before all nodes; the header must have ``FORMAT_WITH_LOGS``."""
        self._put(log)

    def finish(self, ledgers_count: int) -> ArchiveEnd:
        """Write the last line and make the file durable under its name."""
        end = ArchiveEnd(nodes=self._nodes_count, ledgers=ledgers_count, sha256=self._hash.hexdigest())
        self._put(end)
        self._pending += self._compressor.flush()
        self._write_pending()
        self._file.sync()
        put_in_place(self._fs, self._file.path, self._path)
        self._fs.sync_directory(os.path.dirname(self._path))
        return end

    def _put(self, line: msgspec.Struct) -> None:
        data = msgspec.json.encode(line) + b"\n"
        self._hash.update(data)
        self._pending += self._compressor.compress(data)
        if len(self._pending) >= _WRITE_BYTES:
            self._write_pending()

    def _write_pending(self) -> None:
        self._file.pwrite(self._pending, self._written_bytes)
        self._written_bytes += len(self._pending)
        self._pending.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self._fs.remove(self._file.path)


class ArchiveReader:
    """Reads an archive and checks every line, the order, the counts and the hash.

    Use it as ``with``. MetadataFormatError for a damaged archive; OSError.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.path = path
        self.end: ArchiveEnd | None = None
        """The last line, available after ``nodes`` has ended."""
        self._file = fs.open(path)
        try:
            self.header = self._rewind()
        except BaseException:
            self._file.close()
            raise

    def logs(self) -> Iterator[ArchivedLog]:
        """Every log of ledgers from the beginning."""
        self._rewind()
        while self._is_log(line := self._read_line()):
            yield self._decode_log(line)

    def nodes(self) -> Iterator[ArchiveNode]:
        """Every node from the beginning; the archive is complete and undamaged only if this ends without an error."""
        self._rewind()
        nodes_count = 0
        previous: list[str] = []
        while True:
            before = self._hash.hexdigest()
            line = self._read_line()
            if line.startswith(b'{"kind"'):
                break
            if not previous and self._is_log(line):
                self._decode_log(line)
                continue
            node = self._decode(line, ArchiveNode)
            self._check_order(previous, node.path)
            previous = _parts(node.path)
            nodes_count += 1
            yield node
        end = self._decode(line, ArchiveEnd)
        if not previous:
            raise self._damaged("it is empty")
        if end.sha256 != before or end.nodes != nodes_count:
            raise self._damaged("its hash or its count does not match")
        if self._read_line(is_end_expected=True):
            raise self._damaged("there is data after its end")
        self.end = end

    def _rewind(self) -> ArchiveHeader:
        self._gzip = gzip.GzipFile(fileobj=io.BufferedReader(ByteStream(self._file), _READ_BYTES), mode="rb")
        self._hash = hashlib.sha256()
        line = self._read_line()
        version = self._decode(line, _FormatLine).format
        if version > FORMAT_WITH_LOGS:
            raise MetadataFormatError(
                f"backup {self.path} has format {version}, and this bkctl knows {FORMAT_WITH_LOGS}: use a newer one"
            )
        return self._decode(line, ArchiveHeader)

    def _is_log(self, line: bytes) -> bool:
        return self.header.format == FORMAT_WITH_LOGS and line.startswith(b'{"log"')

    def _decode_log(self, line: bytes) -> ArchivedLog:
        log = self._decode(line, ArchivedLog)
        try:
            check_path(f"/r/{log.log}")
        except MetadataError as error:
            raise self._damaged(str(error)) from error
        if "/" in log.log:
            raise self._damaged(f"{log.log!r} is not a name of a log")
        return log

    def _read_line(self, *, is_end_expected: bool = False) -> bytes:
        try:
            line = self._gzip.readline(_LINE_BYTES_MAX)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise self._damaged(str(error)) from error
        if not line.endswith(b"\n") and not (is_end_expected and not line):
            raise self._damaged("it is truncated")
        self._hash.update(line)
        return line

    def _decode(self, line: bytes, struct: type[LineT]) -> LineT:
        try:
            return decode_json(line, struct)
        except JsonTextError as error:
            raise self._damaged(str(error)) from error

    def _check_order(self, previous: list[str], path: str) -> None:
        try:
            check_path(f"/r/{path}" if path else "/r")
        except MetadataError as error:
            raise self._damaged(str(error)) from error
        parts = _parts(path)
        if previous and not (parts > previous and parts[:-1] == previous[: len(parts) - 1]):
            raise self._damaged(f"node {path!r} is out of order or without its parent")
        if not previous and path:
            raise self._damaged("it does not begin with the root")

    def _damaged(self, reason: str) -> MetadataFormatError:
        return MetadataFormatError(f"backup {self.path} is damaged: {reason}")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _parts(path: str) -> list[str]:
    """Components after a first one for the root, so that the root is the parent of all."""
    return ["", *path.split("/")] if path else [""]


class ByteStream(io.RawIOBase):
    """A file from beginning to end. Does not close it."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._offset = 0

    def readable(self) -> bool:
        """See ``io.RawIOBase``."""
        return True

    def readinto(self, buffer: Buffer) -> int:  # type: ignore[override]
        """See ``io.RawIOBase``."""
        data = self._file.pread(len(buffer), self._offset)
        memoryview(buffer)[: len(data)] = data
        self._offset += len(data)
        return len(data)
