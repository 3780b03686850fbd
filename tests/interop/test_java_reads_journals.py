"""The Java shell on journals and marks of every version that bkctl writes, checksums in the padding included."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import JournalConfig
from bkctl.storage.filenames import current_directory, journal_file_name
from bkctl.storage.ids import LogMark
from bkctl.storage.journal.format import encode_explicit_lac_record, encode_fence_record, encode_ledger_key_record
from bkctl.storage.journal.log_mark import write_last_mark
from bkctl.storage.journal.writer import JournalWriter
from tests.interop.java import run_shell, write_server_conf

UNUSED_URI = "zk+hierarchical://127.0.0.1:1/ledgers"
GROUP_COUNT = 60


def entry(entry_id: int) -> bytes:
    """Of many sizes, so that padding begins everywhere in a sector, and spills."""
    return struct.pack(">qqqq", 7, entry_id, entry_id - 1, 0) + b"x" * (17 * entry_id)


@pytest.mark.parametrize("version", [4, 5, 6])
def test_java_reads_every_record(tmp_path: Path, version: int) -> None:
    directory = current_directory(str(tmp_path / "journal"))
    os.makedirs(directory)
    config = JournalConfig(format_version=version, preallocation_bytes=1 << 16)
    writer = JournalWriter.open(OsFileSystem(), directory, config, now_ms=0x19A2B3C4D5D)
    writer.write_group([encode_ledger_key_record(7, b"k" * 20)])
    for number in range(0, 2 * GROUP_COUNT, 2):
        writer.write_group([entry(number), entry(number + 1)])
    writer.write_group([encode_fence_record(7)])
    if version >= 6:
        writer.write_group([encode_explicit_lac_record(7, struct.pack(">qq", 7, 3) + b"digest")])
    writer.close()
    conf_path = str(tmp_path / "conf")
    write_server_conf(conf_path, UNUSED_URI, str(tmp_path))
    scanned = run_shell(conf_path, "readjournal", journal_file_name(0x19A2B3C4D5E))
    assert scanned.returncode == 0, scanned.stderr
    named = dict.fromkeys(map(int, re.findall(r"entryId=(-?\d+)", scanned.stderr)))  # each twice in its line
    assert [entry_id for entry_id in named if entry_id >= 0] == list(range(2 * GROUP_COUNT))


def test_java_reads_our_mark(tmp_path: Path) -> None:
    directory = current_directory(str(tmp_path / "ledgers"))
    os.makedirs(directory)
    assert write_last_mark(OsFileSystem(), [directory], LogMark(0x19A2B3C4D5E, 4096), 0, 1) == []
    os.makedirs(current_directory(str(tmp_path / "journal")))
    conf_path = str(tmp_path / "conf")
    write_server_conf(conf_path, UNUSED_URI, str(tmp_path))
    shown = run_shell(conf_path, "lastmark")
    assert shown.returncode == 0, shown.stderr
    assert re.search(rf"\b{0x19A2B3C4D5E}\b.*\b4096\b", shown.stderr), shown.stderr
