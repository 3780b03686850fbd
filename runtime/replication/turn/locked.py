"""The work on one ledger, whose lock is held: close, copy, verify, one compare-and-set.

Source: replication sections 4.1, 6 and 15.1. After a lost compare-and-set, everything is decided again from the stored
metadata. Copies that were already made are used only if they still fit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from runtime.client.ports import ClientPorts, credentials_of
from runtime.client.recovery import LedgerRecovery
from runtime.errors import (
    BadVersionError,
    ConflictError,
    LedgerNotFoundError,
    MetadataUnavailableError,
)
from runtime.ledger.changes import to_in_recovery
from runtime.ledger.metadata import LedgerMetadata, LedgerState
from runtime.metadata.outage import OutageWait
from runtime.metadata.replication.lock import ReplicationLock, ReplicationLocks
from runtime.metadata.store import Versioned
from runtime.placement.choice import NoChoice
from runtime.placement.isolation import isolation_demand
from runtime.placement.rules import BrokenRule
from runtime.replication.config import OpenLedgers
from runtime.replication.copy.activity import LedgerActivity
from runtime.replication.copy.job import StripeJob
from runtime.replication.copy.reader import pause_s
from runtime.replication.copy.stripe import Replicator
from runtime.replication.judge.bad_copies import MUST_MOVE, left_copies
from runtime.replication.judge.closing import why_not_closable
from runtime.replication.judge.copies import CopyState
from runtime.replication.judge.fragments import (
    EntryRange,
    Fragment,
    fragments_naming,
    in_and_out_of,
    joined,
    stripe_count,
)
from runtime.replication.judge.ledger_result import FailureReason, LedgerFailure, LedgerResult, SourceDefect, failed
from runtime.replication.judge.targets import CopyNeed, stripe_bytes
from runtime.replication.policy import Policy
from runtime.replication.turn.live_bookies import LiveBookies
from runtime.replication.turn.metadata_switch import LockLostError, NewMembers, TargetGoneError, switch_metadata
from runtime.replication.turn.target_chooser import TargetChooser
from runtime.replication.turn.task import LedgerTask
from storage.errors import BkctlError

ZOOKEEPER = "ZooKeeper"
COMMIT_AFTER_NS = 5 * 10**9
"""Copies that have waited so long for the compare-and-set are committed before the next stripe is copied."""


class _Place(NamedTuple):
    """One ensemble index of one segment; -1 means the whole open last segment."""

    first_entry_id: int
    ensemble_index: int


class _Copied(NamedTuple):
    """A verified copy of a stripe.

    ``member_since``: when the target's cookie was created, before the copy began. ``copied_ns``: when it was verified.
    """

    target: str
    member_since: int
    copied_ns: int
    entries: int
    bytes_copied: int
    broken_rules: tuple[BrokenRule, ...] = ()


class _FoundFailure(NamedTuple):
    """A failure and its fragment. If another process changes this fragment, the failure is outdated."""

    fragment: Fragment | None
    failure: LedgerFailure


@dataclasses.dataclass(frozen=True)
class TurnTools:
    """Objects that the turns of one run share."""

    ports: ClientPorts
    locks: ReplicationLocks
    replicator: Replicator
    live_bookies: LiveBookies
    targets: TargetChooser
    outage: OutageWait
    policy: Policy
    unusable: dict[str, str]
    """Bookies that stopped answering to adds, with the reason: their bad copies are left until the next outage ends."""


@dataclasses.dataclass
class WrittenInPlace:
    """Bad copies that were written again, and their bytes. They stay counted when a turn begins again."""

    copies: int = 0
    size_bytes: int = 0


class _BadStripe(NamedTuple):
    """A stripe that moves because of bad records that must not be written over."""

    bookie_id: str
    copies: int
    entries: tuple[EntryRange, ...]


class LockedTurn:
    """State of the work on one ledger under its lock."""

    def __init__(
        self,
        tools: TurnTools,
        lock: ReplicationLock,
        task: LedgerTask,
        activity: LedgerActivity,
        stored: Versioned[LedgerMetadata] | None,
        written: WrittenInPlace,
        *,
        is_lock_ours: bool,
    ) -> None:
        """``stored``: the metadata, if it is known already what was stored while the lock was held.

        ``is_lock_ours``: the last change may release the lock.
        """
        self._is_lock_ours = is_lock_ours
        self._ports = tools.ports
        self._stored = stored
        self._lock = lock
        self._replicator = tools.replicator
        self._live_bookies = tools.live_bookies
        self._targets = tools.targets
        self._outage = tools.outage
        self._policy = tools.policy
        self._config = tools.policy.config
        self._ledger_id = task.ledger_id
        self._activity = activity
        self._task = task
        self._unusable_members = tools.unusable
        self._written = written
        self._is_rewritten = not task.bad
        self._bad_left: list[LedgerFailure] = []
        self._bad_stripes: dict[_Place, _BadStripe] = {}
        self._state = LedgerState.OPEN
        self._was_closed = False
        self._begun = {_Place(each.first_entry_id, each.ensemble_index): each for each in task.ranges}
        self._copied: dict[_Place, _Copied] = {}
        self._unusable: dict[str, str] = {}
        """Targets that rejected or lost copies of this ledger, with the reason; not tried again (bk#4668)."""
        self._failures: dict[_Place, _FoundFailure] = {}
        self._defects: list[SourceDefect] = []

    async def run(self) -> LedgerResult:
        """Repair until only reported failures still reference the leaving bookies."""
        attempt = 0
        while attempt < self._config.metadata_attempts_max:
            attempt += 1
            try:
                result = await self._pass()
            except LedgerNotFoundError:
                return LedgerResult(  # nothing to repair
                    ledger_id=self._ledger_id,
                    was_deleted=True,
                    copies_written=self._written.copies,
                    bytes_copied=self._written.size_bytes,
                )
            except TargetGoneError as gone:
                attempt -= 1  # ends all the same: each target is tried once
                self._unusable[gone.target] = f"bookie {gone.target} left, or became read-only, after it was copied to"
                await self._live_bookies.look()
            except (BadVersionError, MetadataUnavailableError) as conflict:
                # A lost race or a lost answer: in both cases the stored metadata shows what remains to be done.
                if isinstance(conflict, MetadataUnavailableError):
                    await self._outage.wait(conflict)
                    # Bookie addresses come from the metadata store, so good bookies may have failed meanwhile.
                    self._failures.clear()
                    self._unusable.clear()
                    if (result := await self._outage.outlast(self._finished_without_lock)) is not None:
                        return result
                self._require_lock()
                await self._ports.clock.sleep(pause_s(attempt, self._config, self._ports.clock))
            else:
                if result is not None:
                    return result
                if self._stored is not None:
                    attempt = 0  # a part was committed
        detail = f"another process changed it first, {self._config.metadata_attempts_max} times in a row"
        return failed(self._ledger_id, FailureReason.CONFLICT, detail)

    async def _pass(self) -> LedgerResult | None:
        """Copy and commit; None if there is more to do, as after a part of a long ledger."""
        await self._live_bookies.refresh()
        versioned = await self._read_closed()
        metadata = versioned.value
        if not self._is_rewritten:
            await self._rewrite(metadata)
        change, is_all = await self._prepare(metadata)
        if change:
            await self._require_targets(change)
            self._require_lock()  # no suspension point between this check and the write
            is_released = is_all and self._is_lock_ours and not (self._failures or self._defects)
            with self._activity.waiting(ZOOKEEPER):
                written = await switch_metadata(
                    self._ports.ledgers, self._live_bookies, self._lock, versioned, change, is_released=is_released
                )
            metadata = written.value
            self._keep_failures_of(metadata)
            if not is_all:
                self._stored = written
                return None
        if self._failures or self._defects:  # the affected copies may have been moved or deleted
            count = len(self._failures)
            metadata = (await self._read()).value
            if len(self._failures) < count:
                return None
        if self._failures:
            self._require_lock()  # after a lost session, live bookies may seem to be missing
        return await self._result(metadata)

    async def _finished_without_lock(self) -> LedgerResult | None:
        """The result, if the lock is lost but the ledger needs no more repair: our last write was carried out."""
        await self._lock.confirm()
        if self._lock.is_held:
            return None
        try:
            metadata = (await self._read()).value
        except LedgerNotFoundError:
            return LedgerResult(ledger_id=self._ledger_id, was_deleted=True)
        is_done = self._is_rewritten and not self._task.fragments(metadata)
        return await self._result(metadata) if is_done else None

    def _fragment_at(self, metadata: LedgerMetadata, place: _Place) -> Fragment | None:
        """The fragment that references a leaving bookie at this place; None if there is none."""
        for fragment in self._task.fragments(metadata):
            indexes = (-1,) if fragment.is_open else fragment.bookie_indexes
            if fragment.entries.first_entry_id == place.first_entry_id and place.ensemble_index in indexes:
                return fragment
        return None

    def _require_lock(self) -> None:
        if not self._lock.is_held:
            raise LockLostError

    async def _read(self) -> Versioned[LedgerMetadata]:
        """Read the stored metadata, and drop failures whose fragment has changed."""
        versioned, self._stored = self._stored, None
        if versioned is None:
            with self._activity.waiting(ZOOKEEPER):
                versioned = await self._ports.ledgers.read(self._ledger_id)
        if versioned.value.state < self._state:
            raise ConflictError(f"ledger {self._ledger_id}: its state went backwards; older metadata was restored")
        self._state = versioned.value.state
        self._failures = {
            place: found
            for place, found in self._failures.items()
            if found.fragment == self._fragment_at(versioned.value, place)
        }
        return versioned

    def _keep_failures_of(self, metadata: LedgerMetadata) -> None:
        """Update the fragments of failures after our own change, which does not make them outdated."""
        self._failures = {
            place: _FoundFailure(self._fragment_at(metadata, place), found.failure)
            for place, found in self._failures.items()
        }

    async def _read_closed(self) -> Versioned[LedgerMetadata]:
        """The stored metadata, after fencing and closing the ledger if a leaving bookie is in its open last segment.

        If only older segments reference one, the repair does not disturb a live writer. A ledger that cannot or must
        not be closed is reported, but its complete segments are still repaired (bk#2755).
        """
        versioned = await self._read()
        metadata = versioned.value
        place = _Place(metadata.last_segment.first_entry_id, -1)
        if (
            metadata.is_closed
            or not any(fragment.is_open for fragment in self._task.fragments(metadata))
            or place in self._failures
        ):
            return versioned
        if (reason := self._task.why_left_open(metadata, self._policy.open_ledgers)) is not None:
            self._fail(metadata, place, FailureReason.OPEN, (), reason)
            return versioned
        unclosable = why_not_closable(self._ledger_id, metadata, (await self._live_bookies.refresh()).live)
        if unclosable is not None:
            detail = f"{unclosable.reason}; {unclosable.last_resort}"
            self._fail(metadata, place, FailureReason.NOT_CLOSED, (), detail)
            return versioned
        if (reason := await self._why_fence_in_vain(metadata)) is not None:
            self._fail(metadata, place, FailureReason.OPEN, (), reason)
            return versioned
        self._require_lock()
        if metadata.state is LedgerState.OPEN:  # at this version: the writer may have just replaced the bookie
            versioned = await self._ports.ledgers.write(self._ledger_id, to_in_recovery(metadata), versioned.version)
        for bookie_id in self._task.unreachable:
            self._ports.suspects.add(bookie_id)  # the close must not choose them again
        recovery = LedgerRecovery(self._ports, credentials_of(self._ledger_id, metadata), versioned)
        try:
            await recovery.run()
        except (LedgerNotFoundError, MetadataUnavailableError):
            raise
        except BkctlError as error:
            self._fail(metadata, place, FailureReason.NOT_CLOSED, (), str(error))
        else:
            self._was_closed = True
            for bookie_id, entry_ids in recovery.corrupt_left.items():
                entries = joined(EntryRange(each, each) for each in entry_ids)
                self._defects.append(SourceDefect(self._ledger_id, bookie_id, CopyState.CORRUPT, entries))
        return await self._read()

    async def _why_fence_in_vain(self, metadata: LedgerMetadata) -> str | None:
        """Why the open segment could not be copied once it is closed. An explicit choice to fence is not questioned."""
        if self._policy.open_ledgers is not OpenLedgers.WAIT or metadata.state is not LedgerState.OPEN:
            return None
        fragment = self._task.fragments(metadata)[-1]
        found = await self._targets.try_to_choose(self._need(metadata, fragment, fragment.bookie_indexes[0], {}))
        if not isinstance(found, NoChoice):
            return None
        reason = self._why_no_target(found)
        return f"a fence would only stop its writer, because no bookie could take its copies: {reason}"

    async def _rewrite(self, metadata: LedgerMetadata) -> None:
        """Write bad copies again. Stripes with bad records that must not be written over leave their bookies, too."""
        credentials = credentials_of(self._ledger_id, metadata)
        for bookie_id, entries in self._task.bad.items():
            for fragment in fragments_naming(metadata, (bookie_id,)):
                inside, _ = in_and_out_of(entries, (fragment.entries,))
                if fragment.is_open or not inside:
                    continue
                for index in fragment.bookie_indexes:
                    job = StripeJob(credentials, metadata, fragment, index, bookie_id, frozenset(), bad=inside)
                    outcome = await self._replicator.copy(
                        job, self._activity, self._require_lock, self._unusable_members
                    )
                    self._written.copies += outcome.entries
                    self._written.size_bytes += outcome.bytes_copied
                    self._bad_left += outcome.left
                    if outcome.must_move_count:
                        place = _Place(fragment.entries.first_entry_id, index)
                        bad = _BadStripe(bookie_id, outcome.must_move_count, outcome.must_move)
                        self._bad_stripes[place] = bad
        self._is_rewritten = True
        if not self._bad_stripes:
            return
        leaving: dict[int, frozenset[str]] = {}
        for place, bad in self._bad_stripes.items():
            leaving[place.first_entry_id] = leaving.get(place.first_entry_id, frozenset()) | {bad.bookie_id}
        down = metadata.bookies() - (await self._live_bookies.refresh()).live
        self._task = msgspec.structs.replace(
            self._task, leaving_segments=leaving, unreachable=self._task.unreachable | down
        )

    async def _prepare(self, metadata: LedgerMetadata) -> tuple[NewMembers, bool]:
        """Copy until no complete segment needs the leaving bookies; returns their replacements, and whether it is all.

        Keeps copies from before a lost compare-and-set if they still fit: the index still has a leaving bookie, and the
        target is not elsewhere in the current ensemble (replication section 4.1).
        """
        await self._live_bookies.refresh()
        change: NewMembers = {}
        oldest_ns = self._ports.clock.monotonic_ns()
        for fragment in self._task.fragments(metadata):
            if fragment.is_open:
                continue
            first_entry_id = fragment.entries.first_entry_id
            taken: dict[int, str] = {}
            for index in fragment.bookie_indexes:
                place = _Place(first_entry_id, index)
                if place in self._failures:
                    continue
                copied = self._copied.get(place)
                unfit = {*fragment.ensemble, *taken.values(), *self._unusable}
                if copied is None or copied.target in unfit or not await self._is_kept(copied):
                    if change and self._ports.clock.monotonic_ns() - oldest_ns > COMMIT_AFTER_NS:
                        return change, False
                    copied = await self._copy(metadata, fragment, index, taken)
                if copied is not None:
                    oldest_ns = min(oldest_ns, copied.copied_ns) if change else copied.copied_ns
                    taken[index] = copied.target
                    change[first_entry_id] = taken
        return change, True

    async def _require_targets(self, change: NewMembers) -> None:
        """TargetGoneError if a target left while other stripes were copied."""
        for first_entry_id, replacements in change.items():
            for index, target in replacements.items():
                if not await self._is_kept(self._copied[_Place(first_entry_id, index)]):
                    raise TargetGoneError(target)

    async def _is_kept(self, copied: _Copied) -> bool:
        """Whether the target has been in the cluster all the time, as far as is known now."""
        if copied.target not in self._live_bookies:
            return False
        return await self._live_bookies.member_since(copied.target) == copied.member_since

    async def _copy(
        self, metadata: LedgerMetadata, fragment: Fragment, index: int, taken: Mapping[int, str]
    ) -> _Copied | None:
        """Copy one stripe to the first target that stores it verifiably; None and a recorded failure if there is none.

        ``taken``: the targets of other positions of the segment. A bad source does not count against the target, nor a
        bad target against the source.
        """
        place = _Place(fragment.entries.first_entry_id, index)
        begun = self._begun.pop(place, None)
        while True:
            need = self._need(metadata, fragment, index, taken)
            found = await self._targets.choose(need, preferred=None if begun is None else begun.target)
            if isinstance(found, NoChoice):
                reason = FailureReason.PLACEMENT if found.best is not None else FailureReason.NOT_ENOUGH_BOOKIES
                self._fail(metadata, place, reason, (fragment.entries,), self._why_no_target(found))
                return None
            target = found.bookies[0]
            credentials = credentials_of(self._ledger_id, metadata)
            copied_until = begun.last_entry_id if begun is not None and begun.target == target else -1
            job = StripeJob(credentials, metadata, fragment, index, target, self._task.unreachable, copied_until)
            try:
                since = await self._live_bookies.member_since(target)
                if since is None:
                    self._unusable[target] = f"bookie {target} has no cookie"
                    continue
                outcome = await self._replicator.copy(job, self._activity)
            finally:
                self._targets.finish(target, need)
            self._defects.extend(outcome.defects)
            if outcome.is_complete:
                now_ns = self._ports.clock.monotonic_ns()
                copied = _Copied(target, since, now_ns, outcome.entries, outcome.bytes_copied, found.broken)
                self._copied[place] = copied
                return copied
            if outcome.target_failure is None:
                reason = FailureReason.UNREADABLE if outcome.unreadable else FailureReason.LOST
                self._fail(metadata, place, reason, (*outcome.lost, *outcome.unreadable), outcome.reason)
                return None
            self._unusable[target] = outcome.target_failure

    def _fail(
        self,
        metadata: LedgerMetadata,
        place: _Place,
        reason: FailureReason,
        entries: tuple[EntryRange, ...],
        detail: str,
    ) -> None:
        failure = LedgerFailure(self._ledger_id, reason, entries, detail)
        self._failures[place] = _FoundFailure(self._fragment_at(metadata, place), failure)

    def _need(self, metadata: LedgerMetadata, fragment: Fragment, index: int, taken: Mapping[int, str]) -> CopyNeed:
        first_entry_id = fragment.entries.first_entry_id
        leaving = self._task.leaving_in(first_entry_id)
        pending = (each for each in fragment.bookie_indexes if each != index and each not in taken)
        return CopyNeed(
            write_quorum_size=metadata.write_quorum_size,
            ensemble=tuple(taken.get(each, bookie_id) for each, bookie_id in enumerate(fragment.ensemble)),
            index=index,
            pending=tuple(each for each in pending if _Place(first_entry_id, each) not in self._failures),
            excluded=frozenset({*fragment.ensemble, *leaving, *self._task.unreachable, *self._unusable}),
            isolation=isolation_demand(metadata.custom_metadata),
            entry_count=stripe_count(fragment.entries, index, metadata.ensemble_size, metadata.write_quorum_size),
            bytes_needed=stripe_bytes(metadata, fragment, index),
            is_data_first=self._task.is_data_first,
            must_improve=self._task.must_improve,
        )

    def _why_no_target(self, found: NoChoice) -> str:
        if found.best is not None and (self._task.is_data_first or self._task.must_improve):
            return found.sentence  # the order of a worker: it has no option
        if found.best is not None:
            return f"{found.sentence} (--placement best-effort accepts that)"
        if self._unusable:
            return "every other writable bookie failed: " + "; ".join(self._unusable.values())
        if found.is_by_rules or self._targets.is_restricted:
            return found.sentence
        return "every writable bookie is already in the ensemble"

    async def _result(self, metadata: LedgerMetadata) -> LedgerResult:
        """The result, based on the currently stored metadata, and on who is registered now."""
        named = [
            (place, copied)
            for place, copied in self._copied.items()
            if metadata.segment_of(place.first_entry_id).ensemble[place.ensemble_index] == copied.target
        ]
        gone = {copied.target for _, copied in named} - ((await self._live_bookies.look()).live if named else set())
        stay = {
            place: bad for place, bad in self._bad_stripes.items() if self._fragment_at(metadata, place) is not None
        }
        moved = [bad for place, bad in self._bad_stripes.items() if place not in stay]
        return LedgerResult(
            ledger_id=self._ledger_id,
            fragments=len({place.first_entry_id for place, _ in named}),
            entries=sum(copied.entries for _, copied in named),
            bytes_copied=sum(copied.bytes_copied for _, copied in named) + self._written.size_bytes,
            copies_written=self._written.copies,
            stripes_moved=len(moved),
            copies_moved=sum(bad.copies for bad in moved),
            broken_rules=tuple(broken for _, copied in named for broken in copied.broken_rules),
            was_closed=self._was_closed,
            failures=(
                *self._bad_left,
                *(found.failure for place, found in self._failures.items() if place not in self._bad_stripes),
                *(self._why_not_moved(place, bad) for place, bad in stay.items()),
                *(
                    LedgerFailure(self._ledger_id, FailureReason.TARGET_GONE, (), f"bookie {target} is not registered")
                    for target in sorted(gone)
                ),
            ),
            defects=tuple(
                defect
                for defect in self._defects
                if any(
                    defect.bookie_id in metadata.segment_of(entries.first_entry_id).ensemble
                    for entries in defect.entries
                )
            ),
        )

    def _why_not_moved(self, place: _Place, bad: _BadStripe) -> LedgerFailure:
        reason, detail = FailureReason.CONFLICT, "the ledger changed meanwhile: run the command again"
        if (found := self._failures.get(place)) is not None:
            reason, detail = found.failure.reason, found.failure.bare_detail
        reason = FailureReason.STRIPE if reason is FailureReason.LOST else reason
        detail = MUST_MOVE.format(detail)
        return left_copies(self._ledger_id, reason, bad.bookie_id, bad.copies, bad.entries, detail)
