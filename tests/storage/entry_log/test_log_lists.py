"""The record of logs that Interleaved storage has mixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.entry_log.log_lists import read_mixed_logs, write_mixed_logs
from bkctl.storage.errors import CorruptFileError

FS = OsFileSystem()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_mixed_logs(FS, str(tmp_path)) == -1
    write_mixed_logs(FS, str(tmp_path), 0x1F)
    assert read_mixed_logs(FS, str(tmp_path)) == 0x1F


def test_a_damaged_record_is_no_record(tmp_path: Path) -> None:
    write_mixed_logs(FS, str(tmp_path), 0x1F)
    path = tmp_path / "bkctl.mixed-logs"
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(CorruptFileError, match="not a record"):
            read_mixed_logs(FS, str(tmp_path))
