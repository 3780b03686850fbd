"""Files of a development cluster: the state file, and the directory of each server.

Layout below the cluster's directory::

    cluster.json          this file: ids and ports, which never change again
    lock                  held while a command changes the cluster
    zookeeper/            data, zookeeper.log, process.json
    autorecovery/         autorecovery.log, process.json
    bookie-1/ ...         journal, ledgers, bookie.log, process.json
"""

from __future__ import annotations

import os
import re

import msgspec

from bkctl.runtime.errors import BookieNotFoundError, RefusedError
from bkctl.storage import filenames
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.json_text import JsonTextError, decode_json

STATE_FILE = "cluster.json"

LOOPBACK = "127.0.0.1"
ROOT = "/ledgers"
ZOOKEEPER = "zookeeper"
AUTORECOVERY = "autorecovery"

_BOOKIE_DIRECTORY = re.compile(r"bookie-[0-9]+")


class BookieRecord(msgspec.Struct, frozen=True):
    """A bookie of the cluster; ``name`` is its directory."""

    name: str
    id: str
    port: int
    admin_port: int = 0
    """TCP port of the admin interface; 0 if an earlier version created the bookie and it has not started since."""


class ClusterState(msgspec.Struct, frozen=True):
    """Ids and ports: stable over down and up."""

    zookeeper_port: int
    bookies: tuple[BookieRecord, ...] = ()
    format_version: int = 1

    @property
    def metadata_uri(self) -> str:
        """URI for every bkctl command and Java client."""
        return f"zk+hierarchical://{LOOPBACK}:{self.zookeeper_port}{ROOT}"

    def bookie(self, bookie_id: str) -> BookieRecord:
        """The bookie with this id or directory name; BookieNotFoundError lists the existing ones."""
        for bookie in self.bookies:
            if bookie_id in {bookie.id, bookie.name}:
                return bookie
        known = ", ".join(bookie.id for bookie in self.bookies) or "none"
        raise BookieNotFoundError(f"no bookie '{bookie_id}' in this development cluster (known: {known})")


def state_path(directory: str) -> str:
    """Path of the state file."""
    return os.path.join(directory, STATE_FILE)


def read_state(directory: str) -> ClusterState | None:
    """State of the cluster below ``directory``; None when there is no cluster.

    RefusedError for contents that ``up`` did not write, above all directory names: ``down --delete`` deletes them.
    """
    try:
        with open(state_path(directory), "rb") as file:
            state = decode_json(file.read(), ClusterState)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except JsonTextError as error:
        raise RefusedError(f"{state_path(directory)} is not the state of a development cluster: {error}") from error
    for bookie in state.bookies:
        if not _BOOKIE_DIRECTORY.fullmatch(bookie.name):
            raise RefusedError(
                f"{state_path(directory)}: {bookie.name!r} is not the directory of a bookie in a development cluster"
            )
    return state


def write_state(directory: str, state: ClusterState) -> None:
    """Replace the state file, all or nothing."""
    data = msgspec.json.format(msgspec.json.encode(state), indent=2)
    OsFileSystem().write_file_atomically(state_path(directory), data)


def require_unused(directory: str) -> None:
    """RefusedError unless the directory is absent or empty: this command uses only directories that it created."""
    try:
        names = [name for name in os.listdir(directory) if name != filenames.LOCK]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise RefusedError(f"{directory} is not a directory") from None
    if names:
        raise RefusedError(f"{directory} contains other files ({names[0]} ...): specify an empty directory with --dir")


class ServerStatus(msgspec.Struct, frozen=True):
    """One server of the cluster.

    ``pid`` is None while it does not run, ``dir`` and ``log`` once they are deleted, ``admin_port`` for ZooKeeper, both
    ports for the autorecovery daemon.
    """

    id: str
    name: str
    state: str
    pid: int | None
    port: int | None
    admin_port: int | None
    dir: str | None
    log: str | None

    @property
    def title(self) -> str:
        """What a sentence calls it."""
        return self.id if self.id == self.name else f"bookie {self.id}"


class ClusterStatus(msgspec.Struct, frozen=True):
    """The whole cluster."""

    metadata_uri: str
    zookeeper: ServerStatus
    bookies: tuple[ServerStatus, ...]
    autorecovery: ServerStatus

    @property
    def servers(self) -> tuple[ServerStatus, ...]:
        """All servers, in the order in which they start."""
        return (self.zookeeper, *self.bookies, self.autorecovery)

    def deleted(self) -> ClusterStatus:
        """The status after the data was deleted, without paths."""
        bookies = tuple(map(_deleted, self.bookies))
        return ClusterStatus(self.metadata_uri, _deleted(self.zookeeper), bookies, _deleted(self.autorecovery))


def _deleted(server: ServerStatus) -> ServerStatus:
    return msgspec.structs.replace(server, state="deleted", pid=None, dir=None, log=None)
