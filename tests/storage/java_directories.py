"""Directories of a Java bookie from the golden files, and what must be read from them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import EngineConfig, StorageConfig
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.index.ledger_index import LedgerRow
from tests.storage.engines import NOW_MS
from tests.storage.golden import FILES, unpack

FENCED = {2, 3, 5}
EXPLICIT_LACS = {
    2: bytes.fromhex("000000000000000200000000000000027518df9a9a0d0b5cc1c7d9d61bf46cbe4942ff13"),
    21474836485: bytes.fromhex("000000050000000500000000000000016970d463"),
}


class JavaDirectories(NamedTuple):
    """An image of the golden files as a bookie's directories below ``root``."""

    image: str
    root: Path
    config: StorageConfig

    @property
    def indexes(self) -> list[Path]:
        """The ``current`` directory of each index directory."""
        return [Path(path) / "current" for path in self.config.index_directories or self.config.ledger_directories]

    def entries(self) -> dict[tuple[int, int], str]:
        """SHA-1 of the last copy of every acknowledged entry, by the journals, none of which was deleted."""
        found: dict[tuple[int, int], str] = {}
        for path in sorted(FILES, key=lambda path: int(Path(path).name.split(".")[0], 16) if ".txn" in path else 0):
            if path.startswith(f"{self.image}/") and FILES[path]["kind"] == "journal":
                for record in FILES[path]["records"]:
                    if record["type"] == "entry":
                        found[record["ledger"], record["entry"]] = record["sha1"]
        return found

    def keys(self) -> dict[int, bytes]:
        """Master keys by the journals."""
        return {
            record["ledger"]: bytes.fromhex(record["key"])
            for path, description in FILES.items()
            if path.startswith(f"{self.image}/") and description["kind"] == "journal"
            for record in description["records"]
            if record["type"] == "key"
        }

    def tree(self) -> dict[str, bytes]:
        """All files but those of LevelDB and the locks."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and "ldb-" not in str(path) and path.name != "bkctl.lock"
        }


def java_directories(image: str, root: Path) -> JavaDirectories:
    """Unpack an image (``db-4.18.0/crash``); RocksDB directories, which the golden files lack, are stood in for."""
    bare = root / "bare"
    unpack(image, bare)
    names = sorted(path.name for path in bare.iterdir() if path.is_dir())
    for name in names:
        shutil.move(bare / name, root / name / "current")
    shutil.rmtree(bare)
    lists = {letter: tuple(str(root / name) for name in names if name[0] == letter) for letter in "jli"}
    config = StorageConfig(
        journal_directories=lists["j"],
        ledger_directories=lists["l"],
        index_directories=lists["i"],
        engine=EngineConfig(memtable_bytes_max=8 * 1024 * 1024),
    )
    directories = JavaDirectories(image, root, config)
    if image.startswith(("db-", "direct-")):
        for index in directories.indexes:
            for database in ("ledgers", "locations"):
                (index / database).mkdir(parents=True)
                (index / database / "CURRENT").write_text("MANIFEST-000005\n")
    return directories


class UnsyncedDisk(OsFileSystem):
    """Saves the time of syncs where no cut is looked at."""

    def sync_directory(self, path: str) -> None:
        pass

    def write_file_atomically(self, path: str, data: bytes) -> None:
        Path(path).write_bytes(data)


@contextlib.contextmanager
def copy_in_memory(directory: Path) -> Iterator[Path]:
    """A copy of what a cut left, where syncs cost nothing: only what is done with it counts."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.path.isdir(memory) else None) as name:
        yield Path(shutil.copytree(directory, Path(name) / "copy"))


def boot(config: StorageConfig) -> LedgerStorage:
    """The storage as a bookie boots it."""
    storage = LedgerStorage.open(UnsyncedDisk(), open_plyvel, config, NOW_MS)
    try:
        storage.replay()
    except BaseException:
        storage.close()
        raise
    return storage


@contextlib.contextmanager
def booted(config: StorageConfig) -> Iterator[LedgerStorage]:
    """The storage as a bookie boots it, closed at the end."""
    storage = boot(config)
    try:
        yield storage
    finally:
        storage.close()


def row_of(storage: LedgerStorage, ledger_id: int) -> LedgerRow:
    """The row of a ledger that must have one."""
    row = storage.engine_of(ledger_id).rows.find(ledger_id)
    assert row is not None, f"ledger {ledger_id} is denied"
    return row


def require_all(storage: LedgerStorage, entries: Mapping[tuple[int, int], str]) -> None:
    """Every entry is read exactly, and nothing else is there."""
    for (ledger_id, entry_id), sha1 in entries.items():
        body = storage.engine_of(ledger_id).stored.read(ledger_id, entry_id)
        assert body is not None, f"{ledger_id}:{entry_id} is denied"
        assert hashlib.sha1(body).hexdigest() == sha1, f"{ledger_id}:{entry_id}"
    for ledger_id in {ledger_id for ledger_id, _ in entries}:
        listed = storage.engine_of(ledger_id).stored.list_entries(ledger_id)
        assert listed == sorted(entry_id for each, entry_id in entries if each == ledger_id)
