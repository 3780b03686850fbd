"""Reads a snapshot file in pieces, so that many readers share one and none holds it in memory.

``survey`` passes over the whole file once. It checks the seals, keeps the nodes that the caller asks for, and returns
where the pieces are. ``nodes`` then reads one piece. A damaged or incomplete file never yields a survey, so no reader
mistakes a part for the whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Self

import msgspec

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.snapshot.format import (
    END_OF_NODES,
    SEAL_BYTES,
    FileNode,
    SnapshotDamageError,
    changed_ms,
    decode_node,
    find_first_node,
    is_seal,
    scan_nodes,
)
from bkctl.storage.ports import FileSystem

PIECE_BYTES = 16 * 1024 * 1024
"""About 60,000 ledgers: enough to keep a reader busy for some seconds."""

_READ_BYTES = 4 * 1024 * 1024
_HEADER_BYTES_MAX = 256 * 1024 * 1024
_REST_BYTES_MAX = 64 * 1024
"""Longest part after the nodes' seal that is accepted; it has about 50 bytes."""
_TRUNCATED = "it is truncated"


class NodePiece(msgspec.Struct, frozen=True):
    """Offsets of whole nodes of a file, ``end`` excluded."""

    start: int
    end: int
    nodes: int


class SnapshotSurvey(msgspec.Struct, frozen=True):
    """``pieces`` together contain every node of the file once. ``kept``: the nodes that the caller asked for.

    ``newest_ms``: when a node was last changed; the file was written then or later.
    """

    pieces: tuple[NodePiece, ...]
    kept: tuple[FileNode, ...]
    newest_ms: int = 0

    @property
    def nodes(self) -> int:
        """Nodes in the file."""
        return sum(piece.nodes for piece in self.pieces)


class SnapshotFile:
    """An open snapshot file. Use it as ``with``. OSError; MetadataFormatError names the file and the offset.

    ``shown``: the name for errors, if it is an unpacked copy.
    """

    def __init__(self, fs: FileSystem, path: str, *, shown: str | None = None) -> None:
        self.path = shown or path
        self._file = fs.open(path)

    def survey(self, keep: Callable[[bytes], bool], *, piece_bytes: int = PIECE_BYTES) -> SnapshotSurvey:
        """Pass over the whole file; ``keep`` gets the path of each node. Pieces have at least ``piece_bytes``."""
        pieces: list[NodePiece] = []
        kept: list[FileNode] = []
        buffer, at = self._header()
        base, checksum, piece_start, piece_nodes, newest_ms = 0, 1, at, 0, 0
        while True:
            end = at
            try:
                for path, start, end in scan_nodes(buffer, at):
                    if path == END_OF_NODES:
                        break
                    piece_nodes += 1
                    newest_ms = max(newest_ms, changed_ms(buffer, end))
                    if keep(path):
                        kept.append(decode_node(buffer, path, start, end))
                else:
                    path = b""
            except SnapshotDamageError as damage:
                raise self._damaged(base + damage.offset, str(damage)) from None
            checksum = zlib.adler32(memoryview(buffer)[:end], checksum)
            is_last = path == END_OF_NODES
            nodes_end = base + (start if is_last else end)
            if piece_nodes and (is_last or nodes_end - piece_start >= piece_bytes):
                pieces.append(NodePiece(piece_start, nodes_end, piece_nodes))
                piece_start, piece_nodes = nodes_end, 0
            base += end
            if is_last:
                self._check_seals(base, checksum)
                return SnapshotSurvey(tuple(pieces), tuple(kept), newest_ms)
            buffer, at = self._next(buffer, end, base), 0

    def nodes(self, piece: NodePiece) -> Iterator[FileNode]:
        """Every node of a piece."""
        base = piece.start
        buffer = self._read(base, piece.end)
        while base < piece.end:
            end = 0
            try:
                for path, start, end in scan_nodes(buffer, 0):
                    yield decode_node(buffer, path, start, end)
            except SnapshotDamageError as damage:
                raise self._damaged(base + damage.offset, str(damage)) from None
            base += end
            if base < piece.end:
                buffer = self._next(buffer, end, base, piece.end)

    def _header(self) -> tuple[bytes, int]:
        """The beginning of the file, and the offset of the first node."""
        size = _READ_BYTES
        while True:
            buffer = self._file.pread(size, 0)
            try:
                first = find_first_node(buffer)
            except SnapshotDamageError as damage:
                raise self._damaged(damage.offset, str(damage)) from None
            if first is not None:
                return buffer, first
            if len(buffer) < size or size >= _HEADER_BYTES_MAX:
                raise self._damaged(len(buffer), _TRUNCATED)
            size *= 4

    def _next(self, buffer: bytes, used: int, base: int, limit: int | None = None) -> bytes:
        """The bytes from ``base`` on: what is left of the buffer, and more of the file."""
        left = buffer[used:]
        # A node longer than the buffer: read more each time.
        more = self._read(base + len(left), limit, max(_READ_BYTES, len(left)))
        if not more:
            raise self._damaged(base + len(left), _TRUNCATED)
        return left + more

    def _read(self, offset: int, limit: int | None, size: int = _READ_BYTES) -> bytes:
        return self._file.pread(size if limit is None else min(size, limit - offset), offset)

    def _check_seals(self, offset: int, checksum: int) -> None:
        """The nodes' seal, and the one at the end of the file if more follows."""
        rest = self._file.pread(_REST_BYTES_MAX + 1, offset)
        if len(rest) < SEAL_BYTES:
            raise self._damaged(offset + len(rest), _TRUNCATED)
        if len(rest) > _REST_BYTES_MAX:
            raise self._damaged(offset + SEAL_BYTES, "there is data after its end")
        for begin in {0, len(rest) - SEAL_BYTES}:
            if not is_seal(rest[begin : begin + SEAL_BYTES], zlib.adler32(rest[:begin], checksum)):
                raise self._damaged(offset + begin, "its checksum does not match")

    def _damaged(self, offset: int, reason: str) -> MetadataFormatError:
        return MetadataFormatError(f"snapshot {self.path} is damaged at byte {offset}: {reason}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
