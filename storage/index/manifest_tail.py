"""The last change that a LevelDB manifest tells of, and the manifest without it.

LevelDB writes a change of its tables to the manifest first and syncs the folder of the new tables then, just before it
syncs the manifest. Where file contents can reach the disk before names do, a power failure between the two leaves a
manifest that names tables which are not there. The tables that the change replaces are deleted only after the sync, so
the manifest without that last change describes a whole database; that it lacks nothing is for the seal to say.

A manifest is a log of records in blocks of 32 KiB: u32 masked CRC, u16 length (little-endian), u8 type (1 whole, 2
first, 3 middle, 4 last part), data; less than seven bytes at a block's end are zeros. Source: LevelDB, doc/log_format.
"""

from __future__ import annotations

import os
import re
import struct
from typing import Final

from storage.ports import FileSystem

_NAME: Final = re.compile(r"MANIFEST-[0-9]+")
_BLOCK_BYTES: Final = 32 * 1024
_HEADER = struct.Struct("<IHB")
_BEGINS: Final = frozenset({1, 2})
_PARTS: Final = range(1, 5)


def drop_last_change(filesystem: FileSystem, path: str) -> bool:
    """Take the last change out of the manifest of the database folder ``path``, durably; False, nothing done: no such.

    The old manifest stays as it is under any other name that it has. OSError.
    """
    try:
        name = filesystem.read_file(os.path.join(path, "CURRENT")).decode("ascii", "replace").strip()
        if _NAME.fullmatch(name) is None:
            return False
        manifest = os.path.join(path, name)
        data = filesystem.read_file(manifest)
    except FileNotFoundError:
        return False
    end = last_record_start(data)
    if end <= 0:
        return False
    filesystem.write_file_atomically(manifest, data[:end])
    return True


def last_record_start(data: bytes) -> int:
    """Where the last record begins that is whole in ``data``; 0 if that is the first one, or there is none."""
    offset = start = last = 0
    while offset + _HEADER.size <= len(data):
        left_bytes = _BLOCK_BYTES - offset % _BLOCK_BYTES
        if left_bytes < _HEADER.size:
            offset += left_bytes
            continue
        _, length, kind = _HEADER.unpack_from(data, offset)
        if kind not in _PARTS or offset + _HEADER.size + length > len(data):
            break
        if kind in _BEGINS:
            start = offset
        if kind not in {2, 3}:
            last = start
        offset += _HEADER.size + length
    return last
