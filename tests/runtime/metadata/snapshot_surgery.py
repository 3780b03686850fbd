"""Changes what a stopped ZooKeeper server has on disk, to reach states that would take years of creations.

A snapshot is a sequence of records; behind each part of it stands a seal: Adler-32 of all bytes before, then "/".
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

_SEAL_END = b"\x00\x00\x00\x01/"


def set_children_created_count(data_directory: Path, path: str, count: int) -> None:
    """Let the node at ``path`` have had so many children. The server is stopped, and was started since it exists."""
    folder = data_directory / "data" / "version-2"
    snapshot = max(folder.glob("snapshot.*"), key=lambda file: int(file.suffix[1:], 16))
    content = bytearray(snapshot.read_bytes())
    seals = _find_seals(content)
    assert seals, "the form of the snapshot is another one"
    name = struct.pack(">i", len(path)) + path.encode()
    assert content.count(name) == 1
    data_at = content.index(name) + len(name)
    data_length = max(0, struct.unpack_from(">i", content, data_at)[0])
    # Behind the data: ACL number, four 64-bit numbers of the stat, data version, and then this.
    struct.pack_into(">i", content, data_at + 4 + data_length + 8 + 4 * 8 + 4, count)
    for seal in seals:
        struct.pack_into(">q", content, seal, zlib.adler32(content[:seal]))
    snapshot.write_bytes(content)
    for log in folder.glob("log.*"):  # they would be played over it
        log.unlink()


def _find_seals(content: bytearray) -> list[int]:
    seals = []
    at = content.find(_SEAL_END)
    while at >= 0:
        if at >= 8 and struct.unpack_from(">q", content, at - 8)[0] == zlib.adler32(content[: at - 8]):
            seals.append(at - 8)
        at = content.find(_SEAL_END, at + 1)
    return seals
