"""A cluster of metadata alone, for commands that need no bookie."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.ledgers.stored_ledgers import scan_stored
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import BkctlResult, bkctl_command, bkctl_environment, run_bkctl

BOOKIES = ("b1:3181", "b2:3181", "b3:3181")
OPEN = new_ledger(BOOKIES, 2, 2, DigestType.CRC32C, b"secret")
CLOSED = to_closed(OPEN, 9, 1000)


def labelled(metadata: LedgerMetadata, **labels: str) -> LedgerMetadata:
    """With custom metadata; ``__`` in a name stands for a slash, ``_`` for a dash."""
    custom = tuple((key.replace("__", "/").replace("_", "-"), value.encode()) for key, value in labels.items())
    return msgspec.structs.replace(metadata, custom_metadata=custom)


class LedgerShell:
    """An initialised cluster, its ledgers, and bkctl run against it."""

    def __init__(self, store: ZooKeeperStore, ledgers: LedgerStore, uri: str, directory: Path) -> None:
        self.store = store
        self.ledgers = ledgers
        self.uri = uri
        self.directory = directory
        self.state = directory / "state"
        self.config = directory / "config.toml"
        self.config.write_text("[zookeeper]\nsession_timeout_ms = 6000\n")  # what a killed command held is free soon
        self.paths = Paths(ledgers.root)

    def path(self, ledger_id: int) -> str:
        return self.ledgers.path(ledger_id)

    async def plant(self, ledger_id: int, content: LedgerMetadata | bytes) -> None:
        """Put a ledger, or any bytes, where a ledger is; node versions start at 0."""
        data = content if isinstance(content, bytes) else encode_ledger_metadata(content)
        await self.store.create(self.path(ledger_id), data, make_parents=True)

    async def contents(self) -> dict[int, tuple[bytes, int]]:
        """Bytes and version of every ledger; one that is deleted meanwhile is left out."""
        return {
            ledger.ledger_id: (ledger.node.data, ledger.node.stat.version)
            async for ledger in scan_stored(self.store, self.ledgers)
            if ledger.node is not None
        }

    @property
    def environment(self) -> dict[str, str]:
        return {"BKCTL_METADATA_URI": self.uri, "BKCTL_STATE_DIR": str(self.state), "BKCTL_CONFIG": str(self.config)}

    async def run(self, *arguments: str, **variables: str) -> BkctlResult:
        environment: dict[str, Any] = self.environment | variables
        return await asyncio.to_thread(run_bkctl, "ledger", *arguments, **environment)

    async def succeed(self, *arguments: str) -> Any:
        result = await self.run(*arguments)
        assert result.exit_code == 0, result
        return result.json()

    async def begin(self, *arguments: str, file_bytes_max: int | None = None) -> asyncio.subprocess.Process:
        """Start bkctl and leave it running. ``file_bytes_max``: it may write no larger file, as on a full disk."""
        limit = () if file_bytes_max is None else ("prlimit", f"--fsize={file_bytes_max}")
        return await asyncio.create_subprocess_exec(
            *limit,
            *bkctl_command("ledger", *arguments),
            env=bkctl_environment(**self.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    def trash(self) -> list[dict[str, Any]]:
        """All lines of all trash files, oldest first."""
        files = sorted((self.state / "trash").glob("*.jsonl"))
        return [msgspec.json.decode(line) for file in files for line in file.read_bytes().splitlines()]

    def trash_file(self) -> str:
        """The only trash file."""
        [file] = (self.state / "trash").glob("*.jsonl")
        return str(file)


@pytest.fixture
async def shell(metadata_uri: str, tmp_path: Path) -> AsyncIterator[LedgerShell]:
    uri = parse_metadata_uri(metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await init_cluster(store, uri.root, uri.tree, random.Random(1))
        ledgers = await open_ledger_store(store, uri.root, uri.tree)
        yield LedgerShell(store, ledgers, metadata_uri, tmp_path)
