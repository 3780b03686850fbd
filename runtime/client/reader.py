"""Reads ledgers: closed ones to their end, open ones up to the LAC. Source: protocol sections 7.1, 7.2 and 7.4."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from bkctl.runtime.client.entry_read import EntryReader
from bkctl.runtime.client.last_entry import read_last_add_confirmed, try_read_last_add_confirmed
from bkctl.runtime.client.metadata_update import LedgerRecord, LocalCopy
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials
from bkctl.runtime.client.read_ahead import ReadAhead
from bkctl.runtime.client.tail import LedgerTail
from bkctl.runtime.errors import BookieError, DigestMismatchError, LedgerReadError, MetadataError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.protocol.entry_body import DecodedEntry
from bkctl.storage.errors import BkctlError

T = TypeVar("T")

ENSEMBLES_TRIED_MAX = 4
"""Maximum ensembles asked for one entry or for the last add confirmed, because the data may move meanwhile."""

ENTRIES_WITHOUT_END_MAX = 100_000
"""Maximum entries that are asked for one by one while it is unknown where a ledger, or a copy of it, ends."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One record of a ledger."""

    entry_id: int
    payload: bytes


class NoGoodCopy(msgspec.Struct, frozen=True, gc=False):
    """An entry of which no good copy was returned, and why."""

    entry_id: int
    error: BkctlError


