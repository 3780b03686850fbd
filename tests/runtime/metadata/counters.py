"""Counters of sequential nodes, set by hand in a stopped ZooKeeper server's own log: no request can do it.

A transaction log is 16 bytes of header ("ZKLG", version 2, a database id) and records: Adler-32, length, transaction
header, transaction, "B". A create tells what it makes of its parent's count of children ever created.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

_HEADER = struct.pack(">4siq", b"ZKLG", 2, 0)
_CREATE, _DELETE = 1, 2
_EVERYBODY = struct.pack(">ii5si6s", 31, 5, b"world", 6, b"anyone")


def force_counters(data_directory: Path, counters: Mapping[str, int]) -> None:
    """Let the children ever created of each path be so many, as after a sequential child that is gone again.

    The server was started since anything was changed: a start writes a snapshot, whose name is the number of the last
    transaction. Those that follow must leave no gap.
    """
    directory = data_directory / "data" / "version-2"
    last_zxid = max(int(file.suffix[1:], 16) for file in directory.glob("snapshot.*"))
    zxid = last_zxid + 1
    records = []
    for path, count in counters.items():
        child = _text(f"{path}/forced")
        created = child + struct.pack(">i", 0) + struct.pack(">i", 1) + _EVERYBODY + struct.pack(">?i", False, count)
        records += [_record(zxid, _CREATE, created), _record(zxid + 1, _DELETE, child)]
        zxid += 2
    log = directory / f"log.{last_zxid + 1:x}"
    log.write_bytes(_HEADER + b"".join(records))


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">i", len(raw)) + raw


def _record(zxid: int, kind: int, transaction: bytes) -> bytes:
    body = struct.pack(">qiqqi", 0, 0, zxid, 0, kind) + transaction
    return struct.pack(">qi", zlib.adler32(body), len(body)) + body + b"B"
