"""A cluster for repair scenarios in virtual time: modelled ZooKeeper, bookies that are dicts, ledgers by hand."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from typing import Any, TypeAlias

from bkctl.runtime.client.ports import ClientPorts, SuspectBookies
from bkctl.runtime.config import ClientConfig, ZooKeeperConfig
from bkctl.runtime.errors import NodeExistsError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.bookies.cookies import Cookie, CookieStore
from bkctl.runtime.metadata.bookies.registration import BookieMode, BookieRegistration, RegistrationClient
from bkctl.runtime.metadata.bookies.service_info import rpc_service_info
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.ports import LacReply, ReadReply
from bkctl.runtime.protocol.entry_list import EntryList
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import OpenLedgers, Policy, ReplicationConfig
from bkctl.runtime.replication.judge.fragments import segment_entries
from bkctl.runtime.replication.run.recovery import BookieRecovery, RecoveryReport
from bkctl.storage.adapters.sqlite import memory_database
from bkctl.storage.errors import BkctlError
from tests.runtime.client.fakes import credentials, payload
from tests.sim.bookies import BookieRequest, ModelBookies, entry_list
from tests.sim.loop import VirtualClock, run_simulated
from tests.sim.metadata_store import ModelLink, ModelMetadataStore
from tests.sim.zookeeper_model import ModelZooKeeper

ROOT = "/ledgers"
Rule: TypeAlias = Callable[[BookieRequest], ReadReply | Status | None]
"""A fault: the answer to a request that it concerns, None for all others."""


def _must_not_fail(error: BkctlError) -> None:
    raise AssertionError(error)


class RepairCluster:
    """Make it with ``repair_cluster``. ``copies``: what each bookie stores, by ledger and entry."""

    def __init__(self, clock: VirtualClock, store: ModelMetadataStore, server: ModelZooKeeper, link: ModelLink) -> None:
        self.clock = clock
        self.link = link
        self.metadata_store = store
        self.copies: dict[str, dict[int, dict[int, bytes]]] = {}
        self.requests: list[BookieRequest] = []
        self.rules: list[Rule] = []
        self.server = server
        self._registrations: dict[str, BookieRegistration] = {}
        self.ports: ClientPorts
        self.recovery: BookieRecovery

    async def build(self, config: ReplicationConfig) -> None:
        """Connect the parts to an empty cluster."""
        await init_cluster(self.metadata_store, ROOT, LedgerTree.HIERARCHICAL, random.Random(1))
        client_config = ClientConfig()
        registrations = RegistrationClient(self.metadata_store, ROOT)
        self.ports = ClientPorts(
            bookies=ModelBookies(self.clock, self._answer, self.copies.__contains__),
            clock=self.clock,
            ledgers=await open_ledger_store(self.metadata_store, ROOT, LedgerTree.HIERARCHICAL),
            registrations=registrations,
            suspects=SuspectBookies(self.clock, client_config.suspect_bookie_s),
            config=client_config,
        )
        self.locks = ReplicationLocks(self.metadata_store, ROOT, "this-host")
        self.recovery = self.recovery_by(Policy(config=config))

    def recovery_by(self, policy: Policy) -> BookieRecovery:
        """A recovery with these choices."""
        cookies = CookieStore(self.metadata_store, ROOT)
        parts = self.ports, cookies, self.locks, policy
        return BookieRecovery(*parts, open_database=memory_database)

    async def connect(self, link: ModelLink | None = None) -> ModelMetadataStore:
        """Another client of the same ZooKeeper."""
        return await ModelMetadataStore.connect(self.server, link or ModelLink(), self.clock, ZooKeeperConfig())

    async def start(
        self, *bookie_ids: str, mode: BookieMode = BookieMode.WRITABLE, software: str | None = "bkctl 0.1"
    ) -> None:
        """Register bookies, which store nothing so far; new ones get a cookie. ``software`` None: as Java's do."""
        cookies = CookieStore(self.metadata_store, ROOT)
        for bookie_id in bookie_ids:
            self.copies[bookie_id] = {}
            with contextlib.suppress(NodeExistsError):
                await cookies.create(
                    Cookie(bookie_id=bookie_id, journal_directories=("/j",), ledger_directories=("/l",))
                )
            registration = BookieRegistration(
                self.metadata_store,
                ROOT,
                bookie_id,
                rpc_service_info("127.0.0.1", 3181, software),
                clock=self.clock,
                session_timeout_ms=10_000,
                on_failed=_must_not_fail,
            )
            await registration.register(mode)
            self._registrations[bookie_id] = registration

    async def stop(self, bookie_id: str) -> None:
        """A bookie leaves with its copies."""
        await self._registrations.pop(bookie_id).unregister()
        del self.copies[bookie_id]

    async def withdraw(self, bookie_id: str) -> None:
        """The registration of a bookie goes, as with its session; it still serves."""
        await self._registrations[bookie_id].unregister()

    async def set_mode(self, bookie_id: str, mode: BookieMode) -> None:
        """A bookie changes its mode, or registers again."""
        await self._registrations[bookie_id].register(mode)

    async def store(self, metadata: LedgerMetadata, *, holes: Iterable[str] = (), entries: int = 0) -> int:
        """Store a ledger: its metadata, and every copy on bookies that run, but for those in ``holes``.

        ``entries`` of an open last segment.
        """
        ledger_id, _ = await self.ports.ledgers.create(metadata)
        codec = credentials(ledger_id).codec
        for index, segment in enumerate(metadata.segments):
            span = segment_entries(metadata, index, segment.first_entry_id + entries - 1)
            for entry_id in range(span.first_entry_id, span.last_entry_id + 1):
                body = codec.encode(entry_id, entry_id - 1, 10 * (entry_id + 1), payload(entry_id))
                for position in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size):
                    bookie_id = segment.ensemble[position]
                    if bookie_id in self.copies and bookie_id not in holes:
                        self.copies[bookie_id].setdefault(ledger_id, {})[entry_id] = body
        return ledger_id

    async def ensembles(self, ledger_id: int) -> dict[int, tuple[str, ...]]:
        """The segments as stored now."""
        metadata = (await self.ports.ledgers.read(ledger_id)).value
        return {segment.first_entry_id: segment.ensemble for segment in metadata.segments}

    async def recover(
        self,
        *bookie_ids: str,
        unreachable: Collection[str] | None = None,
        open_ledgers: OpenLedgers = OpenLedgers.FENCE,
    ) -> RecoveryReport:
        """Plan and run."""
        plan = await self.recovery.plan(bookie_ids, unreachable=unreachable)
        policy = Policy(config=self.recovery.policy.config, open_ledgers=open_ledgers)
        return await self.recovery_by(policy).run(plan)

    def holds(self, bookie_id: str, ledger_id: int) -> list[int]:
        """Entries that a bookie stores of a ledger."""
        return sorted(self.copies[bookie_id].get(ledger_id, {}))

    def asked(self, bookie_id: str, kind: str = "read") -> list[int]:
        """Entries for which a bookie was asked, in the order of the requests."""
        return [each.entry_id for each in self.requests if (each.bookie_id, each.kind) == (bookie_id, kind)]

    def refuse(self, kind: str, bookie_id: str, status: Status, *entry_ids: int, times: int = -1) -> None:
        """Answer such requests with a status, all or the first ``times``."""
        left = times

        def rule(request: BookieRequest) -> Status | None:
            nonlocal left
            is_match = (request.kind, request.bookie_id) == (kind, bookie_id)
            if not is_match or left == 0 or (entry_ids and request.entry_id not in entry_ids):
                return None
            left -= 1
            return status

        self.rules.append(rule)

    def _answer(self, request: BookieRequest) -> ReadReply | LacReply | EntryList | Status:
        self.requests.append(request)
        for rule in self.rules:
            answer = rule(request)
            if answer is not None:
                return answer
        stored = self.copies.get(request.bookie_id)
        if stored is None:
            return Status.UNAVAILABLE
        if request.kind == "add":
            stored.setdefault(request.ledger_id, {})[request.entry_id] = request.body
            return Status.OK
        entries = stored.get(request.ledger_id)
        if not entries:
            return Status.NO_SUCH_LEDGER
        if request.kind == "list":
            return entry_list(entries)
        if request.kind == "read_lac":
            return LacReply(None, entries[max(entries)])
        body = entries.get(max(entries) if request.entry_id == -1 else request.entry_id)
        return Status.NO_SUCH_ENTRY if body is None else ReadReply(body, None)


@contextlib.asynccontextmanager
async def repair_cluster(config: ReplicationConfig | None = None, seed: int = 0) -> AsyncIterator[RepairCluster]:
    """A cluster without bookies and ledgers."""
    clock = VirtualClock(seed)
    server = ModelZooKeeper(clock)
    link = ModelLink()
    store = await ModelMetadataStore.connect(server, link, clock, ZooKeeperConfig())
    cluster = RepairCluster(clock, store, server, link)
    try:
        await cluster.build(config or ReplicationConfig())
        yield cluster
    finally:
        await store.close()


def simulate(
    scenario: Callable[[RepairCluster], Coroutine[Any, Any, None]],
    config: ReplicationConfig | None = None,
    seed: int = 0,
) -> None:
    """Run a scenario on an empty cluster, in virtual time."""

    async def run() -> None:
        async with repair_cluster(config, seed) as cluster:
            await scenario(cluster)

    run_simulated(run())
