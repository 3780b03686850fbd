"""Reads a cluster for the verdict on bookies that are to be stopped or removed. Writes nothing.

Also what is left on bookies that wait until retention has deleted their ledgers.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing

import msgspec

from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import SILENCE, BookieError, BookieNotFoundError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.owner import owner_of
from bkctl.runtime.metadata.cluster.operation_lock import running_operations
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.maintenance import list_maintenance
from bkctl.runtime.metadata.replication.marks import list_marked_ids
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.replication.recovery_status import read_given_up
from bkctl.runtime.metadata.store import MetadataStore, Versioned
from bkctl.runtime.placement.view import BookieSpace
from bkctl.runtime.ports import Bookies
from bkctl.runtime.replication.config import PlacementMode
from bkctl.runtime.replication.copy.reader import reason_of
from bkctl.runtime.replication.judge.advice import works_on
from bkctl.runtime.replication.judge.stop_verdict import ClusterNow, Objection, StopCheck, StopReason, StopVerdict
from bkctl.runtime.replication.judge.targets import rules_of_run
from bkctl.runtime.replication.judge.verdict import bytes_on, write_set_rows
from bkctl.runtime.replication.survey.given_up import removed_error
from bkctl.storage.severity import Severity

_LEDGERS_PER_PROGRESS = 1000
_ATTEMPTS = 2
NO_OWNER = "no known owner"


async def scan_for_stop(
    ports: ClientPorts,
    store: MetadataStore,
    bookie_ids: Sequence[str],
    *,
    foreign: ForeignNames,
    placement: PlacementMode | None = None,
    is_removal: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> StopVerdict:
    """The verdict after one scan of all ledger metadata; ``placement``: that of a recovery which follows.

    BookieNotFoundError for a bookie without cookie and registration that no ledger references.
    """
    registrations = await ports.registrations.snapshot()
    with_cookie = await ports.registrations.with_cookie()
    async with aclosing(list_marked_ids(store, ports.ledgers.root, foreign)) as found_marks:
        marked = {ledger_id async for ledger_id in found_marks}
    others = sorted(registrations.live.difference(bookie_ids))
    space, refusals = await read_space(ports.bookies, others)
    survey = await ports.placement.survey(registrations.writable)
    notes = RecoveryNotes(store, ports.ledgers.root)
    cluster = ClusterNow(
        registrations=registrations,
        with_cookie=with_cookie,
        survey=survey,
        rules=survey.rules if placement is None else rules_of_run(survey, placement),
        space=space,
        silent=frozenset(others).difference(space),
        refusals=refusals,
        maintenance=await list_maintenance(notes),
        given_up=await read_given_up(notes),
        now_ms=ports.clock.now_ms(),
    )
    check = StopCheck(bookie_ids, cluster, ports.clock.random, is_removal=is_removal)
    scanned = marks = 0
    named: collections.Counter[str] = collections.Counter()
    async with aclosing(ports.ledgers.read_all(window=256)) as ledgers:
        async for ledger_id, found in ledgers:
            if isinstance(found, Versioned):
                check.add(ledger_id, found.value)
                named.update(found.value.bookies().intersection(bookie_ids))
            else:
                check.add_unreadable(ledger_id, str(found))
            scanned += 1
            marks += ledger_id in marked
            if scanned % _LEDGERS_PER_PROGRESS == 0:
                on_progress(scanned)
    check.note_marks(marks, deleted=len(marked) - marks)
    check.note_gone(sorted(registrations.live - (await ports.registrations.snapshot()).live - set(bookie_ids)))
    for bookie_id in bookie_ids:
        if bookie_id not in check.referenced and bookie_id not in registrations.live and bookie_id not in with_cookie:
            if named[bookie_id]:
                raise removed_error(bookie_id, named[bookie_id])
            raise BookieNotFoundError(
                f"bookie {bookie_id} is unknown: no cookie, and no ledger references it", bookie_id
            )
    # a removal locks the bookies itself
    return check.verdict() if is_removal else await _with_operations(check.verdict(), store, ports.ledgers.root)


async def _with_operations(verdict: StopVerdict, store: MetadataStore, root: str) -> StopVerdict:
    operations = tuple(
        Objection(reason=StopReason.OPERATION, detail=each, severity=Severity.WARNING)
        for each in await operations_on(store, root, verdict.bookie_ids)
    )
    return msgspec.structs.replace(verdict, objections=verdict.objections + operations)


async def operations_on(store: MetadataStore, root: str, bookie_ids: Collection[str]) -> list[str]:
    """The operations that move ledgers of these bookies now, each in a sentence; MetadataError."""
    running = (await running_operations(store, root)).items()
    moving = ((holder, each) for holder, ids in running if holder.moves_ledgers for each in ids)
    return [works_on(holder, each) for holder, each in moving if each in bookie_ids]


async def read_space(bookies: Bookies, bookie_ids: Sequence[str]) -> tuple[dict[str, BookieSpace], dict[str, str]]:
    """Disk space of the bookies that report it, which are asked up to twice; what others answered, if they did."""
    refusals: dict[str, str] = {}

    async def ask(bookie_id: str) -> BookieSpace | None:
        for _ in range(_ATTEMPTS):
            try:
                answer = await bookies.info(bookie_id)
            except SILENCE:
                continue
            except BookieError as error:
                refusals[bookie_id] = reason_of(error)
            else:
                refusals.pop(bookie_id, None)
                return BookieSpace(answer.total_bytes, answer.free_bytes)
        return None

    answers = await asyncio.gather(*map(ask, bookie_ids))
    found = {bookie_id: space for bookie_id, space in zip(bookie_ids, answers, strict=True) if space is not None}
    return found, refusals


class OwnerShare(msgspec.Struct):
    """Ledgers of one owner on the bookies; ``bytes_on_them``: their payload there, as far as it is known."""

    ledgers: int = 0
    bytes_on_them: int = 0
    oldest_ms: int | None = None

    def add(self, bytes_on_them: int, created_ms: int | None) -> None:
        """Count one ledger."""
        self.ledgers += 1
        self.bytes_on_them += bytes_on_them
        if created_ms is not None and created_ms >= 0:
            self.oldest_ms = created_ms if self.oldest_ms is None else min(self.oldest_ms, created_ms)


class RetentionTally:
    """Counts the ledgers that reference the bookies; add every ledger of the cluster."""

    def __init__(self, bookie_ids: Collection[str]) -> None:
        self._ids = frozenset(bookie_ids)
        self.ledgers_scanned = 0
        self.open_ledgers = 0
        self.unreadable: list[int] = []
        """Ledgers whose metadata cannot be read, so that they may be on the bookies."""
        self.total = OwnerShare()
        self.by_owner: dict[str, OwnerShare] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no ledger can be on the bookies."""
        return not self.total.ledgers and not self.unreadable

    def add(self, ledger_id: int, metadata: LedgerMetadata, created_ms: int | None) -> None:
        """One ledger; ``created_ms``: of its node, if its metadata has no time."""
        self.ledgers_scanned += 1
        if self._ids.isdisjoint(metadata.bookies()):
            return
        count = bytes_on(write_set_rows(ledger_id, metadata), self._ids)
        self.open_ledgers += not metadata.is_closed
        owner = owner_of(dict(metadata.custom_metadata)) or NO_OWNER
        for share in (self.total, self.by_owner.setdefault(owner, OwnerShare())):
            share.add(count, metadata.created_ms(created_ms))

    def add_unreadable(self, ledger_id: int) -> None:
        """A ledger whose metadata cannot be read."""
        self.ledgers_scanned += 1
        self.unreadable.append(ledger_id)


async def scan_for_retention(ports: ClientPorts, bookie_ids: Collection[str]) -> RetentionTally:
    """What is left on the bookies, by one scan of all ledger metadata; MetadataError."""
    tally = RetentionTally(bookie_ids)
    async with aclosing(ports.ledgers.read_all(window=256)) as ledgers:
        async for ledger_id, found in ledgers:
            if isinstance(found, Versioned):
                tally.add(ledger_id, found.value, found.ctime_ms)
            else:
                tally.add_unreadable(ledger_id)
    return tally
