"""Every operation of a checkpoint fails in turn: the next try succeeds, and a crash at any moment loses nothing.

H1, H2, H4, H14: whatever fails, and however, nothing that was acknowledged is lost and no mark moves too early. The
operations are counted, not listed: one that is added later is failed too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bkctl.storage.config import EngineConfig, EntryLogConfig, StorageConfig
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.errors import IndexFailedError, StorageError
from bkctl.storage.index.ledger_index import LedgerRow
from bkctl.storage.ports import Buffer, File
from tests.storage.engine.test_ledger_storage import Bookie, body_of
from tests.storage.engines import KEY, checkpoint, config_below, entry, explicit_lac, open_storage, opening_watched
from tests.storage.traced_disk import TracedDisk, TracedFile

LEDGER_IDS = (3, 4, 5, 6)
USED_AGAIN = 8
STEP = 4
IN_MAKE_TEST = {("before", 1), ("after", 3)}
LARGE = bytes(3000)
SMALL_LOGS = EngineConfig(memtable_bytes_max=256 * 1024, entry_log=EntryLogConfig(size_bytes_max=8192))


NO_CHANGE = {"list", "open"}
"""These fail before they do anything, or not at all."""


def kind_of(operation: str) -> str:
    return operation.split(" ", maxsplit=1)[0]


class FailingNth:
    """Counts operations from ``arm`` on, and fails one of them: before it does anything, or when it has done it."""

    def __init__(self) -> None:
        self.count = 0
        self.kinds: list[str] = []
        self.failed = ""
        self._number: int | None = None
        self._is_after = False

    def arm(self, number: int, *, is_after: bool) -> None:
        self.count, self._number, self._is_after = 0, number, is_after
        self.kinds = []

    def disarm(self) -> None:
        self._number = None

    def before(self, operation: str) -> None:
        self.count += 1
        self.kinds.append(kind_of(operation))
        if self.count == self._number and not self._is_after:
            self._fail(operation)

    @contextlib.contextmanager
    def around(self, operation: str) -> Iterator[None]:
        self.before(operation)
        number = self.count  # others may be counted within
        yield
        if number == self._number and self._is_after:
            self._fail(operation)

    def around_index(self, moment: str) -> None:
        """Called before and behind each batch: one that fails may have been written."""
        self.count += 1
        self.kinds.append("index")
        if self.count == self._number:
            self._fail(f"index {moment}")

    def _fail(self, operation: str) -> None:
        self.failed = operation
        self._number = None
        raise OSError(errno.EIO, os.strerror(errno.EIO), operation)


class FailingNthDisk(TracedDisk):
    """Everything that reaches the disk is counted, reading included."""

    def __init__(self, failing: FailingNth) -> None:
        super().__init__()
        self._failing = failing

    def create(self, path: str) -> File:
        with self._failing.around(f"create {path}"):
            return FailingNthFile(self, super().create(path), self._failing)

    def open(self, path: str, *, writable: bool = False) -> File:
        self._failing.before(f"open {path}")
        return FailingNthFile(self, super().open(path, writable=writable), self._failing)

    def write_file_atomically(self, path: str, data: bytes) -> None:
        with self._failing.around(f"replace {path}"):
            super().write_file_atomically(path, data)

    def list_directory(self, path: str) -> list[str]:
        self._failing.before(f"list {path}")
        return super().list_directory(path)

    def remove(self, path: str) -> None:
        with self._failing.around(f"remove {path}"):
            super().remove(path)

    def sync_directory(self, path: str) -> None:
        with self._failing.around(f"sync directory {path}"):
            super().sync_directory(path)


class FailingNthFile(TracedFile):
    """A write that fails leaves half of its bytes, or all of them."""

    def __init__(self, disk: TracedDisk, file: File, failing: FailingNth) -> None:
        super().__init__(disk, file)
        self._failing = failing

    def pwrite(self, data: Buffer, offset: int) -> None:
        try:
            with self._failing.around(f"write {self.path}"):
                super().pwrite(data, offset)
        except OSError:
            super().pwrite(memoryview(data)[: len(data) // 2], offset)
            raise

    def sync(self) -> None:
        with self._failing.around(f"sync {self.path}"):
            super().sync()

    def sync_data(self) -> None:
        with self._failing.around(f"sync {self.path}"):
            super().sync_data()


class TwoDirectoryBookie:
    """A bookie with two journals and two ledger directories, and what it has acknowledged."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.failing = FailingNth()
        self.config = config_below(root, journals=2, ledgers=2, engine=SMALL_LOGS)
        self.bookie = Bookie(self._started(self.config))
        self.bookie.create(*LEDGER_IDS, USED_AGAIN)
        self.bookie.add(USED_AGAIN, 0, 1, payload=b"former life")
        self.add(range(4))
        checkpoint(self.bookie.storage)
        self.restart()  # so that there are journals to be removed
        self.bookie.fence(3)
        self.bookie.write_lac(4, 2)
        self.bookie.storage.engine_of(USED_AGAIN).delete_ledger(USED_AGAIN)
        self.bookie.create(USED_AGAIN)
        self.bookie.add(USED_AGAIN, 5, payload=b"new life")
        self.entry_ids = range(4)
        self.add(range(4, 8))

    def add(self, entry_ids: range) -> None:
        for ledger_id in LEDGER_IDS:
            self.bookie.add(ledger_id, *entry_ids, payload=LARGE)
        self.entry_ids = range(entry_ids.stop)

    def check(self, storage: LedgerStorage) -> None:
        for ledger_id in LEDGER_IDS:
            assert storage.engine_of(ledger_id).rows.find(ledger_id) == LedgerRow(
                master_key=KEY,
                is_fenced=ledger_id == 3,
                explicit_lac=explicit_lac(4, 2) if ledger_id == 4 else None,
            )
            for entry_id in self.entry_ids:
                assert body_of(storage, ledger_id, entry_id) == entry(ledger_id, entry_id, LARGE)
            assert body_of(storage, ledger_id, self.entry_ids.stop) is None
        assert body_of(storage, USED_AGAIN, 5) == entry(USED_AGAIN, 5, b"new life")

    def check_after_kill(self) -> None:
        copy = self.root.with_name("after-kill")
        shutil.copytree(self.root, copy)
        storage = open_storage(config_below(copy, journals=2, ledgers=2, engine=SMALL_LOGS))
        storage.replay()
        self.check(storage)
        storage.close()
        shutil.rmtree(copy)

    def restart(self) -> None:
        self.bookie.storage.close()
        self.bookie = Bookie(self._started(self.config))

    def _started(self, config: StorageConfig) -> LedgerStorage:
        around: Callable[[str], None] = self.failing.around_index
        storage = open_storage(config, filesystem=FailingNthDisk(self.failing), open_index=opening_watched(around))
        storage.replay()
        return storage


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is possible: a thousand syncs take their time, and no test here depends on their effect."""
    if not os.path.isdir("/dev/shm"):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


def kinds_of_operations(directory: Path) -> list[str]:
    """Of a checkpoint, in their order."""
    two_directories = TwoDirectoryBookie(directory)
    two_directories.failing.arm(0, is_after=False)
    checkpoint(two_directories.bookie.storage)
    two_directories.bookie.storage.close()
    return two_directories.failing.kinds


@pytest.mark.parametrize(
    ("is_after", "first"),
    [
        pytest.param(
            is_after, first, id=f"{when}-{first}", marks=() if (when, first) in IN_MAKE_TEST else pytest.mark.battery
        )
        for is_after, when in ((False, "before"), (True, "after"))
        for first in range(1, STEP + 1)
    ],
)
def test_any_operation_of_a_checkpoint_may_fail(root: Path, is_after: bool, first: int) -> None:
    """Every fourth operation, from the first, second, third or fourth on."""
    kinds = kinds_of_operations(root / "counted")
    assert len(kinds) > 40
    assert set(kinds) >= {"create", "write", "sync", "replace", "remove", "index", "list"}
    failures: list[str] = []
    for number in range(first, len(kinds) + 1, STEP):
        two_directories = TwoDirectoryBookie(root / str(number))
        two_directories.failing.arm(number, is_after=is_after)
        is_final = False
        try:
            checkpoint(two_directories.bookie.storage)
        except IndexFailedError:
            is_final = True
        except (StorageError, OSError):
            pass
        two_directories.failing.disarm()
        if two_directories.failing.failed:
            failures.append(two_directories.failing.failed)
        two_directories.check(two_directories.bookie.storage)
        two_directories.check_after_kill()
        if is_final:  # a restart alone can tell what is there
            two_directories.restart()
        two_directories.add(range(8, 10))
        checkpoint(two_directories.bookie.storage)
        two_directories.check_after_kill()
        checkpoint(two_directories.bookie.storage)
        two_directories.check(two_directories.bookie.storage)
        two_directories.check_after_kill()
        assert body_of(two_directories.bookie.storage, USED_AGAIN, 0) is None or is_final
        two_directories.bookie.storage.close()
        shutil.rmtree(two_directories.root)
    armed = kinds[first - 1 :: STEP]
    assert list(map(kind_of, failures)) == [kind for kind in armed if not (is_after and kind in NO_CHANGE)]
