"""What the client's tests stand on: a cluster root, scripted bookies, clients with a store that can be held up."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence

import msgspec

from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials, SuspectBookies
from bkctl.runtime.client.writer import LedgerWriter
from bkctl.runtime.config import ClientConfig, ZooKeeperConfig
from bkctl.runtime.errors import BookieError, NodeExistsError
from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata, LedgerState
from bkctl.runtime.metadata.bookies.cookies import Cookie, CookieStore
from bkctl.runtime.metadata.bookies.registration import BookieMode, BookieRegistration, RegistrationClient
from bkctl.runtime.metadata.bookies.service_info import rpc_service_info
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.store import NodeStat, NodeWrite, SetNode, Versioned
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.ports import Clock
from bkctl.storage.errors import BkctlError
from tests.runtime.client.scripted_bookie import LOOPBACK, ScriptedBookie, StoredLedger

PASSWORD = b"sesame"
TIMEOUT_S = 6.0
"""Above the time-outs of a client with default settings, for ``SteppedClock.advance``."""


class HeldStore(ZooKeeperStore):
    """A real ZooKeeper session whose writes can be held back, and are counted."""

    write_count = 0
    _gate: asyncio.Event | None = None
    _reached: asyncio.Event | None = None

    def hold_writes(self) -> None:
        """Keep ledger updates back from now on."""
        self._gate, self._reached = asyncio.Event(), asyncio.Event()

    async def write_is_held(self) -> None:
        """Wait until an update is at the gate."""
        assert self._reached is not None
        async with asyncio.timeout(60):
            await self._reached.wait()

    def release_writes(self) -> None:
        """Let them through."""
        assert self._gate is not None
        self._gate.set()
        self._gate = None

    async def set(self, path: str, data: bytes, expected_version: int) -> NodeStat:
        await self._pass_gate()
        return await super().set(path, data, expected_version)

    async def write_all(self, writes: Sequence[NodeWrite]) -> list[NodeStat | None]:
        if any(isinstance(write, SetNode) for write in writes):
            await self._pass_gate()
        return await super().write_all(writes)

    async def _pass_gate(self) -> None:
        self.write_count += 1
        if self._gate is not None and self._reached is not None:
            self._reached.set()
            await self._gate.wait()


class Client(LedgerClient):
    """A client that remembers its store."""

    def __init__(self, ports: ClientPorts, store: HeldStore) -> None:
        super().__init__(ports, store)
        self.held_store = store

    def writer_of(self, ledger_id: int, metadata: LedgerMetadata, *, deferred_sync: bool = False) -> LedgerWriter:
        """A writer for a ledger that was just created with this metadata."""
        return LedgerWriter(self.ports, credentials(ledger_id), Versioned(metadata, 0), deferred_sync=deferred_sync)


class Fakes:
    """Build it with ``build``. Bookies b1, b2 ... exist once ``bookies`` was called."""

    def __init__(self, uri: str, store: HeldStore, ledgers: LedgerStore) -> None:
        self._uri = parse_metadata_uri(uri)
        self._store = store
        self.ledgers = ledgers
        """The other client's view: another session."""
        self._bookies: dict[str, ScriptedBookie] = {}
        self._registrations: dict[str, BookieRegistration] = {}
        self._clients: list[Client] = []

    @classmethod
    async def build(cls, uri: str) -> Fakes:
        parsed = parse_metadata_uri(uri)
        store = await HeldStore.connect(parsed.servers)
        await init_cluster(store, parsed.root, parsed.tree, random.Random(1))
        return cls(uri, store, await open_ledger_store(store, parsed.root, parsed.tree))

    @property
    def store(self) -> HeldStore:
        """The other client's session."""
        return self._store

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for bookie in self._bookies.values():
            await bookie.stop()
            bookie.release_port()
        await self._store.close()

    async def bookies(self, *names: str, mode: BookieMode = BookieMode.WRITABLE) -> list[ScriptedBookie]:
        """Start and register bookies of these ids; new ones get a cookie."""
        cookies = CookieStore(self._store, self._uri.root)
        started = []
        for name in names:
            bookie = ScriptedBookie(name)
            await bookie.start()
            self._bookies[name] = bookie
            with contextlib.suppress(NodeExistsError):
                await cookies.create(Cookie(bookie_id=name, journal_directories=("/j",), ledger_directories=("/l",)))
            registration = BookieRegistration(
                self._store,
                self._uri.root,
                name,
                rpc_service_info(LOOPBACK, bookie.port, "bkctl 0.1"),
                clock=LoopClock(),
                session_timeout_ms=10_000,
                on_failed=_must_not_fail,
            )
            self._registrations[name] = registration
            await registration.register(mode)
            started.append(bookie)
        return started

    async def withdraw(self, *names: str) -> None:
        """Withdraw the registrations of bookies; they keep their connections."""
        for name in names:
            await self._registrations[name].unregister()

    async def register(self, *names: str) -> None:
        """Register them again."""
        for name in names:
            await self._registrations[name].register(BookieMode.WRITABLE)

    async def client(
        self,
        config: ClientConfig | None = None,
        clock: Clock | None = None,
        *,
        servers: str | None = None,
        zookeeper: ZooKeeperConfig | None = None,
    ) -> Client:
        """Another client, with its own session and connections.

        ``clock`` None: one that shows real time. ``servers`` is another address of the same ZooKeeper.
        """
        config = config or ClientConfig()
        clock = clock or LoopClock(seed=1)
        store = await HeldStore.connect(servers or self._uri.servers, zookeeper)
        registrations = RegistrationClient(store, self._uri.root)

        ports = ClientPorts(
            bookies=BookiePool(registrations.address, config, clock),
            clock=clock,
            ledgers=await open_ledger_store(store, self._uri.root, self._uri.tree),
            registrations=registrations,
            suspects=SuspectBookies(clock, config.suspect_bookie_s),
            config=config,
        )
        client = Client(ports, store)
        self._clients.append(client)
        return client

    async def create(self, ensemble: tuple[str, ...], write_quorum: int, ack_quorum: int) -> tuple[int, LedgerMetadata]:
        """Store the metadata of a new ledger on exactly this ensemble."""
        metadata = new_ledger(ensemble, write_quorum, ack_quorum, DigestType.CRC32C, PASSWORD)
        ledger_id, stored = await self.ledgers.create(metadata)
        return ledger_id, stored.value

    async def writer(
        self,
        ensemble: tuple[str, ...],
        write_quorum: int,
        ack_quorum: int,
        config: ClientConfig | None = None,
        clock: Clock | None = None,
        *,
        deferred_sync: bool = False,
    ) -> tuple[LedgerWriter, Client]:
        """The writer of a new ledger on exactly this ensemble."""
        ledger_id, metadata = await self.create(ensemble, write_quorum, ack_quorum)
        client = await self.client(config, clock)
        return client.writer_of(ledger_id, metadata, deferred_sync=deferred_sync), client

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """What is stored now."""
        return (await self.ledgers.read(ledger_id)).value

    async def change(self, ledger_id: int, **fields: object) -> None:
        """What another client writes meanwhile."""
        stored = await self.ledgers.read(ledger_id)
        changed = msgspec.structs.replace(stored.value, **fields)
        await self.ledgers.write(ledger_id, changed, stored.version)

    async def recover(self, ledger_id: int, config: ClientConfig | None = None) -> LedgerMetadata:
        """Recovery-open by a new client."""
        client = await self.client(config)
        reader = await client.open(ledger_id, password=PASSWORD, recover=True)
        return reader.metadata

    def put(self, bookie: ScriptedBookie, ledger_id: int, entry_id: int, *, lac: int = -1, size: int = 10) -> None:
        """An entry that an earlier writer left on one bookie; all payloads are ``size`` bytes long."""
        keys = credentials(ledger_id)
        stored = bookie.ledgers.setdefault(ledger_id, StoredLedger(keys.master_key))
        stored.entries[entry_id] = keys.codec.encode(entry_id, lac, size * (entry_id + 1), payload(entry_id, size))
        stored.last_add_confirmed = max(stored.last_add_confirmed, lac)


