from __future__ import annotations

import contextlib
import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bkctl.runtime.errors import MetadataFormatError, RefusedError
from bkctl.runtime.ledger.changes import new_ledger, replace_bookies, to_closed
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger, describe_stored
from bkctl.runtime.metadata.ledgers.transfer import (
    EXPORT_KIND,
    FieldChange,
    TransferFile,
    export_line,
    field_changes,
    find_import_obstacle,
    parse_transfer,
)
from bkctl.runtime.metadata.store import Node, NodeStat

OPEN = new_ledger(("b1", "b2"), 2, 2, DigestType.CRC32C, b"secret", custom_metadata=(("b", b"\xff"), ("a", b"1")))
CLOSED = to_closed(replace_bookies(OPEN, 5, {0: "b3"}), 9, 100)


def stored(ledger_id: int, data: bytes, version: int = 3) -> StoredLedger:
    return describe_stored(ledger_id, f"/ledgers/{ledger_id}", Node(data, NodeStat(version, 7, 7, 0, 0)))


def line(ledger: StoredLedger) -> bytes:
    fields = {"apiVersion": "bkctl/v1", "kind": EXPORT_KIND, **export_line(ledger, "/ledgers", "i")}
    return msgspec.json.encode(fields) + b"\n"


def parse(data: bytes, ledger_id: int | None = None) -> TransferFile:
    return parse_transfer(data, root="/ledgers", tree=LedgerTree.HIERARCHICAL, instance_id="i", ledger_id=ledger_id)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_there_and_back(version: int) -> None:
    plain = msgspec.structs.replace(
        CLOSED, format_version=version, password=None, digest_type=None, custom_metadata=(), ack_quorum_size=2
    )
    metadata = plain if version == 1 else msgspec.structs.replace(CLOSED, format_version=version)
    data = encode_ledger_metadata(metadata)
    found = parse(line(stored(5, data)) + line(stored(2**62, data, version=0)))
    assert [(each.ledger_id, each.data, each.recorded_version) for each in found.ledgers] == [
        (5, data, 3),
        (2**62, data, 0),
    ]
    assert found.ledgers[0].metadata == metadata
    assert (found.damaged, found.is_torn) == ((), False)
    [native] = parse(data, 5).ledgers
    assert (native.ledger_id, native.data, native.recorded_version) == (5, data, None)


def test_the_last_of_two_lines_counts() -> None:
    """A change that was tried again is in the trash twice, and the later line is what it really replaced."""
    twice = line(stored(5, encode_ledger_metadata(OPEN), 3)) + line(stored(5, encode_ledger_metadata(CLOSED), 4))
    [found] = parse(twice).ledgers
    assert (found.metadata, found.recorded_version) == (CLOSED, 4)
    good, bad = line(stored(5, encode_ledger_metadata(OPEN))), line(stored(5, b"garbage"))
    assert parse(good + bad).ledgers == ()
    assert [ledger_id for ledger_id, _ in parse(good + bad).damaged] == [5]
    assert parse(bad + good).damaged == ()


def test_a_cut_is_found_wherever_it_is() -> None:
    first, second = line(stored(1, encode_ledger_metadata(OPEN))), line(stored(2, encode_ledger_metadata(OPEN)))
    for cut in range(1, len(second) - 1):
        found = parse(first + second[:cut])
        assert ([each.ledger_id for each in found.ledgers], found.is_torn) == ([1], True)
    assert len(parse(first + second[:-1]).ledgers) == 2
    with pytest.raises(MetadataFormatError, match="line 1"):
        parse(first[:50] + b"\n" + second)


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
@example(data=b'"\x80"')
@example(data=b"[" * 100_000)
def test_any_bytes_are_ledgers_or_refused(data: bytes) -> None:
    for prefix in (b"", b"BookieMetadataFormatVersion\t3\n"):
        with contextlib.suppress(MetadataFormatError, RefusedError):
            parse(prefix + data, 1)


@given(
    st.dictionaries(
        st.sampled_from(["kind", "root", "instance_id", "ledger_id", "version", "data", "metadata", "path"]),
        st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2) | st.just("/ledgers/x"),
    )
)
def test_any_fields_are_ledgers_or_refused(changes: dict[str, object]) -> None:
    fields = json.loads(line(stored(5, encode_ledger_metadata(OPEN)))) | changes
    try:
        found = parse(json.dumps(fields).encode() + b"\n")
    except (MetadataFormatError, RefusedError):
        return
    assert all(0 <= each.ledger_id < 2**63 - 1 for each in found.ledgers)


@pytest.mark.parametrize("ledger_id", ["9" * 5000, "-1", "\u0665", "", 5, None])
def test_what_is_no_ledger_id_is_refused(ledger_id: object) -> None:
    fields = json.loads(line(stored(5, encode_ledger_metadata(OPEN)))) | {"ledger_id": ledger_id}
    with pytest.raises(MetadataFormatError, match="is not a ledger id"):
        parse(json.dumps(fields).encode() + b"\n")


def test_the_diff_names_fields_and_no_password() -> None:
    later: LedgerMetadata = msgspec.structs.replace(CLOSED, password=b"other", custom_metadata=(("a", b"2"),))
    assert field_changes(OPEN, later) == [
        FieldChange("state", "OPEN", "CLOSED"),
        FieldChange("password", "set", "another one"),
        FieldChange("custom_metadata.b", r"'\xff'", None),
        FieldChange("custom_metadata.a", "'1'", "'2'"),
        FieldChange("last_entry_id", None, "9"),
        FieldChange("length_bytes", None, "100"),
        FieldChange("segment.5", None, "b3,b2"),
    ]
    assert field_changes(CLOSED, CLOSED) == []
    assert {each.before for each in field_changes(None, CLOSED)} == {None}


def test_what_cannot_be_read_stands_in_nobodys_way() -> None:
    [incoming] = parse(encode_ledger_metadata(OPEN), 5).ledgers
    assert find_import_obstacle(stored(5, b"garbage"), incoming) is None
    obstacle = find_import_obstacle(stored(5, encode_ledger_metadata(CLOSED)), incoming)
    assert obstacle == "its state is CLOSED, in the file OPEN: a state never moves back"
