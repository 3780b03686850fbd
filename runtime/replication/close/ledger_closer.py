"""Closes ledgers that their writers left open: waits for the writer, then fences, recovers and closes.

Takes no replication lock: a close copies nothing, and a process that copies at the same time repeats its change after
the lost compare-and-set. A close that gives up lost bookies copies, and takes it.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from bkctl.runtime.client.access import refusals
from bkctl.runtime.client.ports import ClientPorts, credentials_of
from bkctl.runtime.client.recovery import LedgerRecovery
from bkctl.runtime.errors import (
    AnswersMissingError,
    AuthenticationRequiredError,
    BookieError,
    LedgerError,
    LedgerNotFoundError,
    LedgerRecoveryError,
    MetadataUnavailableError,
)
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.store import NodeWrite, Versioned
from bkctl.runtime.replication.close.accepted_loss import AcceptedLoss, LossClose, bare_reason
from bkctl.runtime.replication.close.given_up_record import GivenUpRecord
from bkctl.runtime.replication.judge.closability import CloseFailure, why_not_closable, why_not_closed, why_refused
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.survey.loss_proof import why_not_given_up
from bkctl.runtime.replication.turn.bookies import LiveBookies
from bkctl.storage.errors import BkctlError

GRACE_POLL_S = 1.0


class CloseOutcome(enum.Enum):
    """What became of a ledger. The values appear in reports."""

    CLOSED = "closed"
    CLOSED_BY_OTHERS = "closed by its writer or another process"
    DELETED = "deleted"
    FAILED = "failed"


class CloseResult(NamedTuple):
    """The outcome for one ledger. ``metadata``: if it is closed. ``failure``: if it failed.

    ``corrupt_left``: recovered entries with a corrupt copy that must not be written over, by bookie. ``loss``: what
    was given up, if it was closed without the answers of lost bookies.
    """

    ledger_id: int
    outcome: CloseOutcome
    metadata: LedgerMetadata | None = None
    failure: CloseFailure | None = None
    corrupt_left: Mapping[str, Sequence[int]] = {}
    loss: AcceptedLoss | None = None


class LossConsent(NamedTuple):
    """The lost bookies that the operator gives up. ``keep``: saves the metadata of a ledger before it is changed.

    ``record``: notes a ledger before it is closed, so that the return of its lost bookies is noticed, and its lost
    entries with the close, so that no check asks for them.
    """

    bookie_ids: frozenset[str]
    closing: LossClose
    locks: ReplicationLocks
    keep: Callable[[int], Awaitable[None]]
    record: GivenUpRecord


class LedgerCloser:
    """Closes ledgers of one run.

    ``before_each`` is called before each ledger that is about to be fenced; its error ends the run. With a ``consent``
    ledgers that cannot be closed otherwise are closed without the answers of lost bookies. ``on_wait`` is called when
    ``awaited`` or ``begun`` have changed. A ledger that needs bookies that refuse this client is not fenced.
    """

    def __init__(
        self,
        ports: ClientPorts,
        before_each: Callable[[], None] = lambda: None,
        consent: LossConsent | None = None,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self.awaited: set[int] = set()
        """Ledgers whose writers have time to close them."""
        self.begun: set[int] = set()
        """Ledgers that may be fenced by this run."""
        self._on_wait = on_wait
        self._ports = ports
        self._consent = consent
        self._refusing: dict[str, str] = {}
        self._asked_ns: dict[str, int] = {}
        self._asking = asyncio.Lock()
        self._live_bookies = LiveBookies(ports.registrations, ports.clock)
        self._before_each = before_each

    async def close_all(
        self, ledger_ids: Sequence[int], *, grace_s: float, in_parallel: int
    ) -> AsyncGenerator[CloseResult, None]:
        """Close the ledgers; yields the results in their order. Failures are in the results.

        A ledger that is open is left alone for ``grace_s``, counted from now, so that a live writer can close it.
        MetadataUnavailableError, and other errors of the session with the metadata store.
        """
        deadline_ns = self._ports.clock.monotonic_ns() + int(grace_s * 1e9)
        results = pipelined(each_of(ledger_ids), lambda each: self._close(each, deadline_ns), in_parallel)
        try:
            async for result in results:
                yield result
        finally:
            await results.aclose()

    async def _close(self, ledger_id: int, deadline_ns: int) -> CloseResult:
        try:
            stored = await self._read_after_grace(ledger_id, deadline_ns)
            if stored.value.is_closed:
                return CloseResult(ledger_id, CloseOutcome.CLOSED_BY_OTHERS, stored.value)
            live = (await self._live_bookies.refresh()).live
            refusing = await self._refusing_of(stored.value.last_segment.ensemble, deadline_ns)
            refused = why_refused(ledger_id, stored.value, live, refusing)
            consent, refusal = (self._consent if refused is None else None), None
            if consent is not None:
                refusal = why_not_given_up(stored.value, consent.bookie_ids, live)
            failure = refused or why_not_closable(ledger_id, stored.value, live)
            if refusal is not None:
                failure = CloseFailure(reason=f"{refusal}; it was left as it is")
            if failure is None:
                self._begin(ledger_id)
                recovery = LedgerRecovery(self._ports, credentials_of(ledger_id, stored.value), stored)
                try:
                    closed = await recovery.run()
                except AnswersMissingError as error:
                    failure = why_not_closed(ledger_id, stored.value, error, live)
                else:
                    return CloseResult(ledger_id, CloseOutcome.CLOSED, closed.value, corrupt_left=recovery.corrupt_left)
            if refusal is None and consent is not None and consent.closing.lost_members(stored.value):
                return await self._close_with_loss(ledger_id, consent)
        except LedgerNotFoundError:
            return CloseResult(ledger_id, CloseOutcome.DELETED)
        except MetadataUnavailableError:
            raise
        except BkctlError as error:
            cause = error.__cause__ or error
            is_refused = isinstance(cause, AuthenticationRequiredError)
            return _failed(ledger_id, bare_reason(ledger_id, cause), is_refused=is_refused)
        return CloseResult(ledger_id, CloseOutcome.FAILED, failure=failure)

    async def _close_with_loss(self, ledger_id: int, consent: LossConsent) -> CloseResult:
        lock = await consent.locks.acquire(ledger_id)
        if lock is None:
            return _failed(ledger_id, "another process holds its replication lock: try again later")
        async with lock:
            stored = await self._ports.ledgers.read(ledger_id)
            if stored.value.is_closed:
                return CloseResult(ledger_id, CloseOutcome.CLOSED_BY_OTHERS, stored.value)
            known = await consent.closing.examine(ledger_id, stored.value)
            if isinstance(known, str):
                return _failed(ledger_id, f"{known}; it was left as it is")
            await consent.keep(ledger_id)
            lost = consent.closing.lost_members(stored.value)

            async def before_close(holes: Sequence[EntryRange]) -> NodeWrite:
                self._before_each()
                if not lock.is_held:
                    raise LedgerRecoveryError(ledger_id, "its replication lock was lost")
                return await consent.record.note_close(ledger_id, lost, holes)

            self._begin(ledger_id)
            try:
                closed, loss = await consent.closing.close(ledger_id, stored, before_close)
            except LedgerNotFoundError:
                raise
            except (BookieError, LedgerError) as error:
                if lock.is_held:
                    await consent.record.forget(ledger_id)
                reason = f"{bare_reason(ledger_id, error)}; it stays in recovery"
                return _failed(ledger_id, reason, "once that is corrected, run the same command again")
        if loss is None:
            return CloseResult(ledger_id, CloseOutcome.CLOSED_BY_OTHERS, closed.value)
        return CloseResult(ledger_id, CloseOutcome.CLOSED, closed.value, corrupt_left=loss.corrupt_left, loss=loss)

    async def _read_after_grace(self, ledger_id: int, deadline_ns: int) -> Versioned[LedgerMetadata]:
        """The stored metadata, as soon as the ledger is no longer open or the time is over."""
        clock = self._ports.clock
        try:
            while True:
                stored = await self._ports.ledgers.read(ledger_id)
                left_s = (deadline_ns - clock.monotonic_ns()) / 1e9
                if stored.value.state is not LedgerState.OPEN or left_s <= 0:
                    return stored
                self._note(self.awaited, ledger_id)
                await clock.sleep(min(GRACE_POLL_S, left_s))
        finally:
            self.awaited.discard(ledger_id)

    async def _refusing_of(self, bookie_ids: Sequence[str], deadline_ns: int) -> Mapping[str, str]:
        """Bookies that refuse this client, of these and others, with a sentence of each.

        Each is asked once for all ledgers, and again when the time of the writers is over: it may have changed.
        """
        async with self._asking:
            now_ns = self._ports.clock.monotonic_ns()
            needed_ns = deadline_ns if now_ns >= deadline_ns else 0
            new = [each for each in bookie_ids if self._asked_ns.get(each, -1) < needed_ns]
            if new:
                answers = await refusals(self._ports, new)
                self._refusing = {each: why for each, why in self._refusing.items() if each not in new} | answers
                self._asked_ns |= dict.fromkeys(new, now_ns)
            return self._refusing

    def _begin(self, ledger_id: int) -> None:
        self._before_each()
        self._note(self.begun, ledger_id)

    def _note(self, ledger_ids: set[int], ledger_id: int) -> None:
        if ledger_id not in ledger_ids:
            ledger_ids.add(ledger_id)
            self._on_wait()


def _failed(ledger_id: int, reason: str, next_step: str = "", *, is_refused: bool = False) -> CloseResult:
    failure = CloseFailure(reason=reason, next_step=next_step, is_refused=is_refused)
    return CloseResult(ledger_id, CloseOutcome.FAILED, failure=failure)
