"""The message belongs to its bytes."""

from __future__ import annotations

from bkctl.storage.index.ledger_data_pb2 import LedgerData


def test_bytes_of_a_rebuilt_row() -> None:
    """As seen after Java's index rebuild: exists, fenced, an empty key (storage section 11.2)."""
    row = LedgerData(exists=True, fenced=True, masterKey=b"")
    assert row.SerializeToString() == bytes.fromhex("080110011a00")
