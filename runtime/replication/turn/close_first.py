"""Closes a ledger first, if a leaving bookie is in its open last segment."""

from __future__ import annotations

from bkctl.runtime.client.ports import credentials_of
from bkctl.runtime.client.recovery import LedgerRecovery
from bkctl.runtime.errors import LedgerNotFoundError, MetadataUnavailableError
from bkctl.runtime.ledger.changes import to_in_recovery
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.placement.choice import NoChoice
from bkctl.runtime.replication.config import OpenLedgers
from bkctl.runtime.replication.judge.closability import lacks_bookies, why_not_closable
from bkctl.runtime.replication.judge.copies import CopyState
from bkctl.runtime.replication.judge.fragments import EntryRange, merge_ranges
from bkctl.runtime.replication.judge.ledger_result import FailureReason, SourceDefect
from bkctl.runtime.replication.turn.moves import need_of, why_no_target
from bkctl.runtime.replication.turn.state import StripePosition, TurnState
from bkctl.storage.errors import BkctlError


async def read_closed(turn: TurnState) -> Versioned[LedgerMetadata]:
    """The stored metadata, after fencing and closing the ledger if a leaving bookie is in its open last segment.

    If only older segments reference one, the repair does not disturb a live writer. A ledger that cannot or must
    not be closed is reported, but its complete segments are still repaired (bk#2755).
    """
    versioned = await turn.read()
    metadata = versioned.value
    position = StripePosition(metadata.last_segment.first_entry_id, -1)
    if (
        metadata.is_closed
        or not any(fragment.is_open for fragment in turn.task.fragments(metadata))
        or position in turn.failures
    ):
        return versioned
    if (reason := turn.task.why_left_open(metadata, turn.tools.policy)) is not None:
        turn.fail(metadata, position, FailureReason.OPEN, (), reason)
        return versioned
    found = await turn.tools.live_bookies.refresh()
    unclosable = why_not_closable(turn.task.ledger_id, metadata, found.live, found.writable)
    if unclosable is not None:
        detail = f"{unclosable.reason}; {unclosable.last_resort}"
        is_stuck = lacks_bookies(metadata, found.live, found.writable)
        missing = unclosable.missing
        turn.fail(metadata, position, FailureReason.NOT_CLOSED, (), detail, missing, lacks_bookies=is_stuck)
        return versioned
    if (reason := await _why_fence_in_vain(turn, metadata)) is not None:
        turn.fail(metadata, position, FailureReason.OPEN, (), reason)
        return versioned
    turn.require_lock()
    if metadata.state is LedgerState.OPEN:  # at this version: the writer may have just replaced the bookie
        versioned = await turn.tools.ports.ledgers.write(
            turn.task.ledger_id, to_in_recovery(metadata), versioned.version
        )
    for bookie_id in turn.task.unreachable:
        turn.tools.ports.suspects.add(bookie_id)  # the close must not choose them again
    recovery = LedgerRecovery(turn.tools.ports, credentials_of(turn.task.ledger_id, metadata), versioned)
    try:
        await recovery.run()
    except (LedgerNotFoundError, MetadataUnavailableError):
        raise
    except BkctlError as error:
        members = sorted(set(metadata.last_segment.ensemble))
        absent = tuple(each for each in members if each not in turn.tools.live_bookies)
        turn.fail(metadata, position, FailureReason.NOT_CLOSED, (), str(error), absent)
    else:
        turn.was_closed = True
        for bookie_id, entry_ids in recovery.corrupt_left.items():
            entries = merge_ranges(EntryRange(each, each) for each in entry_ids)
            turn.defects.append(SourceDefect(turn.task.ledger_id, bookie_id, CopyState.CORRUPT, entries))
    return await turn.read()


async def _why_fence_in_vain(turn: TurnState, metadata: LedgerMetadata) -> str | None:
    """Why the open segment could not be copied once it is closed. An explicit choice to fence is not questioned."""
    if turn.tools.policy.open_ledgers is not OpenLedgers.WAIT or metadata.state is not LedgerState.OPEN:
        return None
    fragment = turn.task.fragments(metadata)[-1]
    found = await turn.tools.targets.try_to_choose(need_of(turn, metadata, fragment, fragment.bookie_indexes[0], {}))
    if not isinstance(found, NoChoice):
        return None
    _, detail = why_no_target(turn, found)
    return f"a fence would only stop its writer, because no bookie could take its copies: {detail}"
