"""The adapters in memory do what the real ones do, as far as both are asked through the ports alone."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.errors import DirectoryLockedError, IndexMissingError
from bkctl.storage.ports import FileSystem, IndexStore, OpenIndexStore
from tests.crash.model_disk import Mode
from tests.sim.disk import LosesAll, MemoryDisk
from tests.sim.index_store import opening_on

NAMES = [f"{directory}/{name}" for directory in ("a", "a/b", "c") for name in ("x", "y")]


def history(disk: FileSystem, root: str, seed: int) -> list[object]:
    """What many random calls answer, and what is there in the end."""
    chance = random.Random(seed)
    answers: list[object] = []

    def name() -> str:
        return os.path.join(root, chance.choice(NAMES))

    def change_file(path: str) -> object:
        file = disk.open(path, writable=True)
        if chance.random() < 0.3:
            file.truncate(chance.randrange(20))
        written = file.pwritev([b"ab", bytes([chance.randrange(256)])], chance.randrange(20))
        return written, file.size(), file.pread(8, chance.randrange(20))

    calls: list[Callable[[], object]] = [
        lambda: disk.create(name()).close(),
        lambda: change_file(name()),
        lambda: change_file(name()),
        lambda: disk.read_file(name()),
        lambda: disk.write_file_atomically(name(), b"new"),
        lambda: disk.list_directory(os.path.dirname(name())),
        lambda: disk.exists(name()),
        lambda: disk.make_directories(os.path.dirname(name())),
        lambda: disk.rename(name(), name()),
        lambda: disk.link(name(), name()),
        lambda: disk.remove(name()),
        lambda: disk.remove_directory(os.path.dirname(name())),
    ]
    for _ in range(300):
        try:
            answers.append(chance.choice(calls)())
        except OSError as error:
            answers.append(error.errno)
    for directory in ("a", "a/b", "c"):
        if disk.exists(os.path.join(root, directory)):
            answers.append(disk.list_directory(os.path.join(root, directory)))
    return answers


@pytest.mark.parametrize("seed", range(20))
def test_a_disk_in_memory_answers_as_a_real_one(tmp_path: Path, seed: int) -> None:
    memory = MemoryDisk(Mode.ORDERED)
    memory.make_directories("/root")
    assert history(memory, "/root", seed) == history(OsFileSystem(), str(tmp_path), seed)


def test_a_directory_has_one_owner() -> None:
    disk = MemoryDisk(Mode.ORDERED)
    disk.make_directories("/directory")
    lock = disk.lock_directory("/directory")
    with pytest.raises(DirectoryLockedError):
        disk.lock_directory("/directory")
    lock.release()
    disk.lock_directory("/directory").release()


def use(store: IndexStore, seed: int) -> list[object]:
    chance = random.Random(seed)

    def key() -> bytes:
        return bytes([chance.randrange(20)])

    answers: list[object] = []
    for number in range(50):
        store.write([(key(), b"%d" % number) for _ in range(chance.randrange(3))], [key()])
        answers += [store.get(key()), store.floor(key(), key()), list(store.scan(key(), key()))]
    return answers


@pytest.mark.parametrize("seed", range(5))
def test_an_index_in_memory_answers_as_a_real_one(tmp_path: Path, seed: int) -> None:
    in_memory = opening_on(MemoryDisk(Mode.ORDERED))
    answers = []
    for open_index, path in ((in_memory, "/index"), (open_plyvel, str(tmp_path / "index"))):
        with pytest.raises(IndexMissingError):
            open_index(path, create=False, strict=True)
        answers.append(use_and_open_again(open_index, path, seed))
    assert answers[0] == answers[1]


def use_and_open_again(open_index: OpenIndexStore, path: str, seed: int) -> list[object]:
    store = open_index(path, create=True, strict=True)
    answers = use(store, seed)
    store.close()
    store = open_index(path, create=False, strict=True)
    answers.append(list(store.scan(b"", b"\xff")))
    store.close()
    return answers


def test_a_batch_is_durable_when_it_was_written() -> None:
    disk = MemoryDisk(Mode.STRICT)
    store = opening_on(disk)("/index", create=True, strict=True)
    store.write([(b"key", b"value")])
    after = opening_on(disk.after_power_failure(LosesAll()))("/index", create=False, strict=True)
    assert after.get(b"key") == b"value"
