"""The code of bkctl in one zip file, for Python processes on other machines, which need not have bkctl installed.

They need Python, and the libraries that bkctl depends on: a zip file cannot carry those that are compiled.
"""

from __future__ import annotations

import os
import zipfile

import bkctl

ARCHIVE_NAME = "bkctl.zip"

_SUFFIXES = (".py", ".html")
_ARCHIVE_SUFFIX = ".zip"


def code_archive(directory: str) -> str:
    """Path of a zip file with the code of this process, in ``directory``. If it runs from one itself, that one."""
    home = os.path.dirname(_package_directory())
    if home.endswith(_ARCHIVE_SUFFIX):
        return home
    path = os.path.join(directory, ARCHIVE_NAME)
    write_code_archive(path)
    return path


def write_code_archive(path: str) -> None:
    """Write all modules to a new zip file; OSError."""
    package = _package_directory()
    with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive:
        for directory, _, names in os.walk(package, followlinks=True):  # in a checkout the layers are links
            for name in sorted(name for name in names if name.endswith(_SUFFIXES)):
                file = os.path.join(directory, name)
                archive.write(file, os.path.relpath(file, os.path.dirname(package)))


def _package_directory() -> str:
    return os.path.dirname(bkctl.__file__)
