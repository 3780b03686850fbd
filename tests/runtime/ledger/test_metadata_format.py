from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType, LedgerState, Segment
from bkctl.runtime.ledger.metadata_format import decode_ledger_metadata, encode_ledger_metadata
from tests.runtime.golden_metadata import java_nodes, java_vectors

VECTORS = {name: data for name, data in java_vectors().items() if data.startswith(b"BookieMetadataFormatVersion")}
NODES = [(path, data) for path, data in java_nodes("/L") if data.startswith(b"BookieMetadataFormatVersion")]


@pytest.mark.parametrize("name", VECTORS)
def test_bytes_of_java_survive_a_round_trip(name: str) -> None:
    assert encode_ledger_metadata(decode_ledger_metadata(VECTORS[name])) == VECTORS[name]


def test_nodes_of_java_survive_a_round_trip() -> None:
    assert len(NODES) > 40
    for path, data in NODES:
        assert encode_ledger_metadata(decode_ledger_metadata(data)) == data, path


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_state_is_understood(version: int) -> None:
    states = {name: decode_ledger_metadata(VECTORS[f"{name} v{version}"]).state for name in ("open", "inrec", "closed")}
    assert states == {"open": LedgerState.OPEN, "inrec": LedgerState.IN_RECOVERY, "closed": LedgerState.CLOSED}


@pytest.mark.parametrize("version", [2, 3])
def test_all_fields(version: int) -> None:
    metadata = decode_ledger_metadata(VECTORS[f"closed v{version}"])
    assert (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size) == (3, 2, 2)
    assert metadata.segments == (
        Segment(0, ("10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181")),
        Segment(100, ("10.0.0.1:3181", "10.0.0.4:3181", "10.0.0.3:3181")),
    )
    assert (metadata.last_entry_id, metadata.length) == (149, 7000)
    assert (metadata.digest_type, metadata.password) == (DigestType.CRC32C, b"secret")
    assert metadata.ctime_ms == 1700000000123
    assert metadata.custom_metadata == (("application", b"pulsar"), ("bin", b"\x00\t\xff\"'\\\x07\x0b"))
    assert metadata.creator_token == (1234567890123456789 if version == 3 else 0)
    assert metadata.format_version == version


def test_an_old_ledger_has_neither_password_nor_digest() -> None:
    metadata = decode_ledger_metadata(VECTORS["closed v1"])
    assert (metadata.password, metadata.digest_type, metadata.ack_quorum_size) == (None, None, 2)
    assert decode_ledger_metadata(VECTORS["closed v1"].replace(b"\n", b"\r\n").replace(b"1\r\n", b"1\n", 1)) == metadata


@pytest.mark.parametrize(
    "extra",
    [
        {"password": b"secret", "digest_type": DigestType.CRC32C},
        {"password": b"", "digest_type": DigestType.CRC32C},
        {"ctime_ms": 5},
        {"custom_metadata": (("k", b"v"),)},
        {"ack_quorum_size": 1},
    ],
)
def test_version_1_cannot_hold_everything(extra: dict[str, object]) -> None:
    """Java drops the digest type in silence, and every repair of the ledger then fails (metadata section 6.3)."""
    ledger = decode_ledger_metadata(VECTORS["open v1"])
    assert encode_ledger_metadata(ledger) == VECTORS["open v1"]
    with pytest.raises(ValueError, match="version 1"):
        encode_ledger_metadata(msgspec.structs.replace(ledger, **extra))


def test_version_2_never_has_a_creator_token() -> None:
    data = VECTORS["open v2"] + b"cToken: 7\n"
    assert decode_ledger_metadata(data) == decode_ledger_metadata(VECTORS["open v2"])


def test_what_follows_the_end_of_version_1_is_ignored() -> None:
    data = VECTORS["closed v1"] + b"\nmore\n"
    assert decode_ledger_metadata(data) == decode_ledger_metadata(VECTORS["closed v1"])


def test_unsound_metadata_is_never_written() -> None:
    ledger = new_ledger(("a",), 1, 1, DigestType.CRC32C, b"")
    with pytest.raises(ValueError, match="starts at entry 3"):
        encode_ledger_metadata(msgspec.structs.replace(ledger, segments=(Segment(3, ("a",)),)))