async def answers_so_far(client: LedgerClient, *bookie_ids: str) -> None:
    """Wait until these bookies have all that the client sent, and the client all that they answered: requests and
    answers keep their order on a connection."""
    for bookie_id in bookie_ids:
        with contextlib.suppress(BookieError):
            await client.ports.bookies.read_lac(bookie_id, 10**6)


def credentials(ledger_id: int) -> LedgerCredentials:
    """Key and codec of the ledgers of these tests."""
    return LedgerCredentials(ledger_id, DigestType.CRC32C, PASSWORD)


def payload(entry_id: int, size: int = 10) -> bytes:
    """What every writer in these tests stores under an id."""
    return (b"%d|" % entry_id).ljust(size, b"x")


def segments(metadata: LedgerMetadata) -> dict[int, tuple[str, ...]]:
    """The segments as a dict, to compare."""
    return {segment.first_entry_id: segment.ensemble for segment in metadata.segments}


def end(metadata: LedgerMetadata) -> tuple[LedgerState, int, int]:
    """State, last entry id and length."""
    return metadata.state, metadata.last_entry_id, metadata.length


def closed(last_entry_id: int, length: int) -> tuple[LedgerState, int, int]:
    """What ``end`` gives for a closed ledger."""
    return LedgerState.CLOSED, last_entry_id, length


def _must_not_fail(error: BkctlError) -> None:
    raise AssertionError(error)
