"""Maintenance: bookies that an operator expects to be away for a while, so their ledgers are not marked.

Our auditor reads the note of each bookie. Java's knows one delay for the whole cluster, which holds for a single lost
bookie. For it, the note of one bookie also stores the delay that was set before, and the delay is raised. The note is
written before the delay, and deleted after the delay is restored. So a crash in between leaves a note, and the end of
the maintenance repairs the rest. The delay is never set to the value that it has: that lets an auditor audit at once.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection

import msgspec

from bkctl.runtime.errors import ConflictError, MetadataFormatError
from bkctl.runtime.metadata.replication.recovery_notes import MaintenanceNote, RecoveryNotes
from bkctl.runtime.metadata.replication.switches import DELAY_S_MAX, RecoveryDelay, ReplicationSwitches
from bkctl.runtime.metadata.store import ANY_VERSION, Versioned


class Maintenance(msgspec.Struct, frozen=True):
    """A bookie in maintenance; ``note`` is None if its bytes cannot be read, and ``problem`` is the reason."""

    bookie_id: str
    note: MaintenanceNote | None
    version: int = ANY_VERSION
    problem: str | None = None

    def is_overdue(self, now_ms: int) -> bool:
        """Whether its time is over, or unknown."""
        return self.note is None or self.note.end_ms < now_ms


class DelayAtEnd(enum.Enum):
    """What the end of a maintenance does to the delay of Java's auditor. The values appear in reports."""

    NOT_CHANGED = "was not changed"
    RESTORED = "restored"
    IS_RESTORED = "already restored"
    CHANGED_SINCE = "left, because it was changed meanwhile"


def delay_to_set(current: RecoveryDelay | None, duration_s: float) -> int | None:
    """The delay that covers a maintenance; None if the current one does, or if there is none."""
    wanted_s = min(math.ceil(duration_s), DELAY_S_MAX)
    return wanted_s if current is not None and current.seconds < wanted_s else None


def delay_at_end(note: MaintenanceNote | None, current: RecoveryDelay | None) -> DelayAtEnd:
    """What to do with the delay when this maintenance ends."""
    if note is None or note.stored_delay_s is None or note.set_delay_s is None or current is None:
        return DelayAtEnd.NOT_CHANGED
    if current.seconds == note.stored_delay_s:
        return DelayAtEnd.IS_RESTORED
    return DelayAtEnd.RESTORED if current.seconds == note.set_delay_s else DelayAtEnd.CHANGED_SINCE


async def list_maintenance(notes: RecoveryNotes) -> list[Maintenance]:
    """All bookies in maintenance, by id. One operation each and one for all."""
    found = []
    async for bookie_id, note in notes.maintenance.all():
        if isinstance(note, Versioned):
            found.append(Maintenance(bookie_id, note.value, note.version))
        else:
            found.append(Maintenance(bookie_id, None, problem=str(note)))
    return sorted(found, key=lambda each: each.bookie_id)


async def start_maintenance(
    notes: RecoveryNotes,
    switches: ReplicationSwitches,
    bookie_ids: Collection[str],
    note: MaintenanceNote,
    delay: RecoveryDelay | None,
) -> None:
    """Write the notes, then raise the delay if ``note`` says so; ``delay`` was read before.

    The first note alone stores the delay. ConflictError: a bookie is in maintenance already, or another process changed
    the delay; nothing is left.
    """
    written: list[str] = []
    for bookie_id in bookie_ids:
        without_delay = msgspec.structs.replace(note, stored_delay_s=None, set_delay_s=None)
        if not await notes.maintenance.add(bookie_id, without_delay if written else note):
            await _remove(notes, written)
            raise ConflictError(
                f"nothing was changed: the maintenance of bookie {bookie_id} has been started already: "
                "bkctl autorecovery maintenance list"
            )
        written.append(bookie_id)
    if note.set_delay_s is None or delay is None:
        return
    if not await switches.replace_recovery_delay(note.set_delay_s, delay):
        await _remove(notes, written)
        raise ConflictError("nothing was changed: the recovery delay was changed meanwhile: run the command again")


async def end_maintenance(notes: RecoveryNotes, switches: ReplicationSwitches, ended: Maintenance) -> DelayAtEnd:
    """Restore the delay, then delete the note. ConflictError if another process changed either meanwhile."""
    current = await switches.recovery_delay() if ended.note is not None and ended.note.set_delay_s is not None else None
    fate = delay_at_end(ended.note, current)
    if fate is DelayAtEnd.RESTORED:
        assert ended.note is not None
        assert ended.note.stored_delay_s is not None
        assert current is not None
        if not await switches.replace_recovery_delay(ended.note.stored_delay_s, current):
            raise ConflictError("the recovery delay was changed meanwhile: run the command again")
    await notes.maintenance.remove(ended.bookie_id, ended.version)
    return fate


async def restore_delays(notes: RecoveryNotes, switches: ReplicationSwitches) -> None:
    """Restore the delay as at the end of every maintenance, for a cluster that is about to lose its notes."""
    for each in await list_maintenance(notes):
        try:
            await end_maintenance(notes, switches, each)
        except MetadataFormatError:
            continue  # the delay cannot be read: it is not the one that was set


async def _remove(notes: RecoveryNotes, bookie_ids: Collection[str]) -> None:
    for bookie_id in bookie_ids:
        await notes.maintenance.remove(bookie_id)
