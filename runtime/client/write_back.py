"""Writes recovered entries back, with ensemble changes kept in memory. Source: protocol sections 6.1, 6.2, 6.5."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from bkctl.runtime.client.add_pipeline import AddPipeline
from bkctl.runtime.client.bookie_software import BookieSoftware
from bkctl.runtime.client.ensemble_change import Replacements
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials
from bkctl.runtime.errors import BookieError, LedgerRecoveryError, NotEnoughBookiesError
from bkctl.runtime.ledger.metadata import LedgerMetadata, Segment
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.protocol.entry_body import DecodedEntry
from bkctl.runtime.protocol.status import Status
from bkctl.storage.errors import BkctlError


class WriteBack:
    """Recovery adds, in entry order from ``start`` + 1 on, to the full write set.

    Failed bookies are replaced in memory only, until the closing compare-and-set. If this recovery fails, the next one
    must read from the bookies in the metadata, not from substitutes that may not have all entries.

    If no successor is left, write-backs continue without the failed bookie as long as every write set can still reach
    an ack quorum. So one spare is enough for a dead bookie plus one that rejects the ledger. A bookie that refuses this
    client stays too, even if there is a successor: it may have the entries from the writer.

    A copy that is corrupt, or that its bookie cannot read, is written over only on a bkctl bookie (H18). Any other
    bookie with one is replaced like a failed one, from that entry on. ``corrupt_left``: entries that stay so because
    there is no successor, by bookie.
    """

    def __init__(
        self, ports: ClientPorts, credentials: LedgerCredentials, snapshot: LedgerMetadata, start: int
    ) -> None:
        self._ports = ports
        self._credentials = credentials
        self._start = start
        self._pipeline = AddPipeline(
            ports,
            credentials,
            snapshot,
            last_add_confirmed=start,
            is_recovery=True,
            on_failure=self._on_failure,
        )
        self._segments: dict[int, tuple[str, ...]] = {}
        self._metadata = snapshot
        self._failed: dict[int, str] = {}
        self._without_successor: dict[int, str] = {}
        self._refusals: dict[int, BookieError] = {}
        """Of members that refuse this client, by index."""
        self._unsuitable: set[str] = set()
        self._software = BookieSoftware(ports.registrations, ports.clock)
        self.corrupt_left: dict[str, list[int]] = {}
        self._change: asyncio.Task[None] | None = None
        self._changes_without_progress = 0
        self._error: BkctlError | None = None

    @property
    def last_add_confirmed(self) -> int:
        """Highest entry that is known to be on an ack quorum together with all before it."""
        return self._pipeline.last_add_confirmed

    def segments(self, snapshot: LedgerMetadata) -> tuple[Segment, ...]:
        """The segments that replace the snapshot's last segment when the ledger is closed: that segment, perhaps with a
        new ensemble, and all later ones."""
        last = snapshot.last_segment
        ensembles = {last.first_entry_id: last.ensemble} | self._segments
        return tuple(Segment(first_entry_id, ensemble) for first_entry_id, ensemble in sorted(ensembles.items()))

    async def submit(self, entry: DecodedEntry, bad: Collection[str] = ()) -> None:
        """Wait for room and send one entry. Raises the error of earlier write-backs, if any.

        ``bad``: bookies that have a corrupt copy of it, or cannot read theirs.

        Keeps the entry's own header length and payload, but uses the LAC with which recovery began. Tailing readers
        and the next recovery would trust an advancing LAC, although this recovery may not finish (protocol section
        6.5).
        """
        while self._pipeline.pending_count >= self._ports.config.recovery_reads_in_flight_max and self._error is None:
            await self._pipeline.progress()
        self._raise_failure()
        expected = self._pipeline.last_add_confirmed + self._pipeline.pending_count + 1
        assert entry.entry_id == expected, "recovered entries have no gaps"
        body = self._credentials.codec.encode(entry.entry_id, self._start, entry.length, entry.payload)
        without = await self._replace_bad(entry.entry_id, bad) if bad else ()
        self._pipeline.submit(entry.entry_id, body, len(entry.payload), without).add_done_callback(_see)

    async def _replace_bad(self, entry_id: int, bad: Collection[str]) -> list[int]:
        """Replace bookies whose copy of the next entry must not be written over; returns the indexes of those
        that stay because no other bookie is left."""
        barred = {bookie_id for bookie_id in bad if not await self._software.is_bkctl(bookie_id)}
        if barred.isdisjoint(self._pipeline.ensemble):
            return []
        await self.finish()  # so that the new segment starts with this entry
        while self._change is not None:
            await asyncio.wait([self._change])
        self._unsuitable |= barred
        self._failed |= self._in_ensemble(barred)
        self._change = asyncio.get_running_loop().create_task(self._change_ensemble())
        await asyncio.wait([self._change])
        left = self._in_ensemble(barred)
        self._without_successor |= left
        if isinstance(self._error, NotEnoughBookiesError) or not self._reaches_ack_quorum():
            raise NotEnoughBookiesError(
                self._credentials.ledger_id,
                f"the copy of entry {entry_id} on {', '.join(sorted(left.values()))} is corrupt or unreadable, such a "
                "copy is written over only on bkctl's bookies, and no other bookie can take the entry: start one, and "
                "repeat",
            ) from self._error
        self._raise_failure()
        for bookie_id in left.values():
            self.corrupt_left.setdefault(bookie_id, []).append(entry_id)
        return list(left)

    def _in_ensemble(self, bookie_ids: Collection[str]) -> dict[int, str]:
        """These bookies in the present ensemble, by index."""
        return {index: each for index, each in enumerate(self._pipeline.ensemble) if each in bookie_ids}

    async def finish(self) -> None:
        """Wait until all sent entries are on an ack quorum; raises the first error."""
        while self._pipeline.pending_count and self._error is None:
            await self._pipeline.progress()
        self._raise_failure()

    def stop(self) -> None:
        """Stop and drop all pending write-backs; safe to repeat."""
        if self._error is None:
            self._abort(LedgerRecoveryError(self._credentials.ledger_id, "the recovery is over"))
        if self._change is not None:
            self._change.cancel()

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error

    def _abort(self, error: BkctlError) -> None:
        self._error = error
        self._pipeline.drain(lambda _: error)

    def _on_failure(self, index: int, bookie_id: str, status: Status, *, is_late: bool) -> None:
        is_left_out = self._without_successor.get(index) == bookie_id or index in self._refusals
        if is_late or self._error is not None or is_left_out:
            return
        if status in {Status.UNAUTHORIZED, Status.AUTHENTICATION_REQUIRED}:
            error = self._ports.bookies.error_of(status, bookie_id)
            if status is Status.AUTHENTICATION_REQUIRED:
                self._refusals[index] = error
            if status is Status.UNAUTHORIZED or not self._reaches_ack_quorum():
                self._abort(error)
            return
        if status is Status.FENCED:
            # A fence by itself does not reject recovery adds. This bookie collected its copy of the fenced ledger, and
            # a Java bookie then rejects every add to it. It still serves other ledgers, so it is not suspect.
            self._unsuitable.add(bookie_id)
        else:
            self._ports.suspects.add(bookie_id)
        self._failed[index] = bookie_id
        if self._change is None:
            self._change = asyncio.get_running_loop().create_task(self._change_ensemble())

    async def _change_ensemble(self) -> None:
        try:
            while self._failed and self._error is None:
                registered = await self._ports.registrations.snapshot()
                survey = await self._ports.placement.survey(registered.writable)
                # No suspension point from here to the resend, so LAC + 1 stays the first entry of the new segment.
                failed, self._failed = self._failed, {}
                self._replace(registered, survey, failed)
        except BkctlError as error:
            self._abort(error)
        except Exception as error:
            self._abort(LedgerRecoveryError(self._credentials.ledger_id, f"the ensemble change failed: {error!r}"))
            raise
        finally:
            self._change = None

    def _replace(self, registered: Registrations, survey: BookieSurvey, failed: dict[int, str]) -> None:
        current = self._pipeline.ensemble
        failed = {index: bookie_id for index, bookie_id in failed.items() if current[index] == bookie_id}
        if not failed or self._error is not None:
            return
        first_entry_id = self._pipeline.last_add_confirmed + 1
        self._count_change(first_entry_id)
        # Unregistered members will fail too. They must not lose the last spare to a member that failed first.
        gone = {index: bookie_id for index, bookie_id in enumerate(current) if bookie_id not in registered.live}
        replacements = Replacements(self._ports, self._credentials.ledger_id, self._metadata, survey)
        try:
            chosen = replacements.choose(current, self._without_successor | failed | gone, self._unsuitable)
        except NotEnoughBookiesError as error:
            self._without_successor |= failed
            if self._reaches_ack_quorum():
                return
            ledger_id = self._credentials.ledger_id
            why = str(error).removeprefix(f"ledger {ledger_id}: ")
            raise NotEnoughBookiesError(ledger_id, "; ".join([why, *map(str, self._refusals.values())])) from error
        changed = tuple(chosen.get(index, bookie_id) for index, bookie_id in enumerate(current))
        self._segments[first_entry_id] = changed
        retry = failed.keys() - chosen.keys() - self._without_successor.keys()
        for index in chosen:
            self._without_successor.pop(index, None)
            self._refusals.pop(index, None)
        self._pipeline.resume(changed, retry)

    def _reaches_ack_quorum(self) -> bool:
        """Whether every write set has an ack quorum of members that are neither without a successor nor refuse."""
        left_out = self._without_successor.keys() | self._refusals.keys()
        size, quorum = self._metadata.ensemble_size, self._metadata.write_quorum_size
        return all(
            sum(index not in left_out for index in write_set(first, size, quorum)) >= self._metadata.ack_quorum_size
            for first in range(size)
        )

    def _count_change(self, first_entry_id: int) -> None:
        has_progressed = first_entry_id not in self._segments
        self._changes_without_progress = 1 if has_progressed else self._changes_without_progress + 1
        if self._changes_without_progress > self._ports.config.ensemble_changes_without_progress_max:
            raise NotEnoughBookiesError(
                self._credentials.ledger_id,
                f"{self._changes_without_progress - 1} ensemble changes in a row without a stored entry",
            )


def _see(future: asyncio.Future[int]) -> None:
    """Mark the exception as retrieved; ``submit`` and ``finish`` report it."""
    if not future.cancelled():
        future.exception()
