"""Child processes that answer tasks: what a child does whose parent is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from storage.child_pool import ChildPool
from storage.probe_child import ProbeRows
from storage.rebuild_tasks import JournalFindings, ReadJournal
from tests.processes import bkctl_environment
from tests.storage.test_replay import key_record, write_journal


def test_a_child_whose_parent_was_killed_ends_quietly(tmp_path: Path) -> None:
    """What it prints lands in the log of a bookie that is already dead, as if this had been the cause."""
    task = ProbeRows(directory=str(tmp_path), rows=bytes(24), entry_bytes_max=1024)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "storage.probe_child"],
        env=bkctl_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.close()
        _, said = child.communicate(msgspec.json.encode(task) + b"\n")
    assert said == b""
    assert child.returncode == 0


def test_answers_longer_than_a_pipe_come_whole(tmp_path: Path) -> None:
    """Two of one child, one behind the other."""
    path = write_journal(
        tmp_path, *([key_record(number) for number in range(first, first + 500)] for first in range(0, 5000, 500))
    )
    task = ReadJournal(path=str(path), is_newest=True, cataloged=None)
    with ChildPool("storage.rebuild_child", str(tmp_path), 1) as pool:
        answers = [answer for _, answer in pool.run([task, task])]
    for answer in answers:
        assert len(msgspec.json.encode(answer)) > 2 * 65536
        assert list(msgspec.convert(answer, JournalFindings, strict=False).ledgers) == list(range(5000))
    assert len(answers) == 2
