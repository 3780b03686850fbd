"""A cluster for the explorer: every process has its own session, and a listener is called after each change.

Requests are carried out in one moment of virtual time on the model of ZooKeeper, so the listener gets all changes
in their order, each with the process that made it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bkctl.runtime.client.ports import ClientPorts, SuspectBookies
from bkctl.runtime.config import ClientConfig, ZooKeeperConfig
from bkctl.runtime.errors import BookieTimeoutError, MetadataError, RegistrationError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.bookies.cookies import Cookie, CookieStore
from bkctl.runtime.metadata.bookies.registration import (
    BookieMode,
    BookieRegistration,
    RegistrationClient,
    Registrations,
)
from bkctl.runtime.metadata.bookies.service_info import rpc_service_info
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.recovery_notes import CollectionNote, RecoveryNotes
from bkctl.runtime.metadata.store import CheckNode, NodeStat, NodeWrite
from bkctl.runtime.ports import AddDone, BookieInfo, Clock, LacReply, ReadReply
from bkctl.runtime.protocol.entry_list import EntryList
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.run.recovery import BookieRecovery, RecoveryReport
from bkctl.storage.errors import BkctlError
from tests.sim.bookies import BookieRequest, ModelBookies, entry_list
from tests.sim.loop import VirtualClock
from tests.sim.metadata_store import ModelConnection, ModelLink, ModelMetadataStore
from tests.sim.zookeeper_model import ModelZooKeeper

ROOT = "/ledgers"
PATHS = Paths(ROOT)
BOOKIE_ZOOKEEPER = ZooKeeperConfig(session_timeout_ms=300_000)
PROCESS_ZOOKEEPER = ZooKeeperConfig(session_timeout_ms=300_000, operation_timeout_s=8.0)
_DECISIVE = re.compile(re.escape(ROOT) + r"/(?:\d\d/|cookies/)")
LONG_DELAY_S = (1.0, 15.0)
SLOW_S = (0.1, 3.0)
DECISIVE_SLOW_S = (0.5, 10.0)


class Listener(Protocol):
    """Is called after each change."""

    def on_node(self, actor: str, path: str, data: bytes | None) -> None:
        """A node was created or set; ``data`` None: it is gone."""

    def on_look(self, actor: str) -> None:
        """A process has read the directory of writable bookies."""


class WatchedZooKeeper(ModelZooKeeper):
    """The server; ``actor`` is the process whose request is carried out, "" for the end of a session."""

    def __init__(self, clock: Clock, listener: Listener) -> None:
        super().__init__(clock)
        self.actor = ""
        self._listener = listener
        self._written: list[str] | None = None

    def create(self, path: str, data: bytes, *, owner: int, is_sequential: bool) -> str:
        created = super().create(path, data, owner=owner, is_sequential=is_sequential)
        self._tell(created)
        return created

    def set(self, path: str, data: bytes, expected_version: int) -> NodeStat:
        stat = super().set(path, data, expected_version)
        self._tell(path)
        return stat

    def children(self, path: str, watcher: Any) -> list[str]:
        if path == PATHS.available:
            self._listener.on_look(self.actor)
        return super().children(path, watcher)

    def write_all(self, writes: Sequence[NodeWrite], *, owner: int) -> list[NodeStat | None]:
        self._written = []
        try:
            results = super().write_all(writes, owner=owner)
            written = self._written
        finally:
            self._written = None
        for path in written:
            self._tell(path)
        return results

    def _remove(self, path: str) -> None:
        super()._remove(path)
        self._tell(path)

    def _tell(self, path: str) -> None:
        if self._written is not None:
            self._written.append(path)
            return
        node = self.nodes.get(path)
        self._listener.on_node(self.actor, path, None if node is None else node.data)


@dataclasses.dataclass
class Faults:
    """Shares of the requests of a process that are slow, or whose answers are lost."""

    slow: float = 0.0
    lost_answers: float = 0.0
    decisive: float = 0.0
    """Share of writes of ledgers and cookies that are slow; half as many lose their answers."""
    slow_ledgers: frozenset[int] = frozenset()
    """Requests to bookies are slow only if they are about one of these."""


class Blind(enum.Flag):
    """What is switched off of the protection against writes that name bookies which have left."""

    NOTHING = 0
    CHECKS = enum.auto()
    """Transactions do not check registrations and cookies of targets."""
    LOOKS = enum.auto()
    """Runs of commands see old registrations."""
    ALL = CHECKS | LOOKS


class ProcessStore(ModelMetadataStore):
    """The session of one process."""

    actor = ""
    faults: Faults = Faults()
    blind = Blind.NOTHING

    async def _request(self, path: str, request: Callable[[ModelConnection], object], *, is_read: bool) -> Any:
        source, server = self._clock.random, self._server
        assert isinstance(server, WatchedZooKeeper)

        def carried_out(on: ModelConnection) -> object:
            server.actor = self.actor
            try:
                result = request(on)
            finally:
                server.actor = ""
            if not is_read and lost and source.random() < lost:
                on.lose()
            return result

        slow, lost, slow_s = self.faults.slow, self.faults.lost_answers, SLOW_S
        if self.faults.decisive and not is_read and _DECISIVE.match(path):
            slow, lost, slow_s = self.faults.decisive, self.faults.decisive / 2, DECISIVE_SLOW_S
        if slow and source.random() < slow:
            await self._clock.sleep(source.uniform(*slow_s))
        return await super()._request(path, carried_out, is_read=is_read)

    def cut(self) -> None:
        """The process is gone: no further request leaves it."""
        self._link.cut()

    async def write_all(self, writes: Sequence[NodeWrite]) -> list[NodeStat | None]:
        """Blind, it leaves out the checks of targets."""
        if Blind.CHECKS in self.blind:
            of_target = (f"{PATHS.cookies}/", f"{PATHS.available}/")
            is_check = [isinstance(each, CheckNode) and each.path.startswith(of_target) for each in writes]
            kept = [each for each, is_left_out in zip(writes, is_check, strict=True) if not is_left_out]
            results = iter(await super().write_all(kept))
            return [None if is_left_out else next(results) for is_left_out in is_check]
        return await super().write_all(writes)


class BlindRegistrations(RegistrationClient):
    """Answers looks that follow one another within ``AGE_MAX_S`` from a cache."""

    AGE_MAX_S = 20.0

    def __init__(self, store: ProcessStore, clock: Clock) -> None:
        super().__init__(store, ROOT)
        self._clock = clock
        self._seen: tuple[int, Registrations] | None = None

    async def snapshot(self, on_change: Callable[[], None] | None = None) -> Registrations:
        now_ns = self._clock.monotonic_ns()
        if self._seen is None or now_ns - self._seen[0] > self.AGE_MAX_S * 1e9:
            self._seen = now_ns, await super().snapshot(on_change)
        return self._seen[1]


class BlindRecovery(BookieRecovery):
    """A recovery whose runs look at old registrations before they write; everything else sees the present ones."""

    blind: BlindRegistrations

    async def run(self, *arguments: Any, **keywords: Any) -> RecoveryReport:
        ports = self._ports
        self._ports = dataclasses.replace(ports, registrations=self.blind)
        try:
            return await super().run(*arguments, **keywords)
        finally:
            self._ports = ports


class Disk:
    """What a bookie stores, by ledger; it outlives crashes."""

    def __init__(self) -> None:
        self.entries: dict[int, dict[int, bytes]] = {}
        self.fenced: set[int] = set()


class Bookie:
    """One bookie: its disk, its session, whether it runs."""

    def __init__(self, bookie_id: str, cluster: WatchedCluster) -> None:
        self.bookie_id = bookie_id
        self.disk = Disk()
        self.mode = BookieMode.WRITABLE
        self.is_up = False
        self.is_retired = False
        """Stopped, and never started again."""
        self.noted_ms = 0
        """When it last replaced its note of garbage collection."""
        self._cluster = cluster
        self._store: ProcessStore | None = None
        self._registration: BookieRegistration | None = None

    async def start(self) -> None:
        """Register in the mode it had; a bookie without a cookie refuses to start."""
        if self.is_up or self.is_retired:
            return
        cluster = self._cluster
        store = await cluster.connect(self.bookie_id, BOOKIE_ZOOKEEPER)
        cookies = CookieStore(store, ROOT)

        async def require_cookie() -> None:
            if await cookies.find(self.bookie_id) is None:
                raise RegistrationError(f"bookie {self.bookie_id} has no cookie in the cluster")

        registration = BookieRegistration(
            store,
            ROOT,
            self.bookie_id,
            rpc_service_info("127.0.0.1", 3181),
            clock=cluster.clock,
            session_timeout_ms=BOOKIE_ZOOKEEPER.session_timeout_ms,
            on_failed=self._fail,
            require_cookie=require_cookie,
        )
        self.is_up, self._store, self._registration = True, store, registration
        try:
            await registration.register(self.mode)
            await RecoveryNotes(store, ROOT).collection.put(self.bookie_id, CollectionNote())
            self.noted_ms = cluster.clock.now_ms()
        except BkctlError as error:
            self._fail(error)

    async def set_read_only(self) -> None:
        """As the command of an operator does."""
        self.mode = BookieMode.READ_ONLY
        if self.is_up and self._registration is not None:
            with contextlib.suppress(MetadataError):  # the command sees that it is writable still
                await self._registration.register(self.mode)

    async def stop(self) -> None:
        """An orderly end."""
        if self.is_up:
            self.is_up = False
            assert self._registration is not None
            assert self._store is not None
            await self._registration.unregister()
            await self._store.close()

    def crash(self, session_left_s: float) -> None:
        """Kill it; its session lasts a little longer."""
        if self.is_up:
            self.is_up = False
            assert self._store is not None
            self._cluster.kill(self._store, session_left_s)

    def lose_session(self) -> None:
        """The server ends its session; it registers again."""
        if self.is_up and self._store is not None:
            self._cluster.server.end_session(self._store.session_id)

    def retire(self) -> None:
        """Stop it: what it stored is deleted, and it never starts again."""
        self.crash(0.0)
        self.is_retired, self.disk = True, Disk()

    def _fail(self, error: BkctlError) -> None:
        self._cluster.note(self.bookie_id, f"stops: {error}")
        self.crash(0.0)


class DiskBookies(ModelBookies):
    """Requests to bookies with disks, some of them slow, some with lost answers."""

    def __init__(self, cluster: WatchedCluster) -> None:
        super().__init__(cluster.clock, self._carry_out)
        self._cluster = cluster
        self._is_recovery_add = False
        self._ledger_id = -1

    def add(
        self,
        bookie_id: str,
        ledger_id: int,
        entry_id: int,
        master_key: bytes,
        body: bytes,
        done: AddDone,
        *,
        is_recovery_add: bool = False,
        is_high_priority: bool = False,
        is_deferred_sync: bool = False,
    ) -> None:
        self._is_recovery_add = is_recovery_add
        super().add(bookie_id, ledger_id, entry_id, master_key, body, done)

    def add_many(
        self,
        bookie_id: str,
        ledger_id: int,
        master_key: bytes,
        adds: Sequence[tuple[int, bytes]],
        *,
        is_recovery_add: bool = False,
    ) -> asyncio.Future[list[Status]]:
        self._is_recovery_add = is_recovery_add
        return super().add_many(bookie_id, ledger_id, master_key, adds)

    async def info(self, bookie_id: str) -> BookieInfo:
        if not self._cluster.bookies[bookie_id].is_up:
            raise BookieTimeoutError(bookie_id, "no answer in time")
        return BookieInfo(2_000_000_000, 1_000_000_000)

    def _later(self, call: Callable[[], None]) -> None:
        source, faults = self._clock.random, self._cluster.bookie_faults
        if self._ledger_id in faults.slow_ledgers and source.random() < faults.slow:
            self._clock.call_later(source.uniform(*LONG_DELAY_S), call)
        else:
            super()._later(call)

    def _carry_out(self, request: BookieRequest) -> ReadReply | LacReply | EntryList | Status:
        self._ledger_id = request.ledger_id
        bookie = self._cluster.bookies[request.bookie_id]
        if not bookie.is_up:
            return Status.UNAVAILABLE
        disk, ledger_id = bookie.disk, request.ledger_id
        is_lost = self._cluster.is_answer_lost()
        if request.is_fencing:
            disk.fenced.add(ledger_id)
        if request.kind == "add":
            if ledger_id in disk.fenced and not self._is_recovery_add:
                return Status.FENCED
            if bookie.mode is BookieMode.READ_ONLY and not self._is_recovery_add:
                return Status.READ_ONLY
            disk.entries.setdefault(ledger_id, {})[request.entry_id] = request.body
            return Status.TIMEOUT if is_lost else Status.OK
        if is_lost:
            return Status.TIMEOUT
        entries = disk.entries.get(ledger_id)
        if not entries:
            return Status.NO_SUCH_LEDGER
        if request.kind == "list":
            return entry_list(entries)
        if request.kind == "read_lac":
            return LacReply(None, entries[max(entries)])
        body = entries.get(max(entries) if request.entry_id < 0 else request.entry_id)
        return Status.NO_SUCH_ENTRY if body is None else ReadReply(body, None)


class WatchedCluster:
    """ZooKeeper, bookies, and the way to make processes. Call ``build`` first."""

    def __init__(self, clock: VirtualClock, listener: Listener, note: Callable[[str, str], None]) -> None:
        self.clock = clock
        self.server = WatchedZooKeeper(clock, listener)
        self.note = note
        self.bookies: dict[str, Bookie] = {}
        self.bookie_faults = Faults()
        self.process_faults = Faults()
        self.stores: list[ProcessStore] = []

    async def connect(
        self, actor: str, config: ZooKeeperConfig = PROCESS_ZOOKEEPER, blind: Blind = Blind.NOTHING
    ) -> ProcessStore:
        """The session of a new process."""
        store = await ProcessStore.connect(self.server, ModelLink(), self.clock, config)
        store.actor, store.faults, store.blind = actor, self.process_faults, blind
        self.stores.append(store)
        return store

    async def ports(self, store: ProcessStore) -> ClientPorts:
        """What a process uses."""
        config = ClientConfig()
        return ClientPorts(
            bookies=DiskBookies(self),
            clock=self.clock,
            ledgers=await open_ledger_store(store, ROOT, LedgerTree.HIERARCHICAL),
            registrations=RegistrationClient(store, ROOT),
            suspects=SuspectBookies(self.clock, config.suspect_bookie_s),
            config=config,
        )

    async def add_bookies(self, bookie_ids: Sequence[str], store: ProcessStore) -> None:
        """New bookies with cookies."""
        cookies = CookieStore(store, ROOT)
        for bookie_id in bookie_ids:
            self.bookies[bookie_id] = Bookie(bookie_id, self)
            cookie = Cookie(bookie_id=bookie_id, journal_directories=("/j",), ledger_directories=("/l",))
            await cookies.create(cookie)
            await self.bookies[bookie_id].start()

    def kill(self, store: ProcessStore, session_left_s: float) -> None:
        """A process ends without a word; requests on their way may arrive late."""
        session_id = store.session_id
        store.cut()
        closing = asyncio.ensure_future(store.close())
        closing.add_done_callback(lambda _: None)
        self.clock.call_later(session_left_s, lambda: self.server.end_session(session_id))

    def is_answer_lost(self) -> bool:
        """Whether the answer to a request to a bookie is lost."""
        share = self.bookie_faults.lost_answers
        return bool(share) and self.clock.random.random() < share

    def holders(self, ledger_id: int, entry_id: int, members: Sequence[str]) -> list[str]:
        """The members that have the entry on disk."""
        return [each for each in members if entry_id in self.bookies[each].disk.entries.get(ledger_id, {})]

    async def close(self) -> None:
        """End all sessions."""
        for store in self.stores:
            await store.close()


def metadata_summary(metadata: LedgerMetadata) -> str:
    """State, end and ensembles."""
    ensembles = " ".join(f"{each.first_entry_id}:[{' '.join(each.ensemble)}]" for each in metadata.segments)
    end = f" end {metadata.last_entry_id}" if metadata.is_closed else ""
    sizes = f"({metadata.ensemble_size},{metadata.write_quorum_size},{metadata.ack_quorum_size})"
    return f"{metadata.state.name}{end} {sizes} {ensembles}"
