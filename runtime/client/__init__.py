"""Public API of the ledger client; ``bkctl.runtime.client.api`` shows it in ten lines."""

from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.client.reader import Entry, LedgerReader
from bkctl.runtime.client.writer import LedgerWriter
from bkctl.runtime.ledger.metadata import DigestType

__all__ = ["DigestType", "Entry", "LedgerClient", "LedgerReader", "LedgerWriter"]
