"""Small files of which several directories have a copy, because some of the disks may be full. One copy is enough."""

from __future__ import annotations

import os
from collections.abc import Sequence

from bkctl.storage.ports import FileSystem


def write_copies(fs: FileSystem, directories: Sequence[str], name: str, data: bytes) -> list[OSError]:
    """Write the file atomically to each of these directories, also after an error; returns the errors."""
    errors: list[OSError] = []
    for directory in directories:
        try:
            fs.write_file_atomically(os.path.join(directory, name), data)
        except OSError as error:
            errors.append(error)
    return errors
