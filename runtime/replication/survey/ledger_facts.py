"""What is known about one ledger now: its metadata, what its bookies answer, and the state of autorecovery.

A few reads per bookie and segment. Fences nothing and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from bkctl.runtime.client.last_entry import reported_lac
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials, credentials_of
from bkctl.runtime.errors import (
    SILENCE,
    AuthenticationRequiredError,
    BookieError,
    EntryDigestError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.cluster.operation_lock import leaving_bookies
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.election import read_auditor
from bkctl.runtime.metadata.replication.lock import read_lock
from bkctl.runtime.metadata.replication.maintenance import list_maintenance
from bkctl.runtime.metadata.replication.marks import read_mark
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.replication.recovery_status import (
    find_auditor_daemon,
    find_away,
    find_given_up,
    find_returned,
    marks_at_deadlines,
    read_daemons,
)
from bkctl.runtime.metadata.replication.switches import ReplicationSwitches
from bkctl.runtime.metadata.store import MetadataStore, Versioned
from bkctl.runtime.ports import LacReply
from bkctl.runtime.protocol.entry_body import EntryCodec
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.gaps import OutsideBookies
from bkctl.runtime.replication.copy.reader import CopyReader, reason_of
from bkctl.runtime.replication.judge.copies import Copy, CopyState
from bkctl.runtime.replication.judge.fragments import (
    EntryRange,
    accepted_entries,
    first_stored,
    is_in,
    last_stored,
    segment_entries,
    stripe_count,
)
from bkctl.runtime.replication.judge.ledger_facts import (
    BAD_COPIES,
    AutorecoveryFacts,
    LedgerFacts,
    MemberAnswer,
    OutsideCopies,
    SegmentFacts,
    StripeCopy,
    end_of,
    is_bad,
)
from bkctl.runtime.replication.survey.unregistered import find_serving
from bkctl.storage.ids import INVALID_ENTRY_ID

_READS_IN_FLIGHT_MAX = 16
_SERVING_TIMEOUT_S = 1.5
"""Longest wait for the answer of a bookie that is not registered."""
_SEGMENTS_SEARCHED_MAX = 16
"""Segments without a live copy for which bookies outside of the ensemble are asked; a ledger can have thousands."""


class LedgerFactsReader:
    """Reads the facts about ledgers."""

    def __init__(
        self, ports: ClientPorts, store: MetadataStore, config: ReplicationConfig, foreign: ForeignNames
    ) -> None:
        self._ports = ports
        self._store = store
        self._config = config
        self._foreign = foreign

    async def facts(
        self, ledger_id: int, stored: Versioned[LedgerMetadata], without: Collection[str] = ()
    ) -> LedgerFacts:
        """The facts; bookies in ``without`` count as gone and are not asked. MetadataError, ConfigurationError."""
        metadata = stored.value
        found = await self._ports.registrations.snapshot()
        registrations = Registrations(
            writable=tuple(each for each in found.writable if each not in without),
            read_only=tuple(each for each in found.read_only if each not in without),
        )
        credentials = credentials_of(ledger_id, metadata)
        members = sorted(metadata.bookies() & registrations.live)
        survey = await self._ports.placement.survey(registrations.writable)
        asked = asyncio.gather(*(self._ask(each, credentials) for each in members))
        lost = metadata.bookies() - registrations.live
        answered, (free_bytes, silent), autorecovery, serving = await asyncio.gather(
            asked,
            self._free_bytes(registrations.writable),
            self._autorecovery(ledger_id, lost),
            find_serving(self._ports.bookies, lost.difference(found.live, without), _SERVING_TIMEOUT_S),
        )
        answers = dict(zip(members, answered, strict=True))
        answering = frozenset(each for each, answer in answers.items() if not answer.is_silent)
        silent_members = {each: answer.problem for each, answer in answers.items() if answer.is_silent}
        reachable = registrations.live - silent_members.keys()
        reader = CopyReader(self._ports, self._config, reachable.__contains__)
        reads = _CopyReads(reader, credentials, metadata, accepted_entries(autorecovery.given_up, metadata))
        segments = await reads.segments(end_of(metadata, answers), answering)
        return LedgerFacts(
            ledger_id=ledger_id,
            metadata=metadata,
            registrations=registrations,
            ignored=frozenset(without),
            answers=answers,
            segments=segments,
            outside=await reads.outside(segments, sorted(registrations.live), silent_members),
            survey=survey,
            rules=survey.rules,
            free_bytes=free_bytes,
            silent=silent,
            autorecovery=autorecovery,
            serving=serving,
        )

    async def _ask(self, bookie_id: str, credentials: LedgerCredentials) -> MemberAnswer:
        try:
            reply = await self._ports.bookies.read_lac(bookie_id, credentials.ledger_id)
            return _decoded(reply, credentials.codec)
        except (NoSuchEntryError, NoSuchLedgerError):
            return MemberAnswer()
        except BookieError as error:
            is_refused = isinstance(error, AuthenticationRequiredError)
            return MemberAnswer(problem=reason_of(error), is_silent=isinstance(error, SILENCE), is_refused=is_refused)
        except EntryDigestError as error:
            return MemberAnswer(problem=f"its last entry is damaged: {error}")

    async def _free_bytes(self, bookie_ids: Collection[str]) -> tuple[dict[str, int], dict[str, str]]:
        """Free bytes of the bookies that answer, and for the others why not."""
        answers = await asyncio.gather(*map(self._ports.bookies.info, bookie_ids), return_exceptions=True)
        free_bytes, silent = {}, {}
        for bookie_id, answer in zip(bookie_ids, answers, strict=True):
            if isinstance(answer, BookieError):
                verb = "does not answer" if isinstance(answer, SILENCE) else "answers"
                silent[bookie_id] = f"{verb}: {reason_of(answer)}"
            elif isinstance(answer, BaseException):
                raise answer
            else:
                free_bytes[bookie_id] = answer.free_bytes
        return free_bytes, silent

    async def _autorecovery(self, ledger_id: int, lost: Collection[str]) -> AutorecoveryFacts:
        store, root = self._store, self._ports.ledgers.root
        auditor = await read_auditor(store, root, self._foreign)
        notes = RecoveryNotes(store, root)
        daemons = await read_daemons(notes) if lost else ()
        daemon, is_marked = find_auditor_daemon(auditor, daemons), marks_at_deadlines(auditor, daemons)
        deadlines = [(each, await notes.deadlines.find_or_problem(each)) for each in sorted(lost) if is_marked]
        given_up = await find_given_up(notes, ledger_id)

        async def ledgers() -> LedgerStore:
            return self._ports.ledgers

        return AutorecoveryFacts(
            now_ms=self._ports.clock.now_ms(),
            maintenance=tuple(await list_maintenance(notes)) if lost else (),
            deadlines=tuple((each, note.value) for each, note in deadlines if isinstance(note, Versioned)),
            moving=await leaving_bookies(store, root) if lost else frozenset(),
            is_enabled=await ReplicationSwitches(store, root).is_enabled(),
            auditor=None if auditor is None else auditor.bookie_id,
            alarm=None if daemon is None else daemon.alarm,
            given_up=given_up.get(ledger_id),
            returned=tuple([each for each, _ in await find_returned(self._ports.registrations, given_up, ledgers)]),
            away=tuple([each for each, _ in await find_away(self._ports.registrations, given_up, ledgers)]),
            mark=await read_mark(store, root, ledger_id),
            lock=await read_lock(store, root, ledger_id),
        )


class _CopyReads:
    """Reads single entries of one ledger from single bookies, once each. ``accepted``: see ``accepted_entries``."""

    def __init__(
        self,
        reader: CopyReader,
        credentials: LedgerCredentials,
        metadata: LedgerMetadata,
        accepted: Sequence[EntryRange],
    ) -> None:
        self._reader = reader
        self._credentials = credentials
        self._metadata = metadata
        self._sizes = metadata.sizes
        self._accepted = accepted

    async def segments(self, end: int, answering: frozenset[str]) -> tuple[SegmentFacts, ...]:
        """All segments; the open one ends at ``end``. ``answering``: the bookies that are not silent."""

        async def segment(number: int) -> SegmentFacts:
            entries = segment_entries(self._metadata, number, end)
            ensemble = self._metadata.segments[number].ensemble
            copies = [await self._ends(entries, bookie_id, index) for index, bookie_id in enumerate(ensemble)]
            return SegmentFacts(
                segment_index=number,
                entries=entries,
                ensemble=ensemble,
                is_open=number == len(self._metadata.segments) - 1 and not self._metadata.is_closed,
                copies=tuple(copies),
                without_copy=await self._without_copy(entries, copies, answering),
            )

        numbers = each_of(range(len(self._metadata.segments)))
        return tuple([each async for each in pipelined(numbers, segment, _READS_IN_FLIGHT_MAX)])

    async def _read(self, bookie_id: str, entry_id: int) -> Copy:
        return await self._reader.read(bookie_id, self._credentials, entry_id, attempts_max=1)

    async def _state(self, bookie_id: str, entry_id: int) -> CopyState | None:
        state = (await self._read(bookie_id, entry_id)).state
        return None if state is CopyState.MISSING and is_in(entry_id, self._accepted) else state

    async def _ends(self, entries: EntryRange, bookie_id: str, index: int) -> StripeCopy:
        """Read the first and the last entry that a bookie should have; one that does not answer is not asked."""
        count = stripe_count(entries, index, *self._sizes)
        first = last = None
        if count:
            first = await self._state(bookie_id, first_stored(entries, index, *self._sizes))
            last = await self._state(bookie_id, last_stored(entries, index, *self._sizes))
        return StripeCopy(bookie_id=bookie_id, index=index, entries=count, first=first, last=last)

    async def _without_copy(
        self, entries: EntryRange, copies: Sequence[StripeCopy], answering: frozenset[str]
    ) -> tuple[int, ...]:
        """See ``SegmentFacts``. Reads only where no member that answers has the first and last entry that it should."""
        entry_ids, size = range(entries.first_entry_id, entries.last_entry_id + 1), self._sizes[0]
        found = []
        for entry_id in sorted({*entry_ids[:size], *entry_ids[-size:]}):
            members = [copies[index] for index in write_set(entry_id, *self._sizes)]
            members = [each for each in members if each.bookie_id in answering]
            if is_in(entry_id, self._accepted) or any(not is_bad(member) for member in members):
                continue
            read = [await self._read(each.bookie_id, entry_id) for each in members]
            if all(copy.state in BAD_COPIES for copy in read):
                found.append(entry_id)
        return tuple(found)

    async def outside(
        self, segments: Sequence[SegmentFacts], live: Sequence[str], silent: Mapping[str, str | None]
    ) -> tuple[OutsideCopies, ...]:
        """What live bookies have of the entries without a copy, of segments in whose ensemble they are not.

        ``silent``: bookies that did not answer a moment ago, with the reason; they are not asked.
        """
        searched = [each for each in segments if each.without_copy][:_SEGMENTS_SEARCHED_MAX]
        wanted = {each: asked for each in live if (asked := _samples(searched, each))}
        kept = OutsideBookies(self._reader, self._credentials.ledger_id, list(wanted), self._read)
        last = await kept.last_copies()

        async def ask(bookie_id: str) -> OutsideCopies:
            found, copy = [], last[bookie_id]
            for entry_id in wanted[bookie_id] if bookie_id in kept.known_holders else ():
                copy = await self._read(bookie_id, entry_id)
                if copy.state is CopyState.UNREACHABLE:  # waiting for the same silence again would tell nothing new
                    break
                if copy.state is CopyState.PRESENT:
                    found.append(entry_id)
            problem = silent.get(bookie_id, copy.reason) if copy.state is CopyState.UNREACHABLE else None
            return OutsideCopies(bookie_id=bookie_id, asked=wanted[bookie_id], found=tuple(found), problem=problem)

        return tuple([each async for each in pipelined(each_of(wanted), ask, _READS_IN_FLIGHT_MAX)])


def _samples(segments: Sequence[SegmentFacts], bookie_id: str) -> tuple[int, ...]:
    """The first and the last entry without a copy of each segment in whose ensemble the bookie is not."""
    samples = [each.without_copy for each in segments if bookie_id not in each.ensemble]
    return tuple(sorted({entry_id for sample in samples for entry_id in (sample[0], sample[-1])}))


def _decoded(reply: LacReply, codec: EntryCodec) -> MemberAnswer:
    body = reply.last_entry_body
    last_entry_id = INVALID_ENTRY_ID if body is None else codec.decode(None, body).entry_id
    return MemberAnswer(last_entry_id=last_entry_id, last_add_confirmed=reported_lac(reply, codec))
