"""The contract of the ``FileSystem`` port, on the real disk."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.errors import DirectoryLockedError
from bkctl.storage.filenames import LOCK
from bkctl.storage.ports import File, FileSystem
from tests.storage.traced_disk import TracedDisk

MEBIBYTE = 1 << 20


@pytest.fixture
def fs() -> FileSystem:
    return OsFileSystem()


@pytest.fixture
def file(fs: FileSystem, tmp_path: Path) -> File:
    return fs.create(str(tmp_path / "file"))


def test_a_file_is_read_and_written_at_offsets(file: File, tmp_path: Path) -> None:
    file.pwrite(b"hello", 3)
    file.pwrite(memoryview(b"HE"), 3)
    assert file.path == str(tmp_path / "file")
    assert file.size() == 8
    assert file.pread(100, 0) == b"\0\0\0HEllo"
    assert file.pread(2, 6) == b"lo"
    assert file.pread(2, 8) == b""
    file.truncate(4)
    assert file.pread(100, 0) == b"\0\0\0H"
    file.sync_data()
    file.sync()
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pread(1, 0)


def test_many_parts_are_written_in_order(file: File) -> None:
    parts = [b"%d," % number for number in range(2500)]
    assert file.pwritev(parts, 7) == len(b"".join(parts))
    assert file.pread(MEBIBYTE, 0) == bytes(7) + b"".join(parts)
    assert file.pwritev([], 0) == 0


def test_what_is_written_back_early_can_still_change(file: File) -> None:
    file.pwrite(b"x" * 100_000, 0)
    file.begin_writing_back(100_000, 0)
    file.begin_writing_back(10, 5)
    file.begin_writing_back(1 << 40, 1 << 40)
    file.pwrite(b"y" * 50_000, 50_000)
    file.sync_data()
    assert file.pread(200_000, 0) == b"x" * 50_000 + b"y" * 50_000
    file.close()
    file.begin_writing_back(100_000, 0)


def test_reserved_room_changes_neither_contents_nor_length(file: File) -> None:
    file.pwrite(b"x" * 10, 0)
    file.reserve(MEBIBYTE, 0)
    file.sync()
    assert file.pread(100, 0) == b"x" * 10
    assert os.stat(file.path).st_blocks * 512 >= MEBIBYTE
    file.reserve(1 << 60, 1 << 60)
    assert file.size() == 10
    file.close()
    file.reserve(10, 0)


def test_what_is_dropped_from_the_cache_is_still_there(file: File) -> None:
    file.pwrite(b"x" * 100_000, 0)
    file.sync_data()
    file.drop_from_cache(50_000, 0)
    file.drop_from_cache(1 << 40, 1 << 40)
    assert file.pread(100_000, 0) == b"x" * 100_000
    file.close()
    file.drop_from_cache(10, 0)


def test_a_short_write_raises(fs: FileSystem, tmp_path: Path) -> None:
    # A child, because the limit holds for a whole process. It ignores the signal, as any Python process does.
    program = (
        "import resource, sys\n"
        "from bkctl.storage.adapters.filesystem import OsFileSystem\n"
        "file = OsFileSystem().create(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "for write in (lambda: file.pwrite(bytes(1500), 0), lambda: file.pwritev([bytes(700)] * 2, 0)):\n"
        "    try:\n"
        "        write()\n"
        "    except OSError as error:\n"
        "        print(error.errno)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "file")], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == [str(errno.EFBIG)] * 2
    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


def test_create_and_open_keep_to_what_is_there(fs: FileSystem, file: File, tmp_path: Path) -> None:
    file.pwrite(b"kept", 0)
    with pytest.raises(FileExistsError):
        fs.create(file.path)
    assert fs.read_file(file.path) == b"kept"
    reader = fs.open(file.path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        reader.pwrite(b"x", 0)
    writer = fs.open(file.path, writable=True)
    writer.pwrite(b"X", 0)
    assert reader.pread(4, 0) == b"Xept"
    for missing in (fs.open, fs.read_file, fs.remove, fs.list_directory):
        with pytest.raises(FileNotFoundError):
            missing(str(tmp_path / "absent"))


def test_a_file_is_replaced_as_a_whole(fs: FileSystem, tmp_path: Path) -> None:
    path = str(tmp_path / "mark")
    for data in (b"a longer first content", b"second", b""):
        fs.write_file_atomically(path, data)
        assert fs.read_file(path) == data
        assert fs.list_directory(str(tmp_path)) == ["mark"]


def test_a_replacement_is_durable_before_it_takes_the_name(
    fs: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(descriptor: int) -> None:
        order.append("fsync " + os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def note_rename(source: str, target: str) -> None:
        order.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    fs.write_file_atomically(str(tmp_path / "mark"), b"data")
    assert order == ["fsync mark.tmp", "rename", f"fsync {tmp_path.name}"]


def test_a_replacement_that_fails_leaves_the_old_file(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "mark").mkdir()
    with pytest.raises(IsADirectoryError):
        fs.write_file_atomically(str(tmp_path / "mark"), b"data")
    assert fs.list_directory(str(tmp_path)) == ["mark"]


def test_a_leftover_of_a_crash_is_overwritten(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "mark.tmp").write_bytes(b"longer than what comes")
    fs.write_file_atomically(str(tmp_path / "mark"), b"data")
    assert fs.read_file(str(tmp_path / "mark")) == b"data"


def test_names(fs: FileSystem, file: File, tmp_path: Path) -> None:
    file.pwrite(b"data", 0)
    second, third = str(tmp_path / "second"), str(tmp_path / "a third")
    fs.link(file.path, second)
    fs.rename(file.path, third)
    fs.sync_directory(str(tmp_path))
    assert fs.list_directory(str(tmp_path)) == ["a third", "second"]
    assert fs.exists(third)
    assert not fs.exists(file.path)
    fs.remove(third)
    assert fs.read_file(second) == b"data"
    with pytest.raises(FileExistsError):
        fs.link(second, second)


def test_directories(fs: FileSystem, file: File, tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    fs.make_directories(str(deep))
    fs.make_directories(str(deep))
    assert deep.is_dir()
    with pytest.raises(NotADirectoryError):
        fs.make_directories(os.path.join(file.path, "below"))
    with pytest.raises(NotADirectoryError):
        fs.make_directories(file.path)


def test_new_directories_are_durable_in_their_parents(tmp_path: Path) -> None:
    disk = TracedDisk()
    disk.make_directories(str(tmp_path / "a" / "b"))
    assert disk.take_calls() == [("sync directory", tmp_path.name), ("sync directory", "a")]
    disk.make_directories(str(tmp_path / "a" / "b"))
    assert disk.take_calls() == []


def test_relative_directories(fs: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fs.make_directories("data/current")
    fs.write_file_atomically("VERSION", b"5\n")
    assert (tmp_path / "data" / "current").is_dir()
    assert fs.read_file("VERSION") == b"5\n"


def test_space_is_that_of_the_file_system(fs: FileSystem, tmp_path: Path) -> None:
    space = fs.space(str(tmp_path))
    assert 0 < space.usable_bytes <= space.total_bytes
    fs.make_directories(str(tmp_path / "same"))
    assert fs.space(str(tmp_path / "same")).filesystem_id == space.filesystem_id


def test_a_directory_has_one_owner(fs: FileSystem, tmp_path: Path) -> None:
    lock = fs.lock_directory(str(tmp_path))
    with pytest.raises(DirectoryLockedError, match=f"in use by process {os.getpid()}"):
        fs.lock_directory(str(tmp_path))
    lock.release()
    lock.release()
    fs.lock_directory(str(tmp_path)).release()


def test_the_owner_named_is_the_present_one(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("99999999999 a longer line of an earlier owner\n")
    lock = fs.lock_directory(str(tmp_path))
    assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_lock_ends_with_its_process(fs: FileSystem, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from bkctl.storage.adapters.filesystem import OsFileSystem\n"
        "lock = OsFileSystem().lock_directory(sys.argv[1])\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "locked\n"
        with pytest.raises(DirectoryLockedError, match=f"process {owner.pid}"):
            fs.lock_directory(str(tmp_path))
        owner.kill()
        owner.wait()
        fs.lock_directory(str(tmp_path)).release()


def test_a_child_that_was_being_started_holds_up_nobody_for_long(fs: FileSystem, tmp_path: Path) -> None:
    """Until it runs its own program it holds whatever its parent held, who is dead."""
    program = (
        "import os, sys, time\n"
        "from bkctl.storage.adapters.filesystem import OsFileSystem\n"
        "lock = OsFileSystem().lock_directory(sys.argv[1])\n"
        "if os.fork():\n"
        "    print('locked', flush=True)\n"
        "    os._exit(0)\n"
        "time.sleep(0.3)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "locked\n"
        owner.wait()
        fs.lock_directory(str(tmp_path)).release()


def test_an_owner_who_cannot_be_told_holds_the_directory_all_the_same(fs: FileSystem, tmp_path: Path) -> None:
    lock = fs.lock_directory(str(tmp_path))
    (tmp_path / LOCK).write_text("99999999999999999999\n")
    with pytest.raises(DirectoryLockedError):
        fs.lock_directory(str(tmp_path))
    lock.release()


def test_errors_of_open_files_name_the_file(fs: FileSystem, tmp_path: Path) -> None:
    full, directory = tmp_path / "full", tmp_path / "directory"
    full.symlink_to("/dev/full")
    directory.mkdir()
    writer, reader = fs.open(str(full), writable=True), fs.open(str(directory))
    failing: list[tuple[Callable[[], object], Path, str]] = [
        (lambda: writer.pwrite(b"x", 0), full, "No space left"),
        (lambda: writer.pwritev([b"x", b"y"], 0), full, "No space left"),
        (writer.sync, full, "Invalid argument"),
        (writer.sync_data, full, "Invalid argument"),
        (lambda: writer.truncate(1), full, "Invalid argument"),
        (lambda: reader.pread(1, 0), directory, "Is a directory"),
    ]
    for call, path, reason in failing:
        with pytest.raises(OSError, match=reason) as raised:
            call()
        assert raised.value.filename == str(path)
    writer.close()
    reader.close()


def test_a_replacement_that_finds_no_room_names_the_file_and_takes_it_away(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "mark.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as raised:
        fs.write_file_atomically(str(tmp_path / "mark"), b"x")
    assert raised.value.filename == str(tmp_path / "mark.tmp")
    assert fs.list_directory(str(tmp_path)) == []


def test_what_cannot_be_looked_up_is_not_taken_for_missing(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    (tmp_path / "file").touch()
    file_system = OsFileSystem()
    assert file_system.exists(str(loop))
    assert not file_system.exists(str(tmp_path / "none"))
    assert not file_system.exists(str(tmp_path / "file" / "below"))
    with pytest.raises(OSError, match="symbolic links"):
        file_system.exists(str(loop / "0.log"))
