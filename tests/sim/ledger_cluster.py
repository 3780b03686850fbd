"""A cluster in virtual time: metadata in memory, and bookies that store entries, fence, and fail as a test says."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable

from bkctl.runtime.client.ports import ClientPorts, SuspectBookies, credentials_of
from bkctl.runtime.config import ClientConfig, ZooKeeperConfig
from bkctl.runtime.errors import BookieTimeoutError, NodeExistsError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.bookies.cookies import Cookie, CookieStore
from bkctl.runtime.metadata.bookies.registration import BookieMode, BookieRegistration, RegistrationClient
from bkctl.runtime.metadata.bookies.service_info import rpc_service_info
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.ports import BookieInfo, LacReply, ReadReply
from bkctl.runtime.protocol.entry_list import EntryList
from bkctl.runtime.protocol.status import Status
from bkctl.storage.errors import BkctlError
from tests.sim.bookies import BookieRequest, ModelBookies, entry_list
from tests.sim.loop import VirtualClock
from tests.sim.metadata_store import ModelLink, ModelMetadataStore
from tests.sim.zookeeper_model import ModelZooKeeper

ROOT = "/ledgers"


class _Bookies(ModelBookies):
    def __init__(self, clock: VirtualClock, cluster: LedgerCluster) -> None:
        super().__init__(clock, cluster.answer)
        self._cluster = cluster

    async def info(self, bookie_id: str) -> BookieInfo:
        self._cluster.infos[bookie_id] += 1
        if bookie_id in self._cluster.unwell:
            raise BookieTimeoutError(bookie_id, "no answer in time")
        if bookie_id in self._cluster.refusing:
            raise self.error_of(Status.AUTHENTICATION_REQUIRED, bookie_id)
        if self._cluster.failing.get(bookie_id) is Status.UNAVAILABLE:
            raise self.error_of(Status.UNAVAILABLE, bookie_id)
        return await super().info(bookie_id)


class LedgerCluster:
    """Bookies with the entries of ledgers. ``failing``: what a bookie answers to everything, or to one entry id."""

    def __init__(self, clock: VirtualClock, store: MetadataStore) -> None:
        self._clock = clock
        self.store = store
        self.entries: dict[tuple[str, int], dict[int, bytes]] = {}
        self.fenced: set[tuple[str, int]] = set()
        self.failing: dict[str | tuple[str, int], Status] = {}
        self.unwell: set[str] = set()
        """Bookies that do not report their disk space."""
        self.refusing: set[str] = set()
        """Bookies that do not report it because they refuse this client."""
        self.infos: Counter[str] = Counter()
        """How often each was asked for it."""
        self.silent_lists: set[str] = set()
        """Bookies that do not list their entries."""
        self.muted: set[tuple[str, str]] = set()
        """Bookies and kinds of requests: they are carried out, and their answers are lost."""
        self.requests: list[BookieRequest] = []
        self._unsynced: dict[tuple[str, int], set[int]] = {}
        self._registrations: dict[str, BookieRegistration] = {}
        self._bookies = _Bookies(clock, self)
        self.ports: ClientPorts

    async def open(self, config: ClientConfig) -> None:
        """Create the metadata and the client."""
        await init_cluster(self.store, ROOT, LedgerTree.HIERARCHICAL, random.Random(1))
        self.ports = ClientPorts(
            bookies=self._bookies,
            clock=self._clock,
            ledgers=await open_ledger_store(self.store, ROOT, LedgerTree.HIERARCHICAL),
            registrations=RegistrationClient(self.store, ROOT),
            suspects=SuspectBookies(self._clock, config.suspect_bookie_s),
            config=config,
        )

    async def register(self, *bookie_ids: str, mode: BookieMode = BookieMode.WRITABLE) -> None:
        """Start bookies; new ones get a cookie."""
        cookies = CookieStore(self.store, ROOT)
        for bookie_id in bookie_ids:
            with contextlib.suppress(NodeExistsError):
                await cookies.create(
                    Cookie(bookie_id=bookie_id, journal_directories=("/j",), ledger_directories=("/l",))
                )
            service = rpc_service_info("127.0.0.1", 3181)
            self._registrations[bookie_id] = BookieRegistration(
                self.store,
                ROOT,
                bookie_id,
                service,
                clock=self._clock,
                session_timeout_ms=10_000,
                on_failed=_must_not_fail,
            )
            await self._registrations[bookie_id].register(mode)
            self.failing.pop(bookie_id, None)

    async def stop(self, bookie_id: str) -> None:
        """The bookie goes; it keeps its entries."""
        await self._registrations.pop(bookie_id).unregister()
        self.failing[bookie_id] = Status.UNAVAILABLE

    def crash(self, bookie_id: str) -> None:
        """Power failure and a restart at once: what is not synced is lost."""
        self._bookies.lose_connection(bookie_id)
        for place in [place for place in self._unsynced if place[0] == bookie_id]:
            for entry_id in self._unsynced.pop(place):
                del self.entries[place][entry_id]

    async def create(self, metadata: LedgerMetadata) -> int:
        """Store the metadata of a ledger."""
        ledger_id, _ = await self.ports.ledgers.create(metadata)
        return ledger_id

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """What is stored now."""
        return (await self.ports.ledgers.read(ledger_id)).value

    async def fill(self, ledger_id: int, entry_ids: Iterable[int], *, without: Iterable[str] = ()) -> None:
        """Store entries on the bookies of their write sets; each carries the last add confirmed before it."""
        metadata = await self.metadata(ledger_id)
        codec = credentials_of(ledger_id, metadata).codec
        for entry_id in entry_ids:
            body = codec.encode(entry_id, entry_id - 1, 10 * (entry_id + 1), b"x" * 10)
            ensemble = metadata.segment_of(entry_id).ensemble
            for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size):
                if ensemble[index] not in without:
                    self.entries.setdefault((ensemble[index], ledger_id), {})[entry_id] = body

    def answer(self, request: BookieRequest) -> ReadReply | LacReply | EntryList | Status:
        self.requests.append(request)
        place = (request.bookie_id, request.ledger_id)
        status = self.failing.get(request.bookie_id)
        if status is None and request.kind != "list":
            status = self.failing.get((request.bookie_id, request.entry_id))
        if status is not None:
            return status
        if request.is_fencing:
            self.fenced.add(place)
        if request.kind in {"add", "force"}:
            status = self._write(place, request)
            return Status.TIMEOUT if (request.bookie_id, request.kind) in self.muted else status
        entries = self.entries.get(place)
        if not entries:
            return Status.NO_SUCH_LEDGER
        if request.kind == "list":
            return Status.TIMEOUT if request.bookie_id in self.silent_lists else entry_list(entries)
        if request.kind == "read_lac":
            return LacReply(None, entries[max(entries)])
        entry_id = max(entries) if request.entry_id < 0 else request.entry_id
        return ReadReply(entries[entry_id], None) if entry_id in entries else Status.NO_SUCH_ENTRY

    def _write(self, place: tuple[str, int], request: BookieRequest) -> Status:
        if request.kind == "force":
            self._unsynced.pop(place, None)
            return Status.OK
        if place in self.fenced and not request.is_recovery_add:
            return Status.FENCED
        self.entries.setdefault(place, {})[request.entry_id] = request.body
        unsynced = self._unsynced.setdefault(place, set())
        if request.is_deferred_sync:
            unsynced.add(request.entry_id)
        else:
            unsynced.discard(request.entry_id)
        return Status.OK


@contextlib.asynccontextmanager
async def ledger_cluster(*bookie_ids: str, config: ClientConfig | None = None) -> AsyncIterator[LedgerCluster]:
    """A cluster with these bookies; use it within ``run_simulated``."""
    clock = VirtualClock()
    store = await ModelMetadataStore.connect(ModelZooKeeper(clock), ModelLink(), clock, ZooKeeperConfig())
    try:
        cluster = LedgerCluster(clock, store)
        await cluster.open(config or ClientConfig())
        await cluster.register(*bookie_ids)
        yield cluster
    finally:
        await store.close()


def _must_not_fail(error: BkctlError) -> None:
    raise AssertionError(error)
