"""A process is recognised by pid, start time and boot, and nothing else is ever signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bkctl.commands.processes import (
    ProcessIdentity,
    identify,
    is_alive,
    read_pid_file,
    send_signal,
    spawn_detached,
    wait_ended,
    write_pid_file,
)

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ProcessIdentity]:
    process = spawn_detached(SLEEP, str(tmp_path / "log"), os.environ)
    assert process is not None
    yield process
    send_signal(process, signal.SIGKILL)


def others(process: ProcessIdentity) -> list[ProcessIdentity]:
    """The same pid in another life, and in another boot."""
    return [
        msgspec.structs.replace(process, start_ticks=process.start_ticks + 1),
        msgspec.structs.replace(process, boot_id="another-boot"),
    ]


async def test_a_detached_process_has_a_session_and_a_log_of_its_own(sleeper: ProcessIdentity, tmp_path: Path) -> None:
    assert os.getsid(sleeper.pid) == sleeper.pid
    assert is_alive(sleeper)
    assert send_signal(sleeper, signal.SIGTERM)
    assert await wait_ended(sleeper, 20)
    assert not is_alive(sleeper)
    assert not send_signal(sleeper, signal.SIGTERM)


async def test_a_recycled_pid_is_never_signalled(sleeper: ProcessIdentity) -> None:
    for other in others(sleeper):
        assert not is_alive(other)
        assert not send_signal(other, signal.SIGKILL)
        assert await wait_ended(other, 20)
    assert is_alive(sleeper)


async def test_waiting_has_an_end(sleeper: ProcessIdentity) -> None:
    assert not await wait_ended(sleeper, 0.05)


def test_a_dead_child_that_nobody_reaped_counts_as_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert identify(child.pid) is None
    finally:
        child.wait()


def test_a_name_with_brackets_and_blanks_is_no_trap(tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1 (b"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(program), "600"])
    try:
        process = identify(child.pid)
        assert process is not None
        assert is_alive(process)
    finally:
        child.kill()
        child.wait()


def test_pid_file(sleeper: ProcessIdentity, tmp_path: Path) -> None:
    path = tmp_path / "process.json"
    assert read_pid_file(str(path)) is None
    write_pid_file(str(path), sleeper)
    assert read_pid_file(str(path)) == sleeper
    for other in others(sleeper):
        write_pid_file(str(path), other)
        assert read_pid_file(str(path)) is None
    for junk in (b"{", b'{"pid":1,"start_ticks":1,"boot_id":"\xff"}'):
        path.write_bytes(junk)
        assert read_pid_file(str(path)) is None


def test_processes_that_never_were() -> None:
    assert identify(2**22 + 1) is None
