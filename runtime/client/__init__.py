"""Public API of the ledger client; ``runtime.client.api`` shows it in ten lines."""

from runtime.client.api import LedgerClient
from runtime.client.reader import Entry, LedgerReader
from runtime.client.writer import LedgerWriter
from runtime.ledger.metadata import DigestType

__all__ = ["DigestType", "Entry", "LedgerClient", "LedgerReader", "LedgerWriter"]
