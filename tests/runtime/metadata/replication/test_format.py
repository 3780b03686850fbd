from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.format import (
    UnderReplicationMark,
    check_layout,
    decode_check_time,
    decode_lock,
    decode_mark,
    decode_vote,
    encode_check_time,
    encode_layout,
    encode_lock,
    encode_mark,
    encode_vote,
    parse_mark_name,
    parse_vote_name,
)
from bkctl.runtime.metadata.replication.switches import PeriodicCheck
from tests.runtime.golden_metadata import java_vectors

_GOLDEN = Path(__file__).parents[3] / "golden" / "metadata" / "under_replication.json"
_CHECKS = {check.value for check in PeriodicCheck}


def golden_nodes() -> list[tuple[str, str, bytes]]:
    """Stage, path below the root and data of every under-replication node that Java was seen to write."""
    stages = json.loads(_GOLDEN.read_text())["stages"]
    return [
        (stage, node["path"], bytes.fromhex(node.get("data", ""))) for stage, nodes in stages.items() for node in nodes
    ]


def encoded_again(path: str, data: bytes) -> bytes:
    """What we write for what we read there."""
    name = path.rpartition("/")[2]
    if name == "LAYOUT":
        check_layout(data)
        return encode_layout()
    if path.startswith("/underreplication/locks/"):
        return encode_lock(decode_lock(data))
    if name.startswith("urL"):
        return encode_mark(decode_mark(data))
    if name == "auditorelection" or name.startswith("V_"):
        return encode_vote(decode_vote(data))
    if name in _CHECKS:
        time_ms = decode_check_time(data)
        assert time_ms is not None
        return encode_check_time(time_ms)
    if name == "lostBookieRecoveryDelay":
        return str(int(data)).encode()
    return b""  # directories and switches


@pytest.mark.parametrize(("stage", "path", "data"), golden_nodes())
def test_what_java_wrote_is_read_and_written_alike(stage: str, path: str, data: bytes) -> None:
    assert encoded_again(path, data) == data


def test_the_golden_tree_has_every_kind_of_node() -> None:
    kinds = {"locks/urL", "ledgers/7fff", "V_", "lostBookieRecoveryDelay", "disable", "LAYOUT", "replicascheckctime"}
    paths = [path for _, path, _ in golden_nodes()]
    assert len(paths) == 95
    assert all(any(kind in path for path in paths) for kind in kinds)
    marks = [decode_mark(data) for _, path, data in golden_nodes() if "/ledgers/" in path and "urL" in path]
    assert {(len(mark.missing_bookies), mark.ctime_ms is None) for mark in marks} == {
        (0, False), (1, False), (1, True), (2, False),
    }  # fmt: skip


def test_the_paths_are_those_of_java() -> None:
    paths = Paths("")
    marks = [path for _, path, _ in golden_nodes() if "/ledgers/" in path and "/urL" in path]
    ids = [parse_mark_name(path.rpartition("/")[2]) for path in marks]
    assert max(number for number in ids if number is not None) == 2**63 - 1
    assert [paths.mark(number) for number in ids if number is not None] == marks
    assert paths.mark(123456789) == "/underreplication/ledgers/0000/0000/075b/cd15/urL0123456789"
    assert paths.mark(2147483648) == "/underreplication/ledgers/0000/0000/8000/0000/urL2147483648"


def test_the_vectors_of_java() -> None:
    vectors = java_vectors()
    mark = UnderReplicationMark(("10.0.0.1:3181", "10.0.0.2:3181"), 1700000000123)
    assert encode_mark(mark) == vectors["ur"]
    assert decode_mark(vectors["ur"]) == mark
    assert encode_mark(UnderReplicationMark((), 1700000000123)) == vectors["ur empty"]
    assert encode_lock("myhost.example.com") == vectors["lock"]
    assert encode_vote("10.0.0.1:3181") == vectors["vote"]
    assert encode_layout() == vectors["layout"]
    for name in ("checkall", "placement", "replicas"):
        assert encode_check_time(1700000000123) == vectors[name]


