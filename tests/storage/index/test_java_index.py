"""Index files of Java's Interleaved and Sorted storage, and bytes that are none."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.storage.filenames import idx_path, parse_idx_file_name
from bkctl.storage.index.java_index import HEADER_BYTES, decode_idx_header, decode_locations
from tests.storage.golden import FILES, content, paths


def header(*fields: bytes) -> bytes:
    return (b"BKLE" + b"".join(fields)).ljust(HEADER_BYTES, b"\0")


def word(number: int) -> bytes:
    return struct.pack(">i", number)


@pytest.mark.parametrize("name", paths("index file"))
def test_index_files_of_java(name: str) -> None:
    data, expected = content(name), FILES[name]
    found = decode_idx_header(data)
    assert (found.version, found.master_key.hex(), found.is_fenced) == (
        expected["version"],
        expected["masterKey"],
        bool(expected["state"]),
    )
    assert (found.explicit_lac or b"").hex() == expected.get("explicitLac", "")
    locations = decode_locations(data[HEADER_BYTES:])
    assert {str(each): location for each, location in enumerate(locations) if location} == expected["locations"]


@pytest.mark.parametrize("name", paths("index file"))
def test_names(name: str) -> None:
    below = name.partition("/ledgers/")[2].removesuffix(".gz")
    ledger_id = parse_idx_file_name(below.rpartition("/")[2])
    assert ledger_id is not None
    assert idx_path(ledger_id) == below


@pytest.mark.parametrize("name", ["1.idx.rloc", "01.idx", "A.idx", "x.idx", "-1.idx", ".idx", "7fffffffffffffff.idx"])
def test_names_of_no_index_file(name: str) -> None:
    assert parse_idx_file_name(name) is None


def test_version_0_has_no_explicit_lac() -> None:
    found = decode_idx_header(header(word(0), word(2), b"kk", word(1), word(5)))
    assert (found.master_key, found.is_fenced, found.explicit_lac) == (b"kk", True, None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        header(word(1))[:1000],
        b"BKLG".ljust(HEADER_BYTES, b"\0"),
        header(word(2)),
        header(word(-1)),
        header(word(1), word(-1)),
        header(word(1), word(1020)),
        header(word(1), word(1012), bytes(1012)),
        header(word(1), word(0), word(0), word(-4)),
        header(word(1), word(0), word(0), word(2000)),
        header(word(1), word(0), word(0), word(8), bytes(8)),
    ],
)
def test_what_no_bookie_writes(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode_idx_header(data)


@given(st.binary(max_size=1100))
def test_any_bytes(data: bytes) -> None:
    for candidate in (data, b"BKLE\0\0\0\1" + data):
        try:
            found = decode_idx_header(candidate)
        except ValueError:
            continue
        assert len(found.master_key) <= HEADER_BYTES


def test_a_part_of_a_location_is_none() -> None:
    assert list(decode_locations(struct.pack(">qq", 1028, 0) + b"\0\0\0")) == [1028, 0]
