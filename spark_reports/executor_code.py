"""The code of bkctl in one zip file, for Python processes on other machines, which need not have bkctl installed.

They need Python, and the libraries that bkctl depends on: a zip file cannot carry those that are compiled.
"""

from __future__ import annotations

import io
import os
import zipfile

import bkctl
from bkctl.runtime.new_file import write_whole

ARCHIVE_NAME = "bkctl.zip"

_SUFFIXES = (".py", ".html")
_ARCHIVE_SUFFIX = ".zip"


def code_archive(directory: str) -> str:
    """Path of a zip file with the code of this process, in ``directory``, made again if it exists. If this process runs
    from one itself, that one."""
    home = os.path.dirname(_package_directory())
    if home.endswith(_ARCHIVE_SUFFIX):
        return home
    path = os.path.join(directory, ARCHIVE_NAME)
    write_whole(path, _zipped_modules())  # a session that began before may read the old one
    return path


def _zipped_modules() -> bytes:
    package, content = _package_directory(), io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for directory, below, names in os.walk(package, followlinks=True):  # in a checkout the layers are links
            below.sort()  # a session refuses a file of the same name with other bytes
            for name in sorted(name for name in names if name.endswith(_SUFFIXES)):
                file = os.path.join(directory, name)
                archive.write(file, os.path.relpath(file, os.path.dirname(package)))
    return content.getvalue()


def _package_directory() -> str:
    return os.path.dirname(bkctl.__file__)
