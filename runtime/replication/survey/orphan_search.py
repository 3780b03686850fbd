"""Finds ledgers that Pulsar wrote and no longer names. Reads metadata, and entries of cursors; writes nothing.

Ages are by the slower of two clocks: that of this machine, and the newest time that ZooKeeper's nodes have.

The order makes it safe: first the ledgers, then all references, and these twice. Pulsar creates a ledger before the
reference to it, so a ledger of that age which no later reading names has lost its reference or never had one.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import chain
from typing import NamedTuple

import msgspec

from bkctl.runtime.client.api import open_ledger
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import LedgerNotFoundError, LedgerReadError, NoSuchEntryError, NoSuchLedgerError
from bkctl.runtime.ledger.pulsar_owner import PulsarTopic, PulsarUse
from bkctl.runtime.metadata.ledgers.ledgers import WINDOW
from bkctl.runtime.metadata.ledgers.stored_ledgers import read_stored, scan_stored
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.pulsar.format import decode_cursor_entry
from bkctl.runtime.metadata.pulsar.references import PulsarReferences, PulsarStore, read_references
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.replication.judge.orphans import (
    KeptReason,
    OrphanReason,
    OrphanTerms,
    PulsarLedger,
    is_written,
    judge,
    pulsar_ledger,
    why_in_use,
)
from bkctl.storage.errors import BkctlError

SETTLE_S_MIN = 1.0
"""Shortest wait between the readings. A broker that replaces a reference needs some requests to ZooKeeper for it."""
_LEDGERS_PER_PROGRESS = 1000
_LAST_ENTRIES_IN_FLIGHT_MAX = 16
_UNCONFIRMED_MAX = 1000
"""Entries read beyond the last confirmed one. The writer of a cursor has at most a few in flight."""


class Orphan(NamedTuple):
    """An orphan and why it is one."""

    ledger: PulsarLedger
    reason: OrphanReason


class OrphanSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search.

    ``kept``: how many of the other ledgers by reason. ``foreign``: those whose namespace exists in no given cluster.
    ``problems``: what cannot be decoded, in words. ``strays``: ledgers in use whose topic exists in no given
    cluster; another one may be writing them. ``zookeeper_ms``: the newest time of all nodes read, 0 if none;
    ``young_in_zookeeper``: ledgers that are too young by that time alone. ``foreign_writes``: ledgers that no node
    names and that were written or created during the search, as proof of another cluster.
    """

    ledgers: int
    orphans: list[Orphan]
    kept: Counter[KeptReason]
    foreign: list[PulsarLedger]
    problems: list[str]
    strays: list[PulsarLedger]
    nodes_read: int
    zookeeper_ms: int
    young_in_zookeeper: int
    foreign_writes: list[PulsarLedger] = []


class SearchView(NamedTuple):
    """Called during a search: with what is read now, and with how many so far."""

    on_step: Callable[[str], None]
    on_progress: Callable[[int], None]


