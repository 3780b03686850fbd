"""Proves that a ledger cannot be moved away from lost bookies, or closed, because they alone may have entries of it.

The operator names the bookies that are lost; none of them may be registered. The proof asks every other bookie that
should have the entries, and every other registered bookie, because earlier members may still have them. Only "no such
entry" and "no such ledger" count: a bookie that is not registered, does not answer, or answers with an error or a
damaged copy proves nothing. The proof fences only when asked to, and never writes.
``search_entries``, for deleting an unclosed ledger, checks all bookies for any entry.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any

import msgspec

from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials, credentials_of
from bkctl.runtime.client.recovery import blocking_members
from bkctl.runtime.errors import BookieError, EntryDigestError, NoSuchEntryError, NoSuchLedgerError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import is_in_write_set, write_set
from bkctl.runtime.metadata.pipeline import each_of
from bkctl.runtime.protocol.entry_list import EntryList
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.gaps import OutsideBookies, listed_in, outside
from bkctl.runtime.replication.copy.limits import Lease, for_each_leased
from bkctl.runtime.replication.copy.reader import CopyReader, entry_bytes_estimate
from bkctl.runtime.replication.judge.copies import Copy, CopyState
from bkctl.runtime.replication.judge.fragments import Fragment, fragments_naming, stripe
from bkctl.storage.ids import INVALID_ENTRY_ID
from bkctl.storage.words import listed

_CLOSABLE = "it can be closed, so it can be moved"


class _SearchEndError(Exception):
    """The result is known: None if it is proven, otherwise why not."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(reason)
        self.reason = reason


def why_not_given_up(metadata: LedgerMetadata, lost: Collection[str], live: Collection[str]) -> str | None:
    """Why the ``lost`` bookies must not be given up for the last segment while these bookies are live; None if they
    may be. Pure. Each of them must be unregistered, and each other member must be registered."""
    for bookie_id in sorted(lost):
        if bookie_id in live:
            return f"bookie {bookie_id} is registered, so it is not lost"
    for bookie_id in metadata.last_segment.ensemble:
        if bookie_id not in live and bookie_id not in lost:
            return f"bookie {bookie_id} is not registered, and not named as lost"
    return None


async def why_end_not_lost(
    ports: ClientPorts, ledger_id: int, metadata: LedgerMetadata, lost: Collection[str], *, is_fencing: bool = False
) -> str | None:
    """None if it is proven that the end of an unclosed ledger can be known only from the ``lost`` bookies.

    That is so if none of them is registered, all other members of the last segment answer, and their answers are not
    sufficient to close the ledger, and no other registered bookie has, or may have, a later entry. Otherwise a sentence
    why not. ``is_fencing``: the members fence the ledger first.
    """
    live = (await ports.registrations.snapshot()).live
    reason = why_not_given_up(metadata, lost, live)
    if reason is not None:
        return reason
    credentials = credentials_of(ledger_id, metadata)
    ensemble = metadata.last_segment.ensemble
    others = [each for each in dict.fromkeys(ensemble) if each not in lost]
    answers = await asyncio.gather(*(last_entry_on(ports, each, credentials, is_fencing=is_fencing) for each in others))
    if (problem := next((each for each in answers if isinstance(each, str)), None)) is not None:
        return problem
    if not blocking_members(metadata, others):
        return _CLOSABLE
    known = [metadata.last_segment.first_entry_id - 1, *(each for each in answers if isinstance(each, int))]
    reader = CopyReader(ports, ReplicationConfig(), live.__contains__)
    kept = OutsideBookies.of(reader, credentials, live.difference(ensemble, lost))
    accepted = "".join(f" --accept-loss {each}" for each in sorted(set(lost).intersection(ensemble)))
    return await _why_later_outside(kept, max(known), f"bkctl ledger close {ledger_id}{accepted}")


async def _why_later_outside(kept: OutsideBookies, known: int, command: str) -> str | None:
    """Why an entry after ``known``, the last one of all members, may be on another bookie; the command copies it."""
    if (reason := await kept.why_silent()) is not None:
        return reason
    for bookie_id in await kept.holders():
        copy, listed = (await kept.last_copies())[bookie_id], await kept.list_of(bookie_id)
        if listed is None and copy.entry is None:
            return f"{outside(bookie_id)} may have entries: {copy.reason}"
        told = [copy.entry.entry_id] if copy.entry is not None else []
        last = max(told if listed is None else [*told, listed.last_entry_id])
        if last > known:
            return f"{outside(bookie_id)} has entry {last}, and no member has it; {command} copies it"
    return None


