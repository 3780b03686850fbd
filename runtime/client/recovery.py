"""Recovering a ledger whose writer is gone: fence it, find its end, close it. Source: protocol sections 0.1 and 6.

    mark      compare-and-set to IN_RECOVERY                                   from here no writer changes segments
    fence     ask the last segment's bookies for their last entry, fencing     from here no add reaches an ack quorum
    read      forward from the last add confirmed, fencing, until explicit negatives prove an end
    write     every entry found back to its full write set, as recovery adds
    close     compare-and-set to CLOSED, with the ensemble changes of this recovery

A recovery that fails has changed nothing but the state mark, the fences and some harmless copies: run it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from runtime.client.entry_read import EntryReader, Replies, damaged_copy, prevailing_error
from runtime.client.last_entry import read_last_add_confirmed
from runtime.client.metadata_update import LedgerRecord, LocalCopy, update_record
from runtime.client.ports import ClientPorts, LedgerCredentials
from runtime.client.write_back import WriteBack
from runtime.errors import (
    BookieError,
    EntryDigestError,
    LedgerError,
    LedgerPasswordError,
    LedgerRecoveryError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from runtime.ledger.changes import to_closed, to_in_recovery
from runtime.ledger.metadata import LedgerMetadata, LedgerState, Segment
from runtime.ledger.write_set import negatives_needed, write_set
from runtime.metadata.store import Versioned
from runtime.ports import ReadReply
from runtime.protocol.entry_body import DecodedEntry
from storage.errors import BkctlError
from storage.ids import ENTRY_ID_MAX, INVALID_ENTRY_ID

logger = logging.getLogger(__name__)


class LedgerRecovery:
    """One attempt to recover one ledger. Any number may run at once, anywhere: exactly one end is stored."""

    def __init__(self, ports: ClientPorts, credentials: LedgerCredentials, metadata: Versioned[LedgerMetadata]) -> None:
        self._ports = ports
        self._credentials = credentials
        self._ledger_id = credentials.ledger_id
        self._record = LedgerRecord(ports.ledgers, credentials.ledger_id)
        self._copy = LocalCopy(metadata)

    async def run(self) -> Versioned[LedgerMetadata]:
        """Recover the ledger; returns its CLOSED metadata: another recoverer's, or the writer's, if it was first.

        Raises LedgerRecoveryError (its cause says why: NotEnoughBookiesError, a BookieError, DigestMismatchError ...),
        LedgerPasswordError when a bookie refuses the key, LedgerNotFoundError, ConflictError and MetadataError.
        """
        snapshot = await self._mark()
        if snapshot.is_closed:
            return self._copy.current  # adopt it: nothing is fenced
        try:
            last_entry_id, length, segments = await self._find_end(snapshot)
        except UnauthorizedError as error:
            raise LedgerPasswordError(self._ledger_id, str(error)) from error
        except (BookieError, LedgerError) as error:
            raise LedgerRecoveryError(self._ledger_id, f"recovery stopped, it can be retried: {error}") from error
        await self._close(snapshot, last_entry_id, length, segments)
        return self._copy.current

    async def _mark(self) -> LedgerMetadata:
        return await self._update(lambda metadata: metadata.state is LedgerState.OPEN, to_in_recovery)

    async def _find_end(self, snapshot: LedgerMetadata) -> tuple[int, int, tuple[Segment, ...]]:
        """Steps 2 to 6 of protocol section 6.1.

        All reads use ``snapshot``. Bookies that this recovery brings in never had the entries; their honest "no such
        entry" would truncate the ledger (rules 9 and 12).
        """
        start = await read_last_add_confirmed(self._ports, self._credentials, snapshot, is_fencing=True)
        write_back = WriteBack(self._ports, self._credentials, snapshot, start)
        length = await self._recover_tail(snapshot, start, write_back)
        last_entry_id = write_back.last_add_confirmed
        if length is None:
            length = await self._length_at(snapshot, start)
        logger.info("ledger %d: recovered entries %d to %d", self._ledger_id, start + 1, last_entry_id)
        return last_entry_id, length, write_back.segments(snapshot)

    async def _recover_tail(self, snapshot: LedgerMetadata, start: int, write_back: WriteBack) -> int | None:
        """Read forward from ``start`` + 1 until the end, writing back what is there; the length at the last entry
        recovered, None when there was none. Reads run ahead, their results are taken strictly in order."""
        loop = asyncio.get_running_loop()
        in_flight_max = self._ports.config.recovery_reads_in_flight_max
        reads: deque[asyncio.Task[DecodedEntry | None]] = deque()
        next_entry_id = start + 1
        length: int | None = None
        try:
            while True:
                while len(reads) < in_flight_max and next_entry_id <= ENTRY_ID_MAX:
                    reads.append(loop.create_task(self._read(snapshot, next_entry_id)))
                    next_entry_id += 1
                if not reads:
                    break
                entry = await reads[0]
                reads.popleft()
                if entry is None:
                    break  # the end; what reads further ahead may have found lies behind a gap and was never confirmed
                length = entry.length
                await write_back.submit(entry)
            await write_back.finish()
        finally:
            write_back.stop()
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
        return length

    async def _read(self, snapshot: LedgerMetadata, entry_id: int) -> DecodedEntry | None:
        """The entry, or None when Qw - Qa + 1 bookies of its write set state that they lack it (rule 10).

        The whole write set is asked at once, and every request fences: a bookie that says "no such entry" cannot take
        it afterwards. Anything but an entry or a negative is unknown, and raises when it leaves the question open.
        """
        quorum, ack_quorum = snapshot.write_quorum_size, snapshot.ack_quorum_size
        ensemble = snapshot.segment_of(entry_id).ensemble
        replies = Replies[str, ReadReply](self._ports.clock)
        for index in write_set(entry_id, snapshot.ensemble_size, quorum):
            request = self._ports.bookies.read(
                ensemble[index],
                self._ledger_id,
                entry_id,
                fence_with=self._credentials.master_key,
                is_high_priority=True,
            )
            replies.expect(ensemble[index], request)
        negatives_missing = negatives_needed(quorum, ack_quorum)
        error: BkctlError | None = None
        while replies.outstanding:
            answer = await replies.next()
            assert answer is not None, "without a time-out there is an answer"
            bookie_id, outcome = answer
            if isinstance(outcome, ReadReply):
                try:
                    return self._credentials.codec.decode_for_recovery(entry_id, outcome.body)
                except EntryDigestError as damage:
                    error = prevailing_error(error, damaged_copy(self._ledger_id, entry_id, bookie_id, damage))
                    continue
            error = prevailing_error(error, outcome)
            if isinstance(outcome, NoSuchEntryError | NoSuchLedgerError):
                negatives_missing -= 1
                if negatives_missing == 0:
                    return None
        assert error is not None, "a write set has at least one member"
        raise LedgerRecoveryError(self._ledger_id, f"entry {entry_id} may or may not exist: {error}") from error

    async def _length_at(self, snapshot: LedgerMetadata, entry_id: int) -> int:
        """Exact ledger length (payload bytes) up to ``entry_id``, from its own header (protocol section 6.4).

        The best answer to the fencing read may describe an entry that was not recovered, or none at all.
        """
        if entry_id == INVALID_ENTRY_ID:
            return 0
        decode = self._credentials.codec.decode_for_recovery
        return (await EntryReader(self._ports, self._credentials, decode).read(snapshot, entry_id)).length

    async def _close(
        self, snapshot: LedgerMetadata, last_entry_id: int, length: int, segments: tuple[Segment, ...]
    ) -> None:
        """Store the end. A CLOSED found there is adopted; a last segment that is not the one recovered is refused."""

        def transform(metadata: LedgerMetadata) -> LedgerMetadata:
            if metadata.state is not LedgerState.IN_RECOVERY or metadata.last_segment != snapshot.last_segment:
                raise LedgerRecoveryError(
                    self._ledger_id,
                    "another process changed its state or last segment during the recovery",
                )
            # Earlier segments are taken as they are stored now: re-replication may have moved copies meanwhile.
            return to_closed(metadata, last_entry_id, length, (*metadata.segments[:-1], *segments))

        await self._update(lambda metadata: not metadata.is_closed, transform)

    async def _update(
        self, is_needed: Callable[[LedgerMetadata], bool], transform: Callable[[LedgerMetadata], LedgerMetadata]
    ) -> LedgerMetadata:
        return await update_record(
            self._record,
            self._copy,
            is_needed=is_needed,
            transform=transform,
            clock=self._ports.clock,
            attempts_max=self._ports.config.metadata_attempts_max,
        )
