"""Notes of autorecovery: what survives the auditor or the worker that wrote it. JSON nodes outside the Java namespace.

    /bkctl/autorecovery/<ledgers root>                      P, empty
    /bkctl/autorecovery/<ledgers root>/deadlines/<bookie>   P, when the ledgers of a lost bookie are to be marked
    /bkctl/autorecovery/<ledgers root>/losses/<ledger>      P, a ledger with entries of which no copy is left
    /bkctl/autorecovery/<ledgers root>/given-up/<ledger>    P, lost bookies that were given up with what they had of it
    /bkctl/autorecovery/<ledgers root>/failures/<ledger>    P, why a repair failed, and when it is tried again
    /bkctl/autorecovery/<ledgers root>/maintenance/<bookie> P, a bookie that is expected to be away for a while
    /bkctl/autorecovery/<ledgers root>/daemons/<session>    E, what a running daemon does
    /bkctl/autorecovery/<ledgers root>/checks/<check>       P, how far a periodic check is, and its last results
    /bkctl/autorecovery/<ledgers root>/collection/<bookie>  P, for the garbage collection of a bookie of ours

Root and bookie ids are percent-encoded. Java's auditor and workers see none of these nodes, and Java's
nukeexistingcluster would refuse unknown nodes below the ledgers root (metadata section 3.5).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import urllib.parse
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Generic, TypeVar

import msgspec

from bkctl.runtime.errors import BadVersionError, MetadataFormatError, NodeExistsError, NoNodeError
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.store import (
    ANY_VERSION,
    MetadataStore,
    SetNode,
    Versioned,
    children_of,
    decode_node,
    find_node,
)
from bkctl.storage.json_text import JsonTextError, decode_json

logger = logging.getLogger(__name__)

DIRECTORY = "/bkctl/autorecovery"
FIRST_IDS_MAX = 20
_READS_IN_FLIGHT_MAX = 128
_ATTEMPTS_MAX = 10


class LostBookieNote(msgspec.Struct, frozen=True, kw_only=True):
    """A bookie that is not registered. Its ledgers are marked at ``due_ms``; times in ms since 1970."""

    lost_ms: int
    due_ms: int


NO_COPY = "no registered bookie has a copy of some entries"
"""Reason of the notes of the scan for lost bookies. It removes no others."""


class LostLedgerNote(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger with entries of which no member of the ensemble that is registered has a copy."""

    found_ms: int
    missing_bookies: tuple[str, ...]
    reason: str


class FailedLedgerNote(msgspec.Struct, frozen=True, kw_only=True):
    """A marked ledger that could not be repaired. ``detail`` may name bookies and entries."""

    worker: str
    attempts: int
    first_ms: int
    last_ms: int
    retry_ms: int
    reason: str
    detail: str


class MaintenanceNote(msgspec.Struct, frozen=True, kw_only=True):
    """A bookie that an operator expects to be away from ``start_ms`` to ``end_ms``.

    ``stored_delay_s``: the recovery delay that Java's auditor used before, which the end restores; None: it was not
    changed. ``set_delay_s``: what it was changed to.
    """

    start_ms: int
    end_ms: int
    user: str
    rack: str | None = None
    stored_delay_s: int | None = None
    set_delay_s: int | None = None


class CollectionNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A bookie replaces its note in each round of garbage collection, and remembers the number ``step``.

    So a bookie that finds a lower number, or no note, knows that the metadata is older than it was.
    """

    step: int = 0
    restored: str = ""
    """Creation time of the backup that ``cluster restore`` restored, until an operator confirms it."""
    stopped: str = ""
    """Why the bookie deletes no ledgers; empty: it does."""
    stopped_ms: int = 0
    """Since when."""


class LaneStatus(msgspec.Struct, kw_only=True):
    """What a lane of an auditor did so far; times in ms since 1970, None: not yet."""

    name: str
    is_running: bool = False
    started_ms: int | None = None
    """When the last run began."""
    ended_ms: int | None = None
    """When the last run ended."""
    succeeded_ms: int | None = None
    """When a run last reached its end without an error."""
    result: str = ""
    """What the last successful run did, in a few words."""
    result_ms: int | None = None
    """When that was found, if an earlier run found it: the last one had nothing to do."""
    error: str | None = None
    """Why the last run failed; None if it did not, or if the next one has made progress."""
    runs: int = 0
    failures: int = 0
    hangs: int = 0


class HeldLedger(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger that a worker repairs, and what it waits for (empty: nothing)."""

    ledger_id: int
    since_ms: int
    waits_for: str


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker did so far; times in ms since 1970, None: not yet. ``bytes_copied`` counts payload.

    ``waiting``: marked ledgers that it knows and has not begun.
    """

    held: tuple[HeldLedger, ...]
    finished_ms: int | None
    """When it last finished a marked ledger."""
    ledgers_repaired: int
    ledgers_failed: int
    bytes_copied: int
    waiting: int = 0
    copies_breaking_placement: int = 0
    """Copies that broke a placement rule, counted for each rule, because no bookie kept it."""


class DaemonNote(msgspec.Struct, frozen=True, kw_only=True):
    """A running daemon as of ``written_ms``. ``lanes`` only while it is the auditor, ``worker`` if it is one.

    ``admin``: address of its admin interface as ``unix:PATH``, ``http://HOST:PORT`` or ``https://HOST:PORT``.
    """

    bookie_id: str
    host: str
    pid: int
    role: str
    started_ms: int
    written_ms: int
    is_auditor: bool
    lanes: tuple[LaneStatus, ...] = ()
    worker: WorkerStatus | None = None
    admin: str | None = None
    alarm: str | None = None
    """Why the auditor marks nothing, in a sentence."""
    refused_by: int = 0
    """How many bookies do not accept the daemon's login, certificate or role."""
    refusal: str | None = None
    """Which and why, in a sentence."""


class LedgerCount(msgspec.Struct, frozen=True):
    """A number of ledgers, and the lowest ids of them."""

    ledgers: int = 0
    first_ids: tuple[int, ...] = ()

    def plus(self, ledger_id: int) -> LedgerCount:
        """With one more ledger."""
        is_kept = len(self.first_ids) < FIRST_IDS_MAX
        return LedgerCount(self.ledgers + 1, (*self.first_ids, ledger_id) if is_kept else self.first_ids)

    def __add__(self, other: LedgerCount) -> LedgerCount:
        if not other.ledgers:
            return self
        first = sorted(self.first_ids + other.first_ids)[:FIRST_IDS_MAX]
        return LedgerCount(self.ledgers + other.ledgers, tuple(first))


class CopyCheckCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a check of copies found so far. ``copies``: those to read; the good ones are not counted separately.

    Bad: missing or damaged. Unknown: its bookie is not registered, did not answer, or answered with another error.
    ``different``: ledgers with copies that differ although their digests are right.
    """

    ledgers: int = 0
    copies: int = 0
    copies_bad: int = 0
    copies_unknown: int = 0
    bytes_read: int = 0
    marked: LedgerCount = LedgerCount()
    lost: LedgerCount = LedgerCount()
    different: LedgerCount = LedgerCount()
    unreadable: LedgerCount = LedgerCount()
    """Ledgers that could not be checked, for example because their metadata cannot be read."""

    def __add__(self, other: CopyCheckCounts) -> CopyCheckCounts:
        return CopyCheckCounts(**{each: getattr(self, each) + getattr(other, each) for each in self.__struct_fields__})

    @property
    def is_complete(self) -> bool:
        """Whether all copies were read."""
        return not self.copies_unknown and not self.unreadable.ledgers


class CopyCheckNote(msgspec.Struct, frozen=True, kw_only=True):
    """A round of the check of copies, which reaches each ledger once, by id. Times in ms since 1970.

    ``began_ms`` may be in the future: the last round ended before its time. ``last``: what that round found.
    ``until_ledger_id``: the highest ledger when it began, None if that is not known yet. Without this end, a round
    would never catch up with a cluster that creates ledgers all the time.
    """

    began_ms: int
    until_ledger_id: int | None = None
    last_ledger_id: int = -1
    """All ledgers up to this one are checked."""
    counts: CopyCheckCounts = CopyCheckCounts()
    """Without the ledgers in ``again``."""
    again: dict[int, CopyCheckCounts] = {}
    """Ledgers with copies that could not be read, to be read again; what the last look at each found."""
    repeats: int = 0
    """How often those are being read again; 0: the round has not reached all ledgers."""
    repeat_ms: int = 0
    """When the repeat begins."""
    last: CopyCheckCounts | None = None
    last_ended_ms: int | None = None
    """When that round ended, whether it could read all copies or not."""

    @property
    def found(self) -> CopyCheckCounts:
        """All that the round found so far."""
        return functools.reduce(operator.add, self.again.values(), self.counts)


class MetadataCheckNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of all ledgers found that reads only metadata."""

    ended_ms: int
    seconds: float
    ledgers: int = 0
    unreadable: LedgerCount = LedgerCount()
    """Ledgers whose metadata cannot be read; they are not in ``ledgers``."""


