from __future__ import annotations

import pytest

from bkctl.runtime.metadata.doctor.places import FORBIDDEN_LEDGER_ID, Kind, is_below_stray, place_of
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from tests.runtime.metadata.bad_nodes import FORBIDDEN, MARK, VOTE

HIERARCHICAL, LONG = LedgerTree.HIERARCHICAL, LedgerTree.LONG_HIERARCHICAL
FLAT, LEGACY = LedgerTree.FLAT, LedgerTree.LEGACY_HIERARCHICAL


@pytest.mark.parametrize(
    ("path", "tree", "kind", "number"),
    [
        ("", HIERARCHICAL, Kind.ROOT, None),
        ("available/readonly", HIERARCHICAL, Kind.DIRECTORY, None),
        ("available/readonly/b:1", HIERARCHICAL, Kind.READ_ONLY_BOOKIE, None),
        ("available/b:1", HIERARCHICAL, Kind.WRITABLE_BOOKIE, None),
        ("available/b:1/x", HIERARCHICAL, Kind.STRAY, None),
        ("cookies/b:1", HIERARCHICAL, Kind.COOKIE, None),
        ("LAYOUT/x", HIERARCHICAL, Kind.STRAY, None),
        ("ID-0000000001", FLAT, Kind.ID_NODE, 1),
        ("idgen-long/HOB-0000000007", HIERARCHICAL, Kind.ID_DIRECTORY, 7),
        ("idgen-long/HOB-0000000007/ID-0000000001", HIERARCHICAL, Kind.ID_NODE, 1),
        (f"idgen-long/HOB-{'9' * 5000}", HIERARCHICAL, Kind.STRAY, None),
        ("00/0000/L0001", HIERARCHICAL, Kind.LEDGER, 1),
        ("00/0000/L0001", LONG, Kind.MISPLACED_LEDGER, 1),
        ("000/0000/0000/0000/L0001", HIERARCHICAL, Kind.MISPLACED_LEDGER, 1),
        ("000/0000/0000/0000/L0001", LONG, Kind.LEDGER, 1),
        ("L0000000001", FLAT, Kind.LEDGER, 1),
        (f"L{'9' * 5000}", FLAT, Kind.MISPLACED_LEDGER, int("9" * 100)),
        (FORBIDDEN, HIERARCHICAL, Kind.FORBIDDEN_LEDGER, FORBIDDEN_LEDGER_ID),
        (FORBIDDEN, LONG, Kind.FORBIDDEN_LEDGER, FORBIDDEN_LEDGER_ID),
        (f"L{FORBIDDEN_LEDGER_ID}", FLAT, Kind.FORBIDDEN_LEDGER, FORBIDDEN_LEDGER_ID),
        ("92/2337/L2036854775807", LEGACY, Kind.FORBIDDEN_LEDGER, FORBIDDEN_LEDGER_ID),
        ("922/3372/0368/5477/L5806", HIERARCHICAL, Kind.LEDGER, FORBIDDEN_LEDGER_ID - 1),
        ("00", HIERARCHICAL, Kind.LEDGER_DIRECTORY, None),
        ("00", LONG, Kind.STRAY_AT_ROOT, None),
        ("000/0000/0000", LEGACY, Kind.STRAY_IN_LEDGERS, None),
        ("00/0000/L\u0660\u0660\u0660\u0661", HIERARCHICAL, Kind.STRAY_IN_LEDGERS, None),
        (MARK, HIERARCHICAL, Kind.MARK, 1),
        (MARK.replace("urL0000000001", "urL0000000002"), HIERARCHICAL, Kind.STRAY, None),
        (MARK.replace("0000/0000/0000", "0000/0000/000G"), HIERARCHICAL, Kind.STRAY, None),
        ("underreplication/locks/urL0000000001", HIERARCHICAL, Kind.LOCK, 1),
        ("underreplication/locks/urL1", HIERARCHICAL, Kind.STRAY, None),
        (VOTE, HIERARCHICAL, Kind.VOTE, 0),
        ("underreplication/auditorelection/V_x", HIERARCHICAL, Kind.STRAY_VOTE, None),
        ("underreplication/leader", HIERARCHICAL, Kind.PULSAR_AUDITOR, None),
    ],
)
def test_every_path_has_its_place(path: str, tree: LedgerTree, kind: Kind, number: int | None) -> None:
    place = place_of(path, tree)
    assert (place.kind, place.number) == (kind, number)


def test_what_lies_below_a_stray_is_part_of_it_but_ledgers_are_not() -> None:
    assert is_below_stray("mine/a", HIERARCHICAL)
    assert is_below_stray("mine/a/b", HIERARCHICAL)
    assert is_below_stray("00/0000/L0001/x/y", HIERARCHICAL)
    assert not is_below_stray("mine", HIERARCHICAL)
    assert not is_below_stray("00/0000/L0001/x", HIERARCHICAL)
    assert not is_below_stray("00/0000/L0001", LONG)
