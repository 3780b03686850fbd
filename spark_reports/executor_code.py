"""The code of bkctl in one zip file, for Python processes on other machines, which need not have bkctl installed.

They need Python, and the libraries that bkctl depends on: a zip file cannot carry those that are compiled.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile

from bkctl.runtime.errors import ConfigurationError

ARCHIVE_NAME = "bkctl.zip"

_PACKAGES = ("bkctl", "commands", "spark_reports", "runtime", "storage")
_SUFFIXES = (".py", ".html")
_ARCHIVE_SUFFIX = ".zip"


def code_archive(directory: str) -> str:
    """Path of a zip file with the code of this process, in ``directory``. If it runs from one itself, that one."""
    home = os.path.dirname(_directory_of(_PACKAGES[0]))
    if home.endswith(_ARCHIVE_SUFFIX):
        return home
    path = os.path.join(directory, ARCHIVE_NAME)
    write_code_archive(path)
    return path


def write_code_archive(path: str) -> None:
    """Write the modules of all five layers to a new zip file; OSError."""
    with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive:
        for package in _PACKAGES:
            package_directory = _directory_of(package)
            for directory, _, names in os.walk(package_directory):
                for name in sorted(name for name in names if name.endswith(_SUFFIXES)):
                    file = os.path.join(directory, name)
                    archive.write(file, os.path.join(package, os.path.relpath(file, package_directory)))


def _directory_of(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(f"the Python package {package} is not installed: reinstall bkctl")
    return next(iter(spec.submodule_search_locations))
