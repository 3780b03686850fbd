"""The public client: create, write, read, recover and delete ledgers of a BookKeeper cluster.

    import asyncio
    from bkctl.runtime.client import LedgerClient

    async def main(metadata_uri: str) -> None:
        async with await LedgerClient.connect(metadata_uri) as client:
            async with await client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2) as writer:
                for number in range(10):
                    await writer.append(b"entry %d" % number)
            async for entry in await client.open(writer.ledger_id):
                print(entry.entry_id, entry.payload)

``append`` waits for each acknowledgement. For throughput keep many adds in flight with ``append_nowait``, whose futures
complete in order. Iterate over long ledgers, because ``read`` collects a list in memory.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import msgspec

from bkctl.runtime.client.bookie_copies import BookieCopies
from bkctl.runtime.client.ensemble_change import warn_of_broken_rules
from bkctl.runtime.client.last_entry import read_last_add_confirmed
from bkctl.runtime.client.placement import PlacementSources, placement_on
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials, SuspectBookies
from bkctl.runtime.client.reader import LedgerReader, reported_by_bookies
from bkctl.runtime.client.recovery import LedgerRecovery
from bkctl.runtime.client.writer import LedgerWriter
from bkctl.runtime.config import ClientConfig, ZooKeeperConfig
from bkctl.runtime.errors import ConfigurationError, LedgerNotFoundError, LedgerPasswordError, NotEnoughBookiesError
from bkctl.runtime.ledger.changes import check_quorum_sizes, new_ledger
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.budgeted_store import BudgetedStore
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.request_budget import RequestBudget
from bkctl.runtime.metadata.store import MetadataStore, SetNode
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.net.rack_files import OsRackFiles
from bkctl.runtime.placement.choice import Choice, PlacementNeed, choose_ensemble
from bkctl.runtime.placement.isolation import isolation_demand

logger = logging.getLogger(__name__)


class LedgerClient:
    """A client of one cluster. ``connect`` creates one with the real adapters; the constructor accepts any.

    Other tools may use ``ports`` and ``store`` (the session with the metadata store) too.
    """

    def __init__(self, ports: ClientPorts, store: MetadataStore, refused: Mapping[str, int] | None = None) -> None:
        self.ports = ports
        self.store = store
        self.refused: Mapping[str, int] = {} if refused is None else refused
        """How often each bookie did not accept this client: TLS, login, role."""
        self._writers: weakref.WeakValueDictionary[int, LedgerWriter] = weakref.WeakValueDictionary()

    @classmethod
    async def connect(
        cls,
        metadata_uri: str,
        *,
        config: ClientConfig | None = None,
        zookeeper: ZooKeeperConfig | None = None,
        budget: RequestBudget | None = None,
    ) -> Self:
        """Connect to the cluster with the metadata URI ``zk+<layout>://<servers>/<ledgers root>``, or Pulsar's form of
        it.

        Connects to bookies when they are first needed. ``budget``: limits the ZooKeeper requests of all operations of
        this client together; None: unlimited. Raises ConfigurationError, MetadataUnavailableError,
        ClusterNotFoundError.
        """
        uri = parse_metadata_uri(metadata_uri)
        store: MetadataStore = await ZooKeeperStore.connect(uri.servers, zookeeper)
        if budget is not None:
            store = BudgetedStore(store, budget)
        try:
            layout_config = None if zookeeper is None else zookeeper.layout
            ledgers = await open_ledger_store(store, uri.root, uri.tree, layout_config=layout_config)
        except BaseException:
            await store.close()
            raise
        return cls.on_session(store, ledgers, config or ClientConfig())

    @classmethod
    def on_session(cls, store: MetadataStore, ledgers: LedgerStore, config: ClientConfig) -> Self:
        """Create a client on an open session with the metadata store; closing the client closes the session too."""
        clock = LoopClock()
        registrations = RegistrationClient(store, ledgers.root)
        bookies = BookiePool(registrations.address, config, clock)
        sources = PlacementSources(store, registrations, bookies, clock, OsRackFiles(), ledgers.root)

        ports = ClientPorts(
            bookies=bookies,
            clock=clock,
            ledgers=ledgers,
            registrations=registrations,
            suspects=SuspectBookies(clock, config.suspect_bookie_s),
            config=config,
            placement=placement_on(config.placement, sources),
        )
        return cls(ports, store, bookies.refused)

    async def create(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 2,
        ack_quorum_size: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        lac_interval_s: float | None = None,
        deferred_sync: bool = False,
        caller_entry_ids: bool = False,
        together_with: Callable[[int], SetNode] | None = None,
    ) -> LedgerWriter:
        """Create a ledger and its only writer.

        Each entry goes to ``write_quorum_size`` of ``ensemble_size`` bookies, and is acknowledged once
        ``ack_quorum_size`` of them have stored it. ``ledger_id`` None: the next free one. ``lac_interval_s``: how long
        after an acknowledgement followers learn of it if no other entry follows (explicit LAC); None: not before
        the next entry or the close. ``deferred_sync``: bookies acknowledge entries before they are durable; ``force``
        makes them so, and the ledger ends at the last forced entry. ``caller_entry_ids``: each append names its entry
        id, in any order; ids start at 0 and must have no gaps. ``together_with``: for the ledger's id, a write to
        another node of the metadata store; both happen, or neither does. Contacts no bookie.

        Raises, with nothing stored: ConfigurationError unless ensemble >= write quorum >= ack quorum > 0,
        NotEnoughBookiesError, LedgerExistsError, RefusedError for a forbidden id, MetadataError; BadVersionError and
        NoNodeError of the other node.
        """
        check_quorum_sizes(ensemble_size, write_quorum_size, ack_quorum_size)
        warning = quorum_warning(write_quorum_size, ack_quorum_size)
        labels = tuple(sorted((custom_metadata or {}).items()))
        chosen = await self._choose_ensemble(ensemble_size, write_quorum_size, labels)
        metadata = new_ledger(
            chosen.bookies, write_quorum_size, ack_quorum_size, digest_type, password, custom_metadata=labels
        )
        metadata = msgspec.structs.replace(metadata, creator_token=self.ports.clock.random.randrange(1, 2**63))
        created_id, stored = await self.ports.ledgers.create(metadata, ledger_id=ledger_id, together_with=together_with)
        if warning is not None:
            logger.warning("ledger %d: %s", created_id, warning)
        warn_of_broken_rules(created_id, chosen)
        credentials = LedgerCredentials(created_id, digest_type, password)
        writer = LedgerWriter(
            *(self.ports, credentials, stored, warning, lac_interval_s),
            deferred_sync=deferred_sync,
            caller_entry_ids=caller_entry_ids,
        )
        self._writers[created_id] = writer
        return writer

    async def _choose_ensemble(
        self, size: int, write_quorum_size: int, custom_metadata: Sequence[tuple[str, bytes]]
    ) -> Choice:
        survey = await self.ports.placement.survey(await self.ports.registrations.writable())
        need = PlacementNeed(
            write_quorum_size=write_quorum_size,
            isolation=isolation_demand(custom_metadata),
            last_resort=self.ports.suspects.current(),
        )
        found = choose_ensemble(survey.view(), survey.rules, need, size, self.ports.clock.random)
        if isinstance(found, Choice):
            return found
        count = len(survey.writable)
        if count < size:
            why = f"{size} writable bookies are needed for an ensemble, only {count} are registered"
        else:
            why = f"no ensemble of {size} bookies can be chosen: {found.sentence}"
        raise NotEnoughBookiesError(None, why)

    async def open(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        recover: bool = False,
        digest_type: DigestType | None = None,
        asks_end: bool = True,
    ) -> LedgerReader:
        """Open a ledger for reading; ``recover`` True fences and closes it first if it is not closed.

        Arguments and errors: see ``bkctl.runtime.client.api.open_ledger``.
        """
        return await open_ledger(
            self.ports, ledger_id, password, recover=recover, digest_type=digest_type, asks_end=asks_end
        )

    async def open_copies(
        self, ledger_id: int, bookie_id: str, *, password: bytes = b"", digest_type: DigestType | None = None
    ) -> BookieCopies:
        """The copies that one bookie has of a ledger. Contacts no bookie; the metadata only has the key of the digests.

        Arguments and errors: see ``bkctl.runtime.client.api.open_ledger``.
        """
        metadata = await self.ports.ledgers.read(ledger_id)
        credentials = _credentials(ledger_id, metadata.value, password, digest_type)
        return BookieCopies(self.ports, credentials, bookie_id)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger's metadata, in any state; bookies drop its entries later. Succeeds if it does not exist.

        This does not stop a live writer; recover the ledger first if that matters. Raises MetadataError, which is a
        MetadataFormatError if the metadata cannot be read, as that of a newer release: nothing is deleted then.
        """
        with contextlib.suppress(LedgerNotFoundError):
            await self.ports.ledgers.read(ledger_id)
            await self.ports.ledgers.delete(ledger_id)

    async def close(self) -> None:
        """Close all connections. Writers that were not closed are abandoned: their ledgers stay open until they are
        recovered. Safe to repeat."""
        for writer in list(self._writers.values()):
            writer.abandon()
        await self.ports.bookies.close()
        await self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def quorum_warning(write_quorum_size: int, ack_quorum_size: int) -> str | None:
    """A sentence for the user that says why these quorums are risky; None if they are not (protocol section 2.3)."""
    if write_quorum_size == 1:
        return "write quorum 1: each entry has a single copy; if that bookie fails, its entries are lost"
    if ack_quorum_size == 1:
        return (
            "ack quorum 1: one unavailable bookie blocks the recovery of this ledger, because every bookie must "
            "confirm which entries it does not have; prefer an ack quorum of "
            f"{write_quorum_size if write_quorum_size == 2 else 'two or more'}"
        )
    return None


