"""The program under the crash battery: a storage engine that takes adds, fences, LACs, deletes, and compacts its logs.

Run as a child process under strace. It does on one thread what the loop and the lanes of a bookie do, in their order:
storage first, then the journal, then the acknowledgement, which here is a line of the notes. What is submitted is noted
too, before it reaches the engine, so that the checker knows all that may appear.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import struct
from collections import defaultdict

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import EngineConfig, EntryLogConfig, JournalConfig, StorageConfig
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.entry_log.writer import EntryLogWriter
from bkctl.storage.errors import EntryLogError, MemtableFullError, StorageError
from bkctl.storage.filenames import current_directory
from bkctl.storage.journal.format import encode_explicit_lac_record, encode_fence_record, encode_ledger_key_record
from bkctl.storage.step_sizes import StepSizes
from tests.crash.compactions import compact
from tests.crash.guards import WRITING
from tests.storage.engines import release

KEY = b"k" * 20
NOW_MS = 1_700_000_000_000
LEDGER_IDS = range(8)
_ENTRY = struct.Struct(">qqqq")


@functools.lru_cache(maxsize=8192)
def body_of(ledger_id: int, entry_id: int, generation: int) -> bytes:
    """Body of an entry the nth time that it is added; a few bytes to some KiB."""
    chance = random.Random(ledger_id << 40 | entry_id << 16 | generation)
    payload = chance.randbytes(chance.choice((0, 5, 100, 700, 3000)))
    return _ENTRY.pack(ledger_id, entry_id, entry_id - 1, 0) + b"%d:" % generation + payload


def explicit_lac_of(ledger_id: int, generation: int) -> bytes:
    """Body of the nth explicit LAC of a ledger."""
    return struct.pack(">qq", ledger_id, generation) + b"digest"


def config_of(root: str, seed: int) -> StorageConfig:
    """Settings of a run: everything small, so that files roll and caches fill up."""
    chance = random.Random(f"config {seed}")
    journals, ledgers = chance.choice(((1, 1), (1, 2), (2, 1)))
    return StorageConfig(
        journal_directories=tuple(os.path.join(root, f"journal-{index}") for index in range(journals)),
        ledger_directories=tuple(os.path.join(root, f"ledgers-{index}") for index in range(ledgers)),
        journal=JournalConfig(
            size_bytes_max=chance.choice((4096, 16384)),
            preallocation_bytes=4096,
            backup_count_max=chance.choice((0, 1)),
        ),
        engine=EngineConfig(
            memtable_bytes_max=64 * 1024, read_cache_bytes_max=0, entry_log=EntryLogConfig(size_bytes_max=16 * 1024)
        ),
    )


STEPS = StepSizes(deleted_row_count_max=7, journal_part_bytes=1024, journal_write_bytes=2048)
"""Deletions take several checkpoints, groups several writes."""


class Workload:
    """A random client with its bookie."""

    def __init__(self, root: str, seed: int, notes: int) -> None:
        self._chance = random.Random(f"work {seed}")
        self._config = config_of(root, seed)
        self._notes = notes
        self._keys_journaled: set[int] = set()
        self._generations: dict[tuple[int, int], int] = defaultdict(int)
        self._lac_generations: dict[int, int] = defaultdict(int)
        self._entry_counts: dict[int, int] = defaultdict(int)
        self._storage = self._boot()

    def run(self, step_count: int) -> None:
        """Take that many steps, then stop as a bookie does: a last checkpoint, files closed."""
        steps = [self._commit_group] * 12 + [self._checkpoint] * 2
        steps += [self._delete, self._restart, self._compact, self._fail_checkpoint]
        for _ in range(step_count):
            self._chance.choice(steps)()
        self._checkpoint()
        self._storage.close()

    def _boot(self) -> LedgerStorage:
        self._keys_journaled.clear()
        storage = LedgerStorage.open(OsFileSystem(), open_plyvel, self._config, NOW_MS, steps=STEPS)
        storage.replay()
        return storage

    def _note(self, lines: list[str]) -> None:
        if lines:
            os.write(self._notes, "".join(f"{line}\n" for line in lines).encode())

    def _commit_group(self) -> None:
        """Some requests of several ledgers: each is stored, then journaled with the others of its journal, then
        acknowledged."""
        groups: dict[int, list[bytes]] = defaultdict(list)
        answers: list[str] = []
        for _ in range(self._chance.choice((1, 1, 3, 10))):
            ledger_id = self._chance.choice(LEDGER_IDS)
            records = groups[ledger_id % len(self._config.journal_directories)]
            answers.append(self._chance.choice([self._add] * 8 + [self._fence, self._set_lac])(ledger_id, records))
        for index, records in groups.items():
            self._storage.journals[index].write_group(records)
        self._note([f"acknowledged {answer}" for answer in answers])

    def _open(self, ledger_id: int, records: list[bytes]) -> None:
        self._storage.engine_of(ledger_id).rows.set_master_key(ledger_id, KEY)
        if ledger_id not in self._keys_journaled:
            self._keys_journaled.add(ledger_id)
            records.append(encode_ledger_key_record(ledger_id, KEY))

    def _add(self, ledger_id: int, records: list[bytes]) -> str:
        entry_id = self._entry_counts[ledger_id]
        if entry_id and self._chance.random() < 0.1:
            entry_id = self._chance.randrange(entry_id)  # a second copy, as recovery and re-replication send
        else:
            self._entry_counts[ledger_id] += 1
        self._generations[ledger_id, entry_id] += 1
        generation = self._generations[ledger_id, entry_id]
        body = body_of(ledger_id, entry_id, generation)
        request = f"add {ledger_id} {entry_id} {generation}"
        self._note([f"submitted {request}"])
        self._open(ledger_id, records)
        engine = self._storage.engine_of(ledger_id)
        while True:
            try:
                engine.add(ledger_id, entry_id, body)
                break
            except MemtableFullError:
                self._checkpoint()  # the one after a failed one writes the old half again, and makes no room
        records.append(body)
        return request

    def _fence(self, ledger_id: int, records: list[bytes]) -> str:
        self._note([f"submitted fence {ledger_id}"])
        self._open(ledger_id, records)
        self._storage.engine_of(ledger_id).rows.set_fenced(ledger_id)
        records.append(encode_fence_record(ledger_id))
        return f"fence {ledger_id}"

    def _set_lac(self, ledger_id: int, records: list[bytes]) -> str:
        self._lac_generations[ledger_id] += 1
        body = explicit_lac_of(ledger_id, self._lac_generations[ledger_id])
        request = f"lac {ledger_id} {self._lac_generations[ledger_id]}"
        self._note([f"submitted {request}"])
        self._open(ledger_id, records)
        self._storage.engine_of(ledger_id).set_explicit_lac(ledger_id, body)
        records.append(encode_explicit_lac_record(ledger_id, body))
        return request

    def _delete(self) -> None:
        ledger_id = self._chance.choice(LEDGER_IDS)
        self._note([f"submitted delete {ledger_id}"])
        self._storage.engine_of(ledger_id).delete_ledger(ledger_id)
        self._keys_journaled.discard(ledger_id)
        if self._chance.random() < 0.5:
            self._commit_group()

    def _checkpoint(self) -> None:
        """As the checkpoint lane runs it, with adds between its beginning and its end."""
        checkpoint = self._storage.begin_checkpoint()
        if self._chance.random() < 0.5:
            self._commit_small_group()
        try:
            self._storage.write_checkpoint(checkpoint)
        finally:
            self._storage.end_checkpoint(checkpoint)
        release(checkpoint)

    def _fail_checkpoint(self) -> None:
        """A checkpoint whose entry log cannot sync once; what it held stays in memory and in the journal."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EntryLogWriter, "sync", _failing)
            with contextlib.suppress(OSError, StorageError):
                self._checkpoint()

    def _compact(self) -> None:
        """Move what is alive in one entry log to another, and remove it, as the collector does.

        Deletions must be durable first: two checkpoints, because the one after a failed one writes nothing newer.
        """
        self._checkpoint()
        self._checkpoint()
        engine = self._chance.choice(self._storage.engines)
        log_ids = engine.relocation.finished_log_ids()
        if not log_ids:
            return
        directory = current_directory(self._config.ledger_directories[self._storage.engines.index(engine)])
        compact(
            engine,
            directory,
            self._chance.choice(log_ids),
            is_transactional=self._chance.random() < 0.5,
            copied_max=3,
        )

    def _commit_small_group(self) -> None:
        ledger_id = self._chance.choice(LEDGER_IDS)
        records: list[bytes] = []
        answer = self._chance.choice((self._fence, self._set_lac))(ledger_id, records)
        self._storage.journal_of(ledger_id).write_group(records)
        self._note([f"acknowledged {answer}"])

    def _restart(self) -> None:
        if self._chance.random() < 0.5:
            self._checkpoint()
        self._storage.close()
        self._storage = self._boot()


def _failing(_: EntryLogWriter) -> None:
    raise EntryLogError("no sync this time")


def main() -> None:
    """Run one workload; the notes go to the file ``notes``, which is outside of the directory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("notes")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--without", choices=sorted(WRITING))
    arguments = parser.parse_args()
    if arguments.without is not None:
        WRITING[arguments.without](pytest.MonkeyPatch())
    notes = os.open(arguments.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    Workload(arguments.root, arguments.seed, notes).run(arguments.steps)


if __name__ == "__main__":
    main()
