"""Rules and plans over any metadata that can be decoded: what it says may be impossible, but no rule may raise."""

from __future__ import annotations

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from bkctl.runtime.bookie.integrity.rules import is_end_in_doubt, needs_of, needs_recovery, own_stripes
from bkctl.runtime.ledger.changes import find_regression
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.metadata_format import decode_ledger_metadata, encode_ledger_metadata
from bkctl.runtime.ledger.owner import owner_of
from bkctl.runtime.metadata.doctor.rules import examine_ledger
from bkctl.runtime.replication.copy.reader import entry_bytes_estimate
from bkctl.runtime.replication.judge.ledger_filter import has_entries_on
from bkctl.runtime.replication.judge.verdict import COUNT_MAX, replication_of, write_set_rows
from bkctl.runtime.replication.plan.recovery_plan import plan_ledger
from tests.runtime.ledger.any_metadata import BOOKIES, any_metadata
from tests.runtime.replication.samples import ledger

BOOKIE_SETS = st.frozensets(st.sampled_from(BOOKIES))


@given(any_metadata())
def test_a_node_gives_it_back(metadata: LedgerMetadata) -> None:
    data = encode_ledger_metadata(metadata)
    assert decode_ledger_metadata(data) == metadata
    list(examine_ledger("/ledgers/L1", 1, data))


@given(any_metadata(), BOOKIE_SETS)
@example(ledger({0: ["b0"], 5: ["b1"]}, 1, 1, last_entry_id=-1, length=10), frozenset())
@example(ledger({0: ["b0"]}, 1, 1, last_entry_id=2**63 - 1, length=10), frozenset())
def test_an_audit_counts_it(metadata: LedgerMetadata, live: frozenset[str]) -> None:
    rows = write_set_rows(1, metadata)
    assert rows
    for row in rows:
        assert 0 <= (row.entry_count or 0) <= COUNT_MAX
        assert 0 <= (row.payload_bytes or 0) <= COUNT_MAX
        msgspec.json.encode(replication_of(row, live))


@given(any_metadata(), st.sampled_from(BOOKIES), BOOKIE_SETS)
def test_a_recovery_is_planned(metadata: LedgerMetadata, failed: str, live: frozenset[str]) -> None:
    if failed in metadata.bookies():
        plan = plan_ledger(1, metadata, 0, frozenset({failed}), live - {failed})
        assert plan.surviving_copies >= 0
        msgspec.json.encode(plan)
    assert has_entries_on(metadata, failed) in {True, False}
    assert entry_bytes_estimate(metadata) >= 0


@given(any_metadata(), st.sampled_from(BOOKIES), BOOKIE_SETS)
def test_a_bookie_knows_its_part(metadata: LedgerMetadata, bookie_id: str, doubting: frozenset[str]) -> None:
    mark = needs_of(metadata, bookie_id)
    assert mark.needs_limbo == needs_recovery(metadata, bookie_id)
    assert is_end_in_doubt(metadata, doubting) in {True, False}
    for stripe in own_stripes(metadata, bookie_id):
        assert 0 <= stripe.first_entry_id <= stripe.last_entry_id < 2**63


@given(any_metadata(), any_metadata())
def test_one_may_follow_another_or_not(present: LedgerMetadata, following: LedgerMetadata) -> None:
    find_regression(present, following, "the backup")
    owner_of(dict(present.custom_metadata))
