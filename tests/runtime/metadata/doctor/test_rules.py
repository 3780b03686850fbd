from __future__ import annotations

import pytest

from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.doctor.places import place_of
from bkctl.runtime.metadata.doctor.rules import DISABLED_LONG_MS, Surroundings, examine
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.store import Node, NodeStat
from tests.runtime.metadata.bad_nodes import CLOSED, LEDGER

DAY_MS = 24 * 60 * 60 * 1000


def rules(path: str, data: bytes, *, now_ms: int = 0, owner: int = 0, children: int = 0) -> set[str]:
    around = Surroundings("/r", LedgerTree.HIERARCHICAL, None, False, False, now_ms)
    node = Node(data, NodeStat(0, 0, 0, owner, children))
    return {each.rule.id for each in examine(place_of(path, around.tree), node, around)}


@pytest.mark.parametrize(
    ("age_ms", "rule_id"),
    [
        (-5, "replication-disabled"),
        (DISABLED_LONG_MS, "replication-disabled"),
        (DISABLED_LONG_MS + 1, "replication-disabled-long"),
        (365 * DAY_MS, "replication-disabled-long"),
    ],
)
def test_replication_that_is_off_for_long_was_forgotten(age_ms: int, rule_id: str) -> None:
    assert rules("underreplication/disable", b"", now_ms=age_ms) == {rule_id}


@pytest.mark.parametrize("data", [b"0", b"+5", b"86400"])
def test_delays_that_java_reads(data: bytes) -> None:
    assert rules("underreplication/lostBookieRecoveryDelay", data) == set()


@pytest.mark.parametrize("data", [b"", b" 5", b"5\n", b"5.0", b"2147483648", b"\xff", b"9" * 5000])
def test_delays_that_java_does_not_read(data: bytes) -> None:
    assert rules("underreplication/lostBookieRecoveryDelay", data) == {"delay-unreadable"}


def test_an_empty_payload_is_fine_under_host_and_port_alone() -> None:
    assert rules("available/10.0.0.1:3181", b"", owner=5) == set()
    assert rules("available/bookie-1", b"", owner=5) == {"unreadable-registration"}


def test_whose_node_it_is() -> None:
    assert rules("underreplication/leader", b'"b:1"', owner=5) == set()
    assert rules("underreplication/leader", b'"b:1"') == {"session-node-without-session"}
    assert rules("underreplication/leader", b"b:1", owner=5) == {"unreadable-vote"}
    assert rules("idgen/ID-0000000001", b"", owner=5) == set()
    assert rules("idgen/ID-0000000001", b"") == {"id-node-left"}
    assert rules("idgen/ID-2147483647", b"") == {"id-node-blocks-counter"}
    assert rules("underreplication/disable", b"", owner=5) == {"replication-disabled", "node-of-a-session"}


def test_no_way_out_removes_a_ledger_that_has_a_child() -> None:
    data = encode_ledger_metadata(CLOSED)
    around = Surroundings("/r", LedgerTree.HIERARCHICAL, None, False, False, 0)
    node = Node(data, NodeStat(0, 0, 0, 0, 1))
    [found] = examine(place_of(LEDGER, around.tree), node, around)
    assert found.rule.id == "ledger-with-children"
    assert "delete" not in found.cure


def test_data_of_the_read_only_directory_is_nobodys_business() -> None:
    """A bookie that goes read-only may leave its registration there (metadata section 1, note a)."""
    assert rules("available/readonly", b"\xff junk") == set()
