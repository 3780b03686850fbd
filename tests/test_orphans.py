"""A killed test run leaves no process."""

from __future__ import annotations

import subprocess
import sys

from tests.orphans import OrphanKiller
from tests.test_repository import ROOT

WATCH_AND_DIE = """
import os, signal, subprocess
from tests.orphans import OrphanKiller
OrphanKiller().watch(subprocess.Popen(["cat"]).pid)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_watched_process_ends_with_a_killed_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", WATCH_AND_DIE], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    assert parent.stdout.read() == b"", "ends when `cat`, which has the other end and would wait for input, is gone"
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()


def test_a_closed_watch_kills_nothing() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        with OrphanKiller() as orphans:
            orphans.watch(process.pid)
        process.communicate(timeout=60)
    assert process.returncode == 0
