"""Whatever bookies answer, the client gives a result or an error that its callers expect, and it ends."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bkctl.runtime.client.api import open_ledger
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials, SuspectBookies
from bkctl.runtime.config import ClientConfig, ZooKeeperConfig
from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType, LedgerState
from bkctl.runtime.metadata.bookies.registration import BookieMode, BookieRegistration, RegistrationClient
from bkctl.runtime.metadata.bookies.service_info import rpc_service_info
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.ports import LacReply, ReadReply
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.copy.limits import SharedPacer
from bkctl.runtime.replication.copy.reader import CopyReader
from bkctl.runtime.replication.copy.stripe import StripeReplicator
from bkctl.runtime.replication.copy.stripe_task import CopyTools, StripeTask
from bkctl.runtime.replication.judge.fragments import EntryRange, Fragment
from bkctl.storage.errors import BkctlError
from tests.sim.bookies import Answer, BookieRequest, ModelBookies
from tests.sim.loop import VirtualClock, run_simulated
from tests.sim.metadata_store import ModelLink, ModelMetadataStore
from tests.sim.zookeeper_model import ModelZooKeeper

BOOKIES = ("b1", "b2", "b3")
SPARES = ("b4", "b5")
PASSWORD = b"sesame"
ENTRIES_MAX = 6
"""Beyond these every bookie says that there is no such entry, or no recovery would end."""
STATUSES = sorted(set(Status) - {Status.OK})
EDGES = st.sampled_from([-(2**63), -5, -1, 0, 1, 5, 2**31, 2**62, 2**63 - 2, 2**63 - 1])
NUMBERS = EDGES | st.integers(-2, 8) | st.integers(-(2**63), 2**63 - 1)


class AnyAnswers:
    """Draws the answers of one run."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], keys: LedgerCredentials) -> None:
        self._draw = draw
        self._codec = keys.codec

    def __call__(self, request: BookieRequest) -> ReadReply | LacReply | Status:
        if request.kind == "add":
            return Status(self._draw(st.just(Status.OK) | st.sampled_from(STATUSES)))
        if request.kind == "read_lac":
            return LacReply(self._draw(st.none() | self._packets()), self._draw(st.none() | self._bodies(None)))
        if request.entry_id >= ENTRIES_MAX:
            return Status.NO_SUCH_ENTRY
        outcome = self._draw(st.sampled_from(["entry", "entry", "absent", "status", "bytes"]))
        if outcome == "absent":
            return Status.NO_SUCH_ENTRY
        if outcome == "status":
            return Status(self._draw(st.sampled_from(STATUSES)))
        body = self._draw(st.binary(max_size=60) if outcome == "bytes" else self._bodies(request.entry_id))
        return ReadReply(body, self._draw(st.none() | NUMBERS))

    def _packets(self) -> st.SearchStrategy[bytes]:
        return st.binary(max_size=30) | NUMBERS.map(self._codec.encode_lac)

    def _bodies(self, entry_id: int | None) -> st.SearchStrategy[bytes]:
        ids = NUMBERS if entry_id in {None, -1} else st.just(entry_id)
        return st.builds(self._codec.encode, ids, NUMBERS, NUMBERS, st.binary(max_size=5))


def _must_not_fail(error: BkctlError) -> None:
    raise AssertionError(error)


@contextlib.asynccontextmanager
async def cluster(answer: Answer) -> AsyncIterator[ClientPorts]:
    """A client of five registered bookies that answer as the function says."""
    clock = VirtualClock()
    store = await ModelMetadataStore.connect(ModelZooKeeper(clock), ModelLink(), clock, ZooKeeperConfig())
    try:
        await init_cluster(store, "/ledgers", LedgerTree.HIERARCHICAL, random.Random(1))
        for bookie_id in (*BOOKIES, *SPARES):
            service = rpc_service_info("127.0.0.1", 3181)
            registration = BookieRegistration(
                store, "/ledgers", bookie_id, service, clock=clock, session_timeout_ms=10_000, on_failed=_must_not_fail
            )
            await registration.register(BookieMode.WRITABLE)
        config = ClientConfig(ensemble_changes_without_progress_max=3)
        yield ClientPorts(
            bookies=ModelBookies(clock, answer),
            clock=clock,
            ledgers=await open_ledger_store(store, "/ledgers", LedgerTree.HIERARCHICAL),
            registrations=RegistrationClient(store, "/ledgers"),
            suspects=SuspectBookies(clock, config.suspect_bookie_s),
            config=config,
        )
    finally:
        await store.close()


