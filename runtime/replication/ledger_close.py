"""Closes ledgers that their writers left open: waits for the writer, then fences, recovers and closes.

Takes no replication lock: a close copies nothing, and a process that copies at the same time repeats its change after
the lost compare-and-set. A close that gives up lost bookies copies, and takes it.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from runtime.client.ports import ClientPorts, credentials_of
from runtime.client.recovery import LedgerRecovery, blocking_members
from runtime.errors import (
    AnswersMissingError,
    BookieError,
    LedgerError,
    LedgerNotFoundError,
    LedgerRecoveryError,
    MetadataUnavailableError,
)
from runtime.ledger.metadata import LedgerMetadata, LedgerState
from runtime.metadata.pipeline import each_of, pipelined
from runtime.metadata.replication.lock import ReplicationLocks
from runtime.metadata.store import Versioned
from runtime.replication.live_bookies import LiveBookies
from runtime.replication.loss_close import AcceptedLoss, LossClose
from runtime.replication.loss_proof import why_not_given_up
from storage.errors import BkctlError

GRACE_POLL_S = 1.0


class CloseOutcome(enum.Enum):
    """What became of a ledger. The values appear in reports."""

    CLOSED = "closed"
    CLOSED_BY_OTHERS = "closed by its writer or another process"
    DELETED = "deleted"
    FAILED = "failed"


class CloseFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a ledger is not closed, and what to do. ``missing``: the bookies whose valid answers are missing.

    ``last_resort``: what to do if they never come back.
    """

    reason: str
    missing: tuple[str, ...] = ()
    fenced: tuple[str, ...] = ()
    next_step: str = ""
    last_resort: str = ""

    @property
    def advice(self) -> str:
        """All that can be done."""
        return "; ".join(filter(None, (self.next_step, self.last_resort)))


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

    ``note``: records the ledger and its lost bookies before the ledger is closed, so that their return is noticed;
    ``forget`` removes that, if it could not be closed.
    """

    bookie_ids: frozenset[str]
    closing: LossClose
    locks: ReplicationLocks
    keep: Callable[[int], Awaitable[None]]
    note: Callable[[int, Sequence[str]], Awaitable[None]]
    forget: Callable[[int], Awaitable[None]]


class LedgerCloser:
    """Closes ledgers of one run.

    ``before_each`` is called before each ledger that is about to be fenced; its error ends the run. With a ``consent``
    ledgers that cannot be closed otherwise are closed without the answers of lost bookies.
    """

    def __init__(
        self,
        ports: ClientPorts,
        before_each: Callable[[], None] = lambda: None,
        consent: LossConsent | None = None,
    ) -> None:
        self._ports = ports
        self._consent = consent
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
            reason: str | None = None
            failure: CloseFailure | None
            if self._consent is not None:
                reason = why_not_given_up(stored.value, self._consent.bookie_ids, live)
            if reason is not None:
                failure = CloseFailure(reason=f"{reason}; it was left as it is")
            else:
                failure = why_not_closable(ledger_id, stored.value, live)
            if failure is None:
                self._before_each()
                recovery = LedgerRecovery(self._ports, credentials_of(ledger_id, stored.value), stored)
                try:
                    closed = await recovery.run()
                except AnswersMissingError as error:
                    failure = why_not_closed(ledger_id, stored.value, error, live)
                else:
                    return CloseResult(ledger_id, CloseOutcome.CLOSED, closed.value, corrupt_left=recovery.corrupt_left)
            if reason is None and self._consent is not None and self._consent.closing.lost_members(stored.value):
                return await self._close_with_loss(ledger_id, self._consent)
        except LedgerNotFoundError:
            return CloseResult(ledger_id, CloseOutcome.DELETED)
        except MetadataUnavailableError:
            raise
        except BkctlError as error:
            return _failed(ledger_id, str(error.__cause__ or error).removeprefix(f"ledger {ledger_id}: "))
        return CloseResult(ledger_id, CloseOutcome.FAILED, failure=failure)

    async def _close_with_loss(self, ledger_id: int, consent: LossConsent) -> CloseResult:
        lock = await consent.locks.acquire(ledger_id)
        if lock is None:
            return _failed(ledger_id, "another process holds its replication lock: try again later")
        async with lock:
            stored = await self._ports.ledgers.read(ledger_id)
            if stored.value.is_closed:
                return CloseResult(ledger_id, CloseOutcome.CLOSED_BY_OTHERS, stored.value)
            known = await consent.closing.look(ledger_id, stored.value)
            if isinstance(known, str):
                return _failed(ledger_id, f"{known}; it was left as it is")
            await consent.keep(ledger_id)
            lost = consent.closing.lost_members(stored.value)

            async def before_close() -> None:
                self._before_each()
                if not lock.is_held:
                    raise LedgerRecoveryError(ledger_id, "its replication lock was lost")
                await consent.note(ledger_id, lost)

            self._before_each()
            try:
                closed, loss = await consent.closing.close(ledger_id, stored, before_close)
            except (BookieError, LedgerError) as error:
                if isinstance(error, LedgerNotFoundError):
                    raise
                if lock.is_held:
                    await consent.forget(ledger_id)
                reason = str(error).removeprefix(f"ledger {ledger_id}: ")
                return _failed(
                    ledger_id, f"{reason}; it stays in recovery", "once that is corrected, run the same command again"
                )
        if loss is None:
            return CloseResult(ledger_id, CloseOutcome.CLOSED_BY_OTHERS, closed.value)
        return CloseResult(ledger_id, CloseOutcome.CLOSED, closed.value, corrupt_left=loss.corrupt_left, loss=loss)

    async def _read_after_grace(self, ledger_id: int, deadline_ns: int) -> Versioned[LedgerMetadata]:
        """The stored metadata, as soon as the ledger is no longer open or the time is over."""
        clock = self._ports.clock
        while True:
            stored = await self._ports.ledgers.read(ledger_id)
            left_s = (deadline_ns - clock.monotonic_ns()) / 1e9
            if stored.value.state is not LedgerState.OPEN or left_s <= 0:
                return stored
            await clock.sleep(min(GRACE_POLL_S, left_s))


def _failed(ledger_id: int, reason: str, next_step: str = "") -> CloseResult:
    failure = CloseFailure(reason=reason, next_step=next_step)
    return CloseResult(ledger_id, CloseOutcome.FAILED, failure=failure)


def last_resort(ledger_id: int, metadata: LedgerMetadata, live_bookies: Collection[str]) -> str:
    """What to do about an unclosed ledger if the members that are not registered never come back. Pure."""
    lost = sorted(set(metadata.last_segment.ensemble).difference(live_bookies))
    named = " ".join(f"--accept-loss {each}" for each in lost)
    return f"if their disks are lost, bkctl ledger close {ledger_id} {named} ends the ledger with what the others have"


def why_not_closable(ledger_id: int, metadata: LedgerMetadata, live_bookies: Collection[str]) -> CloseFailure | None:
    """Why the ledger cannot be closed while only these bookies are registered; None if it may be possible. Pure.

    Such a ledger must not be fenced: that would stop a live writer, which could otherwise replace the missing bookies.
    """
    missing = sorted(blocking_members(metadata, live_bookies))
    if not missing:
        return None
    return CloseFailure(
        reason=f"entries may exist that only {joined(missing)} can have (not registered); it was left as it is",
        missing=tuple(missing),
        next_step=what_helps(ledger_id, metadata, missing, live_bookies, "registered"),
        last_resort=last_resort(ledger_id, metadata, live_bookies),
    )


def why_not_closed(
    ledger_id: int, metadata: LedgerMetadata, error: AnswersMissingError, live_bookies: Collection[str] | None = None
) -> CloseFailure:
    """Why a recovery failed, and what helps. ``live_bookies``: those that are registered, if that is known. Pure."""
    missing = sorted(error.missing)
    named = joined([f"{each} ({error.missing[each]})" for each in missing])
    condition = "able to give a valid answer"
    if error.entry_id is None:
        reason = f"entries may exist that only {named} can have"
        next_step = what_helps(ledger_id, metadata, missing, error.fenced, condition)
    else:
        reason = f"entry {error.entry_id} may exist on {named}"
        is_one_enough = len(missing) <= metadata.ack_quorum_size
        next_step = _next_step(ledger_id, missing, condition, is_one_enough=is_one_enough)
    if error.fenced:
        state = f"it stays in recovery, fenced on {joined(error.fenced)}: a live writer fails at its next add there"
    else:
        state = "it stays in recovery, but no bookie has fenced it: a live writer may still add entries"
    is_lost = live_bookies is not None and not set(missing) <= set(live_bookies)
    return CloseFailure(
        reason=f"{reason}; {state}",
        missing=tuple(missing),
        fenced=error.fenced,
        next_step=next_step,
        last_resort=last_resort(ledger_id, metadata, live_bookies) if live_bookies is not None and is_lost else "",
    )


def what_helps(
    ledger_id: int, metadata: LedgerMetadata, missing: Sequence[str], answered: Collection[str], condition: str
) -> str:
    """Which of the missing bookies must be in this condition before the ledger can be closed, as a sentence. Pure."""
    alone = [each for each in missing if not blocking_members(metadata, {*answered, each})]
    return _next_step(ledger_id, alone or missing, condition, is_one_enough=bool(alone))


def _next_step(ledger_id: int, bookie_ids: Sequence[str], condition: str, *, is_one_enough: bool) -> str:
    verb = "is" if is_one_enough or len(bookie_ids) == 1 else "are"
    who = joined(bookie_ids, "or" if is_one_enough else "and")
    return f"once {who} {verb} {condition}, run bkctl ledger close {ledger_id} again"


def joined(names: Sequence[str], word: str = "and") -> str:
    """Names as part of a sentence: ``b1, b2 and b3``."""
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last
