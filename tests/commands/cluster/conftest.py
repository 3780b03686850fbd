"""A cluster's metadata in the shared ZooKeeper, its operator's state directory, and bkctl on both."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar

import pytest

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import NoNodeError
from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import COMMAND_TIMEOUT_S, BkctlProcess, BkctlResult, run_bkctl, start_bkctl
from tests.runtime.metadata.trees import PlantedNode, read_tree

T = TypeVar("T")
DEADLINE_S = 60.0


def commands_after(text: str, said: str) -> list[list[str]]:
    """The words of the commands of bkctl that a message names, without "bkctl"."""
    return [shlex.split(each)[1:] for each in said.partition(text)[2].partition("\n")[0].split(", then ")]


def command_after(text: str, said: str) -> list[str]:
    """The words of the only one."""
    (command,) = commands_after(text, said)
    return command


class Operator:
    """Runs bkctl against one root; sessions end six seconds after a kill."""

    def __init__(self, directory: Path, metadata_uri: str) -> None:
        self.uri = parse_metadata_uri(metadata_uri)
        self.root = self.uri.root
        self.state = directory / "state"
        self.directory = directory
        self.environment = {"BKCTL_METADATA_URI": metadata_uri, "BKCTL_STATE_DIR": str(self.state)}
        self._processes: list[BkctlProcess] = []
        self.configure("")

    def configure(self, zookeeper: str) -> None:
        """Lines of the section [zookeeper]."""
        config = self.directory / "config.toml"
        config.write_text(f"[zookeeper]\nsession_timeout_ms = 6000\n{zookeeper}\n")
        self.environment["BKCTL_CONFIG"] = str(config)

    def run(self, *arguments: str, **variables: str) -> BkctlResult:
        """Run a command to its end."""
        return run_bkctl(*arguments, timeout_s=COMMAND_TIMEOUT_S, **{**self.environment, **variables})

    def succeed(self, *arguments: str) -> BkctlResult:
        """Run a command that must work."""
        result = self.run(*arguments)
        assert result.exit_code == 0, f"{arguments}: {result.exit_code}\n{result.stdout}{result.stderr}"
        return result

    def begin(self, *arguments: str, stderr: IO[str] | None = None) -> BkctlProcess:
        """Start a command; it is ended with the test at the latest."""
        process = start_bkctl(*arguments, stderr=stderr, variables=self.environment)
        self._processes.append(process)
        return process

    def end(self) -> None:
        """Leave no process."""
        for process in self._processes:
            process.kill()
            process.wait()

    def instance_id(self) -> str:
        """As the command tells it."""
        return self.succeed("cluster", "instance-id", "-o", "name").stdout.strip()

    def on_store(self, act: Callable[[MetadataStore], Awaitable[T]]) -> T:
        """Do something to ZooKeeper directly."""

        async def run() -> T:
            async with await ZooKeeperStore.connect(self.uri.servers, ZooKeeperConfig()) as store:
                return await act(store)

        return asyncio.run(run())

    def tree(self) -> dict[str, PlantedNode]:
        """All nodes below the root."""
        return self.on_store(lambda store: read_tree(store, self.root))

    def children(self, path: str) -> list[str]:
        """Names of the nodes in a directory below the root; none where there is no such directory."""

        async def names(store: MetadataStore) -> list[str]:
            with contextlib.suppress(NoNodeError):
                return await store.children(f"{self.root}{path}")
            return []

        return self.on_store(names)

    def add_ledgers(self, count: int) -> None:
        """Closed ledgers 0, 1, ..."""
        metadata = to_closed(new_ledger(("b1:3181",), 1, 1, DigestType.CRC32C, b"secret"), 9, 100)
        data = encode_ledger_metadata(metadata)

        async def add(store: MetadataStore) -> None:
            await asyncio.gather(
                *(
                    store.create(f"{self.root}/00/{number // 10000:04d}/L{number % 10000:04d}", data, make_parents=True)
                    for number in range(count)
                )
            )

        self.on_store(add)

    def backups(self) -> list[str]:
        """Automatic backups, the oldest first."""
        backups = self.state / "backups"
        return sorted(str(backups / name) for name in os.listdir(backups)) if backups.exists() else []


@pytest.fixture
def operator(tmp_path: Path, metadata_uri: str) -> Iterator[Operator]:
    """On a root where nothing is yet."""
    operator = Operator(tmp_path, metadata_uri)
    yield operator
    operator.end()
