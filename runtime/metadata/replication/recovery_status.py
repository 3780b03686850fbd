"""What autorecovery does now, as its notes and the election show it. Reads a bounded number of nodes.

There are as many daemons, deadlines, maintenance notes and notes of collection as bookies at most. Failures are
counted by one operation. Of losses, at most 1000 notes and ledgers are read, because deleted and repaired ledgers count
no longer. Of bookies that were given up, at most 10,000 notes are read.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import itertools
import operator
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from typing import TypeVar

import msgspec

from bkctl.runtime.errors import LedgerNotFoundError, MetadataFormatError
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.election import Candidate, read_auditor
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote, bookies_given_up
from bkctl.runtime.metadata.replication.maintenance import Maintenance, list_maintenance
from bkctl.runtime.metadata.replication.marks import list_marked_ids
from bkctl.runtime.metadata.replication.recovery_notes import (
    NO_COPY,
    CollectionNote,
    DaemonNote,
    LostBookieNote,
    LostLedgerNote,
    NoteDirectory,
    RecoveryNotes,
)
from bkctl.runtime.metadata.replication.switches import ReplicationSwitches
from bkctl.runtime.metadata.store import MetadataStore, Versioned

NoteT = TypeVar("NoteT", bound=msgspec.Struct)

LOSSES_READ_MAX = 10
_LOSSES_LOOKED_UP_MAX = 1000
"""Others count as the auditor noted them: it removes the notes of deleted ledgers after its next pass."""
_LOSSES_LISTED_MAX = 10_000
"""If there are more, their names are not read either."""
_LOOKED_UP_IN_FLIGHT_MAX = 64


class AuditorKind(enum.Enum):
    """Which program is the auditor. The values appear in reports."""

    OURS = "bkctl"
    JAVA = "java"
    PULSAR = "pulsar"


class NotedLosses(msgspec.Struct, frozen=True):
    """Ledgers with lost entries: how many, and the first of them."""

    count: int = 0
    first: tuple[tuple[str, LostLedgerNote], ...] = ()


class RecoveryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. ``auditor`` None: none is elected. ``unreadable``: notes that cannot be read, with the reason.

    ``deadlines``: of lost bookies, while a daemon of ours is the auditor and has no alarm, and autorecovery is enabled:
    otherwise nothing is marked at these times. ``is_enabled``: whether it is.
    """

    auditor: Candidate | None = None
    is_enabled: bool = True
    daemons: tuple[DaemonNote, ...] = ()
    deadlines: tuple[tuple[str, LostBookieNote], ...] = ()
    maintenance: tuple[Maintenance, ...] = ()
    losses: NotedLosses = NotedLosses()
    returned: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Registered bookies that were given up as if they were lost, with the ledgers that may miss their entries."""
    away: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Bookies that were given up, are in the cluster and are down, with the ledgers that may miss their entries."""
    given_up: Mapping[int, GivenUpNote] = {}
    """Bookies that an operator gave up, by ledger, also of ledgers that were deleted or are whole again."""
    failures: int = 0
    failure_cause: str = ""
    """Why the first one of them is not repaired."""
    stopped: tuple[tuple[str, CollectionNote], ...] = ()
    """Bookies that delete no ledgers."""
    unreadable: tuple[str, ...] = ()

    @property
    def auditor_daemon(self) -> DaemonNote | None:
        """Our daemon that is the auditor."""
        return find_auditor_daemon(self.auditor, self.daemons)

    @property
    def auditor_kind(self) -> AuditorKind | None:
        """Which program is the auditor; None: none is elected."""
        return kind_of_auditor(self.auditor, self.daemons)


def find_auditor_daemon(auditor: Candidate | None, daemons: tuple[DaemonNote, ...]) -> DaemonNote | None:
    """The daemon of ours that has the office: its note says so, and the vote has its name."""
    if auditor is None or auditor.bookie_id is None:
        return None
    return next((each for each in daemons if each.is_auditor and each.bookie_id == auditor.bookie_id), None)


