"""Closes a ledger whose end only lost bookies may know, after the operator has given them up. Exception to promise 3.

    examine  the lost bookies are unregistered, all other members answer, and others can take the place of the lost
    fence    every other member; without the answer of each of them nothing more is done
    ask      every other registered bookie, because earlier members may have entries; each must answer
    copy     each entry of the last segment that any of them has, to its full write set without the lost bookies
    close    one compare-and-set: the last segment names no lost bookie, and the new members must not have left

The end is the highest entry with a good digest, and not below a last add confirmed that was seen. Entries before it
without a good copy are holes: the metadata says that they exist, so a reader gets an error there, not the end. The
caller holds the replication lock. Until the close, only the state, the fences and some harmless copies are new, so it
can be repeated after a stop at any moment. See decision 23.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import msgspec

from bkctl.runtime.client.ensemble_change import Replacements
from bkctl.runtime.client.entry_read import EntryReader
from bkctl.runtime.client.last_entry import reported_lac
from bkctl.runtime.client.metadata_update import LedgerRecord, LocalCopy, update_record
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials, credentials_of
from bkctl.runtime.errors import (
    BookieError,
    BookieIOError,
    EntryDigestError,
    LedgerError,
    LedgerRecoveryError,
    NoNodeError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from bkctl.runtime.ledger.changes import to_closed, to_in_recovery
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState, Segment
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.store import NodeWrite, Versioned
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.gaps import OutsideBookies
from bkctl.runtime.replication.copy.limits import SharedPacer
from bkctl.runtime.replication.copy.reader import CopyReader, batch_entries_max, reason_of
from bkctl.runtime.replication.copy.stripe_task import CopyTools, worst_of
from bkctl.runtime.replication.judge.copies import Copy, CopyState, compared_copies
from bkctl.runtime.replication.judge.fragments import EntryRange, EntryRangeSet, in_and_out_of
from bkctl.runtime.replication.survey.loss_proof import why_not_given_up
from bkctl.storage.ids import ENTRY_ID_MAX, INVALID_ENTRY_ID

READ_AHEAD_ENTRIES = 10_000
"""How many entries without a good copy in a row, after the highest one that is known, prove that no more follow.

