"""Temporary directories that only their owner reads: unpacked backups, which have passwords, and Spark's files.

A process that is killed with SIGKILL cannot delete its own, so the next one does. Each process holds a lock on its
directory, which the kernel releases: so a process id that was used again, or another container, confuses nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_PREFIX = "bkctl-private-"


@contextmanager
def private_directory() -> Iterator[str]:
    """A new directory that ends with the block. Deletes those that killed processes of this user left. OSError."""
    _delete_abandoned(tempfile.gettempdir())
    path, lock = _new_locked()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)  # what cannot be deleted now, the next process deletes
        os.close(lock)


def _new_locked() -> tuple[str, int]:
    while True:
        path = tempfile.mkdtemp(prefix=_PREFIX)
        lock = _open(path)
        if lock is not None:
            with contextlib.suppress(OSError):  # a file system without locks, where none is deleted either
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.isdir(path):
                return path, lock
            os.close(lock)  # another process deleted it before it was locked


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _delete_abandoned(parent: str) -> None:
    found: list[str] = []
    with contextlib.suppress(PermissionError), os.scandir(parent) as entries:
        found += [each.path for each in entries if each.name.startswith(_PREFIX)]
    for path in found:
        with contextlib.suppress(OSError):  # of another user, locked, or already deleted
            lock = _open(path)
            if lock is None:
                continue
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
            finally:
                os.close(lock)
