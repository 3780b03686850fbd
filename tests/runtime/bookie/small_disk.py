"""A file system of a few MiB of its own, which a test can fill, empty, and make fail."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkctl.storage.setting import MEBIBYTE

SIZE_BYTES = 64 * MEBIBYTE


class SmallDisk:
    """A mounted file system of ``SIZE_BYTES``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def use(self, fraction: float) -> None:
        """Have this part of it used, as far as a file of zeros can do it."""
        ballast = self.path / "ballast"
        ballast.unlink(missing_ok=True)
        numbers = os.statvfs(self.path)
        used_bytes = SIZE_BYTES - numbers.f_bavail * numbers.f_frsize
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(int(fraction * SIZE_BYTES) - used_bytes, 1))

    def remount_read_only(self) -> None:
        """What the kernel does to a file system with errors."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)

    def detach(self) -> None:
        """Take it away from under whoever uses it; what is open stays open."""
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """Mount one at ``path``; skips the test where that is not allowed."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"needs the right to mount a file system: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], capture_output=True, check=False)  # unless it is detached
