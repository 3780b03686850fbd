"""Ledgers that are stored here but no longer exist, or no longer reference this bookie.

A ledger is deleted only if it was here before the listing began, and its part of the tree was listed without an error
and without it. Its metadata must then be missing in two reads, with a pause and a ``sync`` in between, in one session
and in the very cluster that this bookie booted in, the metadata must not be older than it was (``forward_proof``), and
no client may have used the ledger since. Otherwise it is kept until the next round. None of this depends on what is
stored here: a ledger in limbo is deleted like any other, since no repair can end its limbo without metadata. Source:
storage section 7.2, metadata section 4.3.
"""

from __future__ import annotations

import bisect
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from bkctl.runtime.bookie.collection.compaction_survivors import COMPACTION_LANE
from bkctl.runtime.bookie.collection.forward_proof import ForwardProof
from bkctl.runtime.bookie.collection.metrics import GarbageCollectionMetrics
from bkctl.runtime.errors import LedgerNotFoundError, MetadataError
from bkctl.runtime.metadata.bookies.cookies import CookieStore
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.cluster.root import is_restore_unfinished, read_instance_id, unfinished_restore_text
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.ledgers.listing import PartListing
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.store import MetadataStore, Versioned
from bkctl.runtime.ports import Clock, Workers
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.errors import BkctlError
from bkctl.storage.ids import LedgerId
from bkctl.storage.index.ledger_index import LedgerRow

logger = logging.getLogger(__name__)

_ATTEMPTS_MAX: Final = 3
"""A checkpoint that ends while a batch is confirmed makes its ledgers look used."""
_READS_IN_FLIGHT_MAX: Final = 64


class LedgerUse(NamedTuple):
    """State of a local ledger at one moment. If it is the same later, no client has used the ledger in between."""

    has_row: bool
    """If not, only its fence is here, because its copy was collected."""
    pending_row: LedgerRow | None
    """The row, if it is not yet in the database: by then, a checkpoint has ended."""
    write_cache_generation: int
    memtable_bytes: int | None
    """Of the whole directory, if entries of the ledger are in the write cache: every add increases it."""


class LocalLedgers:
    """The ledgers of all directories of a bookie. ``forget_handle`` is called with each deleted ledger."""

    def __init__(self, storage: LedgerStorage, workers: Workers, forget_handle: Callable[[LedgerId], None]) -> None:
        self._storage = storage
        self._workers = workers
        self._forget_handle = forget_handle

    def snapshot(self) -> list[LedgerId]:
        """Ids of all ledgers that have a row, ascending."""
        return sorted(itertools.chain.from_iterable(engine.ledger_ids() for engine in self._storage.engines))

    def snapshot_with_collected(self) -> list[LedgerId]:
        """Ids of all ledgers that have a row or only a fence, ascending."""
        collected = itertools.chain.from_iterable(engine.collected.ids() for engine in self._storage.engines)
        return sorted({*self.snapshot(), *collected})

    def mark(self, ledger_id: LedgerId) -> LedgerUse | None:
        """Mark a ledger before reading its metadata; None if it has neither a row nor a fence here."""
        engine = self._storage.engine_of(ledger_id)
        has_row = ledger_id in engine.rows
        if not has_row and ledger_id not in engine.collected:
            return None
        memtable_bytes = engine.memtable_bytes if engine.last_cached(ledger_id) is not None else None
        pending_row = engine.rows.pending(ledger_id) if has_row else None
        return LedgerUse(has_row, pending_row, engine.write_cache_generation, memtable_bytes)

    def is_limbo(self, ledger_id: LedgerId) -> bool:
        """Whether a ledger is in limbo."""
        return ledger_id in self._storage.engine_of(ledger_id).rows.limbo_ids

    def delete(self, marks: Mapping[LedgerId, LedgerUse]) -> set[LedgerId]:
        """Delete the ledgers that no client has used since their marks were taken. Returns the deleted ones.

        The metadata store and the bookie's clients are not synchronized: a ledger created right after it was found
        missing may have its first entry here before that answer arrives. Such an entry is in the write cache, or a
        checkpoint has ended since; a fence, a key or an explicit LAC has changed the row.
        """
        untouched = {ledger_id for ledger_id, mark in marks.items() if self._is_untouched(ledger_id, mark)}
        for ledger_id in untouched:
            if marks[ledger_id].has_row:
                self._storage.engine_of(ledger_id).delete_ledger(ledger_id)
                self._forget_handle(ledger_id)
        return untouched

    async def keep_fence(self, ledger_id: LedgerId) -> None:
        """Record durably that a ledger accepts no plain add here, even if its row is deleted. StorageError."""
        collected = self._storage.engine_of(ledger_id).collected
        if ledger_id not in collected:
            await self._workers.run(COMPACTION_LANE, collected.append, ledger_id)
            collected.note(ledger_id)

    async def release_fences(self, gone: Collection[LedgerId]) -> None:
        """Remove the fences of ledgers that no longer exist, and replace a file after a failed write. OSError."""
        for engine in self._storage.engines:
            collected = engine.collected
            here = frozenset(ledger_id for ledger_id in gone if ledger_id in collected)
            if here or collected.is_rewrite_due:
                collected.replace(await self._workers.run(COMPACTION_LANE, collected.rewrite, here))

    def _is_untouched(self, ledger_id: LedgerId, mark: LedgerUse) -> bool:
        now = self.mark(ledger_id)
        # Identity, not equality: the row may have been deleted and created again.
        return now is not None and now == mark and now.pending_row is mark.pending_row


