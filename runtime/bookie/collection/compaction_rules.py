"""Which compaction of a ledger directory is due, and which is suspended. Pure. Source: storage sections 7.3 and 7.5."""

from __future__ import annotations

import enum

import msgspec

from runtime.bookie.disks.rules import DiskState
from runtime.config import CompactionConfig, GarbageCollectionConfig


class CompactionKind(enum.StrEnum):
    """A major compaction takes fuller logs than a minor one, and comes more seldom."""

    MINOR = "minor"
    MAJOR = "major"


class CompactionState(msgspec.Struct):
    """What has happened so far, and what was asked for. Times are those of a monotonic clock, in seconds."""

    last_minor_s: float
    last_major_s: float
    is_minor_suspended: bool = False
    is_major_suspended: bool = False


class DiskReaction(msgspec.Struct, frozen=True):
    """What the state of the disks means for the rounds (storage section 7.5)."""

    is_major_suspended: bool = False
    is_minor_suspended: bool = False
    is_forced: bool = False
    is_room_scarce: bool = False

    @classmethod
    def to(cls, level: DiskState, config: GarbageCollectionConfig) -> DiskReaction:
        """Copying survivors needs room before it gives any: on a full disk it rests, unless the settings force it."""
        is_scarce, is_full = level is not DiskState.WRITABLE, level is DiskState.FULL
        if config.is_forced_when_full:
            return cls(is_forced=is_scarce, is_room_scarce=is_full)
        return cls(is_major_suspended=is_scarce, is_minor_suspended=is_full, is_room_scarce=is_full)

    def applied_to(self, state: CompactionState) -> CompactionState:
        """What was asked for, and what the disks ask for on top of it."""
        return msgspec.structs.replace(
            state,
            is_major_suspended=state.is_major_suspended or self.is_major_suspended,
            is_minor_suspended=state.is_minor_suspended or self.is_minor_suspended,
        )


def due_compaction(
    config: GarbageCollectionConfig, state: CompactionState, now_s: float, *, is_forced: bool
) -> CompactionKind | None:
    """Major if it is due, else minor if that is, else none. A suspended one does not run even when forced."""
    if not state.is_major_suspended and _is_due(config, config.major, state.last_major_s, now_s, is_forced=is_forced):
        return CompactionKind.MAJOR
    if not state.is_minor_suspended and _is_due(config, config.minor, state.last_minor_s, now_s, is_forced=is_forced):
        return CompactionKind.MINOR
    return None


def note_compaction(state: CompactionState, kind: CompactionKind, now_s: float) -> None:
    """A compaction has run: a major one has done what a minor one would have, too."""
    state.last_minor_s = now_s
    if kind is CompactionKind.MAJOR:
        state.last_major_s = now_s


def _is_due(
    config: GarbageCollectionConfig, compaction: CompactionConfig, last_s: float, now_s: float, *, is_forced: bool
) -> bool:
    if is_forced and config.is_forced_compaction_allowed and 0 < compaction.threshold < 1:
        return True
    return compaction.is_enabled and (is_forced or now_s - last_s > compaction.interval_s)
