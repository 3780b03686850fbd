"""The work on one ledger, whose lock is held: close, copy, verify, one compare-and-set.

Source: replication sections 4.1, 6 and 15.1. After a lost compare-and-set, everything is decided again from the stored
metadata. Copies that were already made are used only if they still fit.
"""

from __future__ import annotations

import msgspec

from bkctl.runtime.errors import (
    BadVersionError,
    LedgerNotFoundError,
    MetadataUnavailableError,
)
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.replication.copy.reader import pause_s
from bkctl.runtime.replication.judge.bad_copies import MUST_MOVE, left_copies
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerFailure, LedgerResult, failed
from bkctl.runtime.replication.turn.close_first import read_closed
from bkctl.runtime.replication.turn.in_place import rewrite
from bkctl.runtime.replication.turn.metadata_switch import TargetGoneError, switch_metadata
from bkctl.runtime.replication.turn.moves import prepare, require_targets
from bkctl.runtime.replication.turn.state import ZOOKEEPER, BadStripe, StripePlace, TurnState


async def work_on(turn: TurnState) -> LedgerResult:
    """Repair until only reported failures still reference the leaving bookies."""
    attempt = 0
    while attempt < turn.tools.policy.config.metadata_attempts_max:
        attempt += 1
        try:
            result = await _pass(turn)
        except LedgerNotFoundError:
            return LedgerResult(  # nothing to repair
                ledger_id=turn.task.ledger_id,
                was_deleted=True,
                copies_written=turn.written.copies,
                bytes_copied=turn.written.size_bytes,
            )
        except TargetGoneError as gone:
            attempt -= 1  # ends all the same: each target is tried once
            turn.unusable[gone.target] = f"bookie {gone.target} left, or became read-only, after it was copied to"
            await turn.tools.live_bookies.look()
        except (BadVersionError, MetadataUnavailableError) as conflict:
            # A lost race or a lost answer: in both cases the stored metadata shows what remains to be done.
            if isinstance(conflict, MetadataUnavailableError):
                await turn.tools.outage.wait(conflict)
                # Bookie addresses come from the metadata store, so good bookies may have failed meanwhile.
                turn.failures.clear()
                turn.unusable.clear()
                if (result := await turn.tools.outage.outlast(lambda: _finished_without_lock(turn))) is not None:
                    return result
            turn.require_lock()
            await turn.tools.ports.clock.sleep(pause_s(attempt, turn.tools.policy.config, turn.tools.ports.clock))
        else:
            if result is not None:
                return result
            if turn.stored is not None:
                attempt = 0  # a part was committed
    detail = f"another process changed it first, {turn.tools.policy.config.metadata_attempts_max} times in a row"
    given_up = failed(turn.task.ledger_id, FailureReason.CONFLICT, detail)
    written = turn.written
    return msgspec.structs.replace(given_up, copies_written=written.copies, bytes_copied=written.size_bytes)


async def _pass(turn: TurnState) -> LedgerResult | None:
    """Copy and commit; None if there is more to do, as after a part of a long ledger."""
    await turn.tools.live_bookies.refresh()
    versioned = await read_closed(turn)
    metadata = versioned.value
    if not turn.is_rewritten:
        await rewrite(turn, metadata)
    change, is_all = await prepare(turn, metadata)
    if change:
        await require_targets(turn, change)
        turn.require_lock()  # no suspension point between this check and the write
        is_released = is_all and turn.is_lock_ours and not (turn.failures or turn.defects)
        with turn.activity.waiting(ZOOKEEPER):
            written = await switch_metadata(
                turn.tools.ports.ledgers, turn.tools.live_bookies, turn.lock, versioned, change, is_released=is_released
            )
        metadata = written.value
        turn.keep_failures_of(metadata)
        if not is_all:
            turn.stored = written
            return None
    if turn.failures or turn.defects:  # the affected copies may have been moved or deleted
        count = len(turn.failures)
        metadata = (await turn.read()).value
        if len(turn.failures) < count:
            return None
    if turn.failures:
        turn.require_lock()  # after a lost session, live bookies may seem to be missing
    return await _result(turn, metadata)


async def _finished_without_lock(turn: TurnState) -> LedgerResult | None:
    """The result, if the lock is lost but the ledger needs no more repair: our last write was carried out."""
    await turn.lock.confirm()
    if turn.lock.is_held:
        return None
    try:
        metadata = (await turn.read()).value
    except LedgerNotFoundError:
        return LedgerResult(ledger_id=turn.task.ledger_id, was_deleted=True)
    is_done = turn.is_rewritten and not turn.task.fragments(metadata)
    return await _result(turn, metadata) if is_done else None


async def _result(turn: TurnState, metadata: LedgerMetadata) -> LedgerResult:
    """The result, based on the currently stored metadata, and on who is registered now."""
    named = [
        (place, copied)
        for place, copied in turn.moves.items()
        if metadata.segment_of(place.first_entry_id).ensemble[place.ensemble_index] == copied.target
    ]
    gone = {copied.target for _, copied in named} - ((await turn.tools.live_bookies.look()).live if named else set())
    stay = {place: bad for place, bad in turn.bad_stripes.items() if turn.fragment_at(metadata, place) is not None}
    moved = [bad for place, bad in turn.bad_stripes.items() if place not in stay]
    return LedgerResult(
        ledger_id=turn.task.ledger_id,
        fragments=len({place.first_entry_id for place, _ in named}),
        entries=sum(copied.entries for _, copied in named),
        bytes_copied=sum(copied.bytes_copied for _, copied in named) + turn.written.size_bytes,
        copies_written=turn.written.copies,
        stripes_moved=len(moved),
        copies_moved=sum(bad.copies for bad in moved),
        broken_rules=tuple(broken for _, copied in named for broken in copied.broken_rules),
        was_closed=turn.was_closed,
        failures=(
            *turn.bad_left,
            *(found.failure for place, found in turn.failures.items() if place not in turn.bad_stripes),
            *(_why_not_moved(turn, place, bad) for place, bad in stay.items()),
            *(
                LedgerFailure(turn.task.ledger_id, FailureReason.TARGET_GONE, (), f"bookie {target} is not registered")
                for target in sorted(gone)
            ),
        ),
        defects=tuple(
            defect
            for defect in turn.defects
            if any(
                defect.bookie_id in metadata.segment_of(entries.first_entry_id).ensemble for entries in defect.entries
            )
        ),
    )


def _why_not_moved(turn: TurnState, place: StripePlace, bad: BadStripe) -> LedgerFailure:
    reason, detail = FailureReason.CONFLICT, "the ledger changed meanwhile: run the command again"
    if (found := turn.failures.get(place)) is not None:
        reason, detail = found.failure.reason, found.failure.bare_detail
    reason = FailureReason.STRIPE if reason is FailureReason.LOST else reason
    detail = MUST_MOVE.format(detail)
    return left_copies(turn.task.ledger_id, reason, bad.bookie_id, bad.copies, bad.entries, detail)
