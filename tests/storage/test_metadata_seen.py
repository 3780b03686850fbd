"""The file bkctl.metadata: its bytes, damage, and several copies."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.errors import CorruptFileError
from bkctl.storage.filenames import METADATA_SEEN
from bkctl.storage.metadata_seen import (
    MetadataSeen,
    decode_metadata_seen,
    encode_metadata_seen,
    newest,
    read_copies,
    write_metadata_seen,
)

SEEN = MetadataSeen(bookie_id="b1:3181", zxid=2**32 + 5, step=3, chosen=-1, suspect=7, written=4)
BYTES = b"bkctl metadata 1\nbookie b1:3181\nzxid 4294967301\nstep 3\nchosen -1\nsuspect 7\nwritten 4\ncrc32 92354a50\n"
NUMBERS = st.integers(-1, 2**63 - 1)


def test_golden_bytes() -> None:
    assert encode_metadata_seen(SEEN) == BYTES
    assert decode_metadata_seen(BYTES) == SEEN


@given(
    st.builds(
        MetadataSeen,
        bookie_id=st.from_regex(r"[A-Za-z0-9.:_-]+", fullmatch=True),
        **dict.fromkeys(("zxid", "step", "chosen", "suspect", "written"), NUMBERS),
    )
)
def test_what_was_written_is_read(seen: MetadataSeen) -> None:
    assert decode_metadata_seen(encode_metadata_seen(seen)) == seen


def test_no_damaged_byte_and_no_cut_file_is_accepted() -> None:
    for position in range(len(BYTES)):
        damaged = bytearray(BYTES)
        damaged[position] ^= 1
        assert decode_metadata_seen(bytes(damaged)) is None
        assert decode_metadata_seen(BYTES[:position]) is None


def test_the_newest_copy_counts(tmp_path: Path) -> None:
    fs, directories = OsFileSystem(), [str(tmp_path / name) for name in ("a", "b", "c")]
    for directory in directories:
        Path(directory).mkdir()
    assert newest(read_copies(fs, directories)) is None
    newer = MetadataSeen(bookie_id="b1:3181", written=5)
    assert write_metadata_seen(fs, directories, SEEN) == []
    assert write_metadata_seen(fs, [*directories[:1], str(tmp_path / "missing")], newer) != []
    assert newest(read_copies(fs, directories)) == newer
    (tmp_path / "a" / METADATA_SEEN).write_bytes(b"x")
    assert newest(read_copies(fs, directories)) == SEEN, "a damaged copy is overruled by a whole one"
    for directory in directories:
        Path(directory, METADATA_SEEN).unlink()
        Path(directory, METADATA_SEEN).mkdir()
    with pytest.raises(OSError, match="directory"):
        newest(read_copies(fs, directories))
    Path(directories[2], METADATA_SEEN).rmdir()
    Path(directories[2], METADATA_SEEN).write_bytes(b"x")
    with pytest.raises(CorruptFileError, match="confirm"):
        newest(read_copies(fs, directories))