class LossProof:
    """Loss proofs for ledgers that reference dead bookies."""

    def __init__(self, ports: ClientPorts, config: ReplicationConfig) -> None:
        self._ports = ports
        self._config = config

    async def why_not_lost(self, ledger_id: int, dead: Collection[str]) -> str | None:
        """None if each fragment that references one of the ``dead`` bookies is proven lost; otherwise why not.

        A fragment of one of them is lost if, for one of its entries, all members of the write set that are not dead
        report "no such entry", and no registered bookie outside of the ensemble has, or may have, an entry of which no
        member has a good copy. For an open last segment see ``why_end_not_lost``. LedgerNotFoundError,
        MetadataFormatError, MetadataUnavailableError.
        """
        stored = await self._ports.ledgers.read(ledger_id)
        live = (await self._ports.registrations.snapshot()).live
        for bookie_id in dead:
            for fragment in fragments_naming(stored.value, [bookie_id]):
                if fragment.is_open:
                    reason = await why_end_not_lost(self._ports, ledger_id, stored.value, dead)
                else:
                    reader = CopyReader(self._ports, self._config, live.__contains__)
                    segment = _ClosedSegment(self._config, reader, ledger_id, stored.value, fragment, dead)
                    kept = OutsideBookies.of(reader, segment.credentials, live.difference(fragment.ensemble))
                    reason = await segment.why_not_lost() or await segment.why_outside(kept, bookie_id)
                if reason is not None:
                    return reason
        if (await self._ports.ledgers.read(ledger_id)).version != stored.version:
            return "its metadata was changed during the check"
        return None


@dataclasses.dataclass(eq=False)
class _ClosedSegment:
    """The entries that dead bookies should have of a segment that takes no more of them."""

    config: ReplicationConfig
    reader: CopyReader
    ledger_id: int
    metadata: LedgerMetadata
    fragment: Fragment
    dead: Collection[str]

    def __post_init__(self) -> None:
        self.credentials = credentials_of(self.ledger_id, self.metadata)
        self._sizes = self.metadata.sizes
        self._entry_bytes = entry_bytes_estimate(self.metadata)

    async def why_not_lost(self) -> str | None:
        """None if, for one of the entries, all members that are not dead report "no such entry"; otherwise why not."""
        first_unproven: dict[int, str] = {}
        unproven_count = 0

        async def check(entry_id: int, lease: Lease) -> None:
            nonlocal unproven_count
            copies = await self._read_members(entry_id)
            lease.resize(sum(len(copy.body) for copy in copies))
            good = next((copy for copy in copies if copy.state is CopyState.PRESENT), None)
            unproven = good or next((copy for copy in copies if copy.state is not CopyState.MISSING), None)
            if unproven is None:
                raise _SearchEndError(None)
            if entry_id < min(first_unproven, default=entry_id + 1):
                first_unproven.clear()
                first_unproven[entry_id] = f"bookie {unproven.bookie_id} {_may_have(unproven, entry_id)}"
            unproven_count += good is None
            if unproven_count >= self.config.barren_entries_max:
                raise _SearchEndError(next(iter(first_unproven.values())))

        try:
            await self._for_each(_stored_entries(self.fragment, self._sizes), check)
        except _SearchEndError as end:
            return end.reason
        return next(iter(first_unproven.values()), "its segment has no entry on this bookie, so it can be moved")

    async def why_outside(self, kept: OutsideBookies, dead: str) -> str | None:
        """None if no bookie outside of the ensemble has an entry of which no member has a good copy; otherwise why not.

        A recovery of the ``dead`` bookie copies such entries.
        """
        if (reason := await kept.why_silent()) is not None:
            return reason
        holders = await kept.holders()
        reasons = await asyncio.gather(*(self._why_may_be_on(kept, each, dead) for each in holders))
        return next((each for each in reasons if each is not None), None)

    async def _why_may_be_on(self, kept: OutsideBookies, bookie_id: str, dead: str) -> str | None:
        """Reads the entries that the bookie lists; if it gives no list, all, up to the limit of the configuration."""
        listed, denied = await kept.list_of(bookie_id), 0

        async def check(entry_id: int, lease: Lease) -> None:
            nonlocal denied
            members = await self._read_members(entry_id)
            lease.resize(sum(len(copy.body) for copy in members))
            if any(copy.state is CopyState.PRESENT for copy in members):
                return
            copy = await self.reader.read(bookie_id, self.credentials, entry_id)
            if copy.state is not CopyState.MISSING:
                copies = f"; bkctl recover failed-bookie {dead} --ledger {self.credentials.ledger_id} copies it"
                is_good = copy.state is CopyState.PRESENT
                raise _SearchEndError(f"{outside(bookie_id)} {_may_have(copy, entry_id)}{copies if is_good else ''}")
            denied += 1
            if denied >= self.config.barren_entries_max:
                raise _SearchEndError(
                    f"{outside(bookie_id)} may have others than the {denied:,} entries that it was asked for"
                )

        try:
            await self._for_each(self._entries_of(listed), check)
        except _SearchEndError as end:
            return end.reason
        return None

    async def _read_members(self, entry_id: int) -> list[Copy]:
        members = dict.fromkeys(self.fragment.ensemble[index] for index in write_set(entry_id, *self._sizes))
        asked = [member for member in members if member not in self.dead]
        return await self.reader.read_all(asked, self.credentials, entry_id)

    def _entries_of(self, listed: EntryList | None) -> Iterator[int]:
        """Those that the dead bookies should have, of a list; all without one."""
        if listed is None:
            yield from _stored_entries(self.fragment, self._sizes)
            return
        for entry_id in listed_in(listed, self.fragment.entries):
            if any(is_in_write_set(entry_id, index, *self._sizes) for index in self.fragment.bookie_indexes):
                yield entry_id

    async def _for_each(
        self, entry_ids: Iterator[int], check: Callable[[int, Lease], Coroutine[Any, Any, None]]
    ) -> None:
        entry_bytes = self._entry_bytes * self._sizes[1]
        await for_each_leased(each_of(entry_ids), check, self.reader.windows.items, lambda: entry_bytes)


