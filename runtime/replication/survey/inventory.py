"""Takes an inventory: what bookies hold of ledgers, by lists of their entries, by reading entries, or by both.

This fences nothing and writes nothing. Reading is that of ``ledger verify`` (``LedgerChecker``). A ledger that is not
closed is examined up to the last add confirmed of a no-recovery open. Java's DbLedgerStorage never answers a request
for a list (wire section 5.9), so one silence of a bookie decides that it gives none.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing

import msgspec

from bkctl.runtime.client.ports import ClientPorts, credentials_of
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.owner import owner_of
from bkctl.runtime.metadata.ledgers.ledgers import FoundLedgers
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.cluster_audit.inventory import (
    InventoryTotals,
    InventoryWay,
    LedgerEvidence,
    LedgerHoldings,
    MissingByBookie,
    holdings_of,
)
from bkctl.runtime.replication.cluster_audit.tables import LedgerHead
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.entry_lists import EntryLists
from bkctl.runtime.replication.copy.rate import SharedPacer
from bkctl.runtime.replication.copy.tasks import for_each_bounded
from bkctl.runtime.replication.judge.check_scope import CheckScope, Sample
from bkctl.runtime.replication.judge.fragments import EntryRange, EntryRangeSet, segment_entries
from bkctl.runtime.replication.judge.verdict import COUNT_MAX
from bkctl.runtime.replication.policy import CopyPace
from bkctl.runtime.replication.survey.checker import LedgerChecker, examine_settled

_SAMPLED_MAX = 200_000
"""Entries of one ledger whose ids are kept: metadata may claim any number."""


class InventoryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an inventory asks bookies for, and how fast. ``sample``: of the entries that are read in this way."""

    way: InventoryWay
    sample: Sample | None = None
    pace: CopyPace = CopyPace()
    config: ReplicationConfig = ReplicationConfig()

    def share(self, shares_count: int) -> InventoryRequest:
        """The request of one of so many processes that ask bookies at the same time."""
        rates = (self.pace.bytes_per_s, self.pace.bytes_per_s_per_bookie)
        total, per_bookie = (None if rate is None else max(1, rate // shares_count) for rate in rates)
        return msgspec.structs.replace(self, pace=CopyPace(bytes_per_s=total, bytes_per_s_per_bookie=per_bookie))


class InventoryJob(msgspec.Struct, frozen=True, kw_only=True):
    """What executors ask bookies for, and how they connect to them."""

    request: InventoryRequest
    client: ClientConfig


class CopyInventory:
    """Examines ledgers; the limits apply to all of them together."""

    def __init__(self, ports: ClientPorts, live_bookies: frozenset[str], request: InventoryRequest) -> None:
        """``live_bookies``: registered ones. The copies on others are unknown without a request."""
        self._ports = ports
        self._live = live_bookies
        self._config = request.config
        pacer = SharedPacer(ports.clock)
        pacer.change(request.pace.bytes_per_s, request.pace.bytes_per_s_per_bookie)
        self._checker = LedgerChecker(ports, live_bookies, request.config, pacer)
        self._lists = EntryLists(ports.bookies, ports.clock, pacer)
        self._scope = CheckScope(sample=request.sample)
        self._is_listed = request.way is not InventoryWay.ALL_ENTRIES
        self._is_read = request.way is not InventoryWay.LISTED

    async def take(
        self, groups: Iterable[FoundLedgers], on_progress: Callable[[int], None] = lambda _: None
    ) -> InventoryTotals:
        """The sums of all ledgers whose metadata can be read; ``on_progress`` gets the number of ledgers examined.

        Raises only errors of the metadata store.
        """
        totals = InventoryTotals()
        ledgers_done = 0

        async def examine_one(found: tuple[int, Versioned[LedgerMetadata]]) -> None:
            nonlocal ledgers_done
            holdings = await self._examine_settled(*found)
            if holdings is not None:
                totals.add(holdings)
            ledgers_done += 1
            on_progress(ledgers_done)

        async with aclosing(_readable(groups)) as ledgers:
            await for_each_bounded(ledgers, examine_one, self._config.ledgers_in_parallel)
        totals.shorten()
        return totals

    async def _examine_settled(self, ledger_id: int, known: Versioned[LedgerMetadata]) -> LedgerHoldings | None:
        """What the bookies hold of one ledger; None: it was deleted meanwhile, or its metadata cannot be read now."""

        async def examine(metadata: LedgerMetadata) -> LedgerHoldings:
            owner = owner_of(dict(metadata.custom_metadata))
            head = LedgerHead(ledger_id, metadata.state.name.lower(), owner, metadata.created_ms(known.ctime_ms))
            if metadata.last_entry_id > COUNT_MAX:
                return LedgerHoldings(problem="the metadata claims more entries than a ledger can have")
            return holdings_of(head, metadata, await self._evidence(ledger_id, metadata))

        try:
            return await examine_settled(self._ports.ledgers, ledger_id, examine, known)
        except MetadataFormatError:
            return None

    async def _evidence(self, ledger_id: int, metadata: LedgerMetadata) -> LedgerEvidence:
        check, problem = None, None
        if self._is_read:
            check = await self._checker.check_by(ledger_id, metadata, self._scope)
            last_entry_id, problem = check.last_entry_id, check.problem
        else:
            credentials = credentials_of(ledger_id, metadata)
            last_entry_id, error = await self._checker.end_of(metadata, credentials, self._scope)
            problem = None if error is None else str(error)
        missing = await self._missing(ledger_id, metadata, last_entry_id) if self._is_listed else None
        return LedgerEvidence(
            last_entry_id=last_entry_id,
            missing=missing,
            check=check,
            read=self._read_entries(ledger_id, metadata, last_entry_id),
            problem=problem,
        )

    def _read_entries(self, ledger_id: int, metadata: LedgerMetadata, last_entry_id: int) -> tuple[EntryRange, ...]:
        """The entries of which every copy is read. Of a large sample the others count as listed or unknown."""
        if not self._is_read:
            return ()
        if self._scope.sample is None:
            return (EntryRange(0, last_entry_id),)
        found = EntryRangeSet(_SAMPLED_MAX)
        for number in range(len(metadata.segments)):
            entries = segment_entries(metadata, number, last_entry_id)
            sampled = self._scope.entry_ids(ledger_id, metadata, entries)
            for entry_id in itertools.islice(sampled, max(0, _SAMPLED_MAX - found.count)):
                found.add(entry_id)
        return found.ranges()

    async def _missing(self, ledger_id: int, metadata: LedgerMetadata, last_entry_id: int) -> MissingByBookie:
        """What each registered bookie should hold and does not list."""
        bookie_ids = sorted(self._live.intersection(metadata.bookies()))
        missing = await self._listed(bookie_ids, ledger_id, metadata, last_entry_id)
        late = [each for each in bookie_ids if not metadata.is_closed and _is_in_last(missing[each], metadata)]
        if late:
            # A live writer may still deliver them, because Qa of Qw confirm an entry.
            await self._ports.clock.sleep(self._config.late_copy_wait_s)
            missing |= await self._listed(late, ledger_id, metadata, last_entry_id)
        return missing

    async def _listed(
        self, bookie_ids: list[str], ledger_id: int, metadata: LedgerMetadata, last_entry_id: int
    ) -> dict[str, tuple[EntryRange, ...] | None]:
        lists = (self._lists.missing(each, ledger_id, metadata, last_entry_id) for each in bookie_ids)
        return dict(zip(bookie_ids, await asyncio.gather(*lists), strict=True))


def _is_in_last(missing: tuple[EntryRange, ...] | None, metadata: LedgerMetadata) -> bool:
    """Whether some of these entries are in the last segment."""
    return any(each.last_entry_id >= metadata.last_segment.first_entry_id for each in missing or ())


async def _readable(groups: Iterable[FoundLedgers]) -> AsyncGenerator[tuple[int, Versioned[LedgerMetadata]], None]:
    for group in groups:
        async with aclosing(group):
            async for ledger_id, found in group:
                if isinstance(found, Versioned):
                    yield ledger_id, found
