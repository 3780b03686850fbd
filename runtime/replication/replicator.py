"""Copies one stripe of a segment to another bookie, and verifies the copies.

After a digest check it copies the stored bytes unchanged, so digests, lengths and last add confirmed remain those of
the writer. It copies only the entries of the replaced index. Source: replication sections 4 and 15.1.
"""

from __future__ import annotations

import asyncio
import dataclasses
import zlib
from array import array
from collections.abc import Callable, Iterator
from itertools import repeat

import msgspec

from runtime.client.ports import ClientPorts, LedgerCredentials
from runtime.ledger.metadata import LedgerMetadata
from runtime.ledger.write_set import write_set
from runtime.protocol.status import Status, error_of
from runtime.replication.byte_window import ByteWindow, Lease, for_each_leased
from runtime.replication.config import ReplicationConfig
from runtime.replication.copies import Copy, CopyReader, CopyState, entry_bytes_estimate, pause_s
from runtime.replication.fragments import EntryRange, EntryRangeSet, Fragment, stripe, stripe_count

TIMEOUTS_MAX = 1
"""Timeouts allowed per entry before a target is given up."""


class SourceDefect(msgspec.Struct, frozen=True):
    """Bad copies of a ledger on one bookie (missing, corrupt or failed), found during a search of good ones."""

    ledger_id: int
    bookie_id: str
    state: CopyState
    entries: tuple[EntryRange, ...]


class StripeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result for one stripe. All entries are on the target and verified if and only if ``is_complete``.

    ``target_failure``: why the target cannot be used; try another. ``lost``: entries for which all sources answered and
    none has a good copy. ``unreadable``: entries without a good copy for which a source failed or did not answer. If a
    source does not answer, the copy is abandoned, and the last range extends to the end of the segment. ``reason``:
    the first of these entries, and the answers for it.
    """

    entries: int = 0
    bytes_copied: int = 0
    target_failure: str | None = None
    lost: tuple[EntryRange, ...] = ()
    unreadable: tuple[EntryRange, ...] = ()
    reason: str = ""
    defects: tuple[SourceDefect, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether the metadata may reference the target now."""
        return self.target_failure is None and not self.lost and not self.unreadable


class StripeJob(msgspec.Struct, frozen=True):
    """Copy the entries of ``fragment`` that are striped to ``index`` to ``target``; never ask the ``unreachable``."""

    credentials: LedgerCredentials
    metadata: LedgerMetadata
    fragment: Fragment
    index: int
    target: str
    unreachable: frozenset[str]

    @property
    def entries(self) -> int:
        """Number of entries in the stripe."""
        metadata = self.metadata
        return stripe_count(self.fragment.entries, self.index, metadata.ensemble_size, metadata.write_quorum_size)


@dataclasses.dataclass(frozen=True)
class Replicator:
    """Copies stripes for all ledgers of a run; they share one window."""

    ports: ClientPorts
    copies: CopyReader
    window: ByteWindow
    config: ReplicationConfig
    on_copied: Callable[[int, int], None]
    """Called with entries and bytes when a target acknowledges them."""

    async def copy(self, job: StripeJob) -> StripeOutcome:
        """Copy, then read all entries back from the target. An empty stripe needs no request."""
        return await _StripeCopy(self, job).run()


class _GivenUpError(Exception):
    """Abandon the rest of the stripe; the state of the copy contains the reason."""


