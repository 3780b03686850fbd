"""Status of a cluster: reads the parts of ``ClusterFacts`` at the same time, each with a deadline. Changes nothing.

A part that does not answer in time becomes unknown, with the reason. Marks are counted only as far as their time
allows. Ledgers are read only while a bookie is down, or drained and emptied by no command, at the end and for a short
time: only if all were read, it is known that none references the bookie. Mostly a few show that some do. While a
command moves the ledgers of all that are down, only those without a live copy are sought, which it cannot move. A
sample is read if few bookies are writable, or not all: whether these are enough depends on what ledgers need.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import TypeVar

import msgspec

from bkctl.runtime.errors import (
    ClusterNotFoundError,
    MetadataAuthError,
    NoNodeError,
)
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.cluster.operation_lock import running_operations
from bkctl.runtime.metadata.cluster.root import RESTORE_MARK, read_instance_id
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.pulsar_migration import read_migration
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.lock import list_held_locks, list_locked_ids
from bkctl.runtime.metadata.replication.marks import list_marked_ids, read_mark
from bkctl.runtime.metadata.replication.recovery_status import RecoveryStatus, read_recovery_status
from bkctl.runtime.metadata.replication.switches import PeriodicCheck, ReplicationSwitches, SwitchNote, decode_note
from bkctl.runtime.metadata.store import MetadataStore, Versioned
from bkctl.runtime.ports import Bookies, Clock
from bkctl.runtime.replication.judge.advice import AcceptedLosses, accepted_losses
from bkctl.runtime.replication.judge.cluster_facts import (
    AuditorStatus,
    AutorecoveryStatus,
    BookieFacts,
    ClusterFacts,
    DownReferences,
    MarkCount,
    RepairLocks,
    RootStatus,
)
from bkctl.runtime.replication.judge.drained_bookies import DrainedBookie, DrainedTally
from bkctl.runtime.replication.judge.needed_bookies import members_with_source, movable_members, usual_size
from bkctl.runtime.replication.judge.no_live_copy import NoLiveCopy, NoLiveCopyTally
from bkctl.runtime.replication.judge.verdict import (
    ReplicationState,
    judge_metadata,
    members_without_copies,
    wanted_members,
)
from bkctl.runtime.replication.survey.bookie_facts import ask_bookies, ask_unregistered
from bkctl.runtime.replication.survey.given_up import judge_given_up
from bkctl.storage.errors import BkctlError
from bkctl.storage.words import listed

T = TypeVar("T")

_MARKS_IN_FLIGHT_MAX = 64
_SAMPLE_MAX = 1000


class StatusLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Longest waits, in seconds: for all answers but the ledgers, for the answer of a bookie, for the count of the
    marks, and for the metadata of the ledgers; ``copies_s`` once all bookies that are down were found in some;
    ``sample_s`` for a sample of them."""

    total_s: float = 2.0
    bookie_s: float = 1.5
    marks_s: float = 0.2
    ledgers_s: float = 4.0
    copies_s: float = 1.0
    sample_s: float = 0.5


