"""The steps of a turn under its lock, in their order: close, write bad copies again, copy, name the new members.

A move is an ensemble index of a segment, and its target.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from bkctl.runtime.client.ports import credentials_of
from bkctl.runtime.client.recovery import LedgerRecovery
from bkctl.runtime.errors import BadVersionError, LedgerNotFoundError, MetadataUnavailableError, NoNodeError
from bkctl.runtime.ledger.changes import replace_in_segment, to_in_recovery
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.store import NodeWrite, Versioned
from bkctl.runtime.placement.choice import NoChoice
from bkctl.runtime.placement.isolation import isolation_demand
from bkctl.runtime.replication.config import OpenLedgers
from bkctl.runtime.replication.copy.gaps import OutsideBookies
from bkctl.runtime.replication.copy.stripe import StripeReplicator, StripeRewrite
from bkctl.runtime.replication.copy.stripe_task import StripeOutcome, StripeTask
from bkctl.runtime.replication.judge.bad_copies import MUST_MOVE, MUST_SPREAD
from bkctl.runtime.replication.judge.closability import lacks_bookies, why_not_closable
from bkctl.runtime.replication.judge.copies import CopyState
from bkctl.runtime.replication.judge.fragments import (
    EntryRange,
    Fragment,
    accepted_entries,
    fragments_naming,
    in_and_out_of,
    lost_entries,
    merge_ranges,
    repeats,
    stripe_count,
)
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerFailure, SourceDefect
from bkctl.runtime.replication.judge.targets import CopyNeed, stripe_bytes
from bkctl.runtime.replication.turn.state import BadStripe, LockLostError, Move, StripePosition, TurnState
from bkctl.storage.errors import BkctlError

COMMIT_AFTER_NS = 5 * 10**9
"""Copies that have waited so long for the compare-and-set are committed before the next stripe is copied."""

NewMembers: TypeAlias = dict[int, dict[int, str]]
"""New bookies by ensemble index, by first entry of the segment: one compare-and-set."""


class TargetGoneError(Exception):
    """A target was not writable, or had no cookie, when the metadata was to name it; nothing was written."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.target = target


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
    if (failure := await _why_left_open(turn, metadata)) is not None:
        turn.fail(metadata, position, failure)
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
        failure = LedgerFailure(turn.task.ledger_id, FailureReason.NOT_CLOSED, (), str(error), absent=absent)
        turn.fail(metadata, position, failure)
    else:
        turn.was_closed = True
        for bookie_id, entry_ids in recovery.corrupt_left.items():
            entries = merge_ranges(EntryRange(each, each) for each in entry_ids)
            turn.defects.append(SourceDefect(turn.task.ledger_id, bookie_id, CopyState.CORRUPT, entries))
    return await turn.read()


async def _why_left_open(turn: TurnState, metadata: LedgerMetadata) -> LedgerFailure | None:
    """Why the ledger must not be fenced, or cannot be closed; None: fence it."""
    ledger_id = turn.task.ledger_id
    reason = turn.task.why_left_open(metadata, turn.tools.policy)
    if reason is None:
        found = await turn.tools.live_bookies.refresh()
        unclosable = why_not_closable(ledger_id, metadata, found.live, found.writable)
        if unclosable is not None:
            return LedgerFailure(
                ledger_id,
                FailureReason.NOT_CLOSED,
                (),
                f"{unclosable.reason}; {unclosable.last_resort}",
                absent=unclosable.missing,
                lacks_bookies=lacks_bookies(metadata, found.live, found.writable),
            )
        reason = await _why_fence_in_vain(turn, metadata)
    return None if reason is None else LedgerFailure(ledger_id, FailureReason.OPEN, (), reason)


async def _why_fence_in_vain(turn: TurnState, metadata: LedgerMetadata) -> str | None:
    """Why the open segment could not be copied once it is closed. An explicit choice to fence is not questioned."""
    if turn.tools.policy.open_ledgers is not OpenLedgers.WAIT or metadata.state is not LedgerState.OPEN:
        return None
    fragment = turn.task.fragments(metadata)[-1]
    found = await turn.tools.targets.try_to_choose(_need_of(turn, metadata, fragment, fragment.bookie_indexes[0], {}))
    if not isinstance(found, NoChoice):
        return None
    _, detail = _why_no_target(turn, found)
    return f"a fence would only stop its writer, because no bookie could take its copies: {detail}"


