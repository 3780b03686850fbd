"""What is known about one ledger now: its metadata, what its bookies answer, and the state of autorecovery.

A few reads per bookie and segment. Fences nothing and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials, credentials_of
from bkctl.runtime.errors import BookieError, EntryDigestError, NoSuchEntryError, NoSuchLedgerError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.election import read_auditor
from bkctl.runtime.metadata.replication.lock import read_lock
from bkctl.runtime.metadata.replication.marks import read_mark
from bkctl.runtime.metadata.replication.switches import ReplicationSwitches
from bkctl.runtime.metadata.store import MetadataStore, Versioned
from bkctl.runtime.ports import LacReply
from bkctl.runtime.protocol.entry_body import EntryCodec
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.reader import SILENCE, CopyReader, reason_of
from bkctl.runtime.replication.judge.copies import CopyState
from bkctl.runtime.replication.judge.fragments import (
    EntryRange,
    first_stored,
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
from bkctl.storage.ids import INVALID_ENTRY_ID

_READS_IN_FLIGHT_MAX = 16
_SEGMENTS_SEARCHED_MAX = 16
"""Segments without a live copy for which bookies outside of the ensemble are asked; a ledger can have thousands."""


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
        silent_members = {each: answer.problem for each, answer in answers.items() if answer.is_silent}
        reachable = registrations.live - silent_members.keys()
        reader = CopyReader(self._ports, self._config, reachable.__contains__)
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


def _decoded(reply: LacReply, codec: EntryCodec) -> MemberAnswer:
    explicit = INVALID_ENTRY_ID if reply.lac_body is None else codec.decode_lac(reply.lac_body)
    if reply.last_entry_body is None:
        return MemberAnswer(last_add_confirmed=explicit)
    entry = codec.decode(None, reply.last_entry_body)
    confirmed = max(explicit, entry.credible_last_add_confirmed)
    return MemberAnswer(last_entry_id=entry.entry_id, last_add_confirmed=confirmed)
