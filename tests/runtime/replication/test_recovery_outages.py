"""A recovery while ZooKeeper is away: nothing is done on old knowledge, and nothing that was done is lost."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import msgspec
import pytest

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import MetadataOutageError, MetadataUnavailableError
from bkctl.runtime.ledger.changes import replace_in_segment
from bkctl.runtime.metadata.bookies.cookies import CookieStore
from bkctl.runtime.metadata.bookies.registration import RegistrationClient, Registrations
from bkctl.runtime.metadata.outage import MetadataOutage
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.policy import Policy
from bkctl.runtime.replication.run.decommission import Decommission
from bkctl.runtime.replication.run.drain import DrainHooks
from bkctl.runtime.replication.run.ledgers import RecoveryProgress
from bkctl.runtime.replication.run.recovery import BookieRecovery
from bkctl.runtime.replication.run.recovery_report import RecoveryReport
from bkctl.storage.adapters.sqlite import temporary_database
from tests.runtime.client.world import Client, World, segments
from tests.runtime.metadata.conftest import expire, session_of
from tests.runtime.metadata.link import TcpLink
from tests.runtime.replication.samples import ledger
from tests.runtime.replication.stage import QUICK, Stage, carry_out, length_of
from tests.until import until

ZOOKEEPER = ZooKeeperConfig(session_timeout_ms=60_000, operation_timeout_s=1.0)
"""The session survives every pause; operations give up soon."""
CONFIG = msgspec.structs.replace(QUICK, lock_wait_s=60.0, registration_wait_s=60.0, metadata_outage_max_s=60.0)
LIMIT_S = 60.0


class WatchedRegistration(RegistrationClient):
    """Says when the list of bookies is read."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        super().__init__(store, root)
        self.read = asyncio.Event()

    async def snapshot(self, on_change: Callable[[], None] | None = None) -> Registrations:
        found = await super().snapshot(on_change)
        self.read.set()
        return found


class Scene(NamedTuple):
    """A stage whose client reaches ZooKeeper by a link, and what its recovery reported."""

    stage: Stage
    link: TcpLink
    registration: WatchedRegistration
    outages: asyncio.Queue[MetadataOutage]
    moments: list[RecoveryProgress]

    def recovery(self, config: ReplicationConfig = CONFIG) -> BookieRecovery:
        stage = self.stage
        return BookieRecovery(
            dataclasses.replace(stage.client.ports, registrations=self.registration),
            stage.cookies,
            stage.locks,
            Policy(config=config),
            self.outages.put_nowait,
            open_database=temporary_database,
        )

    async def run(self, config: ReplicationConfig = CONFIG) -> asyncio.Task[RecoveryReport]:
        recovery = self.recovery(config)
        plan = await recovery.plan(["b1"])
        return asyncio.create_task(recovery.run(plan, self.moments.append))

    async def next_outage(self) -> MetadataOutage:
        async with asyncio.timeout(LIMIT_S):
            return await self.outages.get()

    async def expire_session(self, zookeeper: EmbeddedZooKeeper) -> None:
        await asyncio.to_thread(expire, session_of(self.stage.client.held_store), zookeeper)

    async def lose_session(self, zookeeper: EmbeddedZooKeeper) -> None:
        """Return when the client knows that its session has ended."""
        lost = asyncio.Event()
        self.stage.client.store.on_session_lost(lost.set)
        await self.expire_session(zookeeper)
        async with asyncio.timeout(LIMIT_S):
            await lost.wait()


async def client_in_time(world: World, link: TcpLink) -> Client:
    """Connecting has the time-out of an operation, and takes what a busy machine takes."""
    while True:
        with contextlib.suppress(MetadataUnavailableError):
            return await world.client(servers=link.address, zookeeper=ZOOKEEPER)


@pytest.fixture
async def scene(metadata_uri: str, zookeeper: EmbeddedZooKeeper) -> AsyncIterator[Scene]:
    world = await World.build(metadata_uri)
    link = await TcpLink.open(zookeeper.port)
    try:
        stage = Stage(world, await client_in_time(world, link))
        registration = WatchedRegistration(stage.client.store, stage.ledgers.root)
        yield Scene(stage, link, registration, asyncio.Queue(), [])
    finally:
        link.restore()
        await world.close()
        await link.close()


async def store_ledgers(stage: Stage, count: int) -> list[int]:
    """Ledgers of five entries on b1, which is dead, and b2."""
    await stage.start("b2", "b3")
    sample = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5))
    return [await stage.store(sample) for _ in range(count)]