@dataclasses.dataclass(eq=False)
class StatusSurvey:
    """Reads the status of one cluster."""

    store: MetadataStore
    root: str
    open_ledgers: Callable[[], Awaitable[LedgerStore]]
    bookies: Bookies
    clock: Clock
    limits: StatusLimits

    def __post_init__(self) -> None:
        self._registrations = RegistrationClient(self.store, self.root)
        self._foreign = ForeignNames(lambda _: None)
        self._began_ns = 0
        self._unknown: dict[str, str] = {}
        self._refused: dict[str, str] = {}

    async def read(self) -> ClusterFacts:
        """The status now; ClusterNotFoundError, MetadataAuthError. MetadataUnavailableError does not end it."""
        now_ms = self.clock.now_ms()
        began_ns = self._began_ns = self.clock.monotonic_ns()
        root = await self._part("zookeeper", self._read_root)
        if root is None:
            return ClusterFacts(now_ms=now_ms, unknown=self._unknown)
        where = self.store, self.root
        latency_ms = (self.clock.monotonic_ns() - began_ns) / 1e6
        more, bookies, marks, locks, recovery, autorecovery = await asyncio.gather(
            self._part("root", self._read_more_of_root),
            self._part("bookies", self._read_bookies),
            self._part("marks", self._count_marks),
            self._part("locks", self._read_locks),
            self._part("auditor", functools.partial(read_recovery_status, *where, self._foreign, self.open_ledgers)),
            self._part("autorecovery", self._read_autorecovery),
        )
        auditor, given_up = None, AcceptedLosses()
        if recovery is not None:
            elected = recovery.auditor
            auditor = AuditorStatus(elected is not None, None if elected is None else elected.bookie_id)
        if recovery is not None and recovery.given_up and bookies is not None:
            read = functools.partial(self._find_given_up, recovery.given_up, bookies)
            given_up = await self._part("given_up", read) or given_up
        if more is not None:
            more = msgspec.structs.replace(more, is_restore_unfinished=root.startswith(RESTORE_MARK))
        references, size = await self._find_references(more, bookies, recovery)
        if bookies is not None and references is not None:
            without_cookie = references.referenced.difference(each.bookie_id for each in bookies)
            asked = (
                ask_unregistered(self.bookies, each, self.limits.bookie_s, has_cookie=False) for each in without_cookie
            )
            bookies = tuple(sorted((*bookies, *await asyncio.gather(*asked)), key=lambda each: each.bookie_id))
        return ClusterFacts(
            now_ms=now_ms,
            zookeeper_ms=latency_ms,
            root=more,
            bookies=bookies,
            marks=marks,
            locks=locks,
            auditor=auditor,
            recovery=recovery,
            autorecovery=autorecovery,
            references=references,
            usual_size=size,
            given_up=given_up,
            unknown=self._unknown | self._refused,
            refused=frozenset(self._refused),
        )

    async def _find_given_up(
        self, given_up: Mapping[int, GivenUpNote], bookies: tuple[BookieFacts, ...]
    ) -> AcceptedLosses:
        """Of the ledgers with bookies that were given up, those that exist and miss nothing else, as in an audit."""
        live = {each.bookie_id for each in bookies if each.is_registered}
        judged = await judge_given_up(await self.open_ledgers(), given_up, live)
        whole = (each for each, loss in judged.items() if loss.replication is ReplicationState.GIVEN_UP)
        return accepted_losses({ledger_id: given_up[ledger_id] for ledger_id in whole})

    async def _find_references(
        self, root: RootStatus | None, bookies: tuple[BookieFacts, ...] | None, recovery: RecoveryStatus | None
    ) -> tuple[DownReferences | None, int]:
        """Which bookies that are down the ledgers reference, as far as the time allows, and how many a new one needs.

        A bookie that was removed has no cookie, but perhaps still the auditor's note with a deadline.
        """
        if bookies is None:
            return None, 0
        moved = frozenset[str]() if root is None else root.recovering
        awaited = {bookie_id for bookie_id, _ in recovery.deadlines} if recovery is not None else set[str]()
        known = awaited.union(each.bookie_id for each in bookies)
        down = frozenset(known.difference(each.bookie_id for each in bookies if each.is_registered))
        if not down:
            sizes, down = await self._read_sample(known, {} if recovery is None else recovery.given_up)
            if not down:
                return None, usual_size(sizes)
        down -= moved
        if root is None or root.migration is not None or root.is_restore_unfinished:
            why_unknown = "no ledger was read"
            none = DownReferences(bookie_ids=down, referenced=frozenset(), ledgers=0, why_unknown=why_unknown)
            return msgspec.structs.replace(none, no_live_copy=NoLiveCopy(is_exact=False)), 0
        tally = _ReferenceTally(down, moved, bookies, recovery or RecoveryStatus(), self.clock.now_ms())
        problem: str | None = None
        try:
            began_s = asyncio.get_running_loop().time()
            async with asyncio.timeout(self.limits.ledgers_s if down else self.limits.copies_s) as limit:
                await self.store.sync(self.root)
                async with aclosing((await self.open_ledgers()).read_all()) as ledgers:
                    async for ledger_id, found in ledgers:
                        if isinstance(found, MetadataAuthError):
                            self._refused["ledgers"] = str(found)
                        were_all_found = tally.are_all_found
                        tally.add(ledger_id, found)
                        if tally.are_all_found and not were_all_found:
                            limit.reschedule(began_s + self.limits.copies_s)
            problem = tally.problem
        except TimeoutError:
            problem = f"only {tally.count:,} ledgers were read in {self.limits.ledgers_s:g} s"
        except BkctlError as error:
            problem = str(error)
            if isinstance(error, MetadataAuthError):
                self._refused["ledgers"] = problem
        return tally.result(problem), usual_size(tally.sizes)

    async def _read_sample(
        self, known: Collection[str], given_up: Mapping[int, GivenUpNote]
    ) -> tuple[collections.Counter[int], frozenset[str]]:
        """How many of the first ledgers have an ensemble size, and which bookies they lack that are not ``known``."""
        sizes, unknown = collections.Counter[int](), set[str]()
        with contextlib.suppress(TimeoutError, BkctlError):
            async with (
                asyncio.timeout(self.limits.sample_s),
                aclosing((await self.open_ledgers()).read_all()) as ledgers,
            ):
                async for ledger_id, found in ledgers:
                    if isinstance(found, Versioned):
                        sizes[found.value.ensemble_size] += 1
                        if not found.value.bookies().issubset(known):
                            rows = judge_metadata(ledger_id, found.value, known, given_up.get(ledger_id)).rows
                            unknown |= members_without_copies(rows)
                    if sizes.total() >= _SAMPLE_MAX:
                        break
        return sizes, frozenset(unknown)

    async def _part(self, name: str, read: Callable[[], Awaitable[T]]) -> T | None:
        """The result; None, with the reason noted, if it failed or took too long."""
        elapsed_s = (self.clock.monotonic_ns() - self._began_ns) / 1e9
        try:
            async with asyncio.timeout(self.limits.total_s - elapsed_s):
                return await read()
        except ClusterNotFoundError:
            raise
        except TimeoutError:
            self._unknown[name] = f"no answer within {self.limits.total_s:g} s"
        except BkctlError as error:
            if name == "zookeeper" and isinstance(error, MetadataAuthError):
                raise  # a user who may not read the root can read nothing
            (self._refused if isinstance(error, MetadataAuthError) else self._unknown)[name] = str(error)
        return None

    async def _read_root(self) -> bytes:
        try:
            return (await self.store.get(self.root)).data
        except NoNodeError:
            raise ClusterNotFoundError(self.root) from None

    async def _read_more_of_root(self) -> RootStatus:
        instance_id, migration, operations = await asyncio.gather(
            read_instance_id(self.store, self.root),
            read_migration(self.store, self.root),
            running_operations(self.store, self.root),
        )
        moved = (ids for holder, ids in operations.items() if holder.moves_ledgers)
        removed = (ids for holder, ids in operations.items() if holder.removes_bookies)
        return RootStatus(
            instance_id,
            migration=migration,
            operations=tuple(
                f"{holder}, on bookie {listed(ids)}" if ids else str(holder) for holder, ids in operations.items()
            ),
            recovering=frozenset(itertools.chain.from_iterable(moved)),
            removing=frozenset(itertools.chain.from_iterable(removed)),
        )

    async def _read_bookies(self) -> tuple[BookieFacts, ...]:
        registrations, with_cookie = await asyncio.gather(
            self._registrations.snapshot(), self._registrations.with_cookie()
        )
        troubles = await self._registrations.troubles(registrations)
        return await ask_bookies(self.bookies, registrations, frozenset(with_cookie), troubles, self.limits.bookie_s)

    async def _count_marks(self) -> MarkCount:
        """Directories are counted first, because 65536 cost one operation; then as many marks are read as time allows.

        They are read in random order, so that the oldest one read is typical.
        """
        ids: list[int] = []
        at_most: int | None = None
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(self.limits.marks_s),
                aclosing(list_marked_ids(self.store, self.root, self._foreign)) as found,
            ):
                async for ledger_id in found:
                    ids.append(ledger_id)  # noqa: PERF401  those found before the time-out count
                at_most = len(ids)
        return await self._read_marks(ids, at_most)

    async def _read_marks(self, ids: list[int], at_most: int | None) -> MarkCount:
        self.clock.random.shuffle(ids)
        count, oldest_ms, read = 0, None, 0
        marks = pipelined(each_of(ids), lambda each: read_mark(self.store, self.root, each), _MARKS_IN_FLIGHT_MAX)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.limits.marks_s), aclosing(marks) as found:
                async for mark in found:
                    read += 1
                    if mark is not None:
                        count += 1
                        oldest_ms = mark.marked_ms if oldest_ms is None else min(oldest_ms, mark.marked_ms)
        if at_most is not None:
            at_most -= read - count
        return MarkCount(count, at_most, oldest_ms)

    async def _read_locks(self) -> RepairLocks:
        count = len(await list_locked_ids(self.store, self.root, self._foreign))
        holders: collections.Counter[str] = collections.Counter()
        oldest_ms: int | None = None
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(self.limits.marks_s),
                aclosing(list_held_locks(self.store, self.root, self._foreign)) as locks,
            ):
                async for lock in locks:
                    holders[lock.holder or "unknown"] += 1
                    oldest_ms = lock.since_ms if oldest_ms is None else min(oldest_ms, lock.since_ms)
        return RepairLocks(count, dict(holders.most_common()), oldest_ms)

    async def _read_autorecovery(self) -> AutorecoveryStatus:
        switches = ReplicationSwitches(self.store, self.root)
        off, delay, full_check_ms = await asyncio.gather(
            switches.switched_off(), switches.recovery_delay(), switches.check_time_ms(PeriodicCheck.ALL_LEDGERS)
        )
        return AutorecoveryStatus(
            off_since_ms=None if off is None else off.since_ms,
            note=SwitchNote() if off is None else decode_note(off.note),
            delay_s=None if delay is None else delay.seconds,
            full_check_ms=full_check_ms,
        )


