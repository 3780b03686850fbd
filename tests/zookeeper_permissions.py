"""What users without a login may do in ZooKeeper."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.until import wait_until


class Permissions:
    """Of the nodes of one cluster: by default all."""

    def __init__(self, metadata_uri: str) -> None:
        uri = parse_metadata_uri(metadata_uri)
        self.root = uri.root
        self.available = f"{uri.root}/available"
        self._client = KazooClient(uri.servers)
        self._client.start()
        self._client.add_auth("digest", "admin:secret")

    def limit(self, path: str, **allowed: bool) -> None:
        """Only what is True."""
        acl = [make_digest_acl("admin", "secret", all=True), make_acl("world", "anyone", **allowed)]
        self._client.ensure_path(path)
        self._client.set_acls(path, acl)

    def tree(self, path: str) -> Iterator[str]:
        """The node and all nodes below it."""
        yield path
        for name in self._client.get_children(path):
            yield from self.tree(f"{path}/{name}")

    def lift(self, path: str) -> None:
        """Everything, as before."""
        self._client.set_acls(path, OPEN_ACL_UNSAFE)

    def registered(self) -> tuple[set[str], set[str]]:
        """Names of the nodes of writable and of read-only bookies."""
        read_only = f"{self.available}/readonly"
        self._client.ensure_path(read_only)
        return set(self._client.get_children(self.available)) - {"readonly"}, set(self._client.get_children(read_only))

    def end_registration(self, bookie_id: str, pid: int) -> None:
        """The session of a bookie ends, and it may not register again; it goes on."""
        self.limit(self.available, read=True)
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: bookie_id not in self.registered()[0], "its session ends")
        finally:
            os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        """End the session."""
        self._client.stop()
        self._client.close()
