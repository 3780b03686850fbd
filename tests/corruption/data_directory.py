"""A small data directory of a bookie, and what was acknowledged in it.

Two states, so that every kind of file is there: ``KILLED`` has entries that are in the journal alone and an index that
is in LevelDB's log; ``RESTARTED`` was booted again, so that all is in entry logs and in tables.
"""

from __future__ import annotations

import enum
import os
import struct

import msgspec

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import EngineConfig, EntryLogConfig, JournalConfig, StorageConfig
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.journal.format import encode_explicit_lac_record, encode_fence_record, encode_ledger_key_record

KEY = b"k" * 20
LEDGER_IDS = (1, 2, 300)
NOW_MS = 1_700_000_000_000


class State(enum.Enum):
    """How far the data has come."""

    KILLED = "killed"
    RESTARTED = "restarted"


class Acknowledged(msgspec.Struct):
    """What clients were told."""

    entries: dict[tuple[int, int], bytes] = {}
    fenced: set[int] = set()
    explicit_lacs: dict[int, bytes] = {}


def config_of(root: str) -> StorageConfig:
    """Settings under which the directory is small."""
    return StorageConfig(
        journal_directories=(os.path.join(root, "journal"),),
        ledger_directories=(os.path.join(root, "ledgers"),),
        journal=JournalConfig(preallocation_bytes=2048, backup_count_max=0),
        engine=EngineConfig(
            memtable_bytes_max=64 * 1024,
            read_cache_bytes_max=0,
            entry_log=EntryLogConfig(size_bytes_max=4096, is_next_log_prepared=False),
        ),
    )


def boot(root: str) -> LedgerStorage:
    """Open and replay; StorageError or OSError, with nothing left open, if it refuses."""
    storage = LedgerStorage.open(OsFileSystem(), open_plyvel, config_of(root), NOW_MS)
    try:
        storage.replay()
    except BaseException:
        storage.close()
        raise
    return storage


def checkpoint(storage: LedgerStorage) -> None:
    """One whole checkpoint."""
    running = storage.begin_checkpoint()
    storage.write_checkpoint(running)
    storage.end_checkpoint(running)


def make(root: str, state: State) -> Acknowledged:
    """Make the directory."""
    done = Acknowledged()
    storage = boot(root)
    _write(storage, done, range(3), with_key=True)
    checkpoint(storage)
    _write(storage, done, range(3, 5), with_key=False)
    storage.close()
    if state is State.RESTARTED:
        storage = boot(root)
        _write(storage, done, range(5, 6), with_key=True)
        checkpoint(storage)
        storage.close()
    return done


def _write(storage: LedgerStorage, done: Acknowledged, entry_ids: range, *, with_key: bool) -> None:
    for ledger_id in LEDGER_IDS:
        engine, journal = storage.engine_of(ledger_id), storage.journal_of(ledger_id)
        engine.rows.set_master_key(ledger_id, KEY)
        records: list[bytes] = [encode_ledger_key_record(ledger_id, KEY)] if with_key else []
        for entry_id in entry_ids:
            body = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 8) + b"data%04d" % entry_id
            engine.add(ledger_id, entry_id, body)
            records.append(body)
            done.entries[ledger_id, entry_id] = body
        journal.write_group(records)
    fenced = 2 if with_key else 1
    storage.engine_of(fenced).rows.set_fenced(fenced)
    lac = struct.pack(">qq", 300, entry_ids[-1]) + b"digest"
    storage.engine_of(300).set_explicit_lac(300, lac)
    storage.journal_of(300).write_group([encode_fence_record(fenced), encode_explicit_lac_record(300, lac)])
    done.fenced.add(fenced)
    done.explicit_lacs[300] = lac