class ReplicaCountNote(MetadataCheckNote, frozen=True, kw_only=True):
    """Copies of all ledgers on registered bookies, by the metadata. A ledger counts in each field that applies to the
    entries with the fewest live copies. ``one_copy``: of ledgers that should have more."""

    no_copy: LedgerCount = LedgerCount()
    one_copy: LedgerCount = LedgerCount()
    below_ack_quorum: LedgerCount = LedgerCount()
    below_write_quorum: LedgerCount = LedgerCount()


class PlacementCheckNote(MetadataCheckNote, frozen=True, kw_only=True):
    """Closed ledgers that break placement rules; ``improvable``: a copy on another bookie would break fewer."""

    broken: LedgerCount = LedgerCount()
    improvable: LedgerCount = LedgerCount()
    marked: int = 0


NoteT = TypeVar("NoteT", bound=msgspec.Struct)


class NoteDirectory(Generic[NoteT]):
    """All notes of one kind of one cluster. Keys are bookie ids, ledger ids as decimal text, or session ids."""

    def __init__(
        self, store: MetadataStore, root: str, name: str, kind: type[NoteT], *, is_ephemeral: bool = False
    ) -> None:
        self._store = store
        self._is_ephemeral = is_ephemeral
        self.path = f"{notes_path(root)}/{name}"
        self._kind = kind

    async def keys(self) -> list[str]:
        """Keys of all notes. One operation."""
        return [urllib.parse.unquote(name) for name in await children_of(self._store, self.path)]

    async def ledger_ids(self) -> set[int]:
        """The keys as ledger ids, without those that are none. One operation."""
        return {int(key) for key in await self.keys() if key.isascii() and key.isdecimal()}

    async def count(self) -> int:
        """Number of notes. One operation, however many there are."""
        stat = await self._store.exists(self.path)
        return 0 if stat is None else stat.children_count

    async def find(self, key: str) -> Versioned[NoteT] | None:
        """A note, None if there is none. One operation; MetadataFormatError."""
        path = self.path_of(key)
        node = await find_node(self._store, path)
        return None if node is None else Versioned(decode_node(path, node, self._decode), node.stat.version)

    async def find_or_problem(self, key: str) -> Versioned[NoteT] | MetadataFormatError | None:
        """A note, or why it cannot be read; None if there is none. One operation."""
        try:
            return await self.find(key)
        except MetadataFormatError as error:
            return error

    async def all(self) -> AsyncGenerator[tuple[str, Versioned[NoteT] | MetadataFormatError], None]:
        """All notes with their keys; one operation each and one for all. Close the iterator to stop early."""

        async def read(key: str) -> tuple[str, Versioned[NoteT] | MetadataFormatError | None]:
            return key, await self.find_or_problem(key)

        async with aclosing(pipelined(each_of(await self.keys()), read, _READS_IN_FLIGHT_MAX)) as notes:
            async for key, note in notes:
                if note is not None:
                    yield key, note

    async def put(self, key: str, note: NoteT) -> None:
        """Write a note, new or not. One operation, two for a new one."""
        path, data = self.path_of(key), msgspec.json.encode(note)
        for _ in range(_ATTEMPTS_MAX):
            with contextlib.suppress(NoNodeError):
                await self._store.set(path, data, ANY_VERSION)
                return
            if await self.add(key, note):
                return

    async def replace(self, key: str, note: NoteT, expected_version: int) -> bool:
        """Replace a note; False if it has another version, or is gone. One operation."""
        try:
            await self._store.set(self.path_of(key), msgspec.json.encode(note), expected_version)
        except (BadVersionError, NoNodeError):
            return False
        return True

    def replacement(self, key: str, note: NoteT, expected_version: int) -> SetNode:
        """The same, for a transaction."""
        return SetNode(self.path_of(key), msgspec.json.encode(note), expected_version)

    async def version(self, key: str) -> int:
        """How often a note was replaced; -1 if there is none. One operation."""
        stat = await self._store.exists(self.path_of(key))
        return -1 if stat is None else stat.version

    async def add(self, key: str, note: NoteT) -> bool:
        """Write a note; False if there is one, which stays. One operation."""
        try:
            await self._store.create(
                self.path_of(key),
                msgspec.json.encode(note),
                is_ephemeral=self._is_ephemeral,
                make_parents=True,
                is_open_acl=True,
            )
        except NodeExistsError:
            return False
        return True

    async def remove(self, key: str, expected_version: int = ANY_VERSION) -> None:
        """Delete a note; fine if there is none. One operation; BadVersionError."""
        with contextlib.suppress(NoNodeError):
            await self._store.delete(self.path_of(key), expected_version)

    def path_of(self, key: str) -> str:
        """Node of a note."""
        return f"{self.path}/{urllib.parse.quote(key, safe='')}"

    def _decode(self, data: bytes) -> NoteT:
        try:
            return decode_json(data, self._kind)
        except JsonTextError as error:
            raise MetadataFormatError(f"note of autorecovery: {error}") from error


