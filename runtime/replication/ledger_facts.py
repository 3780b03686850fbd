"""What is known about one ledger now: its metadata, what its bookies answer, and the state of autorecovery.

A few reads per bookie and segment. Fences nothing and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

import msgspec

from runtime.client.ports import ClientPorts, LedgerCredentials, credentials_of
from runtime.errors import BookieError, EntryDigestError, NoSuchEntryError, NoSuchLedgerError
from runtime.ledger.metadata import LedgerMetadata
from runtime.ledger.write_set import write_set
from runtime.metadata.bookies.registration import Registrations
from runtime.metadata.pipeline import each_of, pipelined
from runtime.metadata.replication.directories import ForeignNames
from runtime.metadata.replication.election import read_auditor
from runtime.metadata.replication.lock import HeldLock, read_lock
from runtime.metadata.replication.marks import ListedMark, read_mark
from runtime.metadata.replication.switches import ReplicationSwitches
from runtime.metadata.store import MetadataStore, Versioned
from runtime.placement.rules import PlacementRules
from runtime.placement.survey import BookieSurvey
from runtime.ports import LacReply
from runtime.protocol.entry_body import EntryCodec
from runtime.replication.byte_window import ByteWindow
from runtime.replication.config import ReplicationConfig
from runtime.replication.copies import SILENCE, CopyReader, CopyState, reason_of
from runtime.replication.fragments import EntryRange, first_stored, last_stored, segment_entries, stripe_count
from storage.ids import INVALID_ENTRY_ID

_READS_IN_FLIGHT_MAX = 16
_SEGMENTS_SEARCHED_MAX = 16
"""Segments without a live copy for which bookies outside of the ensemble are asked; a ledger can have thousands."""


BAD_COPIES = frozenset({CopyState.MISSING, CopyState.CORRUPT, CopyState.FAILED, CopyState.DIFFERENT})
"""A bookie that answers, but not with a good copy."""


class MemberAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a bookie of the ledger says about its end.

    ``problem``: why there is no valid answer; None if there is one. ``is_silent``: whether there is none at all.
    ``last_entry_id``: its last entry, -1 if it has none.
    """

    problem: str | None = None
    is_silent: bool = False
    last_entry_id: int = INVALID_ENTRY_ID
    last_add_confirmed: int = INVALID_ENTRY_ID

    @property
    def is_valid(self) -> bool:
        """Whether the bookie would count in the recovery of the ledger."""
        return self.problem is None


class StripeCopy(msgspec.Struct, frozen=True, kw_only=True):
    """The first and last entry that one bookie should have of one segment; None: not read, or there is no entry."""

    bookie_id: str
    index: int
    entries: int | None
    first: CopyState | None = None
    last: CopyState | None = None


class SegmentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One segment. ``entries`` of an open one end at the last add confirmed that a bookie knows.

    ``without_copy``: the first and last entries of its write sets that no member is known to have.
    """

    segment_index: int
    entries: EntryRange
    ensemble: tuple[str, ...]
    is_open: bool
    copies: tuple[StripeCopy, ...]
    without_copy: tuple[int, ...] = ()


class OutsideCopies(msgspec.Struct, frozen=True, kw_only=True):
    """What a live bookie has of the entries that no member of their ensemble is known to have.

    ``asked`` and ``found`` are entry ids, first and last ones of segments. ``problem``: why it did not answer.
    """

    bookie_id: str
    asked: tuple[int, ...]
    found: tuple[int, ...] = ()
    problem: str | None = None


class AutorecoveryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of autorecovery, as far as it concerns one ledger."""

    is_enabled: bool = True
    auditor: str | None = None
    mark: ListedMark | None = None
    lock: HeldLock | None = None


class LedgerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found. ``registrations`` are without the ``ignored`` bookies, which count as gone."""

    ledger_id: int
    metadata: LedgerMetadata
    registrations: Registrations
    ignored: frozenset[str] = frozenset()
    answers: Mapping[str, MemberAnswer]
    segments: tuple[SegmentFacts, ...]
    outside: tuple[OutsideCopies, ...] = ()
    survey: BookieSurvey
    rules: PlacementRules
    free_bytes: Mapping[str, int]
    silent: Mapping[str, str]
    """Writable bookies that do not report their free space, with the reason; ``free_bytes`` is of those that do."""
    autorecovery: AutorecoveryFacts

    @property
    def last_add_confirmed(self) -> int:
        """The last entry of a closed ledger, else the highest last add confirmed that a bookie knows."""
        return end_of(self.metadata, self.answers)


def end_of(metadata: LedgerMetadata, answers: Mapping[str, MemberAnswer]) -> int:
    """The last entry of a closed ledger, else the highest last add confirmed that a bookie knows."""
    if metadata.is_closed:
        return metadata.last_entry_id
    before_last_segment = metadata.last_segment.first_entry_id - 1
    return max((before_last_segment, *(answer.last_add_confirmed for answer in answers.values())))


class LedgerLook:
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
        answers, (free_bytes, silent), autorecovery = await asyncio.gather(
            self._answers(members, credentials), self._free_bytes(registrations.writable), self._autorecovery(ledger_id)
        )
        answering = frozenset(each for each, answer in answers.items() if not answer.is_silent)
        window = ByteWindow(self._config.bytes_in_flight_max, self._config.entries_in_flight_max)
        silent_members = {each: answer.problem for each, answer in answers.items() if answer.is_silent}
        reachable = registrations.live - silent_members.keys()
        reader = CopyReader(self._ports.bookies, self._ports.clock, window, self._config, reachable.__contains__)
        segments = await _segments(reader, metadata, credentials, end_of(metadata, answers), answering)
        return LedgerFacts(
            ledger_id=ledger_id,
            metadata=metadata,
            registrations=registrations,
            ignored=frozenset(without),
            answers=answers,
            segments=segments,
            outside=await _outside(reader, credentials, segments, sorted(registrations.live), silent_members),
            survey=survey,
            rules=survey.rules,
            free_bytes=free_bytes,
            silent=silent,
            autorecovery=autorecovery,
        )

    async def _answers(self, bookie_ids: Collection[str], credentials: LedgerCredentials) -> dict[str, MemberAnswer]:
        answers = await asyncio.gather(*(self._ask(each, credentials) for each in bookie_ids))
        return dict(zip(bookie_ids, answers, strict=True))

    async def _ask(self, bookie_id: str, credentials: LedgerCredentials) -> MemberAnswer:
        try:
            reply = await self._ports.bookies.read_lac(bookie_id, credentials.ledger_id)
            return _decoded(reply, credentials.codec)
        except (NoSuchEntryError, NoSuchLedgerError):
            return MemberAnswer()
        except BookieError as error:
            return MemberAnswer(problem=reason_of(error), is_silent=isinstance(error, SILENCE))
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

    async def _autorecovery(self, ledger_id: int) -> AutorecoveryFacts:
        store, root = self._store, self._ports.ledgers.root
        auditor = await read_auditor(store, root, self._foreign)
        return AutorecoveryFacts(
            is_enabled=await ReplicationSwitches(store, root).is_enabled(),
            auditor=None if auditor is None else auditor.bookie_id,
            mark=await read_mark(store, root, ledger_id),
            lock=await read_lock(store, root, ledger_id),
        )


async def _segments(
    reader: CopyReader,
    metadata: LedgerMetadata,
    credentials: LedgerCredentials,
    end: int,
    answering: frozenset[str],
) -> tuple[SegmentFacts, ...]:
    async def segment(number: int) -> SegmentFacts:
        entries = segment_entries(metadata, number, end)
        ensemble = metadata.segments[number].ensemble
        indexes = range(len(ensemble))
        copies = [await _copy(reader, credentials, metadata, entries, ensemble, each) for each in indexes]
        return SegmentFacts(
            segment_index=number,
            entries=entries,
            ensemble=ensemble,
            is_open=number == len(metadata.segments) - 1 and not metadata.is_closed,
            copies=tuple(copies),
            without_copy=await _without_copy(reader, credentials, metadata, entries, copies, answering),
        )

    numbers = each_of(range(len(metadata.segments)))
    return tuple([each async for each in pipelined(numbers, segment, _READS_IN_FLIGHT_MAX)])


async def _without_copy(
    reader: CopyReader,
    credentials: LedgerCredentials,
    metadata: LedgerMetadata,
    entries: EntryRange,
    copies: Sequence[StripeCopy],
    answering: frozenset[str],
) -> tuple[int, ...]:
    """See ``SegmentFacts``. Reads only where no member that answers has the first and last entry that it should."""
    sizes = (metadata.ensemble_size, metadata.write_quorum_size)
    first, last = entries.first_entry_id, entries.last_entry_id
    found = []
    for entry_id in sorted({*range(first, last + 1)[: sizes[0]], *range(first, last + 1)[-sizes[0] :]}):
        members = [copies[index] for index in write_set(entry_id, *sizes) if copies[index].bookie_id in answering]
        if any(not is_bad(member) for member in members):
            continue
        read = [await reader.read(each.bookie_id, credentials, entry_id, attempts_max=1) for each in members]
        if all(copy.state in BAD_COPIES for copy in read):
            found.append(entry_id)
    return tuple(found)


async def _outside(
    reader: CopyReader,
    credentials: LedgerCredentials,
    segments: Sequence[SegmentFacts],
    live: Sequence[str],
    silent: Mapping[str, str | None],
) -> tuple[OutsideCopies, ...]:
    """What live bookies have of the entries without a copy, of segments in whose ensemble they are not.

    ``silent``: bookies that did not answer a moment ago, with the reason; they are not asked.
    """
    searched = [each for each in segments if each.without_copy][:_SEGMENTS_SEARCHED_MAX]

    async def ask(bookie_id: str) -> OutsideCopies:
        samples = [each.without_copy for each in searched if bookie_id not in each.ensemble]
        asked = tuple(sorted({entry_id for sample in samples for entry_id in (sample[0], sample[-1])}))
        found: list[int] = []
        for entry_id in asked:
            copy = await reader.read(bookie_id, credentials, entry_id, attempts_max=1)
            if copy.state is CopyState.UNREACHABLE:  # waiting for the same silence again would tell nothing new
                problem = silent.get(bookie_id, copy.reason)
                return OutsideCopies(bookie_id=bookie_id, asked=asked, found=tuple(found), problem=problem)
            if copy.state is CopyState.PRESENT:
                found.append(entry_id)
        return OutsideCopies(bookie_id=bookie_id, asked=asked, found=tuple(found))

    if not searched:
        return ()
    return tuple([each async for each in pipelined(each_of(live), ask, _READS_IN_FLIGHT_MAX) if each.asked])


async def _copy(
    reader: CopyReader,
    credentials: LedgerCredentials,
    metadata: LedgerMetadata,
    entries: EntryRange,
    ensemble: tuple[str, ...],
    index: int,
) -> StripeCopy:
    """Read the first and the last entry that a bookie should have; one that does not answer is not asked."""
    sizes = (metadata.ensemble_size, metadata.write_quorum_size)
    count = stripe_count(entries, index, *sizes)
    first = last = None
    if count:
        first, last = [
            (await reader.read(ensemble[index], credentials, entry_id, attempts_max=1)).state
            for entry_id in (first_stored(entries, index, *sizes), last_stored(entries, index, *sizes))
        ]
    return StripeCopy(bookie_id=ensemble[index], index=index, entries=count, first=first, last=last)


def is_bad(copy: StripeCopy) -> bool:
    """Whether the first or the last entry is missing or damaged."""
    return copy.first in BAD_COPIES or copy.last in BAD_COPIES


def _decoded(reply: LacReply, codec: EntryCodec) -> MemberAnswer:
    explicit = INVALID_ENTRY_ID if reply.lac_body is None else codec.decode_lac(reply.lac_body)
    if reply.last_entry_body is None:
        return MemberAnswer(last_add_confirmed=explicit)
    entry = codec.decode(None, reply.last_entry_body)
    confirmed = max(explicit, entry.credible_last_add_confirmed)
    return MemberAnswer(last_entry_id=entry.entry_id, last_add_confirmed=confirmed)
