"""A bookie without any configuration: it brings its own ZooKeeper and is a whole cluster by itself."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import msgspec

from runtime.bookie.cookie_check import cookie_directories, read_directory
from runtime.bookie.process import run_bookie
from runtime.config import BookieConfig
from runtime.errors import RefusedError
from runtime.metadata.cluster import init_cluster
from runtime.metadata.embedded import EmbeddedZooKeeper
from runtime.metadata.uri import parse_metadata_uri
from runtime.metadata.zookeeper import ZooKeeperStore
from storage.filesystem import OsFileSystem

INSTANCE_ID_FILE = "INSTANCEID"
"""Identity of the embedded cluster, beside its ZooKeeper's data: tells its folders from those of other clusters."""


async def run_with_own_zookeeper(config: BookieConfig, data_directory: str, say: Callable[[str], None]) -> None:
    """Run ZooKeeper and the bookie until the bookie ends.

    RefusedError, with nothing started or written, when a folder carries the cookie of another cluster.
    """
    _refuse_foreign_folders(config, data_directory)
    async with await EmbeddedZooKeeper.start(os.path.join(data_directory, "zookeeper")) as server:
        uri = f"zk+hierarchical://{server.connect_string}/ledgers"
        await _init_cluster(uri, data_directory)
        say(
            f"no configuration and no metadata URI given: using an embedded ZooKeeper and ./{data_directory} "
            f"(export BKCTL_METADATA_URI='{uri}')"
        )
        await run_bookie(msgspec.structs.replace(config, metadata_uri=uri))


def _refuse_foreign_folders(config: BookieConfig, data_directory: str) -> None:
    own_id = _read_instance_id(data_directory)
    for path in cookie_directories(config.storage):
        cookie = read_directory(OsFileSystem(), path).cookie
        if cookie is not None and (own_id is None or cookie.instance_id != own_id):
            raise RefusedError(
                f"{path} belongs to bookie {cookie.bookie_id} of cluster {cookie.instance_id}, not to an embedded one: "
                "give that cluster's --metadata-uri or --conf, or choose empty folders"
            )


async def _init_cluster(uri: str, data_directory: str) -> None:
    parsed = parse_metadata_uri(uri)
    async with await ZooKeeperStore.connect(parsed.servers) as store:
        info, _ = await init_cluster(store, parsed.root, parsed.tree, random.SystemRandom())
    if info.instance_id is not None and info.instance_id != _read_instance_id(data_directory):
        path = os.path.join(data_directory, INSTANCE_ID_FILE)
        OsFileSystem().write_file_atomically(path, info.instance_id.encode())


def _read_instance_id(data_directory: str) -> str | None:
    try:
        return OsFileSystem().read_file(os.path.join(data_directory, INSTANCE_ID_FILE)).decode("ascii", "replace")
    except FileNotFoundError:
        return None
