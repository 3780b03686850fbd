"""A recovery while ZooKeeper is away: nothing is done on old knowledge, and nothing that was done is lost."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

import msgspec
import pytest

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import ConflictError, MetadataOutageError, MetadataUnavailableError
from bkctl.runtime.ledger.changes import replace_in_segment
from bkctl.runtime.metadata.bookies.cookies import CookieStore
from bkctl.runtime.metadata.bookies.registration import RegistrationClient, Registrations
from bkctl.runtime.metadata.outage import MetadataOutage
from bkctl.runtime.metadata.store import DeleteNode, MetadataStore, NodeStat, NodeWrite
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.net.loop import LaneWorkers
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import Policy, ReplicationConfig
from bkctl.runtime.replication.plan.store import JobFile, JobWork, RecoveryJob
from bkctl.runtime.replication.run.decommission import Decommission
from bkctl.runtime.replication.run.drain import DrainHooks
from bkctl.runtime.replication.run.ledgers import RecoveryProgress
from bkctl.runtime.replication.run.recovery import BookieRecovery, RecoveryReport
from bkctl.storage.adapters.sqlite import memory_database, temporary_database
from tests.runtime.client.fakes import Client, Fakes, segments
from tests.runtime.metadata.conftest import expire, session_of
from tests.runtime.metadata.link import TcpLink
from tests.runtime.replication.fleet import QUICK, Fleet, carry_out, length_of
from tests.runtime.replication.samples import ledger
from tests.runtime.replication.test_job_file import START
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


class LinkedRecovery(NamedTuple):
    """A fleet whose client reaches ZooKeeper by a link, and what its recovery reported."""

    fleet: Fleet
    link: TcpLink
    registration: WatchedRegistration
    outages: asyncio.Queue[MetadataOutage]
    moments: list[RecoveryProgress]

    def recovery(self, config: ReplicationConfig = CONFIG) -> BookieRecovery:
        fleet = self.fleet
        return BookieRecovery(
            dataclasses.replace(fleet.client.ports, registrations=self.registration),
            fleet.cookies,
            fleet.locks,
            Policy(config=config),
            self.outages.put_nowait,
            open_database=temporary_database,
        )

    async def run(
        self, config: ReplicationConfig = CONFIG, job: RecoveryJob | None = None
    ) -> asyncio.Task[RecoveryReport]:
        recovery = self.recovery(config)
        plan = await recovery.plan(["b1"])
        return asyncio.create_task(recovery.run(plan, self.moments.append, job=job))

    async def next_outage(self) -> MetadataOutage:
        async with asyncio.timeout(LIMIT_S):
            return await self.outages.get()

    async def expire_session(self, zookeeper: EmbeddedZooKeeper) -> None:
        await asyncio.to_thread(expire, session_of(self.fleet.client.held_store), zookeeper)

    async def lose_session(self, zookeeper: EmbeddedZooKeeper) -> None:
        """Return when the client knows that its session has ended."""
        lost = asyncio.Event()
        self.fleet.client.store.on_session_lost(lost.set)
        await self.expire_session(zookeeper)
        async with asyncio.timeout(LIMIT_S):
            await lost.wait()


async def client_in_time(fakes: Fakes, link: TcpLink) -> Client:
    """Connecting has the time-out of an operation, and takes what a busy machine takes."""
    while True:
        with contextlib.suppress(MetadataUnavailableError):
            return await fakes.client(servers=link.address, zookeeper=ZOOKEEPER)


@pytest.fixture
async def linked(metadata_uri: str, zookeeper: EmbeddedZooKeeper) -> AsyncIterator[LinkedRecovery]:
    fakes = await Fakes.build(metadata_uri)
    link = await TcpLink.open(zookeeper.port)
    try:
        fleet = Fleet(fakes, await client_in_time(fakes, link))
        registration = WatchedRegistration(fleet.client.store, fleet.ledgers.root)
        yield LinkedRecovery(fleet, link, registration, asyncio.Queue(), [])
    finally:
        link.restore()
        await fakes.close()
        await link.close()


async def store_ledgers(fleet: Fleet, count: int) -> list[int]:
    """Ledgers of five entries on b1, which is dead, and b2."""
    await fleet.start("b2", "b3")
    sample = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5))
    return [await fleet.store(sample) for _ in range(count)]


async def test_copies_made_before_the_outage_are_kept_while_the_lock_is_held(linked: LinkedRecovery) -> None:
    fleet = linked.fleet
    (ledger_id,) = await store_ledgers(fleet, 1)
    held = fleet.bookies["b3"].hold("add", 4)
    running = await linked.run()
    await held.arrived()
    linked.link.cut()
    held.release()
    outage = await linked.next_outage()
    assert (outage.is_over, outage.wait_max_s) == (False, 60.0)
    linked.link.restore()
    assert (await linked.next_outage()).is_over

    report = await running
    assert report.is_complete
    assert segments((await fleet.read(ledger_id)).value) == {0: ("b3", "b2")}
    assert fleet.bookies["b3"].count("add") == 5
    assert (await fleet.check(ledger_id)).is_clean


async def test_a_ledger_that_somebody_else_repaired_in_the_outage_is_left_to_them(
    linked: LinkedRecovery, zookeeper: EmbeddedZooKeeper
) -> None:
    fleet = linked.fleet
    (ledger_id,) = await store_ledgers(fleet, 1)
    await fleet.start("b4")
    others = {"b3": "b4", "b4": "b3"}
    held = [fleet.bookies[bookie_id].hold("add", 4) for bookie_id in others]
    running = await linked.run()
    await asyncio.wait([asyncio.create_task(each.arrived()) for each in held], return_when=asyncio.FIRST_COMPLETED)
    linked.link.cut()
    await linked.expire_session(zookeeper)
    stored = await fleet.fakes.ledgers.read(ledger_id)
    chosen = next(bookie_id for bookie_id in others if fleet.bookies[bookie_id].count("add"))
    repaired = replace_in_segment(stored.value, 0, {0: others[chosen]})
    version = (await fleet.fakes.ledgers.write(ledger_id, repaired, stored.version)).version
    for each in held:
        each.release()
    await linked.next_outage()
    linked.link.restore()

    report = await running
    assert report.ledgers_repaired_by_others == 1
    assert (await fleet.fakes.ledgers.read(ledger_id)).version == version, "nothing was written on old knowledge"


async def test_a_change_whose_answer_was_lost_is_not_made_twice(linked: LinkedRecovery) -> None:
    fleet = linked.fleet
    (ledger_id,) = await store_ledgers(fleet, 1)
    version = (await fleet.read(ledger_id)).version
    fleet.client.held_store.hold_writes()
    running = await linked.run()
    await fleet.client.held_store.write_is_held()
    linked.link.lose_answers()
    fleet.client.held_store.release_writes()

    async def is_changed() -> bool:
        return (await fleet.fakes.ledgers.read(ledger_id)).version != version

    await until(is_changed)
    linked.link.cut()
    await linked.next_outage()
    linked.link.restore()

    report = await running
    assert (report.is_complete, report.fragments) == (True, 1)
    assert (await fleet.read(ledger_id)).version == version + 1


async def test_bookies_that_have_not_registered_again_are_waited_for(
    linked: LinkedRecovery, zookeeper: EmbeddedZooKeeper
) -> None:
    """Their sessions end in the same outage; to take them for dead would leave the ledger unrepaired."""
    fleet = linked.fleet
    (ledger_id,) = await store_ledgers(fleet, 1)
    held = fleet.bookies["b3"].hold("add", 4)
    running = await linked.run()
    await held.arrived()
    linked.link.cut()
    await fleet.fakes.withdraw("b2", "b3")
    await linked.expire_session(zookeeper)
    held.release()
    await linked.next_outage()
    linked.link.restore()
    assert (await linked.next_outage()).is_over
    linked.registration.read.clear()
    async with asyncio.timeout(LIMIT_S):
        await linked.registration.read.wait()
    await fleet.fakes.register("b2", "b3")

    assert (await running).is_complete
    assert (await fleet.check(ledger_id)).is_clean


async def test_a_session_that_ends_without_an_error_is_an_outage_too(
    linked: LinkedRecovery, zookeeper: EmbeddedZooKeeper
) -> None:
    """No operation was under way, so none failed: the lost lock is what tells."""
    fleet = linked.fleet
    (ledger_id,) = await store_ledgers(fleet, 1)
    held = fleet.bookies["b3"].hold("add", 4)
    running = await linked.run()
    await held.arrived()
    await fleet.fakes.withdraw("b2", "b3")
    await linked.lose_session(zookeeper)
    await until_connected(fleet, ledger_id)
    linked.registration.read.clear()
    held.release()
    async with asyncio.timeout(LIMIT_S):
        await linked.registration.read.wait()
    await fleet.fakes.register("b2", "b3")

    assert (await running).is_complete
    assert (await fleet.check(ledger_id)).is_clean


async def test_a_connection_that_was_lost_without_an_error_is_an_outage_too(linked: LinkedRecovery) -> None:
    """Our session outlives the outage and no operation fails, but that of the only source ends."""
    fleet = linked.fleet
    ids = await store_ledgers(fleet, 2)
    held = fleet.bookies["b3"].hold("add", 4)
    running = await linked.run(msgspec.structs.replace(CONFIG, ledgers_in_parallel=1))
    await held.arrived()
    linked.link.cut()
    await fleet.fakes.withdraw("b2")
    linked.link.restore()
    await until_connected(fleet, ids[0])
    held.release()
    for _ in range(3):
        linked.registration.read.clear()
        reading = asyncio.create_task(linked.registration.read.wait())
        await asyncio.wait({running, reading}, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()
    await fleet.fakes.register("b2")

    report = await running
    assert report.is_complete, report
    assert linked.outages.empty()
    for ledger_id in ids:
        assert (await fleet.check(ledger_id)).is_clean


async def test_a_failure_found_after_the_session_ended_is_not_reported_but_looked_at_again(
    linked: LinkedRecovery, zookeeper: EmbeddedZooKeeper
) -> None:
    fleet = linked.fleet
    (ledger_id,) = await store_ledgers(fleet, 1)
    fleet.bookies["b3"].refuse("add", Status.IO_ERROR, 4, times=1)
    held = fleet.bookies["b2"].hold("read", 4)
    running = await linked.run()
    await held.arrived()
    await linked.lose_session(zookeeper)
    await until_connected(fleet, ledger_id)
    held.release()

    assert (await running).is_complete
    assert (await fleet.check(ledger_id)).is_clean


async def test_a_target_that_could_not_be_found_in_the_outage_is_used_after_it(linked: LinkedRecovery) -> None:
    """Its address is in ZooKeeper. The first connection to it is opened while ZooKeeper is away."""
    fleet = linked.fleet
    (ledger_id,) = await store_ledgers(fleet, 1)
    held = fleet.bookies["b2"].hold("read")
    running = await linked.run()
    await held.arrived()
    linked.link.cut()
    held.release()
    await linked.next_outage()
    linked.link.restore()

    assert (await running).is_complete
    assert (await fleet.check(ledger_id)).is_clean


async def test_a_source_that_failed_in_the_outage_is_asked_again_after_it(linked: LinkedRecovery) -> None:
    fleet = linked.fleet
    (ledger_id,) = await store_ledgers(fleet, 1)
    held = fleet.bookies["b2"].hold("read")
    running = await linked.run()
    await held.arrived()
    linked.link.cut()
    await fleet.bookies["b2"].stop()
    await linked.next_outage()
    await fleet.bookies["b2"].start()
    held.release()
    linked.link.restore()

    assert (await running).is_complete
    assert (await fleet.check(ledger_id)).is_clean


async def test_an_outage_that_is_too_long_ends_the_run_and_the_next_one_does_the_rest(
    linked: LinkedRecovery, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = linked.fleet
    await fleet.start("b2", "b3")
    lengths = (10, 10, 5)  # the newest comes first
    samples = [ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=each - 1, length=length_of(each)) for each in lengths]
    ids = [await fleet.store(sample) for sample in samples]
    one_by_one = msgspec.structs.replace(CONFIG, ledgers_in_parallel=1, metadata_outage_max_s=0.5)
    held = fleet.bookies["b3"].hold("add", 9)
    running = await linked.run(one_by_one)
    await held.arrived()
    linked.link.cut()
    held.release()
    with pytest.raises(MetadataOutageError, match=r"unavailable for over 0\.5 s"):
        await running
    assert [outage.is_over for outage in (await linked.next_outage(),)] == [False]
    assert "replication lock" not in caplog.text, "it is left, without waiting for an answer that cannot come"
    last = linked.moments[-1]
    assert (last.ledgers_done, last.ledgers_total) == (1, 3)
    linked.link.restore()
    await until_connected(fleet, ids[0])
    moved = [ledger_id for ledger_id in ids if "b1" not in (await fleet.read(ledger_id)).value.bookies()]
    assert moved == [ids[2]]

    assert (await (await linked.run())).ledgers_repaired == 2
    for ledger_id in ids:
        assert (await fleet.check(ledger_id)).is_clean


async def test_a_scan_is_begun_again_after_an_outage(linked: LinkedRecovery) -> None:
    fleet = linked.fleet
    await store_ledgers(fleet, 3)
    linked.link.cut()
    planning = asyncio.create_task(linked.recovery().plan(["b1"]))
    await linked.next_outage()
    linked.link.restore()
    assert len((await planning).ledgers) == 3


@pytest.mark.parametrize("is_held", [False, True])
async def test_a_cookie_whose_delete_lost_its_answer_is_reported_as_deleted(
    linked: LinkedRecovery, is_held: bool
) -> None:
    """``is_held``: the answer to the deletion, not to what holds the cookie before it."""
    fleet = linked.fleet
    await store_ledgers(fleet, 1)
    await fleet.add_cookie("b1")
    decommission = Decommission(linked.recovery(), fleet.cookies, fleet.client.ports)
    plan = await decommission.plan(["b1"])
    cookies = CookieStore(fleet.fakes.store, fleet.ledgers.root)
    store, kept = fleet.cookies._store, 0
    original = store.write_all

    def keep_cookie(*_: object) -> None:
        nonlocal kept
        kept += 1
        if not is_held and kept == 1:
            linked.link.lose_answers()

    async def write_all(writes: Sequence[NodeWrite]) -> list[NodeStat | None]:
        if is_held and isinstance(writes[0], DeleteNode):
            linked.link.lose_answers()
        return await original(writes)

    store.write_all = write_all  # type: ignore[method-assign]
    running = asyncio.create_task(carry_out(decommission, plan, DrainHooks(keep_cookie=keep_cookie)))

    async def is_sent() -> bool:
        if is_held:
            return "b1" not in await cookies.ids()
        return await fleet.fakes.store.children(cookies.path("b1")) != []

    await until(is_sent)
    linked.link.cut()
    await linked.next_outage()
    linked.link.restore()

    report = await running
    assert (report.is_complete, report.is_cookie_deleted) == (True, True)


async def test_after_an_outage_the_cookie_goes_only_when_a_new_scan_finds_no_reference(linked: LinkedRecovery) -> None:
    fleet = linked.fleet
    await store_ledgers(fleet, 1)
    await fleet.add_cookie("b1")
    decommission = Decommission(linked.recovery(), fleet.cookies, fleet.client.ports)
    plan = await decommission.plan(["b1"])
    running = asyncio.create_task(carry_out(decommission, plan, DrainHooks(keep_cookie=lambda *_: linked.link.cut())))
    await linked.next_outage()
    sample = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5))
    late, _ = await fleet.fakes.ledgers.create(sample)
    linked.link.restore()

    report = await running
    assert report.remaining == (late,)
    assert not report.is_cookie_deleted
    assert "b1" in await fleet.cookies.ids()


async def test_no_ledger_is_changed_in_a_new_session_before_others_see_the_run(
    linked: LinkedRecovery, zookeeper: EmbeddedZooKeeper
) -> None:
    """The run is shown by a lock of the session; when another operation has that lock, nothing more is changed."""
    fleet = linked.fleet
    (ledger_id,) = await store_ledgers(fleet, 1)
    version = (await fleet.read(ledger_id)).version
    times, may_hold, workers = list[int](), asyncio.Event(), LaneWorkers()
    may_hold.set()

    async def hold() -> None:
        times.append(len(times))
        await may_hold.wait()
        if len(times) > 1:
            raise ConflictError("another operation has the bookie")

    held = fleet.bookies["b3"].hold("add", 4)
    with contextlib.closing(JobFile.create(memory_database(), START, [JobWork(1, ledger_id)])) as job_file:
        job = RecoveryJob(job_file, workers, lambda: None, pytest.fail, hold)
        running = await linked.run(job=job)
        await held.arrived()
        assert len(times) == 1
        may_hold.clear()
        await linked.lose_session(zookeeper)
        await until_connected(fleet, ledger_id)
        held.release()
        await until(lambda: len(times) == 2)
        assert fleet.locks.holds(ledger_id), "what it asks for comes after the lock, so it is of no earlier session"
        may_hold.set()
        with pytest.raises(ConflictError, match="another operation has the bookie"):
            await running
        await workers.close()
    assert (await fleet.read(ledger_id)).version == version
    assert not fleet.locks.holds(ledger_id)


async def until_connected(fleet: Fleet, ledger_id: int) -> None:
    """Wait until the fleet's store serves again."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(MetadataUnavailableError):
                await fleet.read(ledger_id)
                return