def test_the_end_of_an_unclosed_ledger_means_nothing() -> None:
    ledger = msgspec.structs.replace(new_ledger(("a",), 1, 1, DigestType.CRC32C, b""), last_entry_id=7, length=9)
    decoded = decode_ledger_metadata(encode_ledger_metadata(ledger))
    assert (decoded.last_entry_id, decoded.length) == (-1, 0)


def test_bytes_behind_the_message_are_ignored() -> None:
    assert decode_ledger_metadata(VECTORS["open v3"] + b"\xff\xff") == decode_ledger_metadata(VECTORS["open v3"])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "header line is missing"),
        (b"BookieMetadataFormatVersion\t", "has no version"),
        (b"BookieMetadataFormatVersion\tx\n", "has no version"),
        (b"BookieMetadataFormatVersion\t0000000003\n", "has no version"),
        (b"BookieMetadataFormatVersion\t4\n", "written by a newer release: format version 4"),
        (b"BookieMetadataFormatVersion\t3\n", "length is damaged"),
        (VECTORS["open v3"][:-1], "bytes instead of"),
        (b"BookieMetadataFormatVersion\t3\n\x02\x0a\x05", "message is damaged"),
        (b"BookieMetadataFormatVersion\t3\n\x00", "quorumSize is missing"),
        (b"BookieMetadataFormatVersion\t2\n\xff", "not UTF-8"),
        (b"BookieMetadataFormatVersion\t1\n2\n3\n", "line of version 1 is damaged"),
        (VECTORS["closed v1"].replace(b"7000", b"7_000"), "line of version 1 is damaged"),
        (VECTORS["closed v1"].replace(b"7000", b" 7000"), "line of version 1 is damaged"),
        (VECTORS["closed v1"].replace(b"7000", str(2**63).encode()), "line of version 1 is damaged"),
        (VECTORS["closed v1"].replace(b"\t10.0.0.3:3181", b"", 1), "has 2 bookies, not 3"),
        (VECTORS["closed v2"].replace(b"firstEntryId: 100", b"firstEntryId: 0"), "do not ascend"),
        (VECTORS["closed v2"].replace(b"ackQuorumSize: 2", b"ackQuorumSize: 3"), "quorum sizes"),
        (VECTORS["closed v2"].replace(b"state: CLOSED", b"state: closed"), "not the text"),
        (VECTORS["closed v2"].replace(b"state: CLOSED\n", b""), "state is missing"),
        (b"BookieMetadataFormatVersion\t2\ngarbage\n", "not the text"),
        (b"BookieMetadataFormatVersion\t2\n", "quorumSize is missing"),
        (VECTORS["closed v2"].replace(b"lastEntryId: 149\n", b""), "lastEntryId is missing"),
        (VECTORS["closed v2"].replace(b"firstEntryId: 0", b"firstEntryId: 1"), "starts at entry 1"),
        (VECTORS["closed v2"].replace(b"digestType: CRC32C\n", b""), "no digest type"),
        (VECTORS["closed v2"].replace(b"10.0.0.2:3181", b"readonly"), "is not a bookie id"),
    ],
)
def test_damage_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(MetadataFormatError, match=reason):
        decode_ledger_metadata(data)


@given(st.sampled_from(sorted(VECTORS)), st.data())
def test_any_change_of_a_byte_gives_metadata_or_a_format_error(name: str, data: st.DataObject) -> None:
    changed = bytearray(VECTORS[name])
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_ledger_metadata(bytes(changed))
    except MetadataFormatError:
        return
    assert decode_ledger_metadata(encode_ledger_metadata(decoded)) == decoded


@given(
    st.sampled_from([2, 3]),
    st.sampled_from(DigestType),
    st.binary(max_size=20),
    st.one_of(st.none(), st.integers(-1, 2**62)),
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.binary(max_size=9), max_size=3),
    st.integers(-1, 2**62),
)
def test_what_is_written_is_read(
    version: int, digest_type: DigestType, password: bytes, ctime_ms: int | None, custom: dict[str, bytes], end: int
) -> None:
    ledger = new_ledger(
        ("a", "b"), 2, 1, digest_type, password, custom_metadata=tuple(custom.items()), ctime_ms=ctime_ms
    )
    closed = msgspec.structs.replace(to_closed(ledger, end, end + 1), format_version=version)
    assert decode_ledger_metadata(encode_ledger_metadata(closed)) == closed