async def open_ledger(
    ports: ClientPorts,
    ledger_id: int,
    password: bytes,
    *,
    recover: bool,
    digest_type: DigestType | None = None,
    asks_end: bool = True,
) -> LedgerReader:
    """Create a reader of the ledger.

    ``recover`` False: fences nothing, so a writer can continue; the bookies report the last add confirmed.
    ``recover`` True: fences and closes the ledger first if it is not closed, which stops its writer.
    ``digest_type`` is used only if the metadata has none (written before BookKeeper 4.2).
    ``asks_end`` False, without ``recover``: no bookie is asked about an open ledger. Until answers report more, only
    the entries before its last segment are known to be confirmed.

    Raises LedgerNotFoundError; LedgerPasswordError before any bookie is asked; LedgerReadError, LedgerRecoveryError,
    ConflictError, MetadataError.
    """
    metadata = await ports.ledgers.read(ledger_id)
    credentials = _credentials(ledger_id, metadata.value, password, digest_type)
    if metadata.value.is_closed:
        return LedgerReader(ports, credentials, metadata, metadata.value.last_entry_id)
    if recover:
        metadata = await LedgerRecovery(ports, credentials, metadata).run()
        return LedgerReader(ports, credentials, metadata, metadata.value.last_entry_id)
    if not asks_end:
        return LedgerReader(ports, credentials, metadata, metadata.value.last_segment.first_entry_id - 1)
    asking = read_last_add_confirmed(ports, credentials, metadata.value, is_fencing=False)
    confirmed = await reported_by_bookies(ledger_id, asking)
    return LedgerReader(ports, credentials, metadata, confirmed)


def _credentials(
    ledger_id: int, metadata: LedgerMetadata, password: bytes, digest_type: DigestType | None
) -> LedgerCredentials:
    if metadata.password is not None and metadata.password != password:
        raise LedgerPasswordError(ledger_id, "the password is wrong; no bookie was asked")
    known = metadata.digest_type or digest_type
    if known is None:
        raise ConfigurationError(f"ledger {ledger_id}: its metadata has no digest type; specify the one it uses")
    return LedgerCredentials(ledger_id, known, password)