def marks_at_deadlines(auditor: Candidate | None, daemons: tuple[DaemonNote, ...]) -> bool:
    """Whether the auditor is ours and marks the ledgers of lost bookies in time: not while too many are gone."""
    daemon = find_auditor_daemon(auditor, daemons)
    return daemon is not None and daemon.alarm is None


def kind_of_auditor(auditor: Candidate | None, daemons: tuple[DaemonNote, ...]) -> AuditorKind | None:
    """Which program is the auditor; None: none is elected."""
    if auditor is None:
        return None
    if find_auditor_daemon(auditor, daemons) is not None:
        return AuditorKind.OURS
    return AuditorKind.PULSAR if auditor.is_pulsar else AuditorKind.JAVA


async def read_recovery_status(
    store: MetadataStore, root: str, foreign: ForeignNames, open_ledgers: Callable[[], Awaitable[LedgerStore]]
) -> RecoveryStatus:
    """Read it. One operation for each daemon, deadline, maintenance, bookie and loss of ours, each ledger of which
    bookies were given up, and a few more.

    ``open_ledgers`` is called if there are losses.
    """
    notes, registrations = RecoveryNotes(store, root), RegistrationClient(store, root)
    unreadable: list[str] = []
    given_up = await read_given_up(notes)
    (auditor, daemons, deadlines, maintenance, losses, failures), collection, is_enabled = await asyncio.gather(
        asyncio.gather(
            read_auditor(store, root, foreign),
            _read_all(notes.daemons, unreadable),
            _read_all(notes.deadlines, unreadable),
            list_maintenance(notes),
            _read_losses(notes, open_ledgers, registrations, given_up, unreadable),
            notes.failures.count(),
        ),
        _read_all(notes.collection, unreadable),
        ReplicationSwitches(store, root).is_enabled(),
    )
    unreadable += [each.problem for each in maintenance if each.problem is not None]
    daemon_notes = tuple(note for _, note in sorted(daemons, key=lambda each: (each[1].host, each[1].pid)))
    if not is_enabled or not marks_at_deadlines(auditor, daemon_notes):
        deadlines = []  # without an auditor of ours they are of an earlier one: no process updates them
    return RecoveryStatus(
        auditor=auditor,
        is_enabled=is_enabled,
        daemons=daemon_notes,
        deadlines=tuple(sorted(deadlines, key=lambda each: (each[1].due_ms, each[0]))),
        maintenance=tuple(maintenance),
        losses=losses,
        returned=await find_returned(registrations, given_up, open_ledgers),
        away=await find_away(registrations, given_up, open_ledgers),
        given_up=given_up,
        failures=failures,
        failure_cause=await _first_cause(notes) if failures else "",
        stopped=tuple(sorted((each for each in collection if each[1].stopped), key=operator.itemgetter(0))),
        unreadable=tuple(unreadable),
    )


async def is_repaired(store: MetadataStore, root: str, foreign: ForeignNames, recovery: RecoveryStatus) -> bool:
    """Whether autorecovery is enabled, and an auditor is elected or a worker may find a marked ledger."""
    if not recovery.is_enabled or recovery.auditor is not None:
        return recovery.is_enabled
    async with aclosing(list_marked_ids(store, root, foreign)) as ids:
        return await anext(ids, None) is not None


async def _first_cause(notes: RecoveryNotes) -> str:
    """Why the first ledger whose repair failed is not repaired; empty if that is no longer known."""
    for key in sorted(await notes.failures.keys(), key=lambda key: (len(key), key))[:1]:
        found = await notes.failures.find_or_problem(key)
        if isinstance(found, Versioned):
            return found.value.detail
    return ""


async def read_daemons(notes: RecoveryNotes) -> tuple[DaemonNote, ...]:
    """The running daemons whose notes can be read."""
    return tuple(note for _, note in await _read_all(notes.daemons, []))


async def _read_all(directory: NoteDirectory[NoteT], unreadable: list[str]) -> list[tuple[str, NoteT]]:
    found: list[tuple[str, NoteT]] = []
    async for key, note in directory.all():
        if isinstance(note, Versioned):
            found.append((key, note.value))
        else:
            unreadable.append(str(note))
    return found


