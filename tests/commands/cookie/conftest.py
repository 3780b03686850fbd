"""A real bookie in real directories on the shared ZooKeeper, which the commands under test find stopped or running."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.config import BookieConfig, ClientConfig, IntegrityConfig
from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.bookies.cookies import CookieStore
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.storage.config import JournalConfig, StorageConfig
from tests.commands.cluster.conftest import Operator
from tests.processes import BkctlProcess, BkctlResult, start_bkctl
from tests.runtime.bookie.conftest import Peer
from tests.until import wait_until

ID = "bookie-1"


def answer(verb: str, subject: str) -> list[str]:
    """What confirms a changing command: a name must be typed for those that destroy something."""
    return ["--confirm", subject] if verb in {"delete", "update", "migrate"} else ["--yes"]


class BookieHost:
    """The bookie ``bookie-1`` with directories j, l1 and l2; ``arguments`` are its settings as options."""

    def __init__(self, directory: Path, metadata_uri: str) -> None:
        self.directory = directory
        self.operator = Operator(directory, metadata_uri)
        self.root = self.operator.root
        self.operator.succeed("cluster", "init")
        self.id = ID
        self.is_loopback_allowed = True
        self.name_directories("j", "l1 l2")

    def name_directories(self, journals: str, ledgers: str, index: str = "") -> None:
        """Lists of the settings, as words."""
        self.journals = tuple(str(self.directory / name) for name in journals.split())
        self.ledgers = tuple(str(self.directory / name) for name in ledgers.split())
        self.index = tuple(str(self.directory / name) for name in index.split())

    @property
    def arguments(self) -> list[str]:
        words = ["--bookie-id", self.id, "--advertised-address", "127.0.0.1"]
        words += ["--set", "allowLoopback=true"] if self.is_loopback_allowed else []
        lists = (("--journal-dir", self.journals), ("--ledger-dir", self.ledgers), ("--index-dir", self.index))
        return words + [word for option, paths in lists for path in paths for word in (option, path)]

    def cookie(self, verb: str, *arguments: str) -> BkctlResult:
        """Run ``bkctl cookie VERB`` with the bookie's settings."""
        return self.operator.run("cookie", verb, *arguments, *self.arguments)

    def verify(self) -> dict[str, object]:
        """What the doctor says; the exit code must agree, and nothing may change."""
        before = self.tree()
        result = self.cookie("verify", "-o", "json")
        assert self.tree() == before
        body: dict[str, object] = result.json()
        assert result.exit_code == (0 if body["is_healthy"] else 10), result.stderr
        return body

    def run_printed(self, text: object, *more: str) -> BkctlResult:
        """Run a command that the doctor has printed."""
        words = shlex.split(str(text))
        assert words[0] == "bkctl"
        return self.operator.run(*words[1:], *more)

    def tree(self) -> dict[str, bytes]:
        """All files of the bookie, and all nodes of the cluster."""
        files = {}
        for path in sorted(self.directory.rglob("*")):
            name = str(path.relative_to(self.directory))
            if path.is_file() and not name.startswith(("state", "config.toml")) and path.name != "bkctl.lock":
                files[name] = path.read_bytes() if path.suffix != ".txn" else b""
        nodes = {f"node{path}": repr(node).encode() for path, node in self.operator.tree().items()}
        return files | nodes

    def config(self, *, is_loss_accepted: bool = False) -> BookieConfig:
        return BookieConfig(
            metadata_uri=f"zk+hierarchical://{self.operator.uri.servers}{self.root}",
            bookie_id=self.id,
            port=0,
            advertised_address="127.0.0.1",
            is_loopback_allowed=True,
            integrity=IntegrityConfig(is_enabled=is_loss_accepted, stamps_missing_cookies=is_loss_accepted),
            storage=StorageConfig(
                journal_directories=self.journals,
                ledger_directories=self.ledgers,
                index_directories=self.index,
                journal=JournalConfig(preallocation_bytes=1024 * 1024),
            ),
        )

    def boot(self, *ledger_ids: int, is_loss_accepted: bool = False) -> None:
        """Boot the bookie, let it store entry 0 of ledgers or find it there, and stop it in order."""

        async def run() -> None:
            async with running_bookie(self.config(is_loss_accepted=is_loss_accepted)) as server:

                async def resolve(_: str) -> tuple[str, int]:
                    return "127.0.0.1", server.port

                pool = BookiePool(resolve, ClientConfig(), LoopClock())
                try:
                    peer = Peer(pool, self.id)
                    for ledger_id in ledger_ids:
                        await peer.add(ledger_id, 0)
                        assert await peer.read(ledger_id, 0) == peer.body(ledger_id, 0)
                finally:
                    await pool.close()

        asyncio.run(run())

    def name_in_ledgers(
        self, *ledger_ids: int, bookie_id: str | None = None, custom_metadata: tuple[tuple[str, bytes], ...] = ()
    ) -> None:
        """Closed ledgers whose metadata names the bookie."""
        begun = new_ledger((bookie_id or self.id,), 1, 1, DigestType.CRC32C, b"secret", custom_metadata=custom_metadata)
        metadata = to_closed(begun, 0, 7)
        data = encode_ledger_metadata(metadata)

        async def add(store: MetadataStore) -> None:
            for number in ledger_ids:
                await store.create(f"{self.root}/00/0000/L{number:04d}", data, make_parents=True)

        self.operator.on_store(add)

    def drop_ledgers(self, *ledger_ids: int) -> None:
        async def drop(store: MetadataStore) -> None:
            for number in ledger_ids:
                await store.delete(f"{self.root}/00/0000/L{number:04d}")

        self.operator.on_store(drop)

    def stored(self, bookie_id: str | None = None) -> bytes | None:
        """Bytes of the stored cookie."""

        async def read(store: MetadataStore) -> bytes | None:
            path = f"{self.root}/cookies/{bookie_id or self.id}"
            return (await store.get(path)).data if await store.exists(path) is not None else None

        return self.operator.on_store(read)

    def plant(self, data: bytes | None, bookie_id: str | None = None) -> None:
        """Make these bytes the stored cookie; None: delete it."""
        name = bookie_id or self.id

        async def plant(store: MetadataStore) -> None:
            path = f"{self.root}/cookies/{name}"
            if await store.exists(path) is not None:
                await store.delete(path)
            if data is not None:
                await CookieStore(store, self.root).create_node(name, data)

        self.operator.on_store(plant)

    def version(self, name: str) -> Path:
        """VERSION file of a directory."""
        return self.directory / name / "current" / "VERSION"

    @contextlib.contextmanager
    def running(self) -> Iterator[BkctlProcess]:
        """The bookie as a process of its own, shut down cleanly at the end; it makes no checkpoint while it runs."""
        said = self.directory / "state.log"
        with said.open("ab") as log:
            start = log.tell()
            process = start_bkctl(
                *("bookie", "start", "--port", "0", "--set", "flushInterval=3600000", *self.arguments),
                stdout=log,
                stderr=log,
                variables=self.operator.environment,
            )
        try:
            wait_until(lambda: process.poll() is not None or b"listening on port" in said.read_bytes()[start:])
            assert process.poll() is None, said.read_text()[start:]
            yield process
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture
def host(tmp_path: Path, metadata_uri: str) -> BookieHost:
    """A bookie that was never started, in a cluster of its own."""
    return BookieHost(tmp_path, metadata_uri)
