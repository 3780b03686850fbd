"""Which process listens on a port, as far as Linux shows it to this user. For error messages alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENING: Final = "0A"
_COLUMN_ADDRESS, _COLUMN_STATE, _COLUMN_INODE = 1, 3, 9


def describe_owner(port: int) -> str:
    """ "process 4711 (java)", several of them, or "another process" if this user may not see which one."""
    owners = [f"process {pid} ({_command_name(pid)})" for pid in sorted(_processes_with(_listening_inodes(port)))]
    return " and ".join(owners) or "another process"


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for path in _TABLES:
        for columns in _rows(path):
            if columns[_COLUMN_STATE] == _LISTENING and int(columns[_COLUMN_ADDRESS].rpartition(":")[2], 16) == port:
                inodes.add(columns[_COLUMN_INODE])
    return inodes


def _rows(path: str) -> Iterator[list[str]]:
    with contextlib.suppress(OSError), open(path, encoding="ascii") as table:
        next(table, None)
        for line in table:
            yield line.split()


def _processes_with(inodes: set[str]) -> set[int]:
    names = {f"socket:[{inode}]" for inode in inodes}
    if not names:
        return set()
    return {int(entry) for entry in _entries("/proc") if entry.isdigit() and _has_open(entry, names)}


def _has_open(pid: str, names: set[str]) -> bool:
    folder = f"/proc/{pid}/fd"
    for entry in _entries(folder):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(f"{folder}/{entry}") in names:
                return True
    return False


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # no /proc, or a process of another user
        return []


def _command_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "ended"
