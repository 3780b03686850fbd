from __future__ import annotations

import pytest

from bkctl.runtime.ledger.changes import find_fault, new_ledger, replace_bookies, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.doctor.rules import examine_ledger
from tests.runtime.metadata.bad_nodes import BOOKIES, add_segment, ledger

OPEN = new_ledger(BOOKIES, 2, 2, DigestType.CRC32C, b"secret")


def rules(data: bytes) -> set[str]:
    return {each.rule.id for each in examine_ledger("/r/L", 1, data)}


def test_every_fault_is_told_not_only_the_first() -> None:
    def spoil(record: object) -> None:
        record.quorumSize = 9  # type: ignore[attr-defined]
        record.ClearField("digestType")  # type: ignore[attr-defined]
        add_segment(record, 500, (BOOKIES[0], BOOKIES[0], "a,b", "x:1"))  # type: ignore[arg-type]
        add_segment(record, 500)  # type: ignore[arg-type]

    assert rules(ledger(spoil)) == {
        "quorums-out-of-order",
        "password-without-digest",
        "segments-out-of-order",
        "ensemble-size-mismatch",
        "duplicate-bookie-in-ensemble",
        "invalid-bookie-in-ledger",
        "end-before-last-segment",
    }


def test_a_last_segment_may_be_empty() -> None:
    """A writer that replaced a bookie and closed before the next entry; one that never wrote."""
    replaced = replace_bookies(OPEN, 10, {0: "10.0.0.9:3181"})
    assert rules(encode_ledger_metadata(to_closed(replaced, 9, 100))) == set()
    assert rules(encode_ledger_metadata(to_closed(OPEN, -1, 0))) == set()


@pytest.mark.parametrize("version", [b"1", b"2"])
def test_older_forms(version: bytes) -> None:
    head = b"BookieMetadataFormatVersion\t" + version + b"\n"
    members = b"".join(b'  ensembleMember: "%s"\n' % bookie.encode() for bookie in BOOKIES)
    text = {
        b"1": b"2\n3\n7000\n5\t" + "\t".join(BOOKIES).encode() + b"\n1\tCLOSED",
        b"2": b"quorumSize: 2\nensembleSize: 3\nlength: 7\nlastEntryId: 1\nstate: CLOSED\ndigestType: CRC32\n"
        b"segment {\n" + members + b"  firstEntryId: 5\n}\n",
    }
    found = rules(head + text[version])
    assert found - {"ledger-format-one"} == {"first-segment-not-at-zero", "end-before-last-segment"}


def test_what_the_client_refuses_is_told() -> None:
    """Each shape that ``find_fault`` knows has a rule."""
    for change in (
        lambda record: setattr(record, "quorumSize", 9),
        lambda record: record.ClearField("segment"),
        lambda record: record.ClearField("digestType"),
        lambda record: setattr(record, "ensembleSize", 2),
        lambda record: setattr(record.segment[0], "firstEntryId", 1),
    ):
        assert rules(ledger(change))
    assert find_fault(OPEN) is None
    assert rules(encode_ledger_metadata(OPEN)) == set()
