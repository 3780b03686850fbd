"""When a disk counts as full, and what a bookie does then. Pure rules. Source: storage section 8.

A disk is judged by the used fraction of its file system::

    WRITABLE --(> almost_full_fraction)--> ALMOST_FULL --(> full_fraction)--> FULL
    FULL --(< recovered_fraction)--> WRITABLE or ALMOST_FULL

Recovery has its own mark, so that a bookie at the limit does not change its mode with every check.

Routing is static: a ledger's directory and journal follow from its id (storage section 1). So space on another disk
does not help it. A ledger directory and its index directory share a position and count as full together; a full journal
stops all writes, because its next file may be needed at any moment. Differences from Java: decision 8.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from bkctl.runtime.config import DiskConfig

FILL_RATE_BYTES_PER_S: Final = 2**30
"""Fastest growth that the checks keep up with."""
INTERVAL_S_MIN: Final = 0.1


class DiskState(enum.IntEnum):
    """State of one directory by the space on its disk; greater is worse."""

    WRITABLE = 0
    ALMOST_FULL = 1
    FULL = 2


class DiskSample(msgspec.Struct, frozen=True):
    """Space of one directory at one moment. ``total_bytes`` is 0 if the file system does not report its size."""

    directory: str
    total_bytes: int
    usable_bytes: int

    @property
    def used_fraction(self) -> float:
        """Fraction of the disk that is not usable; reserved blocks count as used."""
        return 1 - self.usable_bytes / self.total_bytes if self.total_bytes else 0.0


class BookieDisks(msgspec.Struct, frozen=True):
    """The samples of one check, in the order of the settings. ``ledgers`` and ``indexes`` have the same length."""

    journals: tuple[DiskSample, ...]
    ledgers: tuple[DiskSample, ...]
    indexes: tuple[DiskSample, ...]

    @property
    def all(self) -> tuple[DiskSample, ...]:
        """All samples; a directory with two roles appears twice."""
        return (*self.journals, *self.ledgers, *self.indexes)


class DiskChange(msgspec.Struct, frozen=True):
    """An event: one directory changed its state."""

    sample: DiskSample
    before: DiskState
    after: DiskState


class DiskVerdict(msgspec.Struct, frozen=True):
    """The result of one check."""

    states: tuple[DiskState, ...]
    """In the order of ``BookieDisks.all``; input of the next check."""
    changes: tuple[DiskChange, ...]
    is_read_only: bool
    """Whether the bookie as a whole rejects ordinary adds."""
    refused_positions: frozenset[int]
    """Positions of ledger directories whose ledgers accept no ordinary adds, even if the bookie is writable."""
    high_priority_positions: frozenset[int]
    """Positions whose ledgers accept adds from recovery and re-replication, even if others are rejected."""
    level: DiskState
    """The worst state of a ledger or index directory, for the garbage collector."""
    full: tuple[DiskSample, ...]
    """Directories that are full."""


def next_state(state: DiskState, used_fraction: float, config: DiskConfig) -> DiskState:
    """State of one directory after a sample."""
    if used_fraction > config.full_fraction:
        return DiskState.FULL
    if state is DiskState.FULL and used_fraction >= config.recovered_fraction_or_default:
        return DiskState.FULL
    return DiskState.ALMOST_FULL if used_fraction > config.almost_full_fraction else DiskState.WRITABLE


def judge(before: tuple[DiskState, ...], disks: BookieDisks, config: DiskConfig, room_bytes: int) -> DiskVerdict:
    """Judge the samples of one check.

    ``before``: the states of the last verdict; all FULL after a start that restored read-only mode. ``room_bytes``:
    what must be free on a full disk for writes with high priority.
    """
    samples = disks.all
    states = tuple(
        next_state(state, sample.used_fraction, config) for state, sample in zip(before, samples, strict=True)
    )
    state_of = dict(zip(samples, states, strict=True))
    pairs = tuple(zip(disks.ledgers, disks.indexes, strict=True))
    full_positions = frozenset(
        position for position, pair in enumerate(pairs) if any(state_of[sample] is DiskState.FULL for sample in pair)
    )
    is_journal_full = any(state_of[sample] is DiskState.FULL for sample in disks.journals)
    is_any_enough = config.is_read_only_when_any_is_full
    are_ledgers_full = bool(full_positions) if is_any_enough else len(full_positions) == len(pairs)
    is_read_only = is_journal_full or are_ledgers_full

    def has_room(sample: DiskSample) -> bool:
        return state_of[sample] is not DiskState.FULL or sample.usable_bytes > room_bytes

    have_journals_room = all(map(has_room, disks.journals))
    return DiskVerdict(
        states=states,
        changes=tuple(
            DiskChange(sample, old, new)
            for sample, old, new in zip(samples, before, states, strict=True)
            if old is not new
        ),
        is_read_only=is_read_only,
        refused_positions=frozenset(range(len(pairs))) if is_read_only else full_positions,
        high_priority_positions=frozenset(
            position for position, pair in enumerate(pairs) if have_journals_room and all(map(has_room, pair))
        ),
        level=max(state_of[sample] for pair in pairs for sample in pair),
        full=tuple(dict.fromkeys(sample for sample in samples if state_of[sample] is DiskState.FULL)),
    )


def next_check_s(disks: BookieDisks, states: tuple[DiskState, ...], config: DiskConfig) -> float:
    """Time to the next check: before the fastest writer could reach the limit, within bounds.

    A disk over the limit accepts no more ordinary adds, so the normal interval is enough for it.
    """
    spare_bytes = (
        sample.usable_bytes - (1 - config.full_fraction) * sample.total_bytes
        for sample, state in zip(disks.all, states, strict=True)
        if state is not DiskState.FULL and sample.total_bytes
    )
    soonest_s = min(spare_bytes, default=float("inf")) / FILL_RATE_BYTES_PER_S
    return min(config.check_interval_s, max(INTERVAL_S_MIN, soonest_s))
