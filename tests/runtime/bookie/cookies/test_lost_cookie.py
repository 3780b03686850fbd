"""A bookie that registers without its cookie: it was decommissioned while it was silent, and must not serve again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.config import BookieConfig, ZooKeeperConfig
from bkctl.runtime.errors import RegistrationError
from bkctl.runtime.metadata.bookies.cookies import CookieStore, encode_cookie
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.runtime.bookie.conftest import Peer
from tests.runtime.metadata.link import TcpLink
from tests.until import until

Boot = Callable[[BookieConfig], AbstractAsyncContextManager[Peer]]
BOOKIE_ID = "bookie-under-test"


class Cluster:
    """What an operator sees and does meanwhile, over a session of its own."""

    def __init__(self, store: ZooKeeperStore, root: str) -> None:
        self.store = store
        self.paths = Paths(root)
        self.cookies = CookieStore(store, root)
        self.registrations = RegistrationClient(store, root)

    async def delete_cookie(self) -> None:
        cookie = await self.cookies.read(BOOKIE_ID)
        await self.cookies.delete(BOOKIE_ID, cookie)

    async def replace_cookie(self) -> None:
        """As if another bookie had been set up under this id."""
        cookie = await self.cookies.read(BOOKIE_ID)
        other = msgspec.structs.replace(cookie.value, ledger_directories=("/another/disk",))
        await self.cookies.write(other, cookie.version)

    async def wait_registered(self, *, is_registered: bool) -> None:

        async def is_so() -> bool:
            return (BOOKIE_ID in (await self.registrations.snapshot()).live) is is_registered

        await until(is_so, f"registered: {is_registered}")


@pytest.fixture
def cluster(store: ZooKeeperStore, bookie_config: BookieConfig) -> Cluster:
    return Cluster(store, parse_metadata_uri(bookie_config.metadata_uri).root)


@pytest.fixture
async def link(zookeeper: EmbeddedZooKeeper) -> AsyncIterator[TcpLink]:
    """The bookie's way to ZooKeeper."""
    link = await TcpLink.open(zookeeper.port)
    try:
        yield link
    finally:
        await link.close()


@pytest.fixture
def linked_config(bookie_config: BookieConfig, link: TcpLink) -> BookieConfig:
    """The bookie's session ends soon after the link is cut."""
    root = parse_metadata_uri(bookie_config.metadata_uri).root
    return msgspec.structs.replace(
        bookie_config,
        metadata_uri=f"zk+hierarchical://{link.address}{root}",
        zookeeper=ZooKeeperConfig(session_timeout_ms=1000),
    )


@contextlib.asynccontextmanager
async def serving(config: BookieConfig) -> AsyncIterator[asyncio.Task[None]]:
    """A bookie that serves; the task ends when it must stop."""
    async with running_bookie(config) as server:
        task = asyncio.create_task(server.serve_until(asyncio.Event()))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])


async def lose_session(cluster: Cluster, link: TcpLink) -> None:
    """Return when the bookie's registration has expired; the link is still cut."""
    link.cut()
    await cluster.wait_registered(is_registered=False)


@pytest.mark.parametrize("is_read_only", [False, True])
async def test_a_bookie_that_was_silent_until_its_cookie_was_deleted_stops_unregistered(
    linked_config: BookieConfig, cluster: Cluster, link: TcpLink, is_read_only: bool
) -> None:
    async with serving(msgspec.structs.replace(linked_config, is_read_only=is_read_only)) as running:
        await lose_session(cluster, link)
        await cluster.delete_cookie()
        link.restore()
        with pytest.raises(RegistrationError, match=rf"{BOOKIE_ID} no longer has a cookie.*bkctl cookie verify"):
            async with asyncio.timeout(60):
                await running
        assert (await cluster.registrations.snapshot()).live == frozenset()
    assert await cluster.cookies.ids() == [], "it does not stamp itself again"


async def test_a_cookie_of_another_bookie_stops_it_too(
    linked_config: BookieConfig, cluster: Cluster, link: TcpLink
) -> None:
    async with serving(linked_config) as running:
        await lose_session(cluster, link)
        await cluster.replace_cookie()
        link.restore()
        with pytest.raises(RegistrationError, match=r"cookie of .* changed since this process started.*ledgerDirs"):
            async with asyncio.timeout(60):
                await running
        assert (await cluster.registrations.snapshot()).live == frozenset()


async def test_a_cookie_that_cannot_be_read_stops_it_too(
    linked_config: BookieConfig, cluster: Cluster, link: TcpLink
) -> None:
    async with serving(linked_config) as running:
        await lose_session(cluster, link)
        await cluster.store.set(cluster.paths.cookie(BOOKIE_ID), b"garbage", 0)
        link.restore()
        with pytest.raises(RegistrationError, match="cannot read the stored cookie"):
            async with asyncio.timeout(60):
                await running
        assert (await cluster.registrations.snapshot()).live == frozenset()


async def test_with_its_cookie_it_registers_again_and_goes_on(
    linked_config: BookieConfig, cluster: Cluster, link: TcpLink
) -> None:
    async with serving(linked_config) as running:
        await lose_session(cluster, link)
        cookie = await cluster.cookies.read(BOOKIE_ID)
        await cluster.cookies.delete(BOOKIE_ID, cookie)
        await cluster.cookies.create(cookie.value)  # the same again, from a backup
        link.restore()
        await cluster.wait_registered(is_registered=True)
        assert not running.done()


async def test_a_cookie_that_spells_its_directories_in_another_way_is_the_same(
    boot: Boot, bookie_config: BookieConfig, linked_config: BookieConfig, cluster: Cluster, link: TcpLink
) -> None:
    """Java writes the text of its settings, even with a slash at the end."""
    async with boot(bookie_config):
        pass
    cookie = await cluster.cookies.read(BOOKIE_ID)
    directories = cookie.value.ledger_directories
    spelled = msgspec.structs.replace(cookie.value, ledger_directories=tuple(f"{path}/" for path in directories))
    await cluster.cookies.write(spelled, cookie.version)
    for directory in (*directories, *cookie.value.journal_directories):
        (Path(directory) / "current" / "VERSION").write_bytes(encode_cookie(spelled))
    async with serving(linked_config) as running:
        await lose_session(cluster, link)
        link.restore()
        await cluster.wait_registered(is_registered=True)
        assert not running.done()


async def test_a_cookie_deleted_during_the_boot_stops_it(
    boot: Boot, bookie_config: BookieConfig, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A replay may take minutes. Here the boot waits at its end, for the session of a former process."""
    async with boot(bookie_config):
        pass
    path = cluster.paths.writable_bookie(BOOKIE_ID)
    async with await ZooKeeperStore.connect(parse_metadata_uri(bookie_config.metadata_uri).servers) as former:
        await former.create(path, is_ephemeral=True)
        booting = asyncio.create_task(running_bookie(bookie_config).__aenter__())
        await until(lambda: "is still registered by another session" in caplog.text)
        await cluster.delete_cookie()
    with pytest.raises(RegistrationError, match="no longer has a cookie"):
        async with asyncio.timeout(60):
            await booting
    assert (await cluster.registrations.snapshot()).live == frozenset()
    assert await cluster.cookies.ids() == []