async def test_copies_made_before_the_outage_are_kept_while_the_lock_is_held(scene: Scene) -> None:
    stage = scene.stage
    (ledger_id,) = await store_ledgers(stage, 1)
    held = stage.bookies["b3"].hold("add", 4)
    running = await scene.run()
    await held.arrived()
    scene.link.cut()
    held.release()
    outage = await scene.next_outage()
    assert (outage.is_over, outage.wait_max_s) == (False, 60.0)
    scene.link.restore()
    assert (await scene.next_outage()).is_over

    report = await running
    assert report.is_complete
    assert segments((await stage.read(ledger_id)).value) == {0: ("b3", "b2")}
    assert stage.bookies["b3"].count("add") == 5
    assert (await stage.check(ledger_id)).is_clean


async def test_a_ledger_that_somebody_else_repaired_in_the_outage_is_left_to_them(
    scene: Scene, zookeeper: EmbeddedZooKeeper
) -> None:
    stage = scene.stage
    (ledger_id,) = await store_ledgers(stage, 1)
    await stage.start("b4")
    others = {"b3": "b4", "b4": "b3"}
    held = [stage.bookies[bookie_id].hold("add", 4) for bookie_id in others]
    running = await scene.run()
    await asyncio.wait([asyncio.create_task(each.arrived()) for each in held], return_when=asyncio.FIRST_COMPLETED)
    scene.link.cut()
    await scene.expire_session(zookeeper)
    stored = await stage.world.ledgers.read(ledger_id)
    chosen = next(bookie_id for bookie_id in others if stage.bookies[bookie_id].count("add"))
    repaired = replace_in_segment(stored.value, 0, {0: others[chosen]})
    version = (await stage.world.ledgers.write(ledger_id, repaired, stored.version)).version
    for each in held:
        each.release()
    await scene.next_outage()
    scene.link.restore()

    report = await running
    assert report.ledgers_repaired_by_others == 1
    assert (await stage.world.ledgers.read(ledger_id)).version == version, "nothing was written on old knowledge"


async def test_a_change_whose_answer_was_lost_is_not_made_twice(scene: Scene) -> None:
    stage = scene.stage
    (ledger_id,) = await store_ledgers(stage, 1)
    version = (await stage.read(ledger_id)).version
    stage.client.held_store.hold_writes()
    running = await scene.run()
    await stage.client.held_store.write_is_held()
    scene.link.lose_answers()
    stage.client.held_store.release_writes()

    async def is_changed() -> bool:
        return (await stage.world.ledgers.read(ledger_id)).version != version

    await until(is_changed)
    scene.link.cut()
    await scene.next_outage()
    scene.link.restore()

    report = await running
    assert (report.is_complete, report.fragments) == (True, 1)
    assert (await stage.read(ledger_id)).version == version + 1


async def test_bookies_that_have_not_registered_again_are_waited_for(
    scene: Scene, zookeeper: EmbeddedZooKeeper
) -> None:
    """Their sessions end in the same outage; to take them for dead would leave the ledger unrepaired."""
    stage = scene.stage
    (ledger_id,) = await store_ledgers(stage, 1)
    held = stage.bookies["b3"].hold("add", 4)
    running = await scene.run()
    await held.arrived()
    scene.link.cut()
    await stage.world.withdraw("b2", "b3")
    await scene.expire_session(zookeeper)
    held.release()
    await scene.next_outage()
    scene.link.restore()
    assert (await scene.next_outage()).is_over
    scene.registration.read.clear()
    async with asyncio.timeout(LIMIT_S):
        await scene.registration.read.wait()
    await stage.world.register("b2", "b3")

    assert (await running).is_complete
    assert (await stage.check(ledger_id)).is_clean


async def test_a_session_that_ends_without_an_error_is_an_outage_too(
    scene: Scene, zookeeper: EmbeddedZooKeeper
) -> None:
    """No operation was under way, so none failed: the lost lock is what tells."""
    stage = scene.stage
    (ledger_id,) = await store_ledgers(stage, 1)
    held = stage.bookies["b3"].hold("add", 4)
    running = await scene.run()
    await held.arrived()
    await stage.world.withdraw("b2", "b3")
    await scene.lose_session(zookeeper)
    await until_connected(stage, ledger_id)
    scene.registration.read.clear()
    held.release()
    async with asyncio.timeout(LIMIT_S):
        await scene.registration.read.wait()
    await stage.world.register("b2", "b3")

    assert (await running).is_complete
    assert (await stage.check(ledger_id)).is_clean


async def test_a_failure_found_after_the_session_ended_is_not_reported_but_looked_at_again(
    scene: Scene, zookeeper: EmbeddedZooKeeper
) -> None:
    stage = scene.stage
    (ledger_id,) = await store_ledgers(stage, 1)
    stage.bookies["b3"].refuse("add", Status.IO_ERROR, 4, times=1)
    held = stage.bookies["b2"].hold("read", 4)
    running = await scene.run()
    await held.arrived()
    await scene.lose_session(zookeeper)
    await until_connected(stage, ledger_id)
    held.release()

    assert (await running).is_complete
    assert (await stage.check(ledger_id)).is_clean