class _StripeCopy:
    """State of copying one stripe."""

    def __init__(self, tools: Replicator, job: StripeJob) -> None:
        self._tools = tools
        self._ports = tools.ports
        self._job = job
        self._fingerprints = array("I")
        """CRC32 of every copied payload, in stripe order, to compare with the read-back. Grows with the entries found,
        because an entry count from damaged metadata may exceed the memory."""
        self._entry_bytes = entry_bytes_estimate(job.metadata)
        self._bytes_copied = 0
        self._target_failure: str | None = None
        self._lost = EntryRangeSet()
        self._failed = EntryRangeSet()
        self._unprobed: EntryRange | None = None
        self._reason = ""
        self._defects: dict[tuple[str, CopyState], EntryRangeSet] = {}

    async def run(self) -> StripeOutcome:
        """Run both passes."""
        window = self._tools.window
        try:
            await for_each_leased(enumerate(self._entry_ids()), self._copy_entry, window, self._size_bytes)
            if not self._is_hopeless:
                await for_each_leased(enumerate(self._entry_ids()), self._verify_entry, window, self._size_bytes)
        except _GivenUpError:
            pass
        return StripeOutcome(
            entries=self._job.entries,
            bytes_copied=self._bytes_copied,
            target_failure=self._target_failure,
            lost=self._lost.ranges(),
            unreadable=self._unreadable(),
            reason=self._reason,
            defects=tuple(
                SourceDefect(self._job.credentials.ledger_id, bookie_id, state, entries.ranges())
                for (bookie_id, state), entries in sorted(self._defects.items(), key=lambda item: item[0][0])
            ),
        )

    @property
    def _is_hopeless(self) -> bool:
        return bool(self._lost.count or self._failed.count)

    def _unreadable(self) -> tuple[EntryRange, ...]:
        if self._unprobed is None:
            return self._failed.ranges()
        first = self._unprobed.first_entry_id
        below = [entries for entries in self._failed.ranges() if entries.first_entry_id < first]
        clipped = (EntryRange(entries.first_entry_id, min(entries.last_entry_id, first - 1)) for entries in below)
        return (*clipped, self._unprobed)

    def _entry_ids(self) -> Iterator[int]:
        metadata = self._job.metadata
        return stripe(self._job.fragment.entries, self._job.index, metadata.ensemble_size, metadata.write_quorum_size)

    def _size_bytes(self) -> int:
        return self._entry_bytes

    # -- first pass: read from a source, add to the target --------------------------------------------------------

    async def _copy_entry(self, item: tuple[int, int], lease: Lease) -> None:
        position, entry_id = item
        copy = await self._read_good_copy(entry_id)
        if copy is None or self._is_hopeless:
            return  # after an entry without a good copy, the rest is only read for the report, and not copied
        lease.resize(len(copy.body))
        self._entry_bytes = (self._entry_bytes * 7 + len(copy.body)) // 8
        await self._add_to_target(entry_id, copy.body)
        assert copy.entry is not None
        self._fingerprints.extend(repeat(0, position + 1 - len(self._fingerprints)))
        self._fingerprints[position] = zlib.crc32(copy.entry.payload)
        self._bytes_copied += len(copy.body)
        self._tools.on_copied(1, len(copy.body))

    async def _read_good_copy(self, entry_id: int) -> Copy | None:
        """A verified copy from any live member of the write set; None if there is none, which is recorded."""
        sources = self._sources(entry_id)
        found: dict[str, Copy] = {}
        for bookie_id in sources:
            found[bookie_id] = copy = await self._tools.copies.read(
                bookie_id, self._job.credentials, entry_id, attempts_max=1
            )
            if copy.state is CopyState.PRESENT:
                break
        else:
            for bookie_id in sources:  # no other source: wait for those that did not answer
                if found[bookie_id].state is CopyState.UNREACHABLE:
                    found[bookie_id] = await self._tools.copies.read(bookie_id, self._job.credentials, entry_id)
        for copy in found.values():
            if copy.state is CopyState.UNREACHABLE:
                self._ports.suspects.add(copy.bookie_id)
            elif copy.state is not CopyState.PRESENT:
                self._defects.setdefault((copy.bookie_id, copy.state), EntryRangeSet()).add(entry_id)
        for copy in found.values():
            if copy.state is CopyState.PRESENT:
                return copy
        self._record_failure(entry_id, found)
        return None

    def _sources(self, entry_id: int) -> list[str]:
        """Members of the write set that may have the entry, in one order per ledger, suspects last.

        The replaced bookie is the first one if it still serves: it has the whole stripe, in this order on its disk.
        """
        metadata = self._job.metadata
        ensemble = self._job.fragment.ensemble
        # Otherwise start with the same member for all entries, so that its disk reads sequentially; vary it by ledger.
        start = self._job.credentials.ledger_id % metadata.ensemble_size
        indexes = sorted(
            write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size),
            key=lambda index: (index != self._job.index, (index - start) % metadata.ensemble_size),
        )
        bookie_ids = dict.fromkeys(ensemble[index] for index in indexes)
        return self._ports.suspects.last([bookie for bookie in bookie_ids if bookie not in self._job.unreachable])

    def _record_failure(self, entry_id: int, found: dict[str, Copy]) -> None:
        answers = ", ".join(f"{copy.bookie_id}: {copy.reason}" for copy in found.values())
        reason = f"entry {entry_id}: {answers or 'no other bookie ever had it'}"
        states = {copy.state for copy in found.values()}
        if CopyState.UNREACHABLE in states:
            # Each further entry would cost a timeout, so the rest of the range is reported without reading it.
            first_entry_id = entry_id if self._unprobed is None else min(entry_id, self._unprobed.first_entry_id)
            self._unprobed = EntryRange(first_entry_id, self._job.fragment.entries.last_entry_id)
            self._reason = reason
            raise _GivenUpError
        (self._failed if CopyState.FAILED in states else self._lost).add(entry_id)
        self._reason = self._reason or reason

    async def _add_to_target(self, entry_id: int, body: bytes) -> None:
        """Send a recovery add, which fenced ledgers accept. After a failed add the target is not used."""
        attempt = timeouts = 0
        while True:
            attempt += 1
            status = await self._send_add(entry_id, body)
            if status is Status.OK:
                return
            if status is Status.TOO_MANY_REQUESTS:
                self._tools.window.shrink()
            elif status is Status.TIMEOUT and timeouts < TIMEOUTS_MAX:
                timeouts += 1  # it may be overloaded without reporting it
            else:
                break
            if attempt == self._tools.config.attempts_max:
                break
            await self._ports.clock.sleep(pause_s(attempt, self._tools.config, self._ports.clock))
        if status in {Status.TIMEOUT, Status.UNAVAILABLE}:
            self._ports.suspects.add(self._job.target)
        self._give_up_target(str(error_of(status, self._job.target)))

    def _send_add(self, entry_id: int, body: bytes) -> asyncio.Future[Status]:
        outcome: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

        def done(status: Status) -> None:
            if not outcome.done():
                outcome.set_result(status)

        credentials = self._job.credentials
        self._ports.bookies.add(
            self._job.target,
            credentials.ledger_id,
            entry_id,
            credentials.master_key,
            body,
            done,
            is_recovery_add=True,
        )
        return outcome

    def _give_up_target(self, reason: str) -> None:
        self._target_failure = reason
        raise _GivenUpError

    # -- second pass: verify the copies before the metadata references them ---------------------------------------

    async def _verify_entry(self, item: tuple[int, int], lease: Lease) -> None:
        position, entry_id = item
        copy = await self._tools.copies.read(self._job.target, self._job.credentials, entry_id)
        lease.resize(len(copy.body))
        if copy.entry is None:
            self._give_up_target(f"bookie {self._job.target}: cannot read its copy of entry {entry_id}: {copy.reason}")
        elif zlib.crc32(copy.entry.payload) != self._fingerprints[position]:
            self._give_up_target(f"bookie {self._job.target}: has a different entry {entry_id}")
