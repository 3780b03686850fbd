"""Adapter of the port ListenLocal: a unix socket that only this user can connect to."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import socket
import stat
import tempfile
from collections.abc import Callable
from typing import Final

from bkctl.runtime.errors import ConfigurationError

SOCKET_PATH_BYTES_MAX: Final = 107
"""Linux: the longest path of a unix socket."""

_BACKLOG = 128


class LocalSocket:
    """An open unix socket; ``close`` also deletes its file."""

    def __init__(self, server: asyncio.Server, paths: tuple[str, ...]) -> None:
        self._server = server
        self._paths = paths

    def close(self) -> None:
        """Stop accepting connections; open ones stay. Safe to repeat."""
        self._server.close()
        for path in self._paths:
            with contextlib.suppress(OSError):  # the next process replaces it
                _delete(path)
        self._paths = ()


async def listen_unix(accept: Callable[[], asyncio.BaseProtocol], path: str) -> LocalSocket:
    """Listen on the unix socket ``path`` (mode 0600); OSError, ConfigurationError.

    A socket that an earlier process left there is replaced, nothing else. A path that is too long becomes a symbolic
    link to a socket in the run directory.
    """
    path = _absolute(path)
    place = path if is_short(path) else os.path.join(run_directory(), _short_name(path))
    if not is_short(place):
        raise ConfigurationError(
            f"the path of the socket {place} is too long: set RUNTIME_DIRECTORY to a shorter directory"
        )
    paths = (path,) if place == path else (path, place)
    for each in paths:
        _delete_left_over(each)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(place)
        os.chmod(place, 0o600)  # before it listens: until then every connection is refused
        if place != path:
            os.symlink(place, path)
        server = await asyncio.get_running_loop().create_unix_server(accept, sock=bound, backlog=_BACKLOG)
    except BaseException:
        bound.close()
        for each in paths:
            _delete(each)
        raise
    return LocalSocket(server, paths)


def is_short(path: str) -> bool:
    """Whether a socket can be opened under this path."""
    return len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX


def run_directory() -> str:
    """A directory for sockets that only this user can enter; ConfigurationError."""
    above = os.environ.get("RUNTIME_DIRECTORY") or os.environ.get("XDG_RUNTIME_DIR")
    try:
        directory = os.path.join(above, "bkctl") if above else f"{tempfile.gettempdir()}/bkctl-{os.getuid()}"
    except FileNotFoundError:
        raise ConfigurationError(
            "no directory is writable for the socket of the admin interface: set RUNTIME_DIRECTORY or TMPDIR to one"
        ) from None
    os.makedirs(directory, mode=0o700, exist_ok=True)
    found = os.stat(directory, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigurationError(f"{directory} must be a directory that only this user can enter: remove it")
    return directory


def _absolute(path: str) -> str:
    """Other processes find the socket by this path."""
    return os.path.abspath(path)


def _short_name(path: str) -> str:
    return f"{hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()[:16]}.admin.sock"


def _delete_left_over(path: str) -> None:
    """Delete a socket, or the link to one; FileExistsError for anything else."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISSOCK(mode) and not stat.S_ISLNK(mode):
            raise FileExistsError(errno.EEXIST, "a file that is not a socket has this name", path)
    _delete(path)


def _delete(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
