"""What is wrong with a bookie that goes on: a disk that hangs, ZooKeeper that it cannot reach."""

from __future__ import annotations

import enum

import msgspec


class Trouble(enum.Enum):
    """What can be wrong."""

    ZOOKEEPER = "zookeeper"
    JOURNAL_DISK = "journal_disk"
    LEDGER_DISK = "ledger_disk"
    REGISTRATION = "registration"
    """ZooKeeper refuses to register the mode that the bookie has."""
    RESTORE = "restore"
    """Entries that a crash or a lost disk took cannot be fetched from other bookies."""


class TroubleState(msgspec.Struct, frozen=True, kw_only=True):
    """A trouble that lasts. ``text``: what it is, for operators; ``since_ms``: wall-clock time."""

    trouble: Trouble
    text: str
    since_ms: int
