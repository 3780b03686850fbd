"""What is left on a bookie that waits for retention."""

from __future__ import annotations

import msgspec

from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.replication.survey.stop_scan import RetentionTally
from tests.runtime.replication.samples import ledger


def test_ledgers_on_the_bookies_count_by_owner_with_their_bytes_and_age() -> None:
    tally = RetentionTally(["b1", "b2"])
    topic = (("application", b"pulsar"), ("pulsar/managed-ledger", b"t/ns/persistent/orders"))
    closed = ledger({0: ["b1", "b3"]}, 2, 2, last_entry_id=9, length=100)
    tally.add(0, msgspec.structs.replace(closed, custom_metadata=topic, ctime_ms=500), 900)
    tally.add(1, ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100), 200)
    tally.add(2, ledger({0: ["b2", "b3"]}, 2, 2, state=LedgerState.OPEN), None)
    tally.add(3, ledger({0: ["b3", "b4"]}, 2, 2, last_entry_id=9, length=100), 100)
    assert not tally.is_empty
    assert (tally.ledgers_scanned, tally.open_ledgers) == (4, 1)
    assert (tally.total.ledgers, tally.total.bytes_on_them, tally.total.oldest_ms) == (3, 300, 200)
    orders = tally.by_owner["topic persistent://t/ns/orders"]
    assert (orders.ledgers, orders.bytes_on_them, orders.oldest_ms) == (1, 100, 500)
    assert sum(share.ledgers for share in tally.by_owner.values()) == 3


def test_unreadable_metadata_may_be_on_the_bookies() -> None:
    tally = RetentionTally(["b1"])
    assert tally.is_empty
    tally.add_unreadable(7)
    assert (tally.is_empty, tally.unreadable) == (False, [7])