class LedgerReader:
    """Reads the entries of one ledger. It has no connection of its own and needs no closing.

    A closed ledger can be read to its end, an open one up to ``last_add_confirmed``. This value advances with the
    answers of bookies and with ``read_last_add_confirmed``.

    If no bookie of an ensemble can answer a request, the reader reads the metadata again: re-replication, a recovery
    or the writer may have moved the entries to other bookies.
    """

    def __init__(
        self,
        ports: ClientPorts,
        credentials: LedgerCredentials,
        metadata: Versioned[LedgerMetadata],
        last_add_confirmed: int,
    ) -> None:
        self.ledger_id = credentials.ledger_id
        self._ports = ports
        self._credentials = credentials
        self._record = LedgerRecord(ports.ledgers, credentials.ledger_id)
        self._copy = LocalCopy(metadata)
        self._entries = EntryReader(ports, credentials)
        self._entries.last_add_confirmed = last_add_confirmed
        self._expected_bytes = 0
        """Size of the largest payload of the last answer; 0 if there was none."""

    @property
    def metadata(self) -> LedgerMetadata:
        """The newest metadata that this reader has seen."""
        return self._copy.value

    @property
    def is_closed(self) -> bool:
        """Whether the ledger's end is final."""
        return self._copy.value.is_closed

    @property
    def last_add_confirmed(self) -> int:
        """Highest entry id that may be read: the last entry if the ledger is closed, -1 if there is none."""
        stored = self._copy.value
        return stored.last_entry_id if stored.is_closed else self._entries.last_add_confirmed

    async def read_last_add_confirmed(self) -> int:
        """Ask the metadata store and the bookies for the last add confirmed; never lower than before.

        The result is at least the LAC that the writer stored with its last acknowledged entry. Does not fence.
        Raises LedgerReadError, LedgerNotFoundError and MetadataError.
        """
        if self.is_closed:
            return self.last_add_confirmed
        self._copy.install(await self._record.read())
        await self._learn(partial(read_last_add_confirmed, self._ports, self._credentials, is_fencing=False))
        return self.last_add_confirmed

    async def try_read_last_add_confirmed(self) -> int:
        """Like ``read_last_add_confirmed``, but one bookie's answer suffices: faster, and works with most bookies down,
        but acknowledged entries may be missing from it. LedgerReadError if no bookie gives a valid answer.
        """
        above = self.last_add_confirmed
        await self._learn(partial(try_read_last_add_confirmed, self._ports, self._credentials, above=above))
        return self.last_add_confirmed

    async def _learn(self, ask: Callable[[LedgerMetadata], Awaitable[int]]) -> None:
        async def answer(metadata: LedgerMetadata) -> int:
            return metadata.last_entry_id if metadata.is_closed else await ask(metadata)

        asking = self._ask_again(answer, lambda metadata: (metadata.is_closed, metadata.last_segment), "its end")
        reported = await reported_by_bookies(self.ledger_id, asking)
        self._entries.last_add_confirmed = max(self._entries.last_add_confirmed, reported)

    async def read(self, first: int, last: int | None = None) -> list[Entry]:
        """Entries ``first`` to ``last``, both included; ``last`` None: to ``last_add_confirmed``.

        The list is kept in memory: use ``entries`` for long ranges. Errors as for ``entries``.
        """
        return [entry async for entry in self.entries(first, last)]

    async def read_last_entry(self) -> Entry:
        """Update the last add confirmed and read its entry; LedgerReadError if the ledger is empty."""
        last = await self.read_last_add_confirmed()
        if last < 0:
            raise LedgerReadError(self.ledger_id, "it has no confirmed entry")
        return (await self.read(last, last))[0]

    async def read_unconfirmed(self, first: int, last: int) -> list[Entry]:
        """Like ``read``, but also for entries above ``last_add_confirmed``, which may never become part of the ledger.
        LedgerReadError if one does not exist."""
        return [entry async for entry in self.unconfirmed_entries(first, last)]

    async def unconfirmed_entries(self, first: int, last: int) -> AsyncGenerator[Entry, None]:
        """Like ``entries``, but also above ``last_add_confirmed``, as ``read_unconfirmed``."""
        _check_range(self.ledger_id, first, last)
        async with contextlib.aclosing(self._pipelined(first, last, self._read_run)) as found:
            async for entry in found:
                yield entry

    async def entries(self, first: int = 0, last: int | None = None) -> AsyncGenerator[Entry, None]:
        """Entries ``first`` to ``last`` in order, read ahead within the limits of the client's settings.

        ``last`` None: to the current ``last_add_confirmed``, possibly nothing.
        Raises LedgerReadError for an invalid range, a range that ends above ``last_add_confirmed`` (without asking any
        bookie), or an entry that no replica returns; DigestMismatchError if there are only damaged copies;
        LedgerNotFoundError if no replica returns an entry and the ledger has been deleted.
        """
        if last is None:
            last = self.last_add_confirmed
            if first > last:
                return
        _check_range(self.ledger_id, first, last)
        if last > self.last_add_confirmed:
            raise LedgerReadError(
                self.ledger_id, f"entry {last} is beyond the last confirmed entry, {self.last_add_confirmed}"
            )
        async with contextlib.aclosing(self._pipelined(first, last, self._read_run)) as found:
            async for entry in found:
                yield entry

    async def readable_entries(self, first: int, last: int) -> AsyncGenerator[Entry | NoGoodCopy, None]:
        """Entries ``first`` to ``last`` in order, also above ``last_add_confirmed``, or why an entry is not returned:
        the BookieError or DigestMismatchError that prevails. "No such entry" is proof: all that should have it say so.

        LedgerReadError for an invalid range, or if the metadata store fails; LedgerNotFoundError.
        """
        _check_range(self.ledger_id, first, last)

        async def read(entry_ids: range) -> Sequence[Entry | NoGoodCopy]:
            try:
                return await self._read_run(entry_ids)
            except DigestMismatchError as error:
                return [NoGoodCopy(entry_ids[0], error)]
            except LedgerReadError as error:
                if not isinstance(error.__cause__, BookieError):
                    raise
                return [NoGoodCopy(entry_ids[0], error.__cause__)]

        async with contextlib.aclosing(self._pipelined(first, last, read)) as found:
            async for each in found:
                yield each

    async def follow(self, first: int = 0) -> AsyncGenerator[Entry, None]:
        """Entries from ``first`` on while the ledger is written, each once it is confirmed; ends when the ledger is
        closed, after its last entry.

        Never returns an entry above ``last_add_confirmed``. Bookies learn that an entry is confirmed from the next
        entry, or from an explicit LAC. Without one (``LedgerClient.create(lac_interval_s=...)``, Java's
        ``explicitLacInterval``) the last entries of a writer that pauses come when it goes on, or closes.
        Use ``contextlib.aclosing`` to stop earlier. A writer that died leaves its ledger open, and this waits until
        another client recovers it. LedgerNotFoundError if it is deleted; LedgerReadError if the client is closed, or if
        no bookie of its last ensemble answers for ``OUTAGE_S``; otherwise errors as for ``entries``.
        """
        if first < 0:
            raise LedgerReadError(self.ledger_id, f"entry {first} cannot be the first one to follow")
        tail = LedgerTail(self._ports, self._credentials, self._copy, self._entries.last_add_confirmed)
        next_id = first
        with tail:
            while True:
                if next_id > self.last_add_confirmed:
                    if self.is_closed:
                        return
                    entry = await tail.progress(next_id)
                    self._entries.last_add_confirmed = max(self._entries.last_add_confirmed, tail.last_add_confirmed)
                    if entry is not None:
                        next_id += 1
                        self._expected_bytes = self._expected_bytes or len(entry.payload)
                        yield Entry(entry.entry_id, entry.payload)
                    continue
                async with contextlib.aclosing(self.entries(next_id, self.last_add_confirmed)) as found:
                    async for each in found:
                        next_id += 1
                        yield each

    def __aiter__(self) -> AsyncIterator[Entry]:
        return self.entries()

    def _pipelined(
        self, first: int, last: int, read: Callable[[range], Coroutine[Any, Any, Sequence[T]]]
    ) -> AsyncGenerator[T, None]:
        metadata = self.metadata
        is_batched = metadata.ensemble_size == metadata.write_quorum_size
        ahead = ReadAhead(
            read,
            self._ports.config,
            _payload_bytes,
            is_batched=is_batched,
            expected_bytes=self._expected_bytes,
        )
        return ahead.entries(first, last)

    async def _read_run(self, entry_ids: range) -> list[Entry]:
        """The first of these entries, at least one."""
        first = entry_ids[0]

        async def ask(metadata: LedgerMetadata) -> list[DecodedEntry]:
            index = metadata.segment_index_of(first)
            if index + 1 < len(metadata.segments):
                count_max = metadata.segments[index + 1].first_entry_id - first
                return await self._entries.read_run(metadata, entry_ids[:count_max])
            return await self._entries.read_run(metadata, entry_ids)

        try:
            found = await self._ask_again(ask, lambda metadata: metadata.segment_of(first).ensemble, f"entry {first}")
        except BookieError as error:
            raise LedgerReadError(self.ledger_id, f"entry {first}: {error}") from error
        self._expected_bytes = max(len(each.payload) for each in found)
        return [Entry(each.entry_id, each.payload) for each in found]

    async def _ask_again(
        self,
        ask: Callable[[LedgerMetadata], Awaitable[T]],
        place_of: Callable[[LedgerMetadata], object],
        name: str,
    ) -> T:
        """Ask the bookies. If all fail, repeat as long as newer metadata has another place for the data."""
        for _ in range(ENSEMBLES_TRIED_MAX - 1):
            metadata = self.metadata
            try:
                return await ask(metadata)
            except (BookieError, DigestMismatchError) as error:
                if place_of(self.metadata) == place_of(metadata):
                    await self._refresh(name, error)
                if place_of(self.metadata) == place_of(metadata):
                    raise
        return await ask(self.metadata)

    async def _refresh(self, name: str, failure: BkctlError) -> None:
        """Read the metadata again after ``failure``."""
        try:
            self._copy.install(await self._record.read())
        except MetadataError as error:
            raise LedgerReadError(
                self.ledger_id, f"{failure}; cannot check whether {name} has moved to other bookies: {error}"
            ) from error


async def reported_by_bookies(ledger_id: int, asking: Awaitable[int]) -> int:
    """The last add confirmed of an open ledger, from ``asking`` its bookies; LedgerReadError if that fails."""
    try:
        return await asking
    except BookieError as error:
        raise LedgerReadError(ledger_id, f"the last confirmed entry is unknown: {error}") from error


def _payload_bytes(found: object) -> int:
    return len(found.payload) if isinstance(found, Entry) else 0


def _check_range(ledger_id: int, first: int, last: int) -> None:
    if not 0 <= first <= last:
        raise LedgerReadError(ledger_id, f"entries {first} to {last} are not a range")