async def last_entry_on(
    ports: ClientPorts, bookie_id: str, credentials: LedgerCredentials, *, is_fencing: bool = False
) -> int | str:
    """The last entry of the ledger on this bookie, -1 if it has none; a sentence if neither is certain."""
    fence_with = credentials.master_key if is_fencing else None
    try:
        reply = await ports.bookies.read(bookie_id, credentials.ledger_id, INVALID_ENTRY_ID, fence_with=fence_with)
        return credentials.codec.decode(None, reply.body).entry_id
    except (NoSuchEntryError, NoSuchLedgerError):
        return INVALID_ENTRY_ID
    except BookieError as error:
        return str(error)
    except EntryDigestError as error:
        return f"bookie {bookie_id} has a damaged last entry: {error}"


def _stored_entries(fragment: Fragment, sizes: tuple[int, int]) -> Iterator[int]:
    for index in fragment.bookie_indexes:
        yield from stripe(fragment.entries, index, *sizes)


def _may_have(copy: Copy, entry_id: int) -> str:
    if copy.state is CopyState.PRESENT:
        return f"has a good copy of entry {entry_id}"
    return f"may have entry {entry_id}: {copy.reason}"


def listed_reasons(reasons: Sequence[tuple[int, str]]) -> str:
    """The first ledgers with their reasons, and the number of others."""
    return listed([f"ledger {ledger_id}: {reason}" for ledger_id, reason in reasons], separator="; ")


class EntrySearch(msgspec.Struct, frozen=True):
    """Answers of the bookies.

    ``reason``: why the ledger must not be deleted; None if all registered bookies report that they have no entry of it.
    ``unreachable``: bookies in the metadata that are not registered and do not answer. ``is_end_lost``: the reason is
    None although bookies have entries, because it is proven that only lost bookies can know where the ledger ends.
    """

    reason: str | None
    unreachable: tuple[str, ...]
    is_end_lost: bool = False


async def search_entries(
    ports: ClientPorts, ledger_id: int, metadata: LedgerMetadata, *, is_fencing: bool = False
) -> EntrySearch:
    """Ask every registered bookie, and every bookie in the metadata, for its last entry of the ledger.

    ``is_fencing``: the bookies of the last segment fence the ledger first, so that its writer can add nothing more.
    """
    live = (await ports.registrations.snapshot()).live
    credentials = credentials_of(ledger_id, metadata)
    fenced = frozenset(metadata.last_segment.ensemble) if is_fencing else frozenset()
    bookie_ids = sorted(live | metadata.bookies())
    answers = await asyncio.gather(
        *(last_entry_on(ports, each, credentials, is_fencing=each in fenced) for each in bookie_ids)
    )
    reason = None
    unreachable = []
    for bookie_id, answer in zip(bookie_ids, answers, strict=True):
        if isinstance(answer, str) and bookie_id not in live:
            unreachable.append(bookie_id)
        elif isinstance(answer, str):
            reason = reason or answer
        elif answer >= 0:
            reason = f"bookie {bookie_id} has entry {answer}"
    return EntrySearch(reason, tuple(unreachable))
