"""Processes that outlive the shell that started them, distinguished from later ones with the same pid.

A pid file holds the pid, the process's start time and the boot it belongs to; all three must match. Signals go
through a pidfd opened before the check, so they cannot reach another process that gets the pid.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

import msgspec

from bkctl.storage.adapters.filesystem import OsFileSystem, open_to_append
from bkctl.storage.json_text import JsonTextError, decode_json

_POLL_INTERVAL_S = 0.02
_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"


class ProcessIdentity(msgspec.Struct, frozen=True):
    """Permanent identity of a process: ``start_ticks`` counts clock ticks since the boot."""

    pid: int
    start_ticks: int
    boot_id: str


def identify(pid: int) -> ProcessIdentity | None:
    """Identity of a living process; None for one that is gone, or dead and not yet reaped."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The command in brackets may have spaces and brackets itself: start after the last one.
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in {"Z", "X"}:
        return None
    with open(_BOOT_ID_PATH, encoding="ascii") as file:
        return ProcessIdentity(pid, int(fields[19]), file.read().strip())


def is_alive(process: ProcessIdentity) -> bool:
    """Whether exactly this process still runs."""
    return identify(process.pid) == process


def send_signal(process: ProcessIdentity, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(process):
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)
        return True
    finally:
        os.close(descriptor)


async def wait_ended(process: ProcessIdentity, timeout_s: float) -> bool:
    """Wait until the process has ended; False when it still runs after ``timeout_s``."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while is_alive(process):  # noqa: ASYNC110  asyncio reports only the end of own children
                await asyncio.sleep(_POLL_INTERVAL_S)
    return not is_alive(process)


def spawn_detached(command: Sequence[str], log_path: str, environment: Mapping[str, str]) -> ProcessIdentity | None:
    """Start a process in a new session, with output appended to a log; None when it ended immediately."""
    with open(open_to_append(log_path), "ab") as log:
        child = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
    identity = identify(child.pid)
    # Popen would warn when it is destroyed that the child still runs, which is intended here.
    child.returncode = 0
    return identity


def write_pid_file(path: str, process: ProcessIdentity) -> None:
    """Write the pid file of a process."""
    OsFileSystem().write_file_atomically(path, msgspec.json.encode(process))


def read_pid_file(path: str) -> ProcessIdentity | None:
    """The process of the pid file if it still runs."""
    try:
        with open(path, "rb") as file:
            process = decode_json(file.read(), ProcessIdentity)
    except (FileNotFoundError, JsonTextError):
        return None
    return process if is_alive(process) else None