@dataclasses.dataclass
class OrphanFinder:
    """Judges all ledgers, or those of ``only``, by the references in all ``pulsar_stores``, read twice ``settle_s``
    apart. ``candidates`` and ``witnesses`` are ledgers as their own metadata judges them. Use it once."""

    ports: ClientPorts
    store: MetadataStore
    pulsar_stores: Sequence[PulsarStore]
    terms: OrphanTerms
    _: dataclasses.KW_ONLY
    settle_s: float
    only: Collection[int] | None
    view: SearchView

    def __post_init__(self) -> None:
        self._ledgers = 0
        self._candidates: list[PulsarLedger] = []
        self._witnesses: list[PulsarLedger] = []
        self._kept: Counter[KeptReason] = Counter()
        self._newest_ms = 0
        self._newest_id = -1
        self._references = PulsarReferences()

    async def find(self) -> OrphanSearch:
        """The orphans. A node that cannot be read or listed ends the search with its error. RefusedError for a store
        without metadata of Pulsar."""
        self.view.on_step("reading ledgers")
        await self._screen_all()
        references, foreign_writes = self._references, await self._read_twice()
        zookeeper_ms = max(self._newest_ms, references.newest_ms)
        young = self._set_young_aside(zookeeper_ms)
        compaction = await self._compaction() if self.terms.compacted else {}
        orphans: list[Orphan] = []
        foreign: list[PulsarLedger] = []
        for candidate in self._candidates:
            verdict = judge(candidate, references, compaction, self.terms)
            if isinstance(verdict, OrphanReason):
                orphans.append(Orphan(candidate, verdict))
                continue
            self._kept[verdict] += 1
            if verdict is KeptReason.OTHER_CLUSTER:
                foreign.append(candidate)
        versions = await self._versions([each.ledger for each in orphans])
        unchanged = [each for each in orphans if versions[each.ledger.ledger_id] == each.ledger.version]
        self._kept[KeptReason.CHANGED] = len(orphans) - len(unchanged)
        strays = [each for each in self._witnesses if each.owner.topic not in references.topics]
        return OrphanSearch(
            ledgers=self._ledgers,
            orphans=unchanged,
            kept=+self._kept,
            foreign=foreign,
            problems=[*references.problems(), *sorted({each for each in compaction.values() if isinstance(each, str)})],
            strays=await self._present(strays),
            nodes_read=references.nodes_read,
            zookeeper_ms=zookeeper_ms,
            young_in_zookeeper=young,
            foreign_writes=foreign_writes,
        )

    async def _screen_all(self) -> None:
        """Every ledger is read, because any may show that another cluster is writing; only those of ``only`` are
        judged."""
        scanned = 0
        await self.store.sync(self.ports.ledgers.root)
        async with aclosing(scan_stored(self.store, self.ports.ledgers)) as ledgers:
            async for ledger in ledgers:
                scanned += 1
                self._newest_id = max(self._newest_id, ledger.ledger_id)
                if ledger.node is not None:
                    self._newest_ms = max(self._newest_ms, ledger.node.stat.mtime_ms)
                if scanned % _LEDGERS_PER_PROGRESS == 0:
                    self.view.on_progress(scanned)
                screened = pulsar_ledger(ledger)
                reason = screened if isinstance(screened, KeptReason) else why_in_use(screened, self.terms)
                if isinstance(screened, PulsarLedger) and reason is not None and screened.is_witness:
                    self._witnesses.append(screened)
                if self.only is not None and ledger.ledger_id not in self.only:
                    continue
                self._ledgers += 1
                if isinstance(screened, PulsarLedger) and reason is None:
                    self._candidates.append(screened)
                elif reason is not None:
                    self._kept[reason] += 1

    async def _read_twice(self) -> list[PulsarLedger]:
        """Read all references twice; returns the ledgers that another cluster has written between the readings."""
        self.view.on_step("reading references")
        await self._read_references()
        unnamed = self._not_named(self._witnesses)
        before = await self._last_confirmed(unnamed)
        self.view.on_step("waiting before the references are read again")
        arrivals = []
        for _ in range(2):
            await self.ports.clock.sleep(self.settle_s / 2)
            arrivals.append(await self._new_ledgers())
        self.view.on_step("reading references again")
        await self._read_references()
        return await self._foreign_writes(unnamed, before, arrivals)

    async def _read_references(self) -> None:
        for pulsar_store in self.pulsar_stores:
            await read_references(pulsar_store, self._references, self.view.on_progress)

    def _set_young_aside(self, zookeeper_ms: int) -> int:
        """The number of candidates that are too young if ZooKeeper's clock has just reached ``zookeeper_ms``."""
        young = [each for each in self._candidates if self.terms.is_young(each.created_ms, zookeeper_ms)]
        self._candidates = [each for each in self._candidates if not self.terms.is_young(each.created_ms, zookeeper_ms)]
        self._witnesses += [each for each in young if each.is_witness]
        self._kept[KeptReason.YOUNG] += len(young)
        return len(young)

    def _not_named(self, ledgers: Iterable[PulsarLedger]) -> list[PulsarLedger]:
        return [each for each in ledgers if each.ledger_id not in self._references.named]

    async def _present(self, ledgers: Sequence[PulsarLedger]) -> list[PulsarLedger]:
        versions = await self._versions(ledgers)
        return [each for each in ledgers if versions[each.ledger_id] is not None]

    async def _versions(self, ledgers: Sequence[PulsarLedger]) -> dict[int, int | None]:
        """The versions of their nodes now; None for one that is gone."""

        async def read(ledger: PulsarLedger) -> tuple[int, int | None]:
            stat = await self.store.exists(self.ports.ledgers.path(ledger.ledger_id))
            return ledger.ledger_id, None if stat is None else stat.version

        async with aclosing(pipelined(each_of(ledgers), read, WINDOW)) as versions:
            return dict([each async for each in versions])

    async def _last_confirmed(self, witnesses: Sequence[PulsarLedger]) -> dict[int, int | None]:
        """The last confirmed entry of each ledger that is open, read without fencing; None if it is not known."""

        async def read(witness: PulsarLedger) -> tuple[int, int | None]:
            try:
                metadata = (await self.ports.ledgers.read(witness.ledger_id)).value
                if metadata.is_closed:
                    return witness.ledger_id, None
                reader = await open_ledger(self.ports, witness.ledger_id, metadata.password or b"", recover=False)
            except BkctlError:
                return witness.ledger_id, None
            return witness.ledger_id, reader.last_add_confirmed

        async with aclosing(pipelined(each_of(witnesses), read, _LAST_ENTRIES_IN_FLIGHT_MAX)) as answers:
            return dict([each async for each in answers])

    async def _new_ledgers(self) -> list[PulsarLedger]:
        """Ledgers of topics that were created since the last list. Ids ascend in the order of creation."""
        await self.store.sync(self.ports.ledgers.root)
        async with aclosing(self.ports.ledgers.list_ids()) as ids:
            new = [each async for each in ids if each > self._newest_id]
        witnesses = []
        for ledger_id in new:
            self._newest_id = max(self._newest_id, ledger_id)
            with suppress(LedgerNotFoundError):
                ledger = pulsar_ledger(await read_stored(self.store, self.ports.ledgers, ledger_id))
                witnesses += [ledger] if isinstance(ledger, PulsarLedger) and ledger.is_witness else []
        return witnesses

    async def _foreign_writes(
        self, unnamed: Sequence[PulsarLedger], before: Mapping[int, int | None], arrivals: list[list[PulsarLedger]]
    ) -> list[PulsarLedger]:
        """Ledgers that no reading of the references names, and that a process has written or created meanwhile."""
        watched = self._not_named(unnamed)
        versions = await self._versions(watched)
        now = await self._last_confirmed(watched)
        written = [
            each
            for each in watched
            if is_written((each.version, versions[each.ledger_id]), (before[each.ledger_id], now[each.ledger_id]))
        ]
        new = [await self._present(self._not_named(witnesses)) for witnesses in arrivals]
        is_new_in_each = all(new)  # one broker that fails leaves ledgers without a name in one interval only
        return written + (list(chain.from_iterable(new)) if is_new_in_each else [])

    async def _compaction(self) -> dict[PulsarTopic, frozenset[int] | str]:
        """For each topic with a compacted ledger that no node names: those that its cursor names, or why not known."""
        references = self._references
        topics = {
            each.owner.topic
            for each in self._not_named(self._candidates)
            if each.owner.use is PulsarUse.COMPACTED and each.owner.topic in references.topics
        }
        found: dict[PulsarTopic, frozenset[int] | str] = {}
        for topic in sorted(topics):
            compacted_ids = set(references.compacted.get(topic, ()))
            try:
                for ledger_id in sorted(references.compaction_cursors.get(topic, ())):
                    compacted_ids |= await _compacted_by_cursor(self.ports, ledger_id)
            except BkctlError as error:
                found[topic] = f"compaction cursor of persistent://{topic.namespace}/{topic.name}: {error}"
            else:
                found[topic] = frozenset(compacted_ids)
        return found


