"""A bookie without configuration: it starts its own ZooKeeper and is a complete cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Callable

import msgspec

from bkctl.runtime.bookie.boot.process import OnServing, run_bookie
from bkctl.runtime.bookie.cookies.directories import read_directory
from bkctl.runtime.bookie.ports import ChildDaemon
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import ConfigurationError, PortInUseError, RefusedError
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper, require_free, server_command
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.ports import ServiceManager
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.json_text import JsonTextError, decode_json

STATE_FILE = "cluster.json"


class OwnCluster(msgspec.Struct, frozen=True):
    """The state of the embedded cluster, stored next to its data.

    The instance id distinguishes its directories from those of other clusters. The port stays the same, so that an
    exported metadata URI stays valid.
    """

    instance_id: str | None
    zookeeper_port: int


async def run_with_own_zookeeper(
    config: BookieConfig,
    data_directory: str,
    say: Callable[[str], None],
    stop: asyncio.Event,
    on_serving: OnServing,
    manager: ServiceManager,
    autorecovery: ChildDaemon | None,
) -> None:
    """Run ZooKeeper and the bookie until the bookie ends; the last four arguments are those of ``run_bookie``.

    RefusedError, with nothing started or written, when a directory has the cookie of another cluster.
    """
    known = _read_state(data_directory)
    _refuse_foreign_directories(config, known)
    try:
        server_command()
    except ConfigurationError as error:
        raise ConfigurationError(
            f"nothing is configured: name a cluster with --conf or --metadata-uri; {error}"
        ) from error
    port = 0
    if known is not None:
        with contextlib.suppress(PortInUseError):
            require_free(known.zookeeper_port, "ZooKeeper")
            port = known.zookeeper_port
    async with await EmbeddedZooKeeper.start(os.path.join(data_directory, "zookeeper"), port=port) as server:
        uri = f"zk+hierarchical://{server.connect_string}/ledgers"
        instance_id = await _init_cluster(uri)
        _write_state(data_directory, OwnCluster(instance_id, server.port))
        say(
            f"nothing is configured: using an embedded ZooKeeper and ./{data_directory} "
            f"(export BKCTL_METADATA_URI='{uri}')"
        )
        config = msgspec.structs.replace(config, metadata_uri=uri)
        await run_bookie(config, stop, on_serving, manager, autorecovery)


def _refuse_foreign_directories(config: BookieConfig, known: OwnCluster | None) -> None:
    for path in config.storage.all_directories:
        cookie = read_directory(OsFileSystem(), path).cookie
        if cookie is not None and (known is None or cookie.instance_id != known.instance_id):
            raise RefusedError(
                f"{path} belongs to bookie {cookie.bookie_id} of cluster {cookie.instance_id}, not to an embedded "
                "cluster: use that cluster's --metadata-uri or --conf, or empty directories"
            )


async def _init_cluster(uri: str) -> str | None:
    parsed = parse_metadata_uri(uri)
    async with await ZooKeeperStore.connect(parsed.servers) as store:
        info, _ = await init_cluster(store, parsed.root, parsed.tree, random.SystemRandom())
    return info.instance_id


def _read_state(data_directory: str) -> OwnCluster | None:
    path = os.path.join(data_directory, STATE_FILE)
    try:
        return decode_json(OsFileSystem().read_file(path), OwnCluster)
    except FileNotFoundError:
        return None
    except JsonTextError as error:
        raise RefusedError(
            f"{path} is damaged ({error}): restore it, or specify the cluster with --metadata-uri"
        ) from error


def _write_state(data_directory: str, state: OwnCluster) -> None:
    if _read_state(data_directory) != state:
        OsFileSystem().write_file_atomically(os.path.join(data_directory, STATE_FILE), msgspec.json.encode(state))