async def rewrite(turn: TurnState, metadata: LedgerMetadata) -> None:
    """Write bad copies again. Stripes with bad records that must not be written over leave their bookies, too."""
    credentials = credentials_of(turn.task.ledger_id, metadata)
    turn.bad_left.clear()
    turn.bad_stripes.clear()
    live = (await turn.tools.live_bookies.refresh()).live
    if turn.loss_note is not None:
        written = merge_ranges(itertools.chain.from_iterable(turn.task.bad.values()))
        await turn.tools.loss_notes.end(turn.task.ledger_id, turn.loss_note, written)
        turn.loss_note = await turn.tools.loss_notes.find(turn.task.ledger_id)
    for bookie_id, entries in turn.task.bad.items():
        for fragment in fragments_naming(metadata, (bookie_id,)):
            inside, _ = in_and_out_of(entries, (fragment.entries,))
            if fragment.is_open or not inside:
                continue
            for index in fragment.bookie_indexes:
                outside = tuple(sorted(live.difference(fragment.ensemble)))
                stripe_task = StripeTask(
                    credentials, metadata, fragment, index, bookie_id, frozenset(), bad=inside, outside=outside
                )
                outcome = await StripeRewrite(
                    turn.tools.copying, stripe_task, turn.activity, turn.require_lock, turn.silent_members
                ).run()
                turn.written.copies += outcome.entries
                turn.written.size_bytes += outcome.bytes_copied
                turn.bad_left += outcome.left
                if outcome.must_move_count:
                    position = StripePosition(fragment.entries.first_entry_id, index)
                    bad = BadStripe(bookie_id, outcome.must_move_count, outcome.must_move, MUST_MOVE)
                    turn.bad_stripes[position] = bad
    if turn.bad_stripes:
        leaving: dict[int, frozenset[str]] = {}
        for position, bad in turn.bad_stripes.items():
            leaving[position.first_entry_id] = leaving.get(position.first_entry_id, frozenset()) | {bad.bookie_id}
        down = metadata.bookies() - (await turn.tools.live_bookies.refresh()).live
        unreachable = turn.task.unreachable | down
        turn.task = msgspec.structs.replace(turn.task, leaving_segments=leaving, unreachable=unreachable)
    for fragment in turn.task.fragments(metadata):
        for index in repeats(metadata, fragment.segment_index):
            count = stripe_count(fragment.entries, index, *metadata.sizes)
            bad = BadStripe(fragment.ensemble[index], count, (fragment.entries,), MUST_SPREAD)
            turn.bad_stripes.setdefault(StripePosition(fragment.entries.first_entry_id, index), bad)
    turn.is_rewritten = True  # last: after an error, all this begins again


async def prepare(turn: TurnState, metadata: LedgerMetadata) -> tuple[NewMembers, bool]:
    """Copy until no complete segment needs the leaving bookies; returns their replacements, and whether it is all.

    Keeps copies from before a lost compare-and-set if they still fit: the index still has a leaving bookie, and the
    target is not elsewhere in the current ensemble (replication section 4.1).
    """
    await turn.tools.live_bookies.refresh()
    change: NewMembers = {}
    oldest_ns = turn.tools.ports.clock.monotonic_ns()
    for fragment in turn.task.fragments(metadata):
        if fragment.is_open:
            continue
        first_entry_id = fragment.entries.first_entry_id
        taken: dict[int, str] = {}
        for index in fragment.bookie_indexes:
            position = StripePosition(first_entry_id, index)
            if position in turn.failures:
                continue
            copied = turn.moves.get(position)
            unfit = {*fragment.ensemble, *taken.values(), *turn.unusable}
            is_outdated = copied is None or copied.target in unfit or copied.note_version != turn.note_version
            if copied is None or is_outdated or not await _is_still_member(turn, copied):
                if change and turn.tools.ports.clock.monotonic_ns() - oldest_ns > COMMIT_AFTER_NS:
                    return change, False
                copied = await _copy(turn, metadata, fragment, index, taken)
            if copied is not None:
                oldest_ns = min(oldest_ns, copied.copied_ns) if change else copied.copied_ns
                taken[index] = copied.target
                change[first_entry_id] = taken
    return change, True