class ClusterGuard:
    """Makes sure that the metadata store still belongs to this bookie's cluster."""

    def __init__(
        self, store: MetadataStore, root: str, bookie_id: str, instance_id: str | None, proof: ForwardProof
    ) -> None:
        self._store = store
        self._root = root
        self._bookie_id = bookie_id
        self._instance_id = instance_id
        self.proof = proof
        self._root_ctime_ms: int | None = None

    async def require_own_cluster(self) -> None:
        """MetadataError unless root, instance id and this bookie's cookie are unchanged, and nothing is older."""
        await self._store.sync(self._root)
        stat = await self._store.exists(self._root)
        if stat is None:
            raise MetadataError(f"{self._root} is missing; skipping garbage collection", self._root)
        if self._root_ctime_ms is None:
            self._root_ctime_ms = stat.ctime_ms
        instance_id = await read_instance_id(self._store, self._root)
        if instance_id != self._instance_id:
            raise MetadataError(
                f"the cluster at {self._root} has instance id {instance_id}, but this bookie belongs to "
                f"{self._instance_id}; skipping garbage collection",
                self._root,
            )
        if stat.ctime_ms != self._root_ctime_ms:
            raise MetadataError(
                f"{self._root} was created again; skipping garbage collection until this bookie is restarted",
                self._root,
            )
        if await is_restore_unfinished(self._store, self._root):
            raise MetadataError(unfinished_restore_text(self._root), self._root)
        if await CookieStore(self._store, self._root).find(self._bookie_id) is None:
            raise MetadataError(
                f"the cluster at {self._root} has no cookie of {self._bookie_id}; skipping garbage collection",
                self._root,
            )
        await self.proof.require()


