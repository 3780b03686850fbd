"""Recovers a ledger without a live writer: fences it, finds its end, closes it. Source: protocol sections 0.1 and 6.

    mark      compare-and-set to IN_RECOVERY                                   now no writer can change segments
    fence     ask the last segment's bookies for their last entry, fencing     now no add can reach an ack quorum
    read      forward from the last add confirmed, fencing, until explicit negatives prove an end
    write     every entry found back to its full write set, as recovery adds
    close     compare-and-set to CLOSED, with the ensemble changes of this recovery

A failed recovery leaves only the state, the fences and some harmless copies; it can be repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing, suppress
from typing import NamedTuple

from bkctl.runtime.client.entry_read import EntryReader, Replies, damaged_copy, prevailing_error
from bkctl.runtime.client.last_entry import read_last_add_confirmed
from bkctl.runtime.client.metadata_update import LedgerRecord, LocalCopy, update_record
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials
from bkctl.runtime.client.write_back import WriteBack
from bkctl.runtime.errors import (
    AnswersMissingError,
    AuthenticationRequiredError,
    BookieError,
    BookieIOError,
    BookieTimeoutError,
    EntryDigestError,
    LedgerError,
    LedgerPasswordError,
    LedgerRecoveryError,
    NoNodeError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from bkctl.runtime.ledger.changes import to_closed, to_in_recovery
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState, Segment
from bkctl.runtime.ledger.write_set import QuorumCoverage, negatives_needed, write_set
from bkctl.runtime.metadata.store import CheckNode, Versioned
from bkctl.runtime.ports import ReadReply
from bkctl.runtime.protocol.entry_body import DecodedEntry
from bkctl.storage.errors import BkctlError
from bkctl.storage.ids import ENTRY_ID_MAX, INVALID_ENTRY_ID

logger = logging.getLogger(__name__)


class _TailEntry(NamedTuple):
    """An entry, and the bookies that have a corrupt copy of it, or cannot read theirs."""

    entry: DecodedEntry
    bad: tuple[str, ...]


class LedgerRecovery:
    """One attempt to recover one ledger. Any number may run concurrently on any hosts; exactly one end is stored."""

    def __init__(self, ports: ClientPorts, credentials: LedgerCredentials, metadata: Versioned[LedgerMetadata]) -> None:
        self._ports = ports
        self._credentials = credentials
        self._ledger_id = credentials.ledger_id
        self._record = LedgerRecord(ports.ledgers, credentials.ledger_id, self._checks_for)
        self._copy = LocalCopy(metadata)
        self._fence_answers: dict[str, BkctlError | None] = {}
        """Answers to the fence, by bookie; None: valid."""
        self._silent: set[str] = set()
        """Bookies that answered a read too late: only an entry without another good copy waits for them."""
        self.corrupt_left: dict[str, list[int]] = {}
        """Recovered entries with copies that are still corrupt or unreadable, by bookie (see ``WriteBack``)."""

    async def run(self) -> Versioned[LedgerMetadata]:
        """Recover the ledger; returns its CLOSED metadata, perhaps stored by another recovery or by the writer.

        Raises LedgerRecoveryError (caused by NotEnoughBookiesError, a BookieError, DigestMismatchError ...), which is
        an AnswersMissingError if that is the reason; LedgerPasswordError if a bookie rejects the key,
        LedgerNotFoundError, ConflictError and MetadataError.
        """
        snapshot = await self._set_in_recovery()
        if snapshot.is_closed:
            return self._copy.current  # closed by another process: nothing to fence
        try:
            last_entry_id, length, segments = await self._find_end(snapshot)
        except UnauthorizedError as error:
            raise LedgerPasswordError(self._ledger_id, str(error)) from error
        except (BookieError, LedgerError) as error:
            raise self._failure(snapshot, error) from error
        await self._close(snapshot, last_entry_id, length, segments)
        return self._copy.current

    def _failure(self, snapshot: LedgerMetadata, error: BkctlError) -> LedgerRecoveryError:
        """The error of the whole recovery, with what is known about the bookies' answers."""
        message = f"recovery stopped, it can be retried: {error}"
        fenced = {each for each, answer in self._fence_answers.items() if not isinstance(answer, BookieError)}
        if isinstance(error, AnswersMissingError):
            missing = error.missing
            fenced.update(error.fenced)
            return AnswersMissingError(
                self._ledger_id,
                message,
                entry_id=error.entry_id,
                missing=missing,
                fenced=fenced,
                is_refused=error.is_refused,
            )
        failed = {each: answer for each, answer in self._fence_answers.items() if answer is not None}
        if error not in failed.values():
            return LedgerRecoveryError(self._ledger_id, message)
        blocking = blocking_members(snapshot, fenced) or failed.keys()
        return self._answers_missing(message, {each: failed[each] for each in failed if each in blocking}, fenced)

    def _answers_missing(
        self, message: str, missing: Mapping[str, BkctlError], fenced: Collection[str], entry_id: int | None = None
    ) -> AnswersMissingError:
        return AnswersMissingError(
            self._ledger_id,
            message,
            entry_id=entry_id,
            missing={bookie_id: _reason(bookie_id, answer) for bookie_id, answer in missing.items()},
            fenced=fenced,
            is_refused=all(isinstance(answer, AuthenticationRequiredError) for answer in missing.values()),
        )

    async def _set_in_recovery(self) -> LedgerMetadata:
        return await self._update(lambda metadata: metadata.state is LedgerState.OPEN, to_in_recovery)

    async def _find_end(self, snapshot: LedgerMetadata) -> tuple[int, int, tuple[Segment, ...]]:
        """Steps 2 to 6 of protocol section 6.1.

        All reads use ``snapshot``. Bookies that this recovery adds never had the entries, so their correct "no such
        entry" would truncate the ledger (rules 9 and 12).
        """
        start = await read_last_add_confirmed(
            self._ports, self._credentials, snapshot, is_fencing=True, on_answer=self._fence_answers.__setitem__
        )
        write_back = WriteBack(self._ports, self._credentials, snapshot, start)
        self.corrupt_left = write_back.corrupt_left
        length = await self._recover_tail(snapshot, start, write_back)
        last_entry_id = write_back.last_add_confirmed
        for bookie_id, entry_ids in self.corrupt_left.items():
            logger.warning(
                "ledger %d: corrupt or unreadable copies on %s stay, because no other bookie can take them: %s",
                self._ledger_id,
                bookie_id,
                ", ".join(map(str, entry_ids)),
            )
        if length is None:
            length = await self._length_at(snapshot, start)
        logger.info("ledger %d: recovered entries %d to %d", self._ledger_id, start + 1, last_entry_id)
        return last_entry_id, length, write_back.segments(snapshot)

    async def _recover_tail(self, snapshot: LedgerMetadata, start: int, write_back: WriteBack) -> int | None:
        """Read forward from ``start`` + 1 to the end and write the entries back. Returns the length at the last
        recovered entry, or None if there was none. Reads run ahead; their results are used strictly in order."""
        loop = asyncio.get_running_loop()
        in_flight_max = self._ports.config.recovery_reads_in_flight_max
        reads: deque[asyncio.Task[_TailEntry | None]] = deque()
        next_entry_id = start + 1
        length: int | None = None
        try:
            while True:
                while len(reads) < in_flight_max and next_entry_id <= ENTRY_ID_MAX:
                    reads.append(loop.create_task(self._read(snapshot, next_entry_id)))
                    next_entry_id += 1
                if not reads:
                    break
                found = await reads[0]
                reads.popleft()
                if found is None:
                    break  # the end; entries found by reads further ahead are after a gap and were never confirmed
                length = found.entry.length
                await write_back.submit(found.entry, found.bad)
            await write_back.finish()
        finally:
            write_back.stop()
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
        return length

    async def _read(self, snapshot: LedgerMetadata, entry_id: int) -> _TailEntry | None:
        """The entry, or None if Qw - Qa + 1 bookies of its write set report that they do not have it (rule 10).

        Asks the whole write set at once. Every request fences, so a bookie that reports "no such entry" cannot accept
        it later. Other answers prove nothing; raises one of them if the answers are not sufficient. A copy counts more
        than any negatives: a bookie may have lost the entry without knowing it.
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
        missing: dict[str, BkctlError] = {}
        fenced = set()
        corrupt: list[str] = []
        failed: list[str] = []
        waiting = {ensemble[index] for index in write_set(entry_id, snapshot.ensemble_size, quorum)}
        while replies.outstanding:
            answer = await replies.next()
            assert answer is not None, "without a time-out there is an answer"
            bookie_id, outcome = answer
            waiting.discard(bookie_id)
            if isinstance(outcome, ReadReply):
                fenced.add(bookie_id)
                try:
                    entry = self._credentials.codec.decode_for_recovery(entry_id, outcome.body)
                except EntryDigestError as damage:
                    found = damaged_copy(self._ledger_id, entry_id, bookie_id, damage)
                    error = prevailing_error(error, found)
                    missing[bookie_id] = found
                    corrupt.append(bookie_id)
                    continue
                more_corrupt, more_failed = await self._other_bad(replies, waiting, entry_id)
                unreadable = [each for each in failed + more_failed if not await self._is_fit(each, entry_id)]
                return _TailEntry(entry, (*corrupt, *more_corrupt, *unreadable))
            error = prevailing_error(error, outcome)
            if isinstance(outcome, NoSuchEntryError | NoSuchLedgerError):
                fenced.add(bookie_id)
                negatives_missing -= 1
                if negatives_missing == 0:
                    return await self._late_copy(replies, waiting, entry_id)
            else:
                missing[bookie_id] = outcome
                failed += [bookie_id] if isinstance(outcome, BookieIOError) else []
        assert error is not None, "a write set has at least one member"
        message = f"entry {entry_id} may or may not exist: {error}"
        raise self._answers_missing(message, missing, fenced, entry_id) from error

    async def _late_copy(self, replies: Replies[str, ReadReply], waiting: set[str], entry_id: int) -> _TailEntry | None:
        """A good copy of an entry on one of the ``waiting`` bookies."""
        async with aclosing(self._late_answers(replies, waiting)) as answers:
            async for _, outcome in answers:
                if isinstance(outcome, ReadReply):
                    with suppress(EntryDigestError):
                        return _TailEntry(self._credentials.codec.decode_for_recovery(entry_id, outcome.body), ())
        return None

    async def _other_bad(
        self, replies: Replies[str, ReadReply], waiting: set[str], entry_id: int
    ) -> tuple[list[str], list[str]]:
        """The ``waiting`` bookies with a corrupt copy of an entry that was found, and those that answer with an I/O
        error."""
        corrupt, failed = [], []
        async with aclosing(self._late_answers(replies, waiting)) as answers:
            async for bookie_id, outcome in answers:
                if isinstance(outcome, ReadReply):
                    try:
                        self._credentials.codec.decode_for_recovery(entry_id, outcome.body)
                    except EntryDigestError:
                        corrupt.append(bookie_id)
                elif isinstance(outcome, BookieIOError):
                    failed.append(bookie_id)
        return corrupt, failed

    async def _late_answers(
        self, replies: Replies[str, ReadReply], waiting: set[str]
    ) -> AsyncGenerator[tuple[str, ReadReply | BkctlError], None]:
        """What the ``waiting`` bookies answer. Waits for slow ones only once. Close the iterator."""
        while not waiting <= self._silent:
            answer = await replies.next(self._ports.config.speculative_read_timeout_s)
            if answer is None:
                self._silent |= waiting
                return
            bookie_id, outcome = answer
            waiting.discard(bookie_id)
            if isinstance(outcome, BookieTimeoutError):
                self._silent.add(bookie_id)
            yield bookie_id, outcome

    async def _is_fit(self, bookie_id: str, entry_id: int) -> bool:
        """Whether a bookie that answered with an I/O error has a good copy or none: if only its fence failed (H10)."""
        try:
            reply = await self._ports.bookies.read(bookie_id, self._ledger_id, entry_id)
            self._credentials.codec.decode_for_recovery(entry_id, reply.body)
        except (NoSuchEntryError, NoSuchLedgerError):
            return True
        except (BookieError, EntryDigestError):
            return False
        return True

    async def _length_at(self, snapshot: LedgerMetadata, entry_id: int) -> int:
        """Exact ledger length (payload bytes) up to ``entry_id``, from its own header (protocol section 6.4).

        The fencing read cannot provide it: its best answer may be for an entry that was not recovered, or for none.
        """
        if entry_id == INVALID_ENTRY_ID:
            return 0
        decode = self._credentials.codec.decode_for_recovery
        return (await EntryReader(self._ports, self._credentials, decode).read(snapshot, entry_id)).length

    async def _close(
        self, snapshot: LedgerMetadata, last_entry_id: int, length: int, segments: tuple[Segment, ...]
    ) -> None:
        """Store the end. Adopts an existing CLOSED; fails if the last segment is not the one that was recovered."""

        def transform(metadata: LedgerMetadata) -> LedgerMetadata:
            if metadata.state is not LedgerState.IN_RECOVERY or metadata.last_segment != snapshot.last_segment:
                raise LedgerRecoveryError(
                    self._ledger_id,
                    "another process changed its state or last segment during the recovery",
                )
            # Keep earlier segments as stored now: re-replication may have moved copies meanwhile.
            return to_closed(metadata, last_entry_id, length, (*metadata.segments[:-1], *segments))

        try:
            await self._update(lambda metadata: not metadata.is_closed, transform)
        except NoNodeError as error:
            left = f"a bookie that got entries left the cluster, or became read-only: there is no {error.path}"
            raise LedgerRecoveryError(self._ledger_id, f"recovery stopped, it can be retried: {left}") from error

    def _checks_for(self, value: LedgerMetadata) -> list[CheckNode]:
        """New members must not have left: while they did, nothing named them, so nothing was copied from them."""
        new = sorted(value.bookies() - self._copy.value.bookies())
        return [check for bookie_id in new for check in self._ports.registrations.checks(bookie_id)]

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


def blocking_members(metadata: LedgerMetadata, answered: Collection[str]) -> frozenset[str]:
    """Bookies without whose answers the ledger cannot be closed, if only ``answered`` answer; empty if it can."""
    coverage = QuorumCoverage(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    ensemble = metadata.last_segment.ensemble
    for index, bookie_id in enumerate(ensemble):
        if bookie_id in answered:
            coverage.note_known(index)
    return frozenset(ensemble[index] for index in coverage.missing)


def _reason(bookie_id: str, error: BkctlError) -> str:
    if isinstance(error, BookieError):
        return str(error).removeprefix(f"bookie {bookie_id}: ")
    return "its copy is damaged"
