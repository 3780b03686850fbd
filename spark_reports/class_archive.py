"""Java's archive of the classes that Spark loads. With it, the start of Spark takes a third less CPU time.

Java 19 and newer write such a file when a JVM ends, and replace it if it is of another Java or another Spark, or too
short. One that is damaged otherwise is neither used nor replaced: it is deleted here, and the next JVM writes one. Java
17 and 18 cannot, and run without. Several JVMs may write it at once: each writes a new file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import struct
from collections.abc import Mapping

from bkctl.storage.adapters.filesystem import OsFileSystem

_JAVA_VERSION_MIN = 19
_FIRST_BYTES = struct.pack("=I", 0xF00BABA8)
"""Of an archive, in the order of the processor. Java writes them last."""
_OPTIONS = (
    # The file spark-env.sh of an installation may choose another Java, which would refuse what it does not know.
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+AutoCreateSharedArchive",
    "-XX:SharedArchiveFile={path}",
    "-XX:+VerifySharedSpaces",  # a damaged one would crash the JVM; this takes 0.04 s
    # Why an archive does not fit is printed to standard output, where the report goes.
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    "-Xlog:cds*=warning:stderr",
)
_REFUSAL = re.compile("dynamic archive failed|archive failed to load|[Nn]ot a valid shared archive|has been truncated")
"""What such a JVM prints at its start if it cannot use the archive; it also prints errors about one that it uses."""


class ClassArchive:
    """The archive of a JVM that is about to start."""

    def __init__(self, path: str) -> None:
        _delete_unfinished(path)
        self._path = path
        self._identity = _identity_of(path)

    @property
    def options(self) -> tuple[str, ...]:
        """For the JVM."""
        return tuple(each.format(path=self._path) for each in _OPTIONS)

    def delete_if_refused(self, printed: str) -> None:
        """Delete it if the JVM could not use it, by what it has printed to standard error until it was ready."""
        is_refused = self._identity is not None and _REFUSAL.search(printed) is not None
        if is_refused and _identity_of(self._path) == self._identity:  # else another JVM has replaced it
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def class_archive(java: str, java_version: int, spark: str, environment: Mapping[str, str]) -> ClassArchive | None:
    """The archive of the JVM at ``java`` that runs the Spark in the directory ``spark``; None if it keeps none.

    Each pair of them has its own file in the user's cache directory.
    """
    if java_version < _JAVA_VERSION_MIN:
        return None
    directory = _cache_directory(environment)
    if directory is None:
        return None
    of_pair = hashlib.sha256(f"{os.path.realpath(java)}\n{os.path.realpath(spark)}".encode()).hexdigest()[:12]
    return ClassArchive(os.path.join(directory, f"spark-classes-{of_pair}.jsa"))


def _cache_directory(environment: Mapping[str, str]) -> str | None:
    """``$XDG_CACHE_HOME/bkctl``, else ``~/.cache/bkctl``, created if necessary; None: the user has none.

    Java runs the code in an archive, so only the user may write there. The name must not need quotes in an option.
    """
    home = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME") or "", ".cache")
    directory = os.path.join(home, "bkctl")
    if not os.path.isabs(directory) or any(each.isspace() or each in "\"'\\" for each in directory):
        return None
    try:
        OsFileSystem().make_directories(directory)
        found = os.stat(directory)
    except OSError:
        return None
    is_own = found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return directory if is_own and os.access(directory, os.W_OK) else None


def _identity_of(path: str) -> tuple[int, int] | None:
    """Which file it is; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _delete_unfinished(path: str) -> None:
    """Delete what a JVM has written that was killed. Java would neither use nor replace it."""
    with contextlib.suppress(OSError):
        with open(path, "rb") as file:
            is_whole = file.read(len(_FIRST_BYTES)) == _FIRST_BYTES
        if not is_whole:
            os.unlink(path)
