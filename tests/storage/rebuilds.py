"""Stored bookies to rebuild, and what a rebuild must give."""

from __future__ import annotations

import shutil
from pathlib import Path

from bkctl.storage.adapters.child_pool import ChildProcesses
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import StorageConfig
from bkctl.storage.engine.ledger_storage import lock_directories
from bkctl.storage.filenames import LEDGERS_DATABASE, LOCATIONS_DATABASE, seal_file_name
from bkctl.storage.ports import FileSystem, OpenIndexStore
from bkctl.storage.rebuild.rebuild import IndexRebuild, RebuildReport, plan_rebuild
from tests.sim.children import InProcessChildren
from tests.storage.engines import KEY, checkpoint, entry, explicit_lac, open_storage

BOTH = (LEDGERS_DATABASE, LOCATIONS_DATABASE)
Rows = list[tuple[bytes, bytes]]


class Watch:
    """Checks that stages are told and that none counts beyond its total."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self._left = 0

    def begin(self, stage: str, total: int) -> None:
        self.stages.append(stage)
        self._left = total

    def advance(self, amount: int) -> None:
        self._left -= amount
        assert self._left >= 0, f"{self.stages[-1]}: more was done than there was to do"


def store_entries(config: StorageConfig, ledger_ids: range, rounds: int = 3, entries: int = 20) -> None:
    """Entries of several ledgers in several logs; ledger 0 fenced, ledger 1 with an explicit LAC; a clean stop."""
    storage = open_storage(config)
    storage.replay()
    for ledger_id in ledger_ids:
        storage.engine_of(ledger_id).rows.set_master_key(ledger_id, KEY)
    for number in range(rounds):
        for ledger_id in ledger_ids:
            engine = storage.engine_of(ledger_id)
            for entry_id in range(number * entries, (number + 1) * entries):
                engine.add(ledger_id, entry_id, entry(ledger_id, entry_id, b"x" * (entry_id % 50 * 2)))
            # An entry that is stored again in every round: only its last copy counts.
            engine.add(ledger_id, 7, entry(ledger_id, 7, b"copy %d" % number))
        checkpoint(storage)
    storage.engine_of(0).rows.set_fenced(0)
    storage.engine_of(1).set_explicit_lac(1, explicit_lac(1, 5))
    checkpoint(storage)
    storage.close()


def database(config: StorageConfig, name: str, position: int = 0) -> Path:
    """Directory of a database."""
    return Path(config.ledger_directories[position]) / "current" / name


def lose(config: StorageConfig, name: str, position: int = 0) -> None:
    """Delete a database and its seal."""
    directory = database(config, name, position)
    shutil.rmtree(directory)
    Path(seal_file_name(str(directory))).unlink()


def rows_of(config: StorageConfig, name: str, position: int = 0) -> Rows:
    """All rows but the seals."""
    store = open_plyvel(str(database(config, name, position)), create=False, strict=True)
    rows = list(store.scan(b"", b"\x80"))
    store.close()
    return rows


def rebuild(
    config: StorageConfig,
    chosen: tuple[str, ...] | None = None,
    *,
    filesystem: FileSystem | None = None,
    open_index: OpenIndexStore = open_plyvel,
    is_in_process: bool = False,
) -> RebuildReport:
    """Plan and run, with the directories locked. ``is_in_process``: without child processes, for very many rebuilds."""
    filesystem = filesystem or OsFileSystem()
    children = InProcessChildren(filesystem, open_index) if is_in_process else ChildProcesses()
    locks = lock_directories(filesystem, config)
    try:
        plans = plan_rebuild(filesystem, open_index, config, chosen)
        return IndexRebuild(filesystem, open_index, children, config, Watch()).run(plans)
    finally:
        for lock in locks:
            lock.release()


def require_entries(config: StorageConfig, ledger_ids: range, rounds: int = 3, entries: int = 20) -> None:
    """Boot, and read every entry that ``store_entries`` stored."""
    storage = open_storage(config)
    try:
        storage.replay()
        for ledger_id in ledger_ids:
            engine = storage.engine_of(ledger_id)
            assert engine.rows.find(ledger_id) is not None
            assert engine.stored.list_entries(ledger_id) == list(range(rounds * entries))
            for entry_id in range(rounds * entries):
                payload = b"copy %d" % (rounds - 1) if entry_id == 7 else b"x" * (entry_id % 50 * 2)
                assert engine.stored.read(ledger_id, entry_id) == entry(ledger_id, entry_id, payload)
            assert engine.stored.read(ledger_id, rounds * entries) is None
    finally:
        storage.close()
