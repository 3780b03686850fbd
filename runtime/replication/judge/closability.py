"""Why a ledger cannot be closed, and what helps. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from bkctl.runtime.client.recovery import blocking_members
from bkctl.runtime.errors import AnswersMissingError
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.replication.judge.advice import accept_loss_step, close_lost_command, disks_of, save_command
from bkctl.runtime.replication.judge.verdict import LedgerVerdict, ReplicationRow, ReplicationState
from bkctl.storage.words import duration, enumerated


class CloseFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a ledger is not closed, and what to do. ``missing``: the bookies whose valid answers are missing.

    ``last_resort``: what to do if they never come back. ``is_refused``: they run, and refuse this client.
    """

    reason: str
    missing: tuple[str, ...] = ()
    fenced: tuple[str, ...] = ()
    next_step: str = ""
    last_resort: str = ""
    is_refused: bool = False

    @property
    def advice(self) -> str:
        """All that can be done."""
        return "; ".join(filter(None, (self.next_step, self.last_resort)))


def last_resort(
    ledger_id: int, metadata: LedgerMetadata, live_bookies: Collection[str], writable: Collection[str] | None = None
) -> str:
    """What to do about a ledger that is not closed, if the members of its last segment that are not registered never
    come back. Pure. ``writable``: the bookies that may take their places; None: unknown."""
    lost = sorted(set(metadata.last_segment.ensemble).difference(live_bookies))
    ends = f"{close_lost_command([ledger_id], lost)} ends the ledger with what the others have"
    if writable is not None and lacks_bookies(metadata, live_bookies, writable):
        ends += f", once another bookie is writable: none is left to take the place of {enumerated(lost)}"
    return f"if {disks_of(lost)} are lost, {ends}"


def accepted_last(ledger_id: int, lost: Sequence[str], verdict: LedgerVerdict, *, has_others: bool) -> str:
    """What to do about a closed ledger if the ``lost`` bookies, which have the only copies, never come back. Pure.
    ``has_others``: a bookie outside of the ensemble has some of the entries, so no loss is proven that is accepted."""
    if has_others:
        return f"if {disks_of(lost)} are lost, {removal(ledger_id, verdict.rows)}"
    is_listed = verdict.replication is ReplicationState.UNAVAILABLE
    step = accept_loss_step(lost, () if is_listed else [ledger_id])
    save = _saving(ledger_id, verdict.rows)
    return f"{save}; {step}" if save else step


def lacks_bookies(metadata: LedgerMetadata, live_bookies: Collection[str], writable: Collection[str]) -> bool:
    """Whether too few other bookies are ``writable`` to take the places of the members of the last segment that are not
    registered, so that their loss cannot be accepted. Pure."""
    members = set(metadata.last_segment.ensemble)
    return len(set(writable) - members) < len(members.difference(live_bookies))


def removal(ledger_id: int, rows: Collection[ReplicationRow]) -> str:
    """How a ledger is removed of which entries are lost. Pure."""
    save, removes = _saving(ledger_id, rows), f"bkctl ledger delete {ledger_id} removes the ledger"
    return f"{save}, and {removes}" if save else removes


def _saving(ledger_id: int, rows: Collection[ReplicationRow]) -> str:
    if not any(row.live_copies for row in rows):
        return ""
    return f"{save_command(ledger_id)} saves what is left"


def why_not_closable(
    ledger_id: int, metadata: LedgerMetadata, live_bookies: Collection[str], writable: Collection[str] | None = None
) -> CloseFailure | None:
    """Why the ledger cannot be closed while only these bookies are registered; None if it may be possible. Pure.

    Such a ledger must not be fenced: that would stop a live writer, which could otherwise replace the missing bookies.
    """
    missing = sorted(blocking_members(metadata, live_bookies))
    if not missing:
        return None
    return CloseFailure(
        reason=f"entries may exist that only {enumerated(missing)} can have (not registered); it was left as it is",
        missing=tuple(missing),
        next_step=what_helps(ledger_id, metadata, missing, live_bookies, "registered"),
        last_resort=last_resort(ledger_id, metadata, live_bookies, writable),
    )