The answer for the last entry is not enough: a Java bookie may name a lower one than it has (protocol section 6.5)."""

LENGTH_SEARCH_MAX = 1000
"""How many entries before the last segment are tried for the length of a ledger without a good entry in it."""

_FIRST_BATCH = 8


class AcceptedLoss(msgspec.Struct, frozen=True, kw_only=True):
    """What a close gave up. ``holes``: entries before the end without a good copy.

    ``damaged``: entries after the end of which a damaged copy exists, which may have been acknowledged.
    ``unlisted``: how many more entries are missing before the end than ``holes`` has, which are too many ranges.
    ``corrupt_left``: corrupt copies that stay next to good ones, by bookie; bkctl recover ledger replaces them.
    """

    bookie_ids: tuple[str, ...]
    entries: int
    holes: tuple[EntryRange, ...]
    damaged: tuple[EntryRange, ...]
    unlisted: int
    corrupt_left: Mapping[str, Sequence[int]]


class _MemberFailedError(Exception):
    """A bookie cannot take a copy: another one must take its place."""

    def __init__(self, bookie_id: str, reason: str) -> None:
        super().__init__(bookie_id)
        self.bookie_id = bookie_id
        self.reason = reason


class LossClose:
    """Closes ledgers of which only the ``lost`` bookies may have the end."""

    def __init__(
        self,
        ports: ClientPorts,
        config: ReplicationConfig,
        lost: Collection[str],
        read_ahead_entries: int = READ_AHEAD_ENTRIES,
    ) -> None:
        self._ports = ports
        self._read_ahead = read_ahead_entries
        self._config = config
        self._lost = frozenset(lost)

    def lost_members(self, metadata: LedgerMetadata) -> tuple[str, ...]:
        """The lost bookies in the last segment."""
        return tuple(sorted(self._lost.intersection(metadata.last_segment.ensemble)))

    async def examine(self, ledger_id: int, metadata: LedgerMetadata) -> int | str:
        """Why it would be refused, as far as that is known without a fence. Otherwise the highest entry that is known,
        which is not certainly the last one. Changes nothing."""
        if (reason := await self._why_not_given_up(metadata)) is not None:
            return reason
        try:
            known = await self._ask_others(ledger_id, metadata, is_fencing=False)
            kept = await self._ask_outside(ledger_id, metadata)
            await self._replaced(ledger_id, metadata, metadata.last_segment.ensemble, self._lost, {})
        except (BookieError, LedgerError) as error:
            return bare_reason(ledger_id, error)
        return max(*known, *(each.entry.entry_id for each in kept.values() if each.entry is not None))

    async def close(
        self,
        ledger_id: int,
        stored: Versioned[LedgerMetadata],
        before_close: Callable[[Sequence[EntryRange]], Awaitable[NodeWrite]],
    ) -> tuple[Versioned[LedgerMetadata], AcceptedLoss | None]:
        """Close it; returns the closed metadata, and None if another process closed it.

        ``before_close`` is called with the holes before the compare-and-set, which includes the write that it returns;
        its errors stop it. Raises BookieError if a member does not answer, LedgerRecoveryError, NotEnoughBookiesError,
        LedgerNotFoundError, MetadataError.
        """
        local = LocalCopy(stored)
        snapshot = await self._update(
            ledger_id, local, lambda metadata: metadata.state is LedgerState.OPEN, to_in_recovery
        )
        if snapshot.is_closed:
            return local.current, None
        found = await self._find_and_copy(ledger_id, snapshot)
        first_entry_id, end = snapshot.last_segment.first_entry_id, found.known
        found.note_holes_until(end)
        length = found.length
        if length is None:
            length = await self._length_before(ledger_id, snapshot, min(end, first_entry_id - 1))
        holes = found.holes.ranges()
        note = await before_close(holes)
        if (reason := await self._why_not_given_up(snapshot)) is not None:
            raise LedgerRecoveryError(ledger_id, f"{reason}; it stays in recovery: run bkctl ledger close {ledger_id}")
        segment = Segment(first_entry_id, found.ensemble)

        def transform(metadata: LedgerMetadata) -> LedgerMetadata:
            if metadata.state is not LedgerState.IN_RECOVERY or metadata.last_segment != snapshot.last_segment:
                raise LedgerRecoveryError(ledger_id, "another process changed its state or last segment meanwhile")
            return to_closed(metadata, end, length, (*metadata.segments[:-1], segment))

        closed = await self._update(ledger_id, local, lambda metadata: not metadata.is_closed, transform, note)
        if (closed.last_entry_id, closed.last_segment) != (end, segment):
            return local.current, None
        loss = AcceptedLoss(
            bookie_ids=self.lost_members(snapshot),
            entries=found.entries,
            holes=holes,
            unlisted=found.holes.count - sum(each.count for each in holes),
            damaged=in_and_out_of(found.damaged.ranges(), (EntryRange(end + 1, ENTRY_ID_MAX),))[0],
            corrupt_left=found.corrupt_left,
        )
        return local.current, loss

    async def _why_not_given_up(self, metadata: LedgerMetadata) -> str | None:
        return why_not_given_up(metadata, self._lost, (await self._ports.registrations.snapshot()).live)

    async def _find_and_copy(self, ledger_id: int, snapshot: LedgerMetadata) -> _SegmentCopy:
        """Fence, then copy until all members of an ensemble without lost bookies have all entries that were found."""
        if (reason := await self._why_not_given_up(snapshot)) is not None:
            raise LedgerRecoveryError(ledger_id, reason)
        ensemble = snapshot.last_segment.ensemble
        confirmed, told = await self._ask_others(ledger_id, snapshot, is_fencing=True)
        kept = await self._ask_outside(ledger_id, snapshot)
        leaving, failed = self._lost, dict[str, str]()
        while True:
            ensemble = await self._replaced(ledger_id, snapshot, ensemble, leaving, failed)
            live = (await self._ports.registrations.snapshot()).live
            copies = CopyReader(self._ports, self._config, live.__contains__)
            tools = CopyTools(self._ports, copies, self._config, SharedPacer(self._ports.clock))
            parts = (tools, ledger_id, snapshot, ensemble, self._lost, [*kept])
            found = _SegmentCopy(*parts, known=max(confirmed, told), read_ahead=self._read_ahead)
            try:
                await found.run()
            except _MemberFailedError as error:
                failed[error.bookie_id] = error.reason
                leaving = frozenset({error.bookie_id})
            else:
                return found

    async def _ask_others(self, ledger_id: int, metadata: LedgerMetadata, *, is_fencing: bool) -> tuple[int, int]:
        """The highest last add confirmed, and the highest entry, that the other members of the last segment report.

        BookieError unless each of them answers. A damaged last entry is an answer: the bookie has fenced the ledger.
        """
        credentials = credentials_of(ledger_id, metadata)
        before = metadata.last_segment.first_entry_id - 1
        others = [each for each in metadata.last_segment.ensemble if each not in self._lost]
        answers = await asyncio.gather(*(self._ask(each, credentials, is_fencing=is_fencing) for each in others))
        confirmed, told = zip((before, before), *answers, strict=True)
        return max(confirmed), max(told)

    async def _ask_outside(self, ledger_id: int, metadata: LedgerMetadata) -> dict[str, Copy]:
        """The last entries on registered bookies outside of the last ensemble that have some of the ledger.

        They need no fence: the metadata of a ledger in recovery takes no other ensemble of its writer.
        LedgerRecoveryError unless each of them answers.
        """
        live = (await self._ports.registrations.snapshot()).live
        reader = CopyReader(self._ports, self._config, live.__contains__)
        bookie_ids = live.difference(metadata.last_segment.ensemble, self._lost)
        kept = OutsideBookies.of(reader, credentials_of(ledger_id, metadata), bookie_ids)
        if (reason := await kept.why_silent()) is not None:
            raise LedgerRecoveryError(ledger_id, reason)
        last = await kept.last_copies()
        return {each: last[each] for each in kept.known_holders}

    async def _ask(self, bookie_id: str, credentials: LedgerCredentials, *, is_fencing: bool) -> tuple[int, int]:
        bookies, ledger_id = self._ports.bookies, credentials.ledger_id
        key = credentials.master_key if is_fencing else None
        confirmed = told = INVALID_ENTRY_ID
        try:
            reply = await bookies.read(bookie_id, ledger_id, INVALID_ENTRY_ID, fence_with=key)
            last = credentials.codec.decode(None, reply.body)
            confirmed, told = last.credible_last_add_confirmed, last.entry_id
        except (NoSuchEntryError, NoSuchLedgerError, EntryDigestError):
            pass
        except BookieIOError as error:
            told = await self._last_listed(bookie_id, ledger_id, key, error)
        with contextlib.suppress(BookieError, EntryDigestError):  # a bookie may have no explicit one
            confirmed = max(confirmed, reported_lac(await bookies.read_lac(bookie_id, ledger_id), credentials.codec))
        return confirmed, told

    async def _last_listed(self, bookie_id: str, ledger_id: int, key: bytes | None, error: BookieIOError) -> int:
        """The last entry in the bookie's list, if it cannot read that entry; ``error`` if it sends no list.

        The error may also mean that the fence failed: "no such entry" for the one after it means that it did not.
        """
        try:
            told = (await self._ports.bookies.list_entries(bookie_id, ledger_id)).last_entry_id
        except BookieError:
            raise error from None
        if key is not None:
            with contextlib.suppress(NoSuchEntryError):
                await self._ports.bookies.read(bookie_id, ledger_id, min(told + 1, ENTRY_ID_MAX), fence_with=key)
        return told

    async def _replaced(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        ensemble: tuple[str, ...],
        leaving: Collection[str],
        failed: Mapping[str, str],
    ) -> tuple[str, ...]:
        """The ensemble with other bookies in place of those that leave; NotEnoughBookiesError. ``failed``: why some
        cannot take copies; they are not chosen."""
        positions = {index: each for index, each in enumerate(ensemble) if each in leaving}
        if not positions:
            return ensemble
        replacements = await Replacements.fetch(self._ports, ledger_id, metadata)
        try:
            chosen = replacements.choose(ensemble, positions, {*self._lost, *failed})
        except NotEnoughBookiesError as error:
            why = "".join(f"; {each}: {reason}" for each, reason in failed.items())
            raise NotEnoughBookiesError(ledger_id, f"{bare_reason(ledger_id, error)}{why}") from error
        if len(chosen) < len(positions):
            missing = ", ".join(bookie_id for index, bookie_id in positions.items() if index not in chosen)
            raise NotEnoughBookiesError(ledger_id, f"no writable bookie is left to replace {missing}: start another")
        return tuple(chosen.get(index, each) for index, each in enumerate(ensemble))

    async def _length_before(self, ledger_id: int, metadata: LedgerMetadata, entry_id: int) -> int:
        """Payload bytes up to the last entry before the last segment that can be read; 0 if none can."""
        credentials = credentials_of(ledger_id, metadata)
        reader = EntryReader(self._ports, credentials, credentials.codec.decode_for_recovery)
        for each in range(entry_id, max(INVALID_ENTRY_ID, entry_id - LENGTH_SEARCH_MAX), -1):
            with contextlib.suppress(BookieError, LedgerError):
                return (await reader.read(metadata, each)).length
        return 0

    async def _update(
        self,
        ledger_id: int,
        local: LocalCopy[LedgerMetadata],
        is_needed: Callable[[LedgerMetadata], bool],
        transform: Callable[[LedgerMetadata], LedgerMetadata],
        *others: NodeWrite,
    ) -> LedgerMetadata:
        def others_for(value: LedgerMetadata) -> list[NodeWrite]:
            new = sorted(value.bookies() - local.value.bookies())
            return [*others, *(check for each in new for check in self._ports.registrations.checks(each))]

        try:
            return await update_record(
                LedgerRecord(self._ports.ledgers, ledger_id, others_for),
                local,
                is_needed=is_needed,
                transform=transform,
                clock=self._ports.clock,
                attempts_max=self._ports.config.metadata_attempts_max,
            )
        except NoNodeError as error:
            left = f"a bookie that got entries left the cluster, or became read-only: there is no {error.path}"
            raise LedgerRecoveryError(ledger_id, left) from error


@dataclasses.dataclass(eq=False)
class _SegmentCopy:
    """Reads the last segment from all bookies that may have it, and completes the copies on the new ensemble.

    The copies are the bytes of the writer. So a copy of an earlier attempt on a new member is as good as any other.
    It has what was found so far: ``length``, up to the last good entry, and the number of good ``entries``. ``kept``:
    other bookies that have entries of the ledger. ``known``: the highest entry that was seen, or that is confirmed; at
    first at least the one before the segment.
    """

    tools: CopyTools
    ledger_id: int
    metadata: LedgerMetadata
    ensemble: tuple[str, ...]
    lost: frozenset[str]
    kept: Sequence[str]
    known: int
    read_ahead: int

    def __post_init__(self) -> None:
        self._old = self.metadata.last_segment.ensemble
        self._sources = {*self._old, *self.kept}
        self._credentials = credentials_of(self.ledger_id, self.metadata)
        self._last_good = self.metadata.last_segment.first_entry_id - 1
        self.length: int | None = None
        self.entries = 0
        self.holes = EntryRangeSet()
        self.damaged = EntryRangeSet()
        self.corrupt_left: dict[str, list[int]] = {}

    async def run(self) -> None:
        """Copy all entries; LedgerRecoveryError if a bookie that may have an entry gives no answer for it."""
        entry_id = self.metadata.last_segment.first_entry_id
        batch_size, largest_bytes, barren = _FIRST_BATCH, 0, 0
        while (limit := min(self.known + self.read_ahead, ENTRY_ID_MAX)) >= entry_id:
            entry_ids = range(entry_id, min(entry_id + batch_size - 1, limit) + 1)
            wanted = {each: self._members(each) for each in entry_ids}
            copies = await self.tools.copies.read_each(wanted, self._credentials)
            missing: dict[str, dict[int, bytes]] = {}
            for each in entry_ids:
                judged = self._judged(each, copies[each])
                good = self._good_body(each, judged)
                barren += 1
                if good is not None:
                    barren = 0
                    largest_bytes = max(largest_bytes, len(good))
                    for bookie_id in await self._incomplete(each, judged):
                        missing.setdefault(bookie_id, {})[each] = good
            await asyncio.gather(*(self._write(each, bodies) for each, bodies in missing.items()))
            entry_id = entry_ids[-1] + 1
            batch_size = batch_entries_max(largest_bytes)
            if barren >= self.read_ahead and barren % self.read_ahead < len(entry_ids):
                entry_id = await self._after_gap(entry_id, barren)

    def note_holes_until(self, entry_id: int) -> None:
        """No entry after the last good one, up to this one, has a good copy."""
        self.holes.add_range(EntryRange(self._last_good + 1, entry_id))

    async def _after_gap(self, entry_id: int, barren: int) -> int:
        """Where to go on after ``barren`` entries without a good copy: an entry may claim any end, like 2**62."""
        ledger_id = self._credentials.ledger_id
        members = {*self._sources, *self.ensemble} - self.lost
        lists = await asyncio.gather(*(self.tools.copies.list_of(each, ledger_id) for each in members))
        if None not in lists:
            following = (each.first_from(entry_id) for each in lists if each is not None)
            return min((each for each in following if each is not None), default=ENTRY_ID_MAX + 1)
        if barren >= self.tools.config.barren_entries_max:
            raise LedgerRecoveryError(ledger_id, f"no bookie has a good copy of the {barren} entries before {entry_id}")
        return entry_id

    def _write_set(self, entry_id: int, ensemble: tuple[str, ...]) -> list[str]:
        indexes = write_set(entry_id, self.metadata.ensemble_size, self.metadata.write_quorum_size)
        return [ensemble[index] for index in indexes]

    def _members(self, entry_id: int) -> list[str]:
        """The bookies that may have the entry, and those that are to have it."""
        members = self._write_set(entry_id, self._old) + self._write_set(entry_id, self.ensemble)
        return [each for each in dict.fromkeys([*members, *self.kept]) if each not in self.lost]

    def _judged(self, entry_id: int, copies: Mapping[str, Copy]) -> list[Copy]:
        """The copies of an entry as they count; a bookie that gave no answer proves nothing."""
        for copy in copies.values():
            if copy.state is CopyState.UNREACHABLE or (copy.state is CopyState.FAILED and not copy.is_damaged):
                if copy.bookie_id not in self._sources:
                    raise _MemberFailedError(copy.bookie_id, copy.reason)
                reason = f"bookie {copy.bookie_id}: entry {entry_id} may exist on it: {copy.reason}"
                raise LedgerRecoveryError(self._credentials.ledger_id, reason)
        return compared_copies(list(copies.values()))

    def _good_body(self, entry_id: int, judged: Sequence[Copy]) -> bytes | None:
        """The copy that counts; notes what is known of the entry."""
        for copy in judged:
            if copy.state is CopyState.PRESENT and copy.entry is not None and copy.entry.length >= 0:
                self.note_holes_until(entry_id - 1)
                self.entries += 1
                self._last_good, self.length = entry_id, copy.entry.length
                self.known = max(self.known, entry_id, copy.entry.credible_last_add_confirmed)
                return copy.body
        if any(each.state is not CopyState.MISSING for each in judged):
            self.damaged.add(entry_id)
        return None

    async def _incomplete(self, entry_id: int, judged: Sequence[Copy]) -> list[str]:
        """The members that have no good copy of an entry and can get one. A corrupt copy is written over only on a
        bkctl bookie (H18); a former member keeps it, a new one is not used."""
        bookie_ids = []
        states = {each.bookie_id: each.state for each in judged}
        for bookie_id in dict.fromkeys(self._write_set(entry_id, self.ensemble)):
            state = states[bookie_id]
            if state is CopyState.PRESENT:
                continue
            if state is CopyState.MISSING or await self.tools.software.is_bkctl(bookie_id):
                bookie_ids.append(bookie_id)
            elif bookie_id in self._old:
                self.corrupt_left.setdefault(bookie_id, []).append(entry_id)
            else:
                raise _MemberFailedError(bookie_id, f"it has a corrupt copy of entry {entry_id}, which stays there")
        return bookie_ids

    async def _write(self, bookie_id: str, bodies: Mapping[int, bytes]) -> None:
        """Write the entries to the bookie and read them back; _MemberFailedError."""
        failures = await self.tools.writer.add(bookie_id, self._credentials, list(bodies.items()), is_patient=True)
        if failures:
            self.tools.ports.suspects.add(bookie_id)
            raise _MemberFailedError(
                bookie_id, reason_of(self.tools.ports.bookies.error_of(worst_of(failures), bookie_id))
            )
        written = await self.tools.copies.read_many(bookie_id, self._credentials, list(bodies))
        for copy, body in zip(written, bodies.values(), strict=True):
            if copy.body != body:
                raise _MemberFailedError(bookie_id, f"a new copy cannot be read back: {copy.reason or 'it differs'}")


def bare_reason(ledger_id: int, error: BaseException) -> str:
    """The error without the ledger that its sentence begins with."""
    return str(error).removeprefix(f"ledger {ledger_id}: ")