async def read_given_up(notes: RecoveryNotes) -> dict[int, GivenUpNote]:
    """The bookies that an operator gave up, by ledger. None if there are too many notes."""
    count = await notes.given_up.count()
    found = await _read_all(notes.given_up, []) if 0 < count <= _LOSSES_LISTED_MAX else []
    return await with_back(
        notes, {int(key): note for key, note in sorted(found, key=operator.itemgetter(0)) if key.isdecimal()}
    )


async def find_given_up(notes: RecoveryNotes, ledger_id: int) -> dict[int, GivenUpNote]:
    """The same of one ledger."""
    found = await notes.given_up.find_or_problem(str(ledger_id))
    return await with_back(notes, {ledger_id: found.value} if isinstance(found, Versioned) else {})


async def with_back(notes: RecoveryNotes, given_up: Mapping[int, GivenUpNote]) -> dict[int, GivenUpNote]:
    """The notes, each with the bookies that have run since. Of Java's bookies, only the auditor notices that."""

    async def read(bookie_id: str) -> tuple[str, tuple[int | None, int]]:
        return bookie_id, (await notes.registrations.member_since(bookie_id), await notes.collection.version(bookie_id))

    named = frozenset(itertools.chain.from_iterable(note.runs for note in given_up.values()))
    async with aclosing(pipelined(each_of(named), read, _LOOKED_UP_IN_FLIGHT_MAX)) as found:
        now = dict([each async for each in found])

    def has_run(bookie_id: str, note: GivenUpNote) -> bool:
        (cookie_ms, run), then = now[bookie_id], note.member_since.get(bookie_id)
        return then is not None and cookie_ms == then and run > note.runs[bookie_id]

    def completed(note: GivenUpNote) -> GivenUpNote:
        return msgspec.structs.replace(note, back=frozenset([each for each in note.runs if has_run(each, note)]))

    return {ledger_id: completed(note) for ledger_id, note in given_up.items()}


async def note_back(notes: RecoveryNotes, bookie_id: str) -> None:
    """The bookie got a cookie again with its old entries, also of ledgers of which it was given up: it is not a new,
    empty one with its id."""
    since = await notes.registrations.member_since(bookie_id)
    async with aclosing(notes.given_up.all()) as found:
        async for key, note in found:
            if isinstance(note, Versioned) and bookie_id in note.value.member_since:
                member_since = note.value.member_since | {bookie_id: since}
                changed = msgspec.structs.replace(note.value, member_since=member_since)
                await notes.given_up.replace(key, changed, note.version)


async def _read_losses(
    notes: RecoveryNotes,
    open_ledgers: Callable[[], Awaitable[LedgerStore]],
    registrations: RegistrationClient,
    given_up: Mapping[int, GivenUpNote],
    unreadable: list[str],
) -> NotedLosses:
    """Those that are not over and that no operator has accepted since."""
    count = await notes.losses.count()
    if not count or count > _LOSSES_LISTED_MAX:
        return NotedLosses(count)
    ledgers, noted = await open_ledgers(), sorted(await notes.losses.ledger_ids())
    for ledger_id in given_up.keys() & set(noted):
        note = await notes.losses.find_or_problem(str(ledger_id))
        if isinstance(note, Versioned) and bookies_given_up(given_up[ledger_id]) >= set(note.value.missing_bookies):
            noted.remove(ledger_id)
    live = (await registrations.snapshot()).live
    first: list[tuple[str, LostLedgerNote]] = []
    count = len(noted[_LOSSES_LOOKED_UP_MAX:])
    find = functools.partial(_find_loss, notes, ledgers, live)
    async with aclosing(pipelined(each_of(noted[:_LOSSES_LOOKED_UP_MAX]), find, _LOOKED_UP_IN_FLIGHT_MAX)) as found:
        async for key, loss in (each async for each in found if each is not None):
            count += 1
            if isinstance(loss, MetadataFormatError):
                unreadable.append(str(loss))
            elif len(first) < LOSSES_READ_MAX:
                first.append((key, loss))
    return NotedLosses(count, tuple(first))


