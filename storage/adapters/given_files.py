"""Reads files that an operator names. The path may be wrong, and lead to a device or a pipe that never ends."""

from __future__ import annotations

import errno
from typing import Final

from bkctl.storage.words import exact_size

SMALL_BYTES_MAX: Final = 1024 * 1024
"""For settings, secrets, cookies and rack tables."""
DATA_BYTES_MAX: Final = 1024 * 1024 * 1024
"""For files with a line per ledger or finding, which are read into memory: about two million ledgers."""

_PART_BYTES = 1024 * 1024


def read_given_file(path: str, bytes_max: int = SMALL_BYTES_MAX) -> bytes:
    """The whole file; OSError, also for a file with more than ``bytes_max`` bytes."""
    parts: list[bytes] = []
    left = bytes_max
    with open(path, "rb") as file:
        while part := file.read(min(_PART_BYTES, left + 1)):
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise OSError(errno.EFBIG, f"it has more than {exact_size(bytes_max)}", path)
    return b"".join(parts)
