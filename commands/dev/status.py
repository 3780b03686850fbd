"""A development cluster as it is at one moment."""

from __future__ import annotations

import msgspec


class ServerStatus(msgspec.Struct, frozen=True):
    """One server of the cluster; ``pid`` is None while it does not run, ``dir`` and ``log`` once they are deleted."""

    id: str
    name: str
    state: str
    pid: int | None
    port: int
    dir: str | None
    log: str | None


class ClusterStatus(msgspec.Struct, frozen=True):
    """The whole cluster."""

    metadata_uri: str
    zookeeper: ServerStatus
    bookies: tuple[ServerStatus, ...]

    def deleted(self) -> ClusterStatus:
        """What is to be said of the cluster once its data is gone: no path that leads nowhere."""
        return ClusterStatus(self.metadata_uri, _deleted(self.zookeeper), tuple(map(_deleted, self.bookies)))


def _deleted(server: ServerStatus) -> ServerStatus:
    return msgspec.structs.replace(server, state="deleted", pid=None, dir=None, log=None)