@pytest.mark.parametrize(
    ("data", "mark"),
    [
        (b"", UnderReplicationMark(())),
        (b'replica:"a"ctime:5', UnderReplicationMark(("a",), 5)),
        (b"ctime: 5, replica: [\"a\", 'b'];  # two\r\n", UnderReplicationMark(("a", "b"), 5)),
        (b'replica: "a\\\\b"\n', UnderReplicationMark(("a\\b",))),
        (b'replica: "a"\nunknown { of: "4.19" }\n', UnderReplicationMark(("a",))),
        (b"ctime: -1\n", UnderReplicationMark((), -1)),
        (b'replica: "a"\nctime: 9223372036854775807\n', UnderReplicationMark(("a",), 2**63 - 1)),
        (b'replica: "a"\nctime: 0x10\n', UnderReplicationMark(("a",), 16)),
        (b'replica: "a"\nctime: 010\n', UnderReplicationMark(("a",), 8)),
    ],
)
def test_other_spellings_that_java_reads(data: bytes, mark: UnderReplicationMark) -> None:
    assert decode_mark(data) == mark


@pytest.mark.parametrize(
    "data",
    [
        b"garbage",
        b"CTIME: 5\n",
        b"unknown: 1\n",
        b"# only a comment\n",
        b"\n",
        b'replica: "\\377"\n',
        b'replica: "\xff"\n',
        b"replica: a\n",
        b"ctime: 9223372036854775808\n",
        b"ctime: 5.0\n",
        b'replica: "a"\x00',
        b'replica: "a',
        bytes(range(256)),
    ],
)
def test_what_is_not_certainly_a_mark_is_an_error(data: bytes) -> None:
    with pytest.raises(MetadataFormatError):
        decode_mark(data)


def test_locks_votes_and_times_that_cannot_be_read() -> None:
    for data in (b"", b"junk", b'other: "x"\n', b"\xff"):
        with pytest.raises(MetadataFormatError):
            decode_lock(data)
        with pytest.raises(MetadataFormatError):
            decode_vote(data)
    assert decode_check_time(b"") is None
    with pytest.raises(MetadataFormatError):
        decode_check_time(b"\x08")
    with pytest.raises(MetadataFormatError, match="unknown"):
        check_layout(b'type: "BASIC"\nversion: 2\n')


_BOOKIE_IDS = st.text(st.sampled_from("abz09.-:;<=>?@[\\]^_"), min_size=1, max_size=12)
_TIMES = st.none() | st.integers(-(2**63), 2**63 - 1)


@given(st.lists(_BOOKIE_IDS, max_size=4), _TIMES)
def test_a_mark_survives_its_bytes(bookie_ids: list[str], ctime_ms: int | None) -> None:
    mark = UnderReplicationMark(tuple(bookie_ids), ctime_ms)
    assert decode_mark(encode_mark(mark)) == mark


@given(st.binary(max_size=60))
def test_any_bytes_are_a_mark_or_a_format_error(data: bytes) -> None:
    try:
        mark = decode_mark(data)
    except MetadataFormatError:
        return
    assert decode_mark(encode_mark(mark)) == mark


@pytest.mark.parametrize(
    ("name", "ledger_id"),
    [
        ("urL0000000000", 0),
        ("urL4294967296", 2**32),
        ("urL9223372036854775807", 2**63 - 1),
        ("urL9223372036854775808", None),
        ("urL00000000001", None),
        ("urL1", None),
        ("urL-000000001", None),
        ("urL0000000001 ", None),
        ("xurL0000000001", None),
        ("urL" + "\u0660" * 10, None),
    ],
)
def test_names_of_marks(name: str, ledger_id: int | None) -> None:
    assert parse_mark_name(name) == ledger_id


def test_names_of_votes() -> None:
    assert parse_vote_name("V_0000000012") == 12
    assert parse_vote_name("V_2147483647") == 2**31 - 1
    assert parse_vote_name("V_-2147483648") == -(2**31)
    assert [parse_vote_name(name) for name in ("V_", "V_x", "v_1", "guid-V_1", "V_1 ")] == [None] * 5
