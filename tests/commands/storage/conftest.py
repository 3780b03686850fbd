"""A stopped bookie's directories, written by a real storage, and bkctl run on them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkctl.runtime.bookie.cookies.directories import record_places, write_version
from bkctl.runtime.metadata.bookies.cookies import Cookie, encode_cookie
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import JournalConfig, StorageConfig
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.journal.format import encode_fence_record, encode_ledger_key_record
from tests.processes import BkctlResult, run_bkctl
from tests.storage.engines import KEY, NOW_MS, SMALL, checkpoint, entry

PREALLOCATION_BYTES = 64 * 1024


class Directories:
    """Directories of a bookie that has no cluster: ``j0``, ``l0`` and so on below ``root``."""

    def __init__(self, root: Path, *, journals: int = 1, ledgers: int = 1, indexes: int = 0) -> None:
        self.root = root
        self.config = StorageConfig(
            journal_directories=tuple(str(root / f"j{index}") for index in range(journals)),
            ledger_directories=tuple(str(root / f"l{index}") for index in range(ledgers)),
            index_directories=tuple(str(root / f"i{index}") for index in range(indexes)),
            journal=JournalConfig(preallocation_bytes=PREALLOCATION_BYTES),
            engine=SMALL,
        )

    @property
    def arguments(self) -> list[str]:
        lists = (
            ("--journal-dir", self.config.journal_directories),
            ("--ledger-dir", self.config.ledger_directories),
            ("--index-dir", self.config.index_directories),
        )
        return [word for option, paths in lists for path in paths for word in (option, path)]

    def run(self, *words: str) -> BkctlResult:
        """``bkctl storage WORDS`` with the directories as options."""
        return run_bkctl("storage", *words, *self.arguments, BKCTL_STATE_DIR=str(self.root / "state"))

    def succeed(self, *words: str) -> BkctlResult:
        result = self.run(*words)
        assert result.exit_code == 0, f"{words}: {result.exit_code}\n{result.stdout}{result.stderr}"
        return result

    @contextlib.contextmanager
    def opened(self) -> Iterator[LedgerStorage]:
        """The storage of the directories, booted as a bookie boots it."""
        storage = LedgerStorage.open(OsFileSystem(), open_plyvel, self.config, NOW_MS)
        try:
            storage.replay()
            yield storage
        finally:
            storage.close()

    def stamp(self, bookie_id: str = "bookie-1") -> None:
        """VERSION files and places, as a start writes them."""
        config = self.config
        cookie = Cookie(
            bookie_id=bookie_id,
            journal_directories=config.journal_directories,
            ledger_directories=config.ledger_directories,
            index_directories=config.index_directories or None,
        )
        for directory in config.all_directories:
            write_version(OsFileSystem(), directory, encode_cookie(cookie))
        record_places(OsFileSystem(), config)

    def fill(self, *, is_flushed: bool = True) -> None:
        """Ledgers 1 to 4 with entries 0 to 2 each, journaled; ledger 3 fenced."""
        with self.opened() as storage:
            for ledger_id in (1, 2, 3, 4):
                journaled_add(storage, ledger_id, range(3))
            storage.engine_of(3).rows.set_fenced(3)
            storage.journal_of(3).write_group([encode_fence_record(3)])
            if is_flushed:
                checkpoint(storage)


def journaled_add(storage: LedgerStorage, ledger_id: int, entry_ids: range) -> None:
    """Add as a bookie does: key, then entries, all synced."""
    engine, journal = storage.engine_of(ledger_id), storage.journal_of(ledger_id)
    records = [encode_ledger_key_record(ledger_id, KEY)] if engine.rows.set_master_key(ledger_id, KEY) else []
    for entry_id in entry_ids:
        body = entry(ledger_id, entry_id)
        engine.add(ledger_id, entry_id, body)
        records.append(body)
    journal.write_group(records)


@pytest.fixture
def directories(tmp_path: Path) -> Directories:
    """One journal, one ledger directory, nothing in them yet."""
    return Directories(tmp_path)
