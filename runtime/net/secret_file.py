"""Adapter of the port ReadSecret: a file that only its owner and its group can read."""

from __future__ import annotations

import os
import stat
from typing import Final

from bkctl.runtime.errors import ConfigurationError

_BYTES_MAX: Final = 4096


def read_secret(path: str) -> bytes:
    """The secret in the file, without white space around it; OSError, ConfigurationError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigurationError(f"{path} is not a file")
        if found.st_mode & stat.S_IRWXO:
            raise ConfigurationError(f"every user of this machine may use {path}: run chmod o= {path}")
        secret = file.read(_BYTES_MAX + 1).strip()
    if not secret:
        raise ConfigurationError(f"{path} is empty")
    if len(secret) > _BYTES_MAX or not all(0x20 <= byte < 0x7F for byte in secret):
        raise ConfigurationError(f"{path} is not one line of at most {_BYTES_MAX} printable characters")
    return secret