async def switch_metadata(
    turn: TurnState, stored: Versioned[LedgerMetadata], change: NewMembers, *, is_released: bool
) -> Versioned[LedgerMetadata]:
    """Name the new members in what is stored, and release the lock in the same transaction if ``is_released``.

    It is one transaction with a check that each target is writable and has its cookie. Another command makes a bookie
    read-only, and deletes its cookie, before it scans all ledgers for the last time. So our write comes before that,
    and the scan sees it, or it fails, and the stripes of that target are copied again (replication section 15.1).
    TargetGoneError, LockLostError, BadVersionError, LedgerNotFoundError. MetadataUnavailableError: it may be done.
    """
    metadata = stored.value
    for first_entry_id, replacements in change.items():
        for index, target in replacements.items():
            if not await _is_still_member(turn, turn.moves[StripePosition(first_entry_id, index)]):
                raise TargetGoneError(target)
    turn.require_lock()  # no suspension point between this check and the write
    for first_entry_id, replacements in change.items():
        metadata = replace_in_segment(metadata, first_entry_id, replacements)
    targets = sorted({target for replacements in change.values() for target in replacements.values()})
    checks = {check: target for target in targets for check in turn.tools.ports.registrations.checks(target)}
    note = _note_write(turn, change)

    async def write(*others: NodeWrite) -> Versioned[LedgerMetadata]:
        ledgers = turn.tools.ports.ledgers
        return await ledgers.write(turn.task.ledger_id, metadata, stored.version, *others, *checks, *note)

    try:
        return await (turn.lock.release_in(write) if is_released else write())
    except NoNodeError as error:
        for check, target in checks.items():
            if check.path == error.path:
                raise TargetGoneError(target) from error
        if any(each.path == error.path for each in note):
            raise BadVersionError(str(error), error.path) from error
        raise LockLostError from error


def _note_write(turn: TurnState, change: NewMembers) -> tuple[NodeWrite, ...]:
    """Ends the acceptance of the loss of new members and their entries, and requires that of entries that none has."""
    if turn.loss_note is None:
        return ()
    moves = [turn.moves[StripePosition(first, index)] for first, indexes in change.items() for index in indexes]
    if any(each.note_version != turn.note_version for each in moves):
        raise BadVersionError("the note of an accepted loss was read after a copy was made")
    present = merge_ranges(entries for each in moves for entries in each.present)
    targets = [each.target for each in moves]
    return (turn.tools.loss_notes.ending(turn.task.ledger_id, turn.loss_note, present, targets),)


async def _is_still_member(turn: TurnState, copied: Move) -> bool:
    """Whether the target has been in the cluster all the time, as far as is known now."""
    if copied.target not in turn.tools.live_bookies:
        return False
    return await turn.tools.live_bookies.member_since(copied.target) == copied.member_since


async def _copy(
    turn: TurnState, metadata: LedgerMetadata, fragment: Fragment, index: int, taken: Mapping[int, str]
) -> Move | None:
    """Copy one stripe to the first target that stores it verifiably; None and a recorded failure if there is none.

    ``taken``: the targets of other positions of the segment. A bad source does not count against the target, nor a
    bad target against the source.
    """
    position = StripePosition(fragment.entries.first_entry_id, index)
    begun = turn.begun(position)
    while True:
        need = _need_of(turn, metadata, fragment, index, taken)
        found = await turn.tools.targets.choose(need, preferred=None if begun is None else begun.target)
        if isinstance(found, NoChoice):
            without_copy = None if turn.unusable else await _without_live_copy(turn, metadata, fragment, index)
            turn.fail(metadata, position, without_copy or _without_target(turn, fragment, found))
            return None
        target = found.bookies[0]
        note = None if turn.loss_note is None else turn.loss_note.value
        credentials = credentials_of(turn.task.ledger_id, metadata)
        copied_until = begun.last_entry_id if begun is not None and begun.target == target else -1
        stripe_task = StripeTask(
            credentials,
            metadata,
            fragment,
            index,
            target,
            turn.task.unreachable,
            copied_until,
            outside=await _outside(turn, fragment),
            lost=() if note is None else lost_entries(note),
            accepted=accepted_entries(note, metadata),
        )
        try:
            since = await turn.tools.live_bookies.member_since(target)
            if since is None:
                turn.unusable[target] = f"bookie {target} has no cookie"
                continue
            outcome = await StripeReplicator(turn.tools.copying, stripe_task, turn.activity).run()
        finally:
            turn.tools.targets.finish(target, need)
        turn.defects.extend(outcome.defects)
        if outcome.is_complete:
            now_ns = turn.tools.ports.clock.monotonic_ns()
            done = outcome.entries, outcome.bytes_copied, found.broken, turn.note_version, outcome.present
            copied = Move(target, since, now_ns, *done)
            turn.moves[position] = copied
            return copied
        if outcome.target_failure is None:
            turn.fail(metadata, position, _without_source(turn, metadata, fragment, outcome))
            return None
        turn.unusable[target] = outcome.target_failure
        if outcome.is_refused:
            turn.refusing.add(target)


async def _outside(turn: TurnState, fragment: Fragment) -> tuple[str, ...]:
    live = (await turn.tools.live_bookies.refresh()).live
    return tuple(sorted(live.difference(fragment.ensemble, turn.task.unreachable)))