def needed_refusing(metadata: LedgerMetadata, live_bookies: Collection[str], refusing: Collection[str]) -> list[str]:
    """Those of the bookies that refuse this client without which it cannot close the ledger, sorted. Pure.

    The recovery needs their answers, or writes the last entries back to an ack quorum that has too few others. It
    replaces only bookies that have failed: one that refuses this client may serve the writer.
    """
    size, quorum = metadata.sizes
    ensemble = metadata.last_segment.ensemble
    needed = set(blocking_members(metadata, set(live_bookies).difference(refusing)).intersection(refusing))
    for first in range(size):
        of_it = {ensemble[index] for index in write_set(first, size, quorum)}.intersection(refusing)
        if len(of_it) > quorum - metadata.ack_quorum_size:
            needed |= of_it
    return sorted(needed)


def why_refused(
    ledger_id: int, metadata: LedgerMetadata, live_bookies: Collection[str], refusing: Mapping[str, str]
) -> CloseFailure | None:
    """Why this client cannot close the ledger: bookies that refuse it, with a sentence of each; None if it may. Pure.

    Such a ledger must not be fenced either: see ``why_not_closable``.
    """
    needed = needed_refusing(metadata, live_bookies, refusing)
    if not needed:
        return None
    return CloseFailure(
        reason=f"{'; '.join(refusing[each] for each in needed)}; it was left as it is",
        missing=tuple(needed),
        next_step=_next_step(ledger_id, needed, "able to accept this client", is_one_enough=False),
        is_refused=True,
    )


def why_not_closed(
    ledger_id: int, metadata: LedgerMetadata, error: AnswersMissingError, live_bookies: Collection[str] | None = None
) -> CloseFailure:
    """Why a recovery failed, and what helps. ``live_bookies``: those that are registered, if that is known. Pure."""
    missing = sorted(error.missing)
    missing_bookies = enumerated([f"{each} ({error.missing[each]})" for each in missing])
    condition = "able to accept this client" if error.is_refused else "able to give a valid answer"
    if error.entry_id is None:
        reason = f"entries may exist that only {missing_bookies} can have"
        next_step = what_helps(ledger_id, metadata, missing, error.fenced, condition)
    else:
        reason = f"entry {error.entry_id} may exist on {missing_bookies}"
        is_one_enough = len(missing) <= metadata.ack_quorum_size
        next_step = _next_step(ledger_id, missing, condition, is_one_enough=is_one_enough)
    if error.fenced:
        state = f"it stays in recovery, fenced on {enumerated(error.fenced)}: a live writer fails at its next add there"
    else:
        state = "it stays in recovery, but no bookie has fenced it: a live writer may still add entries"
    is_lost = live_bookies is not None and not set(missing) <= set(live_bookies)
    return CloseFailure(
        reason=f"{reason}; {state}",
        missing=tuple(missing),
        fenced=error.fenced,
        next_step=next_step,
        last_resort=last_resort(ledger_id, metadata, live_bookies) if live_bookies is not None and is_lost else "",
        is_refused=error.is_refused,
    )


def what_helps(
    ledger_id: int, metadata: LedgerMetadata, missing: Sequence[str], answered: Collection[str], condition: str
) -> str:
    """Which of the missing bookies must be in this condition before the ledger can be closed, as a sentence. Pure."""
    is_blocked = bool(blocking_members(metadata, answered))
    alone = [each for each in missing if is_blocked and not blocking_members(metadata, {*answered, each})]
    return _next_step(ledger_id, alone or missing, condition, is_one_enough=bool(alone))


def _next_step(ledger_id: int, bookie_ids: Sequence[str], condition: str, *, is_one_enough: bool) -> str:
    verb = "is" if is_one_enough or len(bookie_ids) == 1 else "are"
    who = enumerated(bookie_ids, "or" if is_one_enough else "and")
    return f"once {who} {verb} {condition}, run bkctl ledger close {ledger_id} again"


def how_it_ends(ledger_id: int, metadata: LedgerMetadata, now_ms: int) -> str:
    """Who closes a ledger that can be closed. Nothing in the cluster shows whether a writer is alive."""
    if metadata.state is LedgerState.IN_RECOVERY:
        return f"its next reader with recovery, or bkctl ledger close {ledger_id}, closes it"
    created_ms = metadata.created_ms(None)
    since = "" if created_ms is None else f" for {duration(max(0, now_ms - created_ms) / 1000)}"
    return (
        f"it is open{since}, and metadata does not show whether its writer is alive: if it is gone, "
        f"bkctl ledger close {ledger_id}"
    )