async def _compacted_by_cursor(ports: ClientPorts, ledger_id: int) -> frozenset[int]:
    """Compacted ledgers named by the last entry of a cursor's ledger and those that may come to be the last.

    Neither fences nor recovers. The last confirmed entry of an open ledger lags behind, so this reads on until a whole
    write set has no further entry. LedgerReadError and others if that cannot be found out.
    """
    password = (await ports.ledgers.read(ledger_id)).value.password or b""
    reader = await open_ledger(ports, ledger_id, password, recover=False)
    entries = await reader.read(reader.last_add_confirmed) if reader.last_add_confirmed >= 0 else []
    while not reader.is_closed:
        next_id = entries[-1].entry_id + 1 if entries else 0
        if len(entries) > _UNCONFIRMED_MAX:
            raise LedgerReadError(ledger_id, f"more than {_UNCONFIRMED_MAX} entries are not confirmed")
        try:
            entries += await reader.read_unconfirmed(next_id, next_id)
        except LedgerReadError as error:
            if not isinstance(error.__cause__, NoSuchEntryError | NoSuchLedgerError):
                raise
            break
    if not entries:
        raise LedgerReadError(ledger_id, "it has no entry")
    decoded = [decode_cursor_entry(each.payload) for each in entries]
    return frozenset().union(*(each.ledger_ids for each in decoded))