class CheckNote(Generic[NoteT]):
    """The only note of one periodic check."""

    def __init__(self, store: MetadataStore, root: str, check: str, kind: type[NoteT]) -> None:
        self._directory = NoteDirectory(store, root, "checks", kind)
        self._check = check

    async def find(self) -> NoteT | None:
        """The note, None if there is none, or if it cannot be read: the check replaces it. One operation."""
        try:
            found = await self._directory.find(self._check)
        except MetadataFormatError as error:
            logger.warning("ignored, and replaced by the next check: %s", error)
            return None
        return None if found is None else found.value

    async def put(self, note: NoteT) -> None:
        """Write the note. One operation, two for a new one."""
        await self._directory.put(self._check, note)


class RecoveryNotes:
    """The notes of one cluster."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self.registrations = RegistrationClient(store, root)
        self.deadlines = NoteDirectory(store, root, "deadlines", LostBookieNote)
        self.losses = NoteDirectory(store, root, "losses", LostLedgerNote)
        self.given_up = NoteDirectory(store, root, "given-up", GivenUpNote)
        self.failures = NoteDirectory(store, root, "failures", FailedLedgerNote)
        self.maintenance = NoteDirectory(store, root, "maintenance", MaintenanceNote)
        self.collection = NoteDirectory(store, root, "collection", CollectionNote)
        self.daemons = NoteDirectory(store, root, "daemons", DaemonNote, is_ephemeral=True)
        self.copy_check = CheckNote(store, root, "copies", CopyCheckNote)
        self.replica_count = CheckNote(store, root, "replicas", ReplicaCountNote)
        self.placement_check = CheckNote(store, root, "placement", PlacementCheckNote)


def notes_path(root: str) -> str:
    """Directory of the notes of one cluster."""
    return f"{DIRECTORY}/{urllib.parse.quote(root.removeprefix('/'), safe='')}"


def daemon_key(session_id: int) -> str:
    """Key of the note of the daemon with this ZooKeeper session."""
    return f"{session_id & 0xFFFF_FFFF_FFFF_FFFF:x}"