class _ReferenceTally:
    """Collects what the ledgers say about bookies that are down."""

    def __init__(
        self,
        down: frozenset[str],
        moved: frozenset[str],
        bookies: Sequence[BookieFacts],
        recovery: RecoveryStatus,
        now_ms: int,
    ) -> None:
        self.count = 0
        """Of the ledgers that can be read."""
        self.problem: str | None = None
        """Why the last of the ledgers that cannot be read cannot."""
        self._down, self._moved, self._given_up = down, moved, recovery.given_up
        self._live = frozenset(each.bookie_id for each in bookies if each.is_registered)
        self._writable = frozenset(each.bookie_id for each in bookies if each.is_writable)
        with_cookie = {each.bookie_id for each in bookies if each.has_cookie}
        self._members = down & with_cookie
        """These count also where a ledger has no entries on them. Others may have left the cluster that way."""
        self._awaited = {each.bookie_id for each in recovery.maintenance if not each.is_overdue(now_ms)}
        self._no_live_copy = NoLiveCopyTally(with_cookie - self._live)
        self._referenced = frozenset[str]()
        self._can_move = self._has_source = self._lacks_targets = False
        self.sizes = collections.Counter[int]()
        """How many ledgers have ensembles of a size."""

    @property
    def are_all_found(self) -> bool:
        """Whether ledgers reference each of the bookies."""
        return self._down <= self._referenced

    def add(self, ledger_id: int, found: Versioned[LedgerMetadata] | BkctlError) -> None:
        """Note the metadata of one ledger, or why it cannot be read."""
        if not isinstance(found, Versioned):
            self.problem = str(found)
            return
        self.count += 1
        self.sizes[found.value.ensemble_size] += 1
        missing = found.value.bookies() - self._live
        if not missing:
            return
        rows = judge_metadata(ledger_id, found.value, self._live, self._given_up.get(ledger_id)).rows
        missing = (wanted_members(rows, missing) - self._live) & (self._members | members_without_copies(rows))
        self._no_live_copy.add(ledger_id, rows)
        to_replace = missing - self._awaited
        movable = movable_members(found.value, to_replace, self._writable, rows)
        self._can_move = self._can_move or bool(movable)
        self._lacks_targets |= not movable and bool(members_with_source(found.value, to_replace, rows))
        self._has_source = self._has_source or bool(members_with_source(found.value, missing, rows))
        self._referenced |= missing - self._moved

    def result(self, why_unknown: str | None) -> DownReferences:
        """``why_unknown``: why not all ledgers were read."""
        return DownReferences(
            bookie_ids=self._down | self._referenced,
            referenced=self._referenced,
            ledgers=self.count,
            why_unknown=None if self.are_all_found else why_unknown,
            no_live_copy=self._no_live_copy.result(is_exact=why_unknown is None),
            can_move=self._can_move or not self._referenced,
            lacks_targets=self._lacks_targets,
            has_source=self._has_source or why_unknown is not None,
        )


async def read_drained(
    store: MetadataStore,
    root: str,
    open_ledgers: Callable[[], Awaitable[LedgerStore]],
    bookie_ids: Collection[str],
    timeout_s: float,
) -> dict[str, DrainedBookie]:
    """What is left on these bookies. Without those for which it could not be found out in time."""
    if not bookie_ids:
        return {}
    tally: DrainedTally | None = None
    with contextlib.suppress(TimeoutError, BkctlError):
        async with asyncio.timeout(timeout_s):
            await store.sync(root)
            tally = DrainedTally(bookie_ids, (await RegistrationClient(store, root).snapshot()).writable)
            async with aclosing((await open_ledgers()).read_all()) as ledgers:
                async for ledger_id, found in ledgers:
                    if tally.is_done:
                        return tally.result(is_complete=False)
                    if isinstance(found, Versioned):
                        tally.add(ledger_id, found.value)
                    else:
                        tally.add_unreadable()
            return tally.result(is_complete=True)
    return {} if tally is None else tally.result(is_complete=False)
