"""Writers that fight for one log, in virtual time: partitions, lost answers, kills, rolls and trims.

An append that was acknowledged stays in the log, once and at its position. No append is acknowledged to a writer that
began it after another one had taken over.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.client.ports import ClientPorts, SuspectBookies
from bkctl.runtime.client.reader import LedgerReader
from bkctl.runtime.config import ClientConfig, ZooKeeperConfig
from bkctl.runtime.errors import LogTakenOverError, MetadataUnavailableError
from bkctl.runtime.ledger_log.deletion import LedgerDeletion, trim_log
from bkctl.runtime.ledger_log.reader import LogEntry, LogReader
from bkctl.runtime.ledger_log.writer import LogWriter
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.ledger_logs.format import LedgerLog, LogWriterClaim, decode_log, encode_log, trimmed
from bkctl.runtime.metadata.ledger_logs.nodes import LogNodes
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.store import NodeStat, NodeWrite, SetNode
from bkctl.runtime.ports import LacReply, ReadReply
from bkctl.runtime.protocol.entry_list import EntryList
from bkctl.runtime.protocol.status import Status
from bkctl.storage.errors import BkctlError
from tests.sim.bookies import BookieRequest, ModelBookies
from tests.sim.ledger_cluster import ROOT, LedgerCluster
from tests.sim.loop import VirtualClock, run_simulated
from tests.sim.metadata_store import ModelLink, ModelMetadataStore
from tests.sim.zookeeper_model import ModelZooKeeper

BOOKIES = ("b1:1", "b2:1", "b3:1")
SEEDS = 30
SAVED_NOWHERE = LedgerDeletion(lambda action, nodes: None, lambda: None)
LOG = LedgerLog(
    log_id="1",
    created_ms=1,
    ensemble_size=3,
    write_quorum_size=3,
    ack_quorum_size=2,
    roll_bytes=60,
    roll_s=100,
)


class _Shared:
    """Bookies that all processes reach, and what is known about the log."""

    def __init__(self, clock: VirtualClock, server: ModelZooKeeper, cluster: LedgerCluster, seed: int) -> None:
        self.clock, self.server, self.cluster = clock, server, cluster
        self.random = random.Random(seed)
        self.acknowledged: dict[int, bytes] = {}
        self.term = 0
        """How many writers have opened the log."""
        self.taken_over: list[str] = []
        self.trimmed_to = 0

    def answer(self, request: BookieRequest) -> ReadReply | LacReply | EntryList | Status:
        place = (request.bookie_id, request.ledger_id)
        if request.kind == "add" and not request.is_recovery_add and place in self.cluster.fenced:
            return Status.FENCED
        return self.cluster.answer(request)


class _Process:
    """A process with a session and connections of its own."""

    def __init__(self, shared: _Shared, name: str) -> None:
        self.shared, self.name = shared, name
        self.link = ModelLink()
        self.unreachable: set[str] = set()
        self.is_deaf = False
        self.client: LedgerClient
        self.nodes: LogNodes

    async def start(self) -> None:
        clock = self.shared.clock
        store = await ModelMetadataStore.connect(self.shared.server, self.link, clock, ZooKeeperConfig())
        config = ClientConfig()
        ports = ClientPorts(
            bookies=ModelBookies(clock, self._answer),
            clock=clock,
            ledgers=await open_ledger_store(store, ROOT, LedgerTree.HIERARCHICAL),
            registrations=RegistrationClient(store, ROOT),
            suspects=SuspectBookies(clock, config.suspect_bookie_s),
            config=config,
        )
        self.client, self.nodes = LedgerClient(ports, store), LogNodes(store, ROOT)

    def _answer(self, request: BookieRequest) -> ReadReply | LacReply | EntryList | Status:
        if request.bookie_id in self.unreachable:
            return Status.UNAVAILABLE
        answer = self.shared.answer(request)
        return Status.TIMEOUT if self.is_deaf else answer

    async def write(self) -> None:
        """Take the log over and append until that fails."""
        shared = self.shared
        writer = await LogWriter.open(self.client, self.nodes, shared.clock, "log", self.name)
        shared.term += 1
        term = shared.term
        for number in range(shared.random.randint(1, 40)):
            payload = f"{self.name}-{number}".encode()
            is_former = shared.term > term
            try:
                found = await writer.append(payload)
            except LogTakenOverError as error:
                shared.taken_over.append(str(error))
                raise
            assert not is_former, f"{self.name} wrote {payload!r} after another writer had taken over"
            assert found.position not in shared.acknowledged, f"position {found.position} was acknowledged twice"
            shared.acknowledged[found.position] = payload
            await shared.clock.sleep(shared.random.choice((0, 0.01, 0.5)))
        await writer.close()

    async def live(self) -> None:
        while True:
            with contextlib.suppress(BkctlError):
                await self.write()
            await self.shared.clock.sleep(self.shared.random.random())

    def break_something(self) -> None:
        """A partition or lost answers."""
        match self.shared.random.randrange(5):
            case 0:
                self.link.cut()
            case 1:
                self.link.lose_answers()
            case 2:
                self.unreachable = set(self.shared.random.sample(BOOKIES, self.shared.random.randint(1, 3)))
            case 3:
                self.is_deaf = True
            case _:
                self.link.freeze()

    def heal(self) -> None:
        self.link.cut()
        self.link.restore()
        self.unreachable, self.is_deaf = set(), False


async def _run(seed: int) -> _Shared:
    clock = VirtualClock(seed)
    server = ModelZooKeeper(clock)
    store = await ModelMetadataStore.connect(server, ModelLink(), clock, ZooKeeperConfig())
    cluster = LedgerCluster(clock, store)
    await cluster.open(ClientConfig())
    await cluster.register(*BOOKIES)
    shared = _Shared(clock, server, cluster, seed)
    await LogNodes(store, ROOT).create("log", LOG)
    processes: list[_Process] = []
    tasks: list[asyncio.Task[None]] = []
    for number in range(3):
        process = _Process(shared, f"w{number}")
        await process.start()
        processes.append(process)
        tasks.append(asyncio.create_task(process.live()))
    for turn in range(12):
        await clock.sleep(shared.random.random() * 4)
        index = shared.random.randrange(3)
        if shared.random.random() < 0.3:  # kill -9 and start again
            tasks[index].cancel()
            processes[index].link.cut()
            processes[index] = _Process(shared, f"w{index}-{turn}")
            await processes[index].start()
            tasks[index] = asyncio.create_task(processes[index].live())
        elif shared.random.random() < 0.5:
            processes[index].break_something()
        else:
            processes[index].heal()
        if shared.random.random() < 0.2 and shared.acknowledged:
            before = shared.random.randrange(max(shared.acknowledged) + 1)
            shared.trimmed_to = max(shared.trimmed_to, before)
            await trim_log(LedgerClient(cluster.ports, store), LogNodes(store, ROOT), "log", before, SAVED_NOWHERE)
    for task in tasks:
        task.cancel()
    failures = [
        each for each in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(each, AssertionError)
    ]
    await _check(shared, store)
    assert not failures, failures
    return shared


async def _check(shared: _Shared, store: ModelMetadataStore) -> None:
    client, nodes = LedgerClient(shared.cluster.ports, store), LogNodes(store, ROOT)
    await (await LogWriter.open(client, nodes, shared.clock, "log", "last")).close()
    entries: list[LogEntry] = [each async for each in LogReader(client, nodes, "log").entries()]
    positions = [each.position for each in entries]
    log = (await nodes.read("log")).value
    assert log.first_position <= shared.trimmed_to
    assert positions == list(range(log.first_position, log.first_position + len(positions)))
    found = {each.position: each.payload for each in entries}
    for position, payload in shared.acknowledged.items():
        assert position < log.first_position or found.get(position) == payload, f"position {position}"
    assert log.released == ()
    stored = [each async for each in shared.cluster.ports.ledgers.list_ids()]
    assert stored == sorted(each.ledger_id for each in log.ledgers), "ledgers that no log lists"


class _UnansweredListing(ModelMetadataStore):
    """Creates and lists the first ledger of a writer, but the answer is lost, and another process takes the log over
    meanwhile."""

    async def write_all(self, writes: Sequence[NodeWrite]) -> list[NodeStat | None]:
        stats = await super().write_all(writes)
        listing, stat = writes[-1], stats[-1]
        assert isinstance(listing, SetNode)
        assert stat is not None
        claim = LogWriterClaim("other", "other", 1)
        log = msgspec.structs.replace(decode_log(listing.data), writer=claim)
        await super().set(listing.path, encode_log(log), stat.version)
        raise MetadataUnavailableError(f"{writes[0].path}: no answer", writes[0].path)


async def _lose_the_listing() -> None:
    clock = VirtualClock(1)
    server = ModelZooKeeper(clock)
    store = await ModelMetadataStore.connect(server, ModelLink(), clock, ZooKeeperConfig())
    cluster = LedgerCluster(clock, store)
    await cluster.open(ClientConfig())
    await cluster.register(*BOOKIES)
    client, nodes = LedgerClient(cluster.ports, store), LogNodes(store, ROOT)
    await nodes.create("log", LOG)
    unanswered = await _UnansweredListing.connect(server, ModelLink(), clock, ZooKeeperConfig())
    shared = _Shared(clock, server, cluster, 1)
    ledgers = await open_ledger_store(unanswered, ROOT, LedgerTree.HIERARCHICAL)
    ports = dataclasses.replace(cluster.ports, ledgers=ledgers, bookies=ModelBookies(clock, shared.answer))
    first = await LogWriter.open(LedgerClient(ports, unanswered), LogNodes(unanswered, ROOT), clock, "log", "first")
    async with await LogWriter.open(client, nodes, clock, "log", "second") as writer:
        assert (await writer.append(b"entry")).position == 0
        with pytest.raises(LogTakenOverError):
            await first.append(b"late")


def test_a_ledger_that_was_listed_without_an_answer_is_not_deleted() -> None:
    run_simulated(_lose_the_listing())


async def _interrupt_a_trim() -> None:
    clock = VirtualClock(1)
    store = await ModelMetadataStore.connect(ModelZooKeeper(clock), ModelLink(), clock, ZooKeeperConfig())
    cluster = LedgerCluster(clock, store)
    await cluster.open(ClientConfig())
    await cluster.register(*BOOKIES)
    client, nodes = LedgerClient(cluster.ports, store), LogNodes(store, ROOT)
    await nodes.create("log", LOG)
    for _ in range(2):
        async with await LogWriter.open(client, nodes, clock, "log", "writer") as writer:
            await writer.append(b"entry")
    log = (await nodes.change("log", lambda log: trimmed(log, 1))).value
    await (await LogWriter.open(client, nodes, clock, "log", "next")).close()
    assert (await nodes.read("log")).value.released == log.released != (), "a writer saves nothing before a deletion"
    kept: list[str] = []
    how = LedgerDeletion(lambda _, found: kept.extend(path for path, _ in found), lambda: None)
    assert (await trim_log(client, nodes, "log", 0, how)).deleted == log.released
    assert kept == [cluster.ports.ledgers.path(each) for each in log.released]
    assert (await nodes.read("log")).value.released == ()


def test_only_a_trim_deletes_ledgers_with_entries_and_saves_them_first() -> None:
    run_simulated(_interrupt_a_trim())


@pytest.mark.parametrize("first_seed", range(0, SEEDS, 10))
def test_writers_that_fight_lose_and_fork_nothing(first_seed: int) -> None:
    taken_over = 0
    for seed in range(first_seed, first_seed + 10):
        shared = run_simulated(_run(seed))
        assert shared.acknowledged
        taken_over += len(shared.taken_over)
        assert all("is no longer its writer" in each for each in shared.taken_over)
    assert taken_over


def test_without_a_fence_the_check_finds_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = LedgerClient.open

    async def without_fence(self: LedgerClient, ledger_id: int, **options: Any) -> LedgerReader:
        return await opened(self, ledger_id, **options | {"recover": False})

    monkeypatch.setattr(LedgerClient, "open", without_fence)

    def run_seeds() -> None:
        for seed in range(20):
            run_simulated(_run(seed))

    with pytest.raises(AssertionError):
        run_seeds()