async def test_a_target_that_could_not_be_found_in_the_outage_is_used_after_it(scene: Scene) -> None:
    """Its address is in ZooKeeper. The first connection to it is opened while ZooKeeper is away."""
    stage = scene.stage
    (ledger_id,) = await store_ledgers(stage, 1)
    held = stage.bookies["b2"].hold("read")
    running = await scene.run()
    await held.arrived()
    scene.link.cut()
    held.release()
    await scene.next_outage()
    scene.link.restore()

    assert (await running).is_complete
    assert (await stage.check(ledger_id)).is_clean


async def test_a_source_that_failed_in_the_outage_is_asked_again_after_it(scene: Scene) -> None:
    stage = scene.stage
    (ledger_id,) = await store_ledgers(stage, 1)
    held = stage.bookies["b2"].hold("read")
    running = await scene.run()
    await held.arrived()
    scene.link.cut()
    await stage.bookies["b2"].stop()
    await scene.next_outage()
    await stage.bookies["b2"].start()
    held.release()
    scene.link.restore()

    assert (await running).is_complete
    assert (await stage.check(ledger_id)).is_clean


async def test_an_outage_that_is_too_long_ends_the_run_and_the_next_one_does_the_rest(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    stage = scene.stage
    await stage.start("b2", "b3")
    lengths = (10, 10, 5)  # the newest comes first
    samples = [ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=each - 1, length=length_of(each)) for each in lengths]
    ids = [await stage.store(sample) for sample in samples]
    one_by_one = msgspec.structs.replace(CONFIG, ledgers_in_parallel=1, metadata_outage_max_s=0.5)
    held = stage.bookies["b3"].hold("add", 9)
    running = await scene.run(one_by_one)
    await held.arrived()
    scene.link.cut()
    held.release()
    with pytest.raises(MetadataOutageError, match=r"unavailable for over 0\.5 s"):
        await running
    assert [outage.is_over for outage in (await scene.next_outage(),)] == [False]
    assert "replication lock" not in caplog.text, "it is left, without waiting for an answer that cannot come"
    last = scene.moments[-1]
    assert (last.ledgers_done, last.ledgers_total) == (1, 3)
    scene.link.restore()
    await until_connected(stage, ids[0])
    moved = [ledger_id for ledger_id in ids if "b1" not in (await stage.read(ledger_id)).value.bookies()]
    assert moved == [ids[2]]

    assert (await (await scene.run())).ledgers_repaired == 2
    for ledger_id in ids:
        assert (await stage.check(ledger_id)).is_clean


async def test_a_scan_is_begun_again_after_an_outage(scene: Scene) -> None:
    stage = scene.stage
    await store_ledgers(stage, 3)
    scene.link.cut()
    planning = asyncio.create_task(scene.recovery().plan(["b1"]))
    await scene.next_outage()
    scene.link.restore()
    assert len((await planning).ledgers) == 3


async def test_a_cookie_whose_delete_lost_its_answer_is_reported_as_deleted(scene: Scene) -> None:
    stage = scene.stage
    await store_ledgers(stage, 1)
    await stage.add_cookie("b1")
    decommission = Decommission(scene.recovery(), stage.cookies, stage.client.ports)
    plan = await decommission.plan(["b1"])
    cookies = CookieStore(stage.world.store, stage.ledgers.root)
    running = asyncio.create_task(
        carry_out(decommission, plan, DrainHooks(keep_cookie=lambda *_: scene.link.lose_answers()))
    )

    async def is_deleted() -> bool:
        return "b1" not in await cookies.ids()

    await until(is_deleted)
    scene.link.cut()
    await scene.next_outage()
    scene.link.restore()

    report = await running
    assert (report.is_complete, report.is_cookie_deleted) == (True, True)


async def test_after_an_outage_the_cookie_goes_only_when_a_new_scan_finds_no_reference(scene: Scene) -> None:
    stage = scene.stage
    await store_ledgers(stage, 1)
    await stage.add_cookie("b1")
    decommission = Decommission(scene.recovery(), stage.cookies, stage.client.ports)
    plan = await decommission.plan(["b1"])
    running = asyncio.create_task(carry_out(decommission, plan, DrainHooks(keep_cookie=lambda *_: scene.link.cut())))
    await scene.next_outage()
    sample = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5))
    late, _ = await stage.world.ledgers.create(sample)
    scene.link.restore()

    report = await running
    assert report.remaining == (late,)
    assert not report.is_cookie_deleted
    assert "b1" in await stage.cookies.ids()


async def until_connected(stage: Stage, ledger_id: int) -> None:
    """Wait until the stage's store serves again."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(MetadataUnavailableError):
                await stage.read(ledger_id)
                return
