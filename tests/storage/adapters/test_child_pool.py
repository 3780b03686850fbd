"""Child processes that answer tasks: what a child does whose parent is gone."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bkctl.storage.adapters.child_pool import ChildProcesses, _Child
from bkctl.storage.adapters.child_protocol import (
    Failure,
    MessageReader,
    Part,
    Result,
    TaskProgress,
    error_of,
    failure_of,
    frame,
    raw,
)
from bkctl.storage.errors import ChildFailedError, CorruptFileError, IndexFullError, MisplacedLedgerError, StorageError
from bkctl.storage.offline.probe_child import ProbeRows
from bkctl.storage.rebuild.tasks import JournalFindings, ReadJournal
from tests.processes import bkctl_environment
from tests.storage.engine.test_replay import key_record, write_journal

CHILDREN = ChildProcesses()


def test_a_child_whose_parent_was_killed_ends_quietly(tmp_path: Path) -> None:
    """What it prints lands in the log of a bookie that is already dead, as if this had been the cause."""
    task = ProbeRows(directory=str(tmp_path), rows=bytes(24), entry_bytes_max=1024)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "bkctl.storage.adapters.child_main", "bkctl.storage.offline.probe_child"],
        env=bkctl_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.close()
        _, said = child.communicate(frame(task))
    assert said == b""
    assert child.returncode == 0


def test_answers_longer_than_a_pipe_come_whole(tmp_path: Path) -> None:
    """Two of one child, one behind the other."""
    path = write_journal(
        tmp_path, *([key_record(number) for number in range(first, first + 500)] for first in range(0, 5000, 500))
    )
    task = ReadJournal(path=str(path), is_newest=True, cataloged=None)
    with CHILDREN.pool("bkctl.storage.rebuild.child", str(tmp_path), 1) as pool:
        answers = [answer for _, answer in pool.run([task, task], JournalFindings)]
    for answer in answers:
        assert len(msgspec.msgpack.encode(answer)) > 2 * 65536
        assert list(answer.ledgers) == list(range(5000))
    assert len(answers) == 2


@pytest.mark.parametrize(
    "error",
    [
        CorruptFileError("run-1", 40, "file cut"),
        IndexFullError("index: no room", 28),
        MisplacedLedgerError("ledger 7 belongs elsewhere"),
        StorageError("something else"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_a_child_keeps_its_class(error: StorageError) -> None:
    """Else every error of a child would have the exit code of the whole family."""
    [failure] = MessageReader().feed(frame(failure_of(error)))
    assert isinstance(failure, Failure)
    found = error_of(failure, "/data")
    assert type(found) is type(error)
    assert (str(found), vars(found)) == (str(error), vars(error))


@pytest.mark.parametrize(
    ("path", "expected"),
    [("run-1", "/data/run-1"), ("./run-1", "/data/run-1"), ("/other/1.log", "/other/1.log"), (None, "/data")],
)
def test_an_os_error_of_a_child_names_the_file(path: str | None, expected: str) -> None:
    [failure] = MessageReader().feed(frame(failure_of(OSError(errno.ENOSPC, "no space", path))))
    assert isinstance(failure, Failure)
    found = error_of(failure, "/data")
    assert isinstance(found, OSError)
    assert (found.errno, found.filename) == (errno.ENOSPC, expected)


@pytest.mark.parametrize("size_bytes", [1, 3, 5, 1000])
def test_messages_come_whole_however_they_are_cut(size_bytes: int) -> None:
    messages = [TaskProgress(7), Part(raw([1, 2])), Part(raw(bytes(300))), Result(raw("done")), TaskProgress(8)]
    data = b"".join(map(frame, messages))
    reader = MessageReader()
    pieces = [data[start : start + size_bytes] for start in range(0, len(data), size_bytes)]
    found = [message for piece in pieces for message in reader.feed(piece)]
    assert [frame(message) for message in found] == [frame(message) for message in messages]


def test_a_pool_that_is_stopped_fails_its_reader(tmp_path: Path) -> None:
    """From another thread: the reader waits for a child that will never answer."""
    task = next(journal_tasks(tmp_path))
    with CHILDREN.pool("bkctl.storage.rebuild.child", str(tmp_path), 1) as pool:
        timer = threading.Timer(0.3, pool.stop)
        timer.start()
        with pytest.raises(ChildFailedError, match="was killed by signal 9"):
            list(pool.run([task], JournalFindings))
        timer.join()
        with pytest.raises(ChildFailedError):
            list(pool.stream(task, JournalFindings))


def journal_tasks(tmp_path: Path) -> Iterator[ReadJournal]:
    """The first is never done: nobody writes into the pipe that it reads."""
    stuck = tmp_path / "stuck"
    os.mkfifo(stuck)
    yield ReadJournal(path=str(stuck), is_newest=True, cataloged=None)
    path = write_journal(tmp_path, [key_record(1)])
    while True:
        yield ReadJournal(path=str(path), is_newest=True, cataloged=None)


def test_a_child_that_does_not_end_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel ends none that waits for a disk which does not answer."""
    kill = _Child.kill
    children: list[_Child] = []
    with monkeypatch.context() as patch:
        patch.setattr(_Child, "kill", lambda child: children.append(child))  # noqa: PLW0108  only a function is bound
        impatient = ChildProcesses(end_s_max=0.1)
        with impatient.pool("bkctl.storage.rebuild.child", str(tmp_path), 2) as pool:
            next(pool.run(journal_tasks(tmp_path), JournalFindings))
    assert len(children) == 2
    for child in children:
        kill(child)
        child.release()


def test_a_child_that_cannot_be_started_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with (
        CHILDREN.pool("bkctl.storage.rebuild.child", str(tmp_path), 1) as pool,
        pytest.raises(ChildFailedError, match=r"cannot start .* \(bkctl.storage.rebuild.child\): No such file"),
    ):
        list(pool.run(journal_tasks(tmp_path), JournalFindings))