async def _find_loss(
    notes: RecoveryNotes, ledgers: LedgerStore, live: Collection[str], ledger_id: int
) -> tuple[str, LostLedgerNote | MetadataFormatError] | None:
    """The note; None if it is over: the ledger was deleted, or each of the bookies is back or was replaced in it.

    The auditor removes such notes only at its next pass.
    """
    note = await notes.losses.find_or_problem(str(ledger_id))
    if note is None or await ledgers.find_existing(ledger_id) is None:
        return None
    if isinstance(note, MetadataFormatError):
        return str(ledger_id), note
    if note.value.reason == NO_COPY:
        with contextlib.suppress(LedgerNotFoundError, MetadataFormatError):
            members = (await ledgers.read(ledger_id)).value.bookies()
            if members.intersection(note.value.missing_bookies).issubset(live):
                return None
    return str(ledger_id), note.value


async def find_returned(
    registrations: RegistrationClient,
    given_up: Mapping[int, GivenUpNote],
    open_ledgers: Callable[[], Awaitable[LedgerStore]],
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Bookies that were given up, are registered, and have the cookie of that time: so they have their old entries.

    Not those that the end of the ledger still names, because their entries are read as before.
    """
    if not given_up:
        return ()
    live = (await registrations.snapshot()).live
    with_entries = await _with_old_entries(registrations, given_up, live.intersection)
    found: list[tuple[str, int]] = []
    for ledger_id, back in with_entries.items():
        members = await _members_at_end(await open_ledgers(), ledger_id, back)
        found += [(each, ledger_id) for each in back.difference(members)]
    return _by_bookie(found)


async def find_away(
    registrations: RegistrationClient,
    given_up: Mapping[int, GivenUpNote],
    open_ledgers: Callable[[], Awaitable[LedgerStore]],
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Bookies that were given up, are down, and have the cookie of that time: their disks may have the old entries."""
    if not given_up:
        return ()
    live = (await registrations.snapshot()).live
    with_entries = await _with_old_entries(registrations, given_up, lambda named: set(named) - live)
    if not with_entries:
        return ()
    find = (await open_ledgers()).find_existing
    async with aclosing(pipelined(each_of(with_entries), find, _LOOKED_UP_IN_FLIGHT_MAX)) as existing:
        ids = [each async for each in existing if each is not None]
    return _by_bookie((bookie_id, each) for each in ids for bookie_id in with_entries[each])


async def _with_old_entries(
    registrations: RegistrationClient,
    given_up: Mapping[int, GivenUpNote],
    choose: Callable[[Iterable[str]], Collection[str]],
) -> dict[int, set[str]]:
    """By ledger, those of the bookies that have the cookie which they had when they were given up."""
    named = choose(itertools.chain.from_iterable(note.member_since for note in given_up.values()))
    since = {each: await registrations.member_since(each) for each in sorted(named)}
    found = {
        ledger_id: {each for each, then in note.member_since.items() if then is not None and since.get(each) == then}
        for ledger_id, note in sorted(given_up.items())
    }
    return {ledger_id: bookie_ids for ledger_id, bookie_ids in found.items() if bookie_ids}


def _by_bookie(found: Iterable[tuple[str, int]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    by_bookie: dict[str, list[int]] = {}
    for bookie_id, ledger_id in found:
        by_bookie.setdefault(bookie_id, []).append(ledger_id)
    return tuple((bookie_id, tuple(ledger_ids)) for bookie_id, ledger_ids in sorted(by_bookie.items()))


async def _members_at_end(ledgers: LedgerStore, ledger_id: int, of_deleted: Collection[str]) -> Collection[str]:
    try:
        return (await ledgers.read(ledger_id)).value.last_segment.ensemble
    except LedgerNotFoundError:
        return of_deleted
    except MetadataFormatError:
        return ()