async def _without_live_copy(
    turn: TurnState, metadata: LedgerMetadata, fragment: Fragment, index: int
) -> LedgerFailure | None:
    """The failure if an entry of the stripe has no live copy, so that no target would help: none of its bookies is
    registered, and no other live one has it."""
    sizes, ensemble = metadata.sizes, fragment.ensemble
    first_entry_id, last_entry_id = fragment.entries.first_entry_id, fragment.entries.last_entry_id
    for entry_id in range(first_entry_id, min(first_entry_id + sizes[0] - 1, last_entry_id) + 1):
        members = [ensemble[each] for each in write_set(entry_id, *sizes)]
        if ensemble[index] in members and not any(each in turn.tools.live_bookies for each in members):
            break
    else:
        return None
    credentials, copies = credentials_of(turn.task.ledger_id, metadata), turn.tools.copying.copies
    kept = OutsideBookies.of(copies, credentials, await _outside(turn, fragment))
    if await kept.find(entry_id) is not None:
        return None
    absent = tuple(sorted(set(members)))
    detail = f"entry {entry_id}: " + ", ".join(f"{each}: not registered" for each in absent)
    return LedgerFailure(turn.task.ledger_id, FailureReason.UNREADABLE, (fragment.entries,), detail, absent=absent)


def _without_target(turn: TurnState, fragment: Fragment, found: NoChoice) -> LedgerFailure:
    reason, detail = _why_no_target(turn, found)
    is_refused = reason is FailureReason.TARGETS_FAILED and turn.unusable.keys() <= turn.refusing
    return LedgerFailure(turn.task.ledger_id, reason, (fragment.entries,), detail, is_refused=is_refused)


def _without_source(
    turn: TurnState, metadata: LedgerMetadata, fragment: Fragment, outcome: StripeOutcome
) -> LedgerFailure:
    """Some entries have no source. The bookies that should have the first of them and do not answer are absent."""
    entries = (*outcome.lost, *outcome.unreadable)
    first_entry_id = min(each.first_entry_id for each in entries)
    members = {fragment.ensemble[index] for index in write_set(first_entry_id, *metadata.sizes)}
    absent = tuple(sorted(filter(turn.tools.copying.copies.is_absent, members)))
    return LedgerFailure(
        turn.task.ledger_id,
        FailureReason.UNREADABLE if outcome.unreadable else FailureReason.LOST,
        entries,
        outcome.reason,
        absent=absent,
        is_refused=outcome.is_refused,
        has_live_member=len(absent) < len(members),
    )


def _need_of(
    turn: TurnState, metadata: LedgerMetadata, fragment: Fragment, index: int, taken: Mapping[int, str]
) -> CopyNeed:
    """What the choice of a target has to know. ``taken``: the targets of other positions of the segment."""
    first_entry_id = fragment.entries.first_entry_id
    leaving = turn.task.leaving_in(first_entry_id)
    pending = (each for each in fragment.bookie_indexes if each != index and each not in taken)
    return CopyNeed(
        write_quorum_size=metadata.write_quorum_size,
        ensemble=tuple(taken.get(each, bookie_id) for each, bookie_id in enumerate(fragment.ensemble)),
        index=index,
        pending=tuple(each for each in pending if StripePosition(first_entry_id, each) not in turn.failures),
        excluded=frozenset({*fragment.ensemble, *leaving, *turn.task.unreachable, *turn.unusable}),
        isolation=isolation_demand(metadata.custom_metadata),
        entry_count=stripe_count(fragment.entries, index, *metadata.sizes),
        bytes_needed=stripe_bytes(metadata, fragment, index),
        is_data_first=turn.task.is_data_first,
        must_improve=turn.task.must_improve,
    )


def _why_no_target(turn: TurnState, found: NoChoice) -> tuple[FailureReason, str]:
    """Why no bookie can take the copies: the reason, and the detail in words."""
    if found.best is not None:
        has_option = not (turn.task.is_data_first or turn.task.must_improve)  # unlike the order of a worker
        option = " (--placement best-effort accepts that)" if has_option else ""
        return FailureReason.PLACEMENT, found.sentence + option
    if turn.unusable:
        return FailureReason.TARGETS_FAILED, "; ".join(turn.unusable.values())
    if found.is_by_rules or turn.tools.targets.only:
        return FailureReason.NOT_ENOUGH_BOOKIES, found.sentence
    return FailureReason.NOT_ENOUGH_BOOKIES, "every writable bookie is already in the ensemble"
