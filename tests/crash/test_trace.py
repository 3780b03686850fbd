"""What a real program does to its files is what the trace of it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.battery import why_not_traceable
from tests.crash.trace import (
    TRACED,
    Create,
    Link,
    MakeDirectory,
    Note,
    Remove,
    Rename,
    SyncDirectory,
    SyncFile,
    TraceReader,
    Truncate,
    Write,
    read_trace,
)

PROGRAM = r"""
import os, sys
root, notes = sys.argv[1:]
os.mkdir(root + "/d")
a = os.open(root + "/d/a", os.O_RDWR | os.O_CREAT)
os.write(a, b"one"); os.write(a, b"two\x00\xff"); os.pwrite(a, b"X", 1)
os.pwritev(a, [b"p", b"q"], 20)
os.ftruncate(a, 10); os.fdatasync(a); os.close(a)
b = os.open(root + "/d/a", os.O_WRONLY | os.O_APPEND); os.write(b, b"end"); os.close(b)
os.rename(root + "/d/a", root + "/d/b"); os.link(root + "/d/b", root + "/c"); os.unlink(root + "/d/b")
for directory in (root, root + "/d"):
    d = os.open(directory, os.O_RDONLY | os.O_DIRECTORY); os.fsync(d); os.close(d)
n = os.open(notes, os.O_WRONLY | os.O_CREAT); os.write(n, b"done 1\ndone 2\n")
open(root + "/c", "wb").close()
"""


@pytest.mark.strace
def test_a_trace_tells_every_change(tmp_path: Path) -> None:
    if (reason := why_not_traceable()) is not None:
        pytest.skip(reason)
    root, log = tmp_path / "root", tmp_path / "log"
    root.mkdir()
    command = [sys.executable, "-c", PROGRAM, str(root), str(tmp_path / "notes")]
    subprocess.run(
        ["strace", "-f", "-xx", "-s", "10000", "-e", f"trace={TRACED}", "-o", str(log), *command], check=True
    )
    changes = read_trace(str(log), str(root))
    assert changes == [
        MakeDirectory("d"),
        Create("d/a", 0),
        Write(0, 0, b"one"),
        Write(0, 3, b"two\x00\xff"),
        Write(0, 1, b"X"),
        Write(0, 20, b"pq"),
        Truncate(0, 10),
        SyncFile(0, 7),
        Write(0, 10, b"end"),
        Rename("d/a", "d/b"),
        Link("d/b", "c"),
        Remove("d/b"),
        SyncDirectory("", 12),
        SyncDirectory("d", 13),
        Note("done 1"),
        Note("done 2"),
        Truncate(0, 0),
    ]


def test_a_number_that_another_thread_gets_while_it_is_closed_is_that_threads() -> None:
    """strace tells of the end of a call later than of what another thread did meanwhile."""
    lines = [
        r'1 openat(AT_FDCWD, "\x2f\x72\x2f\x61", O_RDWR|O_CREAT) = 5',
        "1 close(5 <unfinished ...>",
        r'2 openat(AT_FDCWD, "\x2f\x72\x2f\x62", O_RDWR|O_CREAT) = 5',
        "1 <... close resumed>) = 0",
        "2 fsync(5) = 0",
    ]
    assert TraceReader("/r").read(lines) == [Create("a", 0), Create("b", 1), SyncFile(1, 2)]
