"""The open files of one ledger directory and its index directory."""

from __future__ import annotations

import msgspec

from bkctl.storage.config import EngineConfig
from bkctl.storage.engine.collected_ledgers import CollectedLedgers
from bkctl.storage.entry_log.reader import EntryLogReader
from bkctl.storage.entry_log.writer import EntryLogWriter
from bkctl.storage.index.ledger_index import LedgerIndex
from bkctl.storage.index.location_index import LocationIndex
from bkctl.storage.index.opening import open_indexes
from bkctl.storage.ports import FileSystem, OpenIndexStore


class DirectoryFiles(msgspec.Struct, frozen=True):
    """The files that the parts of an engine share."""

    filesystem: FileSystem
    ledger_directory: str
    """The ``current`` directory with the entry logs."""
    ledgers: LedgerIndex
    locations: LocationIndex
    collected: CollectedLedgers
    log_writer: EntryLogWriter
    log_reader: EntryLogReader

    @classmethod
    def open(
        cls,
        filesystem: FileSystem,
        open_index: OpenIndexStore,
        ledger_directory: str,
        index_directory: str,
        config: EngineConfig,
    ) -> DirectoryFiles:
        """Open both ``current`` directories. Raises the same errors as ``LedgerDirectoryEngine.open``."""
        ledger_rows, location_rows = open_indexes(filesystem, open_index, ledger_directory, index_directory)
        try:
            collected = CollectedLedgers.open(filesystem, ledger_directory)
            return cls(
                filesystem,
                ledger_directory,
                LedgerIndex.load(ledger_rows, collected, bytes_max=config.ledger_rows_bytes_max),
                LocationIndex(location_rows),
                collected,
                EntryLogWriter.open(filesystem, ledger_directory, config.entry_log),
                EntryLogReader(filesystem, ledger_directory, config.entry_log),
            )
        except BaseException:
            ledger_rows.close()
            location_rows.close()
            raise

    def close(self) -> None:
        """Close all files; safe to repeat."""
        self.log_writer.close()
        self.log_reader.close()
        self.ledgers.close()
        self.locations.close()
