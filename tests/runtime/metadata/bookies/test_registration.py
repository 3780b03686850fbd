from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import (
    BookieNotFoundError,
    BookieUnavailableError,
    ClusterNotFoundError,
    MetadataUnavailableError,
    RegistrationError,
)
from bkctl.runtime.metadata.bookies.registration import (
    BookieMode,
    BookieRegistration,
    RegistrationClient,
    Registrations,
)
from bkctl.runtime.metadata.bookies.service_info import (
    BookieServiceInfo,
    Endpoint,
    encode_service_info,
    rpc_service_info,
)
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.storage.errors import BkctlError
from tests.counting_store import CountingStore
from tests.runtime.metadata.conftest import CONFIG, LosesSession, expire, halt, session_of
from tests.until import until

INFO = rpc_service_info("10.0.0.9", 3181)


class Bookie:
    """A registration under test and what it reported."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        bookie_id: str = "bk-1",
        require_cookie: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.failures: asyncio.Queue[BkctlError] = asyncio.Queue()
        self.registration = BookieRegistration(
            store,
            root,
            bookie_id,
            INFO,
            clock=LoopClock(),
            session_timeout_ms=CONFIG.session_timeout_ms,
            on_failed=self.failures.put_nowait,
            require_cookie=require_cookie,
        )


class Cookie:
    """The check of a cookie: each call takes the next answer; without one left the cookie is fine."""

    def __init__(self, *answers: BkctlError | None) -> None:
        self.answers = list(answers)
        self.calls = 0

    async def require(self) -> None:
        self.calls += 1
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer


GONE = RegistrationError("the cookie is gone")


async def new_cluster(store: ZooKeeperStore, root: str) -> RegistrationClient:
    await init_cluster(store, root, None, random.Random(1))
    return RegistrationClient(store, root)


async def test_modes_and_address(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    client = await new_cluster(store, root)
    registration = Bookie(other_store, root).registration
    await registration.register(BookieMode.WRITABLE)
    assert registration.is_registered
    assert await client.snapshot() == Registrations(writable=("bk-1",), read_only=())
    assert await client.address("bk-1") == ("10.0.0.9", 3181)
    await registration.register(BookieMode.READ_ONLY)
    assert await client.snapshot() == Registrations(writable=(), read_only=("bk-1",))
    assert await client.address("bk-1") == ("10.0.0.9", 3181)
    assert registration.mode is BookieMode.READ_ONLY
    await registration.register(BookieMode.WRITABLE)
    assert await client.writable() == ["bk-1"]
    assert await client.read_only() == []
    await registration.unregister()
    assert (await client.snapshot()).live == frozenset()


async def test_what_is_wrong_is_published_in_each_mode_and_session(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str, zookeeper: EmbeddedZooKeeper
) -> None:
    client = await new_cluster(store, root)
    registration = Bookie(counting := CountingStore(other_store), root).registration
    await registration.publish("too early")
    await registration.register(BookieMode.WRITABLE)
    assert await client.troubles(await client.snapshot()) == {}
    await registration.publish("3 ledgers miss entries")
    expected = {"bk-1": "3 ledgers miss entries"}
    assert await client.troubles(await client.snapshot()) == expected
    with counting.counted() as asked:
        await registration.publish("3 ledgers miss entries")
    assert not asked
    await registration.register(BookieMode.READ_ONLY)
    assert await client.troubles(await client.snapshot()) == expected
    await asyncio.to_thread(expire, session_of(other_store), zookeeper)
    await until(lambda: registration.is_registered and registration.sessions_lost_count == 1)
    assert await client.troubles(await client.snapshot()) == expected
    assert await client.address("bk-1") == ("10.0.0.9", 3181)
    await registration.publish("")
    assert await client.troubles(await client.snapshot()) == {}
    assert (await store.get(f"{root}/available/readonly/bk-1")).data == encode_service_info(INFO)
    await registration.unregister()
    await registration.publish("too late")
    assert (await client.snapshot()).live == frozenset()


async def test_the_payload_is_what_java_reads(store: ZooKeeperStore, root: str) -> None:
    await new_cluster(store, root)
    await Bookie(store, root).registration.register(BookieMode.WRITABLE)
    node = await store.get(f"{root}/available/bk-1")
    assert node.data == encode_service_info(INFO)
    assert node.stat.ephemeral_owner == store.session_id


async def test_a_mode_change_is_never_in_no_set(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    client = await new_cluster(store, root)
    registration = Bookie(other_store, root).registration
    await registration.register(BookieMode.WRITABLE)

    async def flip() -> None:
        for _ in range(15):
            await registration.register(BookieMode.READ_ONLY)
            await registration.register(BookieMode.WRITABLE)

    flipping = asyncio.create_task(flip())
    while not flipping.done():
        assert (await client.snapshot()).live == {"bk-1"}
    await flipping


async def test_a_restart_waits_for_the_old_session(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    await new_cluster(store, root)
    await Bookie(other_store, root).registration.register(BookieMode.WRITABLE)
    restarted = Bookie(store, root).registration
    registering = asyncio.create_task(restarted.register(BookieMode.WRITABLE))
    await asyncio.sleep(0.2)
    assert not registering.done()
    await other_store.close()
    await registering
    stat = await store.exists(f"{root}/available/bk-1")
    assert stat is not None
    assert stat.ephemeral_owner == store.session_id


async def test_a_living_namesake_is_never_pushed_out(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    await new_cluster(store, root)
    await Bookie(other_store, root).registration.register(BookieMode.WRITABLE)
    latecomer = BookieRegistration(
        store, root, "bk-1", INFO, clock=LoopClock(), session_timeout_ms=1, on_failed=lambda _: None
    )
    with pytest.raises(RegistrationError, match="another running process is registered as bookie bk-1"):
        await latecomer.register(BookieMode.WRITABLE)
    stat = await store.exists(f"{root}/available/bk-1")
    assert stat is not None
    assert stat.ephemeral_owner == other_store.session_id
    assert not latecomer.is_registered


@pytest.mark.parametrize("mode", BookieMode)
async def test_without_a_cookie_nothing_is_registered(store: ZooKeeperStore, root: str, mode: BookieMode) -> None:
    client = await new_cluster(store, root)
    counting = CountingStore(store)
    registration = Bookie(counting, root, require_cookie=Cookie(GONE).require).registration
    with pytest.raises(RegistrationError, match="the cookie is gone"):
        await registration.register(mode)
    assert counting.counts["create"] == 0
    assert not registration.is_registered
    assert (await client.snapshot()).live == frozenset()


@pytest.mark.parametrize("mode", BookieMode)
async def test_a_cookie_that_goes_during_the_registration_withdraws_it(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str, mode: BookieMode
) -> None:
    client = await new_cluster(store, root)
    live_at_checks = []

    async def require() -> None:
        live_at_checks.append((await client.snapshot()).live)
        if len(live_at_checks) == 2:
            raise GONE

    registration = Bookie(other_store, root, require_cookie=require).registration
    with pytest.raises(RegistrationError, match="the cookie is gone"):
        await registration.register(mode)
    assert live_at_checks == [set(), {"bk-1"}], "looked at after the registration too"
    assert not registration.is_registered
    assert (await client.snapshot()).live == frozenset()


async def test_a_change_of_mode_needs_no_cookie(store: ZooKeeperStore, root: str) -> None:
    """A bookie that has been registered all the time was not decommissioned."""
    client = await new_cluster(store, root)
    cookie = Cookie()
    registration = Bookie(store, root, require_cookie=cookie.require).registration
    await registration.register(BookieMode.WRITABLE)
    assert cookie.calls == 2
    cookie.answers = [GONE]
    await registration.register(BookieMode.READ_ONLY)
    assert cookie.calls == 2
    assert await client.read_only() == ["bk-1"]


@pytest.mark.parametrize("mode", BookieMode)
@pytest.mark.parametrize("passed_count", [0, 1])
async def test_a_renewal_without_a_cookie_stops_the_bookie(
    store: ZooKeeperStore,
    other_store: ZooKeeperStore,
    zookeeper: EmbeddedZooKeeper,
    root: str,
    mode: BookieMode,
    passed_count: int,
) -> None:
    client = await new_cluster(store, root)
    cookie = Cookie()
    bookie = Bookie(other_store, root, require_cookie=cookie.require)
    await bookie.registration.register(mode)
    cookie.answers = [*[None] * passed_count, GONE]
    await asyncio.to_thread(expire, session_of(other_store), zookeeper)
    async with asyncio.timeout(60):
        assert await bookie.failures.get() is GONE
    assert not bookie.registration.is_registered
    assert (await client.snapshot()).live == frozenset()


async def test_a_check_without_an_answer_is_repeated(
    store: ZooKeeperStore, other_store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper, root: str
) -> None:
    client = await new_cluster(store, root)
    cookie = Cookie()
    bookie = Bookie(other_store, root, require_cookie=cookie.require)
    await bookie.registration.register(BookieMode.WRITABLE)
    silence = MetadataUnavailableError("no answer")
    cookie.answers = [silence, None, silence, None, None]
    await asyncio.to_thread(expire, session_of(other_store), zookeeper)
    await until(lambda: not cookie.answers and bookie.registration.is_registered)
    assert (await client.snapshot()).live == {"bk-1"}
    assert bookie.failures.empty()


async def test_a_session_lost_during_the_registration_registers_nothing(
    store: ZooKeeperStore, other_store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper, root: str
) -> None:
    client = await new_cluster(store, root)
    registration = Bookie(LosesSession(other_store, zookeeper), root).registration
    with pytest.raises(MetadataUnavailableError, match="expired during the registration"):
        await registration.register(BookieMode.WRITABLE)
    assert not registration.is_registered
    assert (await client.snapshot()).live == frozenset()


async def test_a_session_lost_during_the_look_at_the_cookie_registers_nothing(
    store: ZooKeeperStore, other_store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper, root: str
) -> None:
    client = await new_cluster(store, root)
    lost = asyncio.Event()
    other_store.on_session_lost(lost.set)
    calls = 0

    async def require() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            await asyncio.to_thread(expire, session_of(other_store), zookeeper)
            await lost.wait()

    registration = Bookie(other_store, root, require_cookie=require).registration
    with pytest.raises(MetadataUnavailableError, match="expired during the registration"):
        await registration.register(BookieMode.WRITABLE)
    assert not registration.is_registered
    assert (await client.snapshot()).live == frozenset()


async def test_registering_twice_keeps_the_node(store: ZooKeeperStore, root: str) -> None:
    await new_cluster(store, root)
    registration = Bookie(store, root).registration
    await registration.register(BookieMode.WRITABLE)
    before = await store.exists(f"{root}/available/bk-1")
    await registration.register(BookieMode.WRITABLE)
    assert await store.exists(f"{root}/available/bk-1") == before


class RacingStore(CountingStore):
    """Before the first registration is created, ``rival`` creates it in its own session."""

    def __init__(self, store: ZooKeeperStore, rival: ZooKeeperStore) -> None:
        super().__init__(store)
        self._rival = rival

    async def create(self, path: str, data: bytes = b"", **options: bool) -> str:
        await self._rival.create(path, data, is_ephemeral=True)
        return await super().create(path, data, **options)


async def test_a_namesake_that_is_faster_keeps_the_registration(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    client = await new_cluster(store, root)
    registration = BookieRegistration(
        RacingStore(store, other_store),
        root,
        "bk-1",
        INFO,
        clock=LoopClock(),
        session_timeout_ms=1,
        on_failed=lambda _: None,
    )
    with pytest.raises(RegistrationError, match="another process registered as bk-1 at the same time"):
        await registration.register(BookieMode.WRITABLE)
    assert not registration.is_registered
    assert await client.writable() == ["bk-1"]


async def test_a_registration_whose_answer_was_lost_is_our_own(store: ZooKeeperStore, root: str) -> None:
    await new_cluster(store, root)
    registration = BookieRegistration(
        RacingStore(store, store), root, "bk-1", INFO, clock=LoopClock(), session_timeout_ms=1, on_failed=lambda _: None
    )
    await registration.register(BookieMode.WRITABLE)
    assert registration.is_registered


@pytest.mark.parametrize("mode", BookieMode)
async def test_a_lost_session_is_followed_by_a_new_registration(
    store: ZooKeeperStore, other_store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper, root: str, mode: BookieMode
) -> None:
    client = await new_cluster(store, root)
    bookie = Bookie(other_store, root)
    await bookie.registration.register(mode)
    old_session_id = other_store.session_id
    await asyncio.to_thread(expire, session_of(other_store), zookeeper)
    await until(lambda: other_store.session_id != old_session_id and bookie.registration.is_registered)
    assert (await client.snapshot()).live == {"bk-1"}
    assert bookie.registration.mode is mode
    assert bookie.failures.empty()


async def test_a_namesake_that_came_meanwhile_ends_the_renewal(tmp_path: Path) -> None:
    """While our connection is cut, our session ends and somebody else takes the name."""
    server = await EmbeddedZooKeeper.start(str(tmp_path))
    failures: asyncio.Queue[BkctlError] = asyncio.Queue()
    async with await ZooKeeperStore.connect(server.connect_string, CONFIG) as store:
        await new_cluster(store, "/ledgers")
        ours = BookieRegistration(
            store, "/ledgers", "bk-1", INFO, clock=LoopClock(), session_timeout_ms=1, on_failed=failures.put_nowait
        )
        await ours.register(BookieMode.WRITABLE)
        session = session_of(store)
        await server.stop()
        async with await EmbeddedZooKeeper.start(str(tmp_path)) as elsewhere:
            await asyncio.to_thread(expire, session, elsewhere)
            async with await ZooKeeperStore.connect(elsewhere.connect_string, CONFIG) as other_store:
                await other_store.create("/ledgers/available/bk-1")
        async with await EmbeddedZooKeeper.start(str(tmp_path), port=server.port):
            assert isinstance(await failures.get(), RegistrationError)
            assert not ours.is_registered
            await store.close()


async def test_who_withdraws_with_another_session_leaves_the_registration_of_a_namesake(
    store: ZooKeeperStore, other_store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper, root: str
) -> None:
    """Frozen between its create and the second look at the cookie; the id was given to a new bookie meanwhile."""
    client = await new_cluster(other_store, root)
    lost = asyncio.Event()
    store.on_session_lost(lost.set)
    looks = 0

    async def require_cookie() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            await asyncio.to_thread(expire, session_of(store), zookeeper)
            await lost.wait()
            await Bookie(other_store, root).registration.register(BookieMode.WRITABLE)
            raise GONE

    with pytest.raises(RegistrationError, match="the cookie is gone"):
        await Bookie(store, root, require_cookie=require_cookie).registration.register(BookieMode.WRITABLE)
    assert await client.writable() == ["bk-1"]


async def test_unregistered_is_not_renewed(store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper, root: str) -> None:
    client = await new_cluster(store, root)
    registration = Bookie(store, root).registration
    await registration.register(BookieMode.WRITABLE)
    await registration.unregister()
    lost = asyncio.Event()
    store.on_session_lost(lost.set)
    await asyncio.to_thread(expire, session_of(store), zookeeper)
    await lost.wait()
    assert (await client.snapshot()).live == frozenset()


async def test_no_cluster(store: ZooKeeperStore, root: str) -> None:
    client = RegistrationClient(store, root)
    with pytest.raises(ClusterNotFoundError, match=root):
        await client.writable()
    with pytest.raises(RegistrationError, match="no BookKeeper cluster"):
        await Bookie(store, root).registration.register(BookieMode.WRITABLE)
    await store.create(root, make_parents=True)
    assert await client.writable() == await client.read_only() == await client.with_cookie() == []
    with pytest.raises(RegistrationError, match=f"{root}/available is missing.*bkctl metadata doctor"):
        await Bookie(store, root).registration.register(BookieMode.WRITABLE)


async def test_a_name_that_java_clients_would_hang_on(store: ZooKeeperStore, root: str) -> None:
    with pytest.raises(RegistrationError, match="cannot be a bookie id"):
        Bookie(store, root, "a,b")


async def test_nothing_is_published_that_java_clients_would_hang_on(store: ZooKeeperStore, root: str) -> None:
    http = BookieServiceInfo((Endpoint("httpserver", "10.0.0.9", 8080, "http"),))
    for info in (BookieServiceInfo(()), http):
        with pytest.raises(RegistrationError, match="no port for ledger requests"):
            BookieRegistration(
                store, root, "bk-1", info, clock=LoopClock(), session_timeout_ms=1, on_failed=lambda _: None
            )


@pytest.mark.parametrize("mode", BookieMode)
async def test_a_node_that_no_session_owns_is_not_waited_for(
    store: ZooKeeperStore, root: str, mode: BookieMode
) -> None:
    await new_cluster(store, root)
    path = f"{root}/available/{'bk-1' if mode is BookieMode.WRITABLE else 'readonly/bk-1'}"
    await store.create(path)
    with pytest.raises(RegistrationError, match=f"{path} is not a registration"):
        await Bookie(store, root).registration.register(mode)
    assert await store.exists(path) is not None, "it is never deleted by force"


async def test_the_data_of_the_read_only_directory_is_never_looked_at(store: ZooKeeperStore, root: str) -> None:
    """A Java bookie may have left its own payload there."""
    client = await new_cluster(store, root)
    await store.set(f"{root}/available/readonly", b"\xff junk", 0)
    await Bookie(store, root).registration.register(BookieMode.READ_ONLY)
    assert await client.snapshot() == Registrations(writable=(), read_only=("bk-1",))


async def test_one_bad_child_does_not_break_a_listing(
    store: ZooKeeperStore, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = await new_cluster(store, root)
    await store.create(f"{root}/available/a,b")
    await store.create(f"{root}/available/bk-junk", b"\xff")
    await store.create(
        f"{root}/available/bk-http", encode_service_info(BookieServiceInfo((Endpoint("h", "h", 1, "http"),)))
    )
    await store.create(f"{root}/available/10.0.0.1:3181")
    with caplog.at_level(logging.WARNING):
        assert await client.writable() == ["10.0.0.1:3181", "bk-http", "bk-junk"]
    assert "a,b is not a bookie id" in caplog.text
    assert await client.address("10.0.0.1:3181") == ("10.0.0.1", 3181)
    with pytest.raises(BookieUnavailableError, match="cannot parse the registration"):
        await client.address("bk-junk")
    with pytest.raises(BookieUnavailableError, match="has no port"):
        await client.address("bk-http")


async def test_a_bookie_that_is_down_and_one_that_never_was(store: ZooKeeperStore, root: str) -> None:
    client = await new_cluster(store, root)
    await store.create(f"{root}/cookies/bk-down", make_parents=True)
    assert await client.with_cookie() == ["bk-down"]
    with pytest.raises(BookieUnavailableError, match="bk-down: not registered"):
        await client.address("bk-down")
    for nobody in ("bk-none", "a/b"):
        with pytest.raises(BookieNotFoundError, match=nobody):
            await client.address(nobody)


@pytest.mark.parametrize("dies_before_its_answer", [False, True])
async def test_a_dead_server_holds_up_no_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dies_before_its_answer: bool
) -> None:
    server = await EmbeddedZooKeeper.start(str(tmp_path))
    store = await ZooKeeperStore.connect(server.connect_string, ZooKeeperConfig(operation_timeout_s=3600.0))
    await new_cluster(store, "/ledgers")
    registration = Bookie(store, "/ledgers").registration
    await registration.register(BookieMode.WRITABLE)
    if dies_before_its_answer:
        halt(server.pid)
        unregistering = asyncio.ensure_future(registration.unregister())
        await asyncio.sleep(0.3)  # the requests are on their way
        os.kill(server.pid, signal.SIGKILL)
        await unregistering
        await server.stop()
    else:
        await server.stop()
        await registration.unregister()  # within its own time-out, for that of an operation is an hour here
    await store.close()
    assert not registration.is_registered
    told = [record.message for record in caplog.records if "ZooKeeper does not respond" in record.message]
    assert told == ["bookie bk-1: ZooKeeper does not respond, so the registration stays until the session expires"]
