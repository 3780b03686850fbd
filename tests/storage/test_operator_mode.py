"""The file bkctl.mode: its bytes, damage, and several copies."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.errors import CorruptFileError
from bkctl.storage.filenames import OPERATOR_MODE
from bkctl.storage.operator_mode import (
    OperatorMode,
    decode_operator_mode,
    encode_operator_mode,
    read_operator_mode,
    write_operator_mode,
)

MODE = OperatorMode(is_read_only=True, since_ms=5, written_ms=7, reason='a "disk"\nis replaced ü')
BYTES = (
    b'bkctl mode 1\nmode read-only\nsince 5\nwritten 7\nreason "a \\"disk\\"\\nis replaced \\u00fc"\ncrc32 400a4243\n'
)
TIMES = st.integers(0, 2**63 - 1)


def test_golden_bytes() -> None:
    assert encode_operator_mode(MODE) == BYTES
    assert decode_operator_mode(BYTES) == MODE


@given(st.builds(OperatorMode, is_read_only=st.booleans(), since_ms=TIMES, written_ms=TIMES, reason=st.text()))
def test_what_was_written_is_read(mode: OperatorMode) -> None:
    assert decode_operator_mode(encode_operator_mode(mode)) == mode


def test_no_damaged_byte_and_no_cut_file_is_accepted() -> None:
    for position in range(len(BYTES)):
        damaged = bytearray(BYTES)
        damaged[position] ^= 1
        assert decode_operator_mode(bytes(damaged)) is None
        assert decode_operator_mode(BYTES[:position]) is None


def test_the_newest_copy_counts(tmp_path: Path) -> None:
    fs, directories = OsFileSystem(), [str(tmp_path / name) for name in ("a", "b", "c")]
    for directory in directories:
        Path(directory).mkdir()
    assert read_operator_mode(fs, directories) is None
    newer = OperatorMode(is_read_only=False, since_ms=9, written_ms=9)
    assert write_operator_mode(fs, directories, MODE) == []
    assert write_operator_mode(fs, [*directories[:1], str(tmp_path / "missing")], newer) != []
    assert read_operator_mode(fs, directories) == newer
    (tmp_path / "a" / OPERATOR_MODE).write_bytes(b"x")
    assert read_operator_mode(fs, directories) == MODE, "a damaged copy is overruled by a whole one"
    for directory in directories:
        Path(directory, OPERATOR_MODE).write_bytes(b"x")
    with pytest.raises(CorruptFileError, match="delete it"):
        read_operator_mode(fs, directories)