class LedgerCollector:
    """Finds and deletes ledgers that no longer exist.

    ``batch_count_max``: ledgers confirmed together; ``confirmation_pause_s``: pause between the two reads that must
    find no metadata.
    """

    def __init__(
        self,
        local: LocalLedgers,
        guard: ClusterGuard,
        store: MetadataStore,
        clock: Clock,
        metrics: GarbageCollectionMetrics,
        batch_count_max: int,
        confirmation_pause_s: float,
    ) -> None:
        self._local = local
        self._guard = guard
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._batch_count_max = batch_count_max
        self._confirmation_pause_s = confirmation_pause_s
        self._was_nothing_listed = False
        self._listed_max: LedgerId | None = None
        """Highest id that the last listing had, -1 without ledgers; None: a part could not be listed."""

    async def collect(self, ledgers: LedgerStore) -> int:
        """One pass; returns how many ledgers were deleted. BkctlError if no ledger can be checked."""
        local_ids = self._local.snapshot_with_collected()
        await self._guard.require_own_cluster()
        candidates = await self._unlisted(ledgers, local_ids)
        missing = await _without_metadata(ledgers, candidates)
        await self._guard.proof.require_given(ledgers, missing, self._listed_max)
        if missing:
            await self._clock.sleep(self._confirmation_pause_s)
        deleted_count = 0
        gone: set[LedgerId] = set()
        for first in range(0, len(missing), self._batch_count_max):
            batch = missing[first : first + self._batch_count_max]
            for _ in range(_ATTEMPTS_MAX):
                deleted = await self._delete_confirmed(ledgers, batch)
                deleted_count += sum(deleted.values())
                self._metrics.ledgers_deleted_count += sum(deleted.values())
                gone.update(deleted)
                batch = [ledger_id for ledger_id in batch if ledger_id not in deleted]
        self._metrics.ledgers_kept_count += len(candidates) - len(gone)
        try:
            await self._local.release_fences(gone)
        except OSError as error:
            logger.warning("cannot remove the fences of deleted ledgers; the next round tries again: %s", error)
        return deleted_count

    async def _unlisted(self, ledgers: LedgerStore, local_ids: Sequence[LedgerId]) -> list[LedgerId]:
        """Local ledgers that are not listed; ledgers in a part that cannot be listed are not included."""
        unlisted: list[LedgerId] = []
        listed_count = failed_count = 0
        listed_max = -1
        parts = ledgers.list_parts()
        async with aclosing(parts):
            async for part in parts:
                here = _within(part, local_ids)
                if part.error is None:
                    listed_count += len(part.ledger_ids)
                    listed_max = max((listed_max, *part.ledger_ids[-1:]))
                    unlisted += sorted(set(here).difference(part.ledger_ids))
                    continue
                failed_count += 1
                self._metrics.ledgers_kept_count += len(here)
                logger.warning(
                    "cannot list ledgers %d to %d; keeping the local ones: %s",
                    part.first_ledger_id,
                    part.last_ledger_id,
                    part.error,
                )
        self._listed_max = None if failed_count else listed_max
        # An empty cluster is more likely a mistake: accept it only if two passes in a row find it.
        is_empty = not listed_count and not failed_count
        is_believed, self._was_nothing_listed = not is_empty or self._was_nothing_listed, is_empty
        if unlisted and not is_believed:
            logger.warning(
                "the cluster lists no ledgers; if the next garbage collection finds none either, all local ledgers "
                "will be deleted"
            )
            return []
        return unlisted

    async def _delete_confirmed(self, ledgers: LedgerStore, ledger_ids: Sequence[LedgerId]) -> dict[LedgerId, bool]:
        """Delete those that are still missing; returns them, and whether a row was deleted.

        The others may be deleted by another attempt.
        """
        marks = {ledger_id: mark for ledger_id in ledger_ids if (mark := self._local.mark(ledger_id)) is not None}
        if not marks:
            return {}
        session_id = self._store.session_id
        await self._store.sync(ledgers.root)
        missing = await _without_metadata(ledgers, sorted(marks))
        await self._guard.require_own_cluster()
        if not session_id or self._store.session_id != session_id:
            return {}  # another session may use a server that lags behind
        deleted = self._local.delete({ledger_id: marks[ledger_id] for ledger_id in missing})
        return {ledger_id: marks[ledger_id].has_row for ledger_id in deleted}


