"""Storage to test with: real files, real LevelDB, small limits; and what copies or breaks it at a chosen moment."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from bkctl.storage.adapters.index_store import PlyvelIndexStore, open_plyvel
from bkctl.storage.config import EngineConfig, EntryLogConfig, JournalConfig, StorageConfig
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.ledger_storage import LedgerStorage, StorageCheckpoint
from bkctl.storage.ports import FileSystem, OpenIndexStore
from bkctl.storage.step_sizes import USUAL_STEPS, StepSizes
from tests.storage.traced_disk import TracedDisk

KEY = b"k" * 20
NOW_MS = 1_700_000_000_000
SMALL = EngineConfig(
    memtable_bytes_max=64 * 1024, read_cache_bytes_max=16 * 1024, entry_log=EntryLogConfig(size_bytes_max=16 * 1024)
)


def entry(ledger_id: int, entry_id: int, payload: bytes = b"data", *, last_add_confirmed: int | None = None) -> bytes:
    """Body of an entry; its LAC is the entry before, unless given."""
    confirmed = entry_id - 1 if last_add_confirmed is None else last_add_confirmed
    return struct.pack(">qqqq", ledger_id, entry_id, confirmed, 0) + payload


def explicit_lac(ledger_id: int, last_add_confirmed: int) -> bytes:
    return struct.pack(">qq", ledger_id, last_add_confirmed) + b"digest"


def config_below(root: Path, *, journals: int = 1, ledgers: int = 1, engine: EngineConfig = SMALL) -> StorageConfig:
    return StorageConfig(
        journal_directories=tuple(str(root / f"journal-{index}") for index in range(journals)),
        ledger_directories=tuple(str(root / f"ledgers-{index}") for index in range(ledgers)),
        journal=JournalConfig(preallocation_bytes=4096, backup_count_max=0),
        engine=engine,
    )


def open_engine(
    root: Path,
    *,
    filesystem: FileSystem | None = None,
    open_index: OpenIndexStore = open_plyvel,
    config: EngineConfig = SMALL,
    steps: StepSizes = USUAL_STEPS,
) -> LedgerDirectoryEngine:
    """The engine of one directory for logs and indexes, as the storage opens it."""
    os.makedirs(root, exist_ok=True)
    return LedgerDirectoryEngine.open(filesystem or TracedDisk(), open_index, str(root), str(root), config, steps)


def open_storage(
    config: StorageConfig,
    *,
    filesystem: FileSystem | None = None,
    open_index: OpenIndexStore = open_plyvel,
    steps: StepSizes = USUAL_STEPS,
) -> LedgerStorage:
    """Opened and not replayed yet."""
    return LedgerStorage.open(filesystem or TracedDisk(), open_index, config, NOW_MS, steps=steps)


def checkpoint(storage: LedgerStorage) -> None:
    """One checkpoint, as the lanes of a bookie run it."""
    running = storage.begin_checkpoint()
    try:
        storage.write_checkpoint(running)
    finally:
        storage.end_checkpoint(running)
        release(running)


def release(ended: StorageCheckpoint) -> None:
    """Empty the tables that a checkpoint has written, so that reads go to the disk."""
    for job, _ in zip(ended.jobs, ended.done, strict=False):
        job.memtable.release()


class WatchedStore(PlyvelIndexStore):
    """A real database that calls back around every batch."""

    def __init__(self, store: PlyvelIndexStore, path: str, around: Callable[[str], None]) -> None:
        super().__init__(store._database, path)
        self._around = around

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        self._around(f"before {os.path.basename(self._path)}")
        super().write(puts, deletes)
        self._around(f"after {os.path.basename(self._path)}")


def opening_watched(around: Callable[[str], None]) -> OpenIndexStore:
    """Opens real databases; ``around`` is called before and after each batch and may raise."""

    def open_watched(path: str, *, create: bool, strict: bool) -> WatchedStore:
        return WatchedStore(open_plyvel(path, create=create, strict=strict), path, around)

    return open_watched


class PhotographedDisk(TracedDisk):
    """Copies a directory before every change of it while ``photograph_into`` is set: what a crash there leaves."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root
        self.photograph_into: Path | None = None
        self.photographs: list[tuple[str, Path]] = []

    def photograph(self, moment: str) -> None:
        if self.photograph_into is not None:
            target = self.photograph_into / f"{len(self.photographs):03d}"
            while not self._copied(target):
                shutil.rmtree(target)
            self.photographs.append((moment, target))

    def _copied(self, target: Path) -> bool:
        """Whether the copy is whole: LevelDB may delete an outdated file between its listing and its copy."""
        try:
            shutil.copytree(self._root, target, ignore=shutil.ignore_patterns("*.sock"))
        except shutil.Error as error:
            if any(os.path.lexists(source) for source, _, _ in error.args[0]):
                raise
            return False
        return True

    def note(self, operation: str, path: str) -> None:
        self.photograph(f"before {operation} {os.path.basename(path)}")
        super().note(operation, path)


class FailingOnce:
    """Raises EIO at the one moment that ``arm`` names."""

    def __init__(self) -> None:
        self._moment: str | None = None

    def arm(self, moment: str) -> None:
        self._moment = moment

    def __call__(self, moment: str) -> None:
        if moment == self._moment:
            self._moment = None
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class FailingOnceDisk(TracedDisk):
    """Fails one operation on files whose name ends with a suffix, once."""

    def __init__(self) -> None:
        super().__init__()
        self._armed: tuple[str, str] | None = None

    def arm(self, operation: str, suffix: str) -> None:
        self._armed = (operation, suffix)

    def note(self, operation: str, path: str) -> None:
        super().note(operation, path)
        if self._armed is not None and operation == self._armed[0] and path.endswith(self._armed[1]):
            self._armed = None
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
