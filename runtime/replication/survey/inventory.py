"""Takes an inventory: what bookies hold of ledgers, by lists of their entries, by reading entries, or by both.

This fences nothing and writes nothing. Reading is that of ``ledger verify`` (``LedgerChecker``). A ledger that is not
closed is examined up to the last add confirmed of a no-recovery open. Java's DbLedgerStorage never answers a request
for a list (wire section 5.9), so one silence of a bookie decides that it gives none.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from types import MappingProxyType

import msgspec

from bkctl.runtime.client.ports import ClientPorts, credentials_of
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import LedgerNotFoundError, MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.owner import owner_of
from bkctl.runtime.metadata.ledgers.ledgers import FoundLedgers
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.cluster_audit.checked_ledgers import CheckedRun, LongestUnchecked
from bkctl.runtime.replication.cluster_audit.inventory import (
    InventoryTotals,
    InventoryWay,
    LedgerEvidence,
    LedgerHoldings,
    ListsByBookie,
    end_unknown,
    holdings_of,
)
from bkctl.runtime.replication.cluster_audit.inventory_tables import LedgerHead
from bkctl.runtime.replication.config import CopyPace, ReplicationConfig
from bkctl.runtime.replication.copy.entry_lists import EntryLists
from bkctl.runtime.replication.copy.limits import SharedPacer, for_each_bounded
from bkctl.runtime.replication.copy.reader import RequestTimes
from bkctl.runtime.replication.judge.check_scope import CheckScope, Sample
from bkctl.runtime.replication.judge.copies import ListedCopies
from bkctl.runtime.replication.judge.fragments import EntryRange, EntryRangeSet, accepted_entries, segment_entries
from bkctl.runtime.replication.judge.verdict import COUNT_MAX
from bkctl.runtime.replication.survey.checker import LedgerChecker, examine_settled

_SAMPLED_MAX = 200_000
"""Entries of one ledger whose ids are kept: metadata may claim any number."""

_TIMED_IN_PARALLEL = 16
"""Ledgers that are examined at once if time is limited: those that were begun in time are finished after it."""

_PROBED_LEDGERS_MAX = 1000
"""Ledgers whose metadata is read to find one on each bookie."""


class InventoryTurn(msgspec.Struct, frozen=True):
    """A limit of time: no ledger is begun after ``time_s`` seconds. ``runs``: what earlier inventories have examined or
    tried, which comes last."""

    time_s: float
    runs: tuple[CheckedRun, ...] = ()


class InventoryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an inventory asks bookies for, and how fast. ``sample``: of the entries that are read in this way.

    ``silent``: bookies that are known to give no lists. ``is_all_bookies``: every registered bookie is asked for its
    list of every ledger, also where the metadata names others. ``turn`` None: there is time for all ledgers.
    """

    way: InventoryWay
    sample: Sample | None = None
    pace: CopyPace = CopyPace()
    config: ReplicationConfig = ReplicationConfig()
    silent: frozenset[str] = frozenset()
    is_all_bookies: bool = False
    turn: InventoryTurn | None = None

    def share(self, shares_count: int) -> InventoryRequest:
        """The request of one of so many processes that ask bookies at the same time."""
        rates = (self.pace.bytes_per_s, self.pace.bytes_per_s_per_bookie)
        total, per_bookie = (None if rate is None else max(1, rate // shares_count) for rate in rates)
        return msgspec.structs.replace(self, pace=CopyPace(bytes_per_s=total, bytes_per_s_per_bookie=per_bookie))


class InventoryJob(msgspec.Struct, frozen=True, kw_only=True):
    """What executors ask bookies for, and how they connect to them. ``probes``: what bookies were asked before, as in
    ``RequestTimes.rows``."""

    request: InventoryRequest
    client: ClientConfig
    probes: tuple[tuple[str, int, int], ...] = ()


class CopyInventory:
    """Examines ledgers; the limits apply to all of them together."""

    def __init__(
        self,
        ports: ClientPorts,
        live_bookies: frozenset[str],
        request: InventoryRequest,
        given_up: Mapping[int, GivenUpNote] = MappingProxyType({}),
    ) -> None:
        """``live_bookies``: registered ones. The copies on others are unknown without a request. ``given_up``: see
        ``LedgerChecker``."""
        self._ports = ports
        self._live = live_bookies
        self._config = request.config
        self._turn = request.turn
        pacer = SharedPacer(ports.clock)
        pacer.change(request.pace.bytes_per_s, request.pace.bytes_per_s_per_bookie)
        self._times = RequestTimes(ports.clock)
        self.checker = LedgerChecker(ports, live_bookies, request.config, pacer, self._times, given_up)
        self._lists = EntryLists(ports.bookies, ports.clock, pacer, request.silent, self._times)
        self.scope = CheckScope(sample=request.sample)
        self.on_examined: Callable[[], None] = lambda: None
        """Called after each ledger."""
        self._is_listed = request.way is not InventoryWay.ALL_ENTRIES
        self._is_all_bookies = request.is_all_bookies
        self._is_read = request.way is not InventoryWay.LISTED

    async def take(self, ledgers: FoundLedgers) -> InventoryTotals:
        """The sums of all ledgers whose metadata can be read. Raises only errors of the metadata store, and those of
        ``ledgers``."""
        totals = InventoryTotals()
        if self._turn is None:

            async def examine(found: tuple[int, Versioned[LedgerMetadata]]) -> None:
                await self._add(totals, *found)

            async with aclosing(_readable(ledgers)) as readable:
                await for_each_bounded(readable, examine, self._config.ledgers_in_parallel)
        else:
            await self._take_in_time(self._turn, ledgers, totals)
        totals.shorten()
        totals.silent |= self._lists.silent
        for row in self._times.rows():
            totals.add_requests(*row)
        return totals

    async def _take_in_time(self, turn: InventoryTurn, ledgers: FoundLedgers, totals: InventoryTotals) -> None:
        """Examine those first that were begun never, or longest ago. Their metadata is read again then: the order is
        known when all ids are, and the metadata of all ledgers would not fit in memory."""
        end_ns = self._ports.clock.monotonic_ns() + int(turn.time_s * 1e9)
        waiting, ledgers_total = LongestUnchecked(turn.runs), 0
        async with aclosing(_readable(ledgers)) as readable:
            async for ledger_id, _ in readable:
                waiting.add(ledger_id)
                ledgers_total += 1
        ledgers_begun, examined, tried = 0, list[int](), list[int]()

        async def in_time() -> AsyncGenerator[int, None]:
            nonlocal ledgers_begun
            for ledger_id in waiting:
                if self._ports.clock.monotonic_ns() >= end_ns:
                    return
                ledgers_begun += 1
                yield ledger_id

        async def examine(ledger_id: int) -> None:
            # What was deleted meanwhile, or cannot be read now, needs no second look.
            with suppress(LedgerNotFoundError, MetadataFormatError):
                holdings = await self._add(totals, ledger_id, await self._ports.ledgers.read(ledger_id))
                if holdings is not None:
                    (examined if holdings.is_examined else tried).append(ledger_id)

        async with aclosing(in_time()) as ledger_ids:
            in_parallel = min(_TIMED_IN_PARALLEL, self._config.ledgers_in_parallel)
            await for_each_bounded(ledger_ids, examine, in_parallel)
        totals.note_checked(examined, tried, ledgers_total - ledgers_begun)

    async def _add(
        self, totals: InventoryTotals, ledger_id: int, known: Versioned[LedgerMetadata]
    ) -> LedgerHoldings | None:
        """Add what the bookies hold of one ledger; None: it was deleted meanwhile, or cannot be read now."""

        async def examine(metadata: LedgerMetadata) -> LedgerHoldings:
            owner = owner_of(dict(metadata.custom_metadata))
            head = LedgerHead(ledger_id, metadata.state.name.lower(), owner, metadata.created_ms(known.ctime_ms))
            if metadata.last_entry_id > COUNT_MAX:
                problem = "the metadata claims more entries than a ledger can have"
                return LedgerHoldings(unknown_end=end_unknown(head, 0, problem))
            return holdings_of(head, metadata, await self._evidence(ledger_id, metadata))

        try:
            holdings = await examine_settled(self._ports.ledgers, ledger_id, examine, known)
        except MetadataFormatError:
            return None
        if holdings is not None:
            totals.add(holdings)
        self.on_examined()
        return holdings

    async def _evidence(self, ledger_id: int, metadata: LedgerMetadata) -> LedgerEvidence:
        check, problem = None, None
        if self._is_read:
            check = await self.checker.check_by(ledger_id, metadata, self.scope)
            last_entry_id, problem = check.last_entry_id, check.problem
        else:
            credentials = credentials_of(ledger_id, metadata)
            last_entry_id, error = await self.checker.end_of(metadata, credentials, self.scope)
            problem = None if error is None else str(error)
        listed = await self._listed(ledger_id, metadata, last_entry_id) if self._is_listed else None
        return LedgerEvidence(
            last_entry_id=last_entry_id,
            listed=listed,
            check=check,
            read=self._read_entries(ledger_id, metadata, last_entry_id),
            problem=problem,
            removed=self.checker.removed_from(ledger_id, metadata),
            accepted=accepted_entries(self.checker.given_up.get(ledger_id), metadata),
        )

    def _read_entries(self, ledger_id: int, metadata: LedgerMetadata, last_entry_id: int) -> tuple[EntryRange, ...]:
        """The entries of which every copy is read. Of a large sample the others count as listed or unknown."""
        if not self._is_read:
            return ()
        if self.scope.sample is None:
            return (EntryRange(0, last_entry_id),)
        found = EntryRangeSet(_SAMPLED_MAX)
        for number in range(len(metadata.segments)):
            entries = segment_entries(metadata, number, last_entry_id)
            sampled = self.scope.entry_ids(ledger_id, metadata, entries)
            for entry_id in itertools.islice(sampled, max(0, _SAMPLED_MAX - found.count)):
                found.add(entry_id)
        return found.ranges()

    async def _listed(self, ledger_id: int, metadata: LedgerMetadata, last_entry_id: int) -> ListsByBookie:
        """What each registered bookie lists that is to be asked."""
        bookie_ids = sorted(self._live if self._is_all_bookies else self._live.intersection(metadata.bookies()))
        listed = await self._lists_of(bookie_ids, ledger_id, metadata, last_entry_id)
        late = [each for each in bookie_ids if not metadata.is_closed and _misses_last(listed[each], metadata)]
        if late:
            # A live writer may still deliver them, because Qa of Qw confirm an entry.
            await self._ports.clock.sleep(self._config.late_copy_wait_s)
            listed |= await self._lists_of(late, ledger_id, metadata, last_entry_id)
        return listed

    async def _lists_of(
        self, bookie_ids: list[str], ledger_id: int, metadata: LedgerMetadata, last_entry_id: int
    ) -> dict[str, ListedCopies | None]:
        lists = (self._lists.compared(each, ledger_id, metadata, last_entry_id) for each in bookie_ids)
        return dict(zip(bookie_ids, await asyncio.gather(*lists), strict=True))


def _misses_last(listed: ListedCopies | None, metadata: LedgerMetadata) -> bool:
    """Whether some of the missing entries are in the last segment."""
    first_entry_id = metadata.last_segment.first_entry_id
    return listed is not None and any(each.last_entry_id >= first_entry_id for each in listed.missing)


async def _readable(ledgers: FoundLedgers) -> AsyncGenerator[tuple[int, Versioned[LedgerMetadata]], None]:
    async with aclosing(ledgers):
        async for ledger_id, found in ledgers:
            if isinstance(found, Versioned):
                yield ledger_id, found


async def bookies_without_lists(
    ports: ClientPorts, live_bookies: frozenset[str]
) -> tuple[frozenset[str], RequestTimes]:
    """Those bookies that do not answer a request for a list. Each is asked once, about a ledger that is placed on it.

    Only a ledger that the bookie has shows it (wire section 5.9). Bookies without one of the first ledgers are not
    asked. Processes that take an inventory together share the answer, so that not each of them waits for it.
    """
    asked: dict[str, tuple[int, LedgerMetadata]] = {}
    times = RequestTimes(ports.clock)
    lists = EntryLists(ports.bookies, ports.clock, times=times)
    seen = 0
    async with aclosing(_readable(ports.ledgers.read_all())) as ledgers:
        async for ledger_id, found in ledgers:
            for bookie_id in live_bookies.intersection(found.value.bookies()):
                asked.setdefault(bookie_id, (ledger_id, found.value))
            seen += 1
            if len(asked) == len(live_bookies) or seen == _PROBED_LEDGERS_MAX:
                break
    await asyncio.gather(*(lists.compared(bookie_id, *about) for bookie_id, about in asked.items()))
    return lists.silent, times