def run(
    data: st.DataObject,
    use: Callable[[ClientPorts, LedgerCredentials], Coroutine[Any, Any, None]],
    digest_type: DigestType = DigestType.CRC32C,
) -> None:
    """Use ledger 0, which is open on the three bookies; what is raised must be one of ours."""

    async def scenario() -> None:
        keys = LedgerCredentials(0, digest_type, PASSWORD)
        async with cluster(AnyAnswers(data.draw, keys)) as ports:
            quorums = data.draw(st.sampled_from([(3, 3), (3, 2), (3, 1), (2, 2), (2, 1), (1, 1)]))
            await ports.ledgers.create(new_ledger(BOOKIES, *quorums, digest_type, PASSWORD), ledger_id=0)
            with contextlib.suppress(BkctlError):
                await use(ports, keys)

    run_simulated(scenario())


@settings(max_examples=60)
@given(st.data(), st.sampled_from(DigestType))
def test_a_recovery_closes_the_ledger_or_says_why_not(data: st.DataObject, digest_type: DigestType) -> None:
    async def recover(ports: ClientPorts, _: LedgerCredentials) -> None:
        reader = await open_ledger(ports, 0, PASSWORD, recover=True)
        metadata = (await ports.ledgers.read(0)).value
        assert metadata == reader.metadata
        assert metadata.state is LedgerState.CLOSED
        assert metadata.last_entry_id >= -1
        assert metadata.length >= 0

    run(data, recover, digest_type)


@settings(max_examples=60)
@given(st.data())
def test_a_reader_of_an_open_ledger_gives_entries_or_says_why_not(data: st.DataObject) -> None:
    async def read(ports: ClientPorts, _: LedgerCredentials) -> None:
        reader = await open_ledger(ports, 0, PASSWORD, recover=False)
        await reader.try_read_last_add_confirmed()
        last = await reader.read_last_add_confirmed()
        assert -1 <= last < 2**63
        found = await reader.read(0, min(last, ENTRIES_MAX)) if last >= 0 else []
        assert [entry.entry_id for entry in found] == list(range(len(found)))

    run(data, read)


@settings(max_examples=60)
@given(st.data())
def test_a_stripe_is_copied_or_the_outcome_says_why_not(data: st.DataObject) -> None:
    async def copy(ports: ClientPorts, keys: LedgerCredentials) -> None:
        config = ReplicationConfig(attempts_max=2, backoff_first_s=0.01, backoff_max_s=0.02)
        copies = CopyReader(ports, config, lambda _: True)
        metadata = (await ports.ledgers.read(0)).value
        fragment = Fragment(0, EntryRange(0, ENTRIES_MAX), BOOKIES, (0,), is_open=False)
        task = StripeTask(keys, metadata, fragment, 0, "b4", frozenset({"b1"}))
        tools = CopyTools(ports, copies, config, SharedPacer(ports.clock))
        outcome = await StripeReplicator(tools, task, LedgerActivity(0, 0)).run()
        assert outcome.is_complete or outcome.target_failure or outcome.lost or outcome.unreadable
        windows = [copies.windows.items, copies.windows.memory, *map(copies.windows.of, ("b1", "b2", "b3", "b4"))]
        assert {(each.items_in_flight, each.bytes_in_flight) for each in windows} == {(0, 0)}

    run(data, copy)