async def _without_metadata(ledgers: LedgerStore, ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
    """Ledgers that certainly have no metadata; unreadable metadata counts as existing."""

    async def is_missing(ledger_id: LedgerId) -> bool:
        try:
            await ledgers.read(ledger_id)
        except LedgerNotFoundError:
            return True
        return False

    return await _select(ledger_ids, is_missing, _READS_IN_FLIGHT_MAX)


async def _select(
    ledger_ids: Sequence[LedgerId], is_selected: Callable[[LedgerId], Awaitable[bool]], in_flight_max: int
) -> list[LedgerId]:
    """Ledgers that are selected. Ledgers with an error are not; the first error is logged."""
    unknown: list[tuple[LedgerId, BkctlError]] = []

    async def ask(ledger_id: LedgerId) -> LedgerId | None:
        try:
            return ledger_id if await is_selected(ledger_id) else None
        except BkctlError as error:
            unknown.append((ledger_id, error))
            return None

    async with aclosing(pipelined(each_of(ledger_ids), ask, in_flight_max)) as answers:
        selected = [ledger_id async for ledger_id in answers if ledger_id is not None]
    if unknown:
        ledger_id, error = unknown[0]
        logger.warning("kept %d ledgers that could not be checked, for example %d: %s", len(unknown), ledger_id, error)
    return selected


def _within(part: PartListing, ledger_ids: Sequence[LedgerId]) -> Sequence[LedgerId]:
    """The ascending ids that are in the range of a part of the listing."""
    first = bisect.bisect_left(ledger_ids, part.first_ledger_id)
    return ledger_ids[first : bisect.bisect_right(ledger_ids, part.last_ledger_id)]


class OverreplicatedCollector:
    """Finds and deletes copies that the metadata does not reference. ``own_ids``: all ids of this bookie.

    A process that copies a ledger holds its replication lock until the metadata references the copy. So an unreferenced
    copy is deleted only under that lock, after a second read, and only if the ledger is closed, because then no writer
    changes its ensembles. All bookies in these must be registered: another one may be this bookie under a former id
    (``cookie migrate``), or may never return. The fence of a deleted copy is kept
    (``bkctl.storage.engine.collected_ledgers``): a writer that does not know that the ledger is closed must not append
    here again.

    The referenced bookies are not asked whether they have the ledger: the process that copied it has verified that, but
    for what an operator gave up, of which the copy stays. It could also replace what they lost since. So no ledger in
    limbo is deleted, and the collector deletes no copies at all while this bookie repairs a loss of its own, which may
    affect them too. Source: storage section 7.4.
    """

    def __init__(
        self,
        local: LocalLedgers,
        guard: ClusterGuard,
        store: MetadataStore,
        locks: ReplicationLocks,
        registrations: RegistrationClient,
        own_ids: Collection[str],
        metrics: GarbageCollectionMetrics,
        in_flight_max: int,
    ) -> None:
        self._local = local
        self._guard = guard
        self._store = store
        self._locks = locks
        self._registrations = registrations
        self._own_ids = frozenset(own_ids)
        self._metrics = metrics
        self._in_flight_max = in_flight_max

    async def collect(self, ledgers: LedgerStore) -> int:
        """One pass over all local ledgers; returns how many copies were deleted. BkctlError if none can be checked."""
        await self._guard.require_own_cluster()
        live = (await self._registrations.snapshot()).live

        async def is_dropped(ledger_id: LedgerId) -> bool:
            return await self._is_unneeded(ledgers, ledger_id, live) and await self._drop(ledgers, ledger_id)

        dropped = await _select(self._local.snapshot(), is_dropped, self._in_flight_max)
        self._metrics.ledgers_overreplicated_count += len(dropped)
        return len(dropped)

    async def _drop(self, ledgers: LedgerStore, ledger_id: LedgerId) -> bool:
        lock = await self._locks.acquire(ledger_id)
        if lock is None:
            return False  # it is being copied, maybe to this bookie
        async with lock:
            mark = self._local.mark(ledger_id)
            session_id = self._store.session_id
            await self._store.sync(ledgers.root)
            # Entries in the write cache: a client may be copying it to here without the lock, as Java's tools do.
            if mark is None or not mark.has_row or self._local.is_limbo(ledger_id) or mark.memtable_bytes is not None:
                return False
            live = (await self._registrations.snapshot()).live
            if not await self._is_unneeded(ledgers, ledger_id, live):
                return False
            if await self._may_be_the_only_one(ledgers, ledger_id):
                return False
            await self._guard.require_own_cluster()
            # Before the copy is deleted: without its row, only this record says that the ledger accepts no plain add.
            await self._local.keep_fence(ledger_id)
            is_sure = lock.is_held and session_id != 0 and self._store.session_id == session_id
            return is_sure and bool(self._local.delete({ledger_id: mark}))

    async def _may_be_the_only_one(self, ledgers: LedgerStore, ledger_id: LedgerId) -> bool:
        """Whether an operator gave up this bookie with what it has of a ledger, or entries that no member has."""
        note = await RecoveryNotes(self._store, ledgers.root).given_up.find_or_problem(str(ledger_id))
        if not isinstance(note, Versioned):
            return note is not None
        return bool(note.value.lost) or not note.value.member_since.keys().isdisjoint(self._own_ids)

    async def _is_unneeded(self, ledgers: LedgerStore, ledger_id: LedgerId, live: Collection[str]) -> bool:
        """Whether a ledger is closed and all bookies of its ensembles are registered, and none of them is this one."""
        try:
            metadata = (await ledgers.read(ledger_id)).value
        except LedgerNotFoundError:
            return False  # LedgerCollector handles it
        members = metadata.bookies()
        return metadata.is_closed and members.isdisjoint(self._own_ids) and members.issubset(live)
