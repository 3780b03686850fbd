"""The choices of one run."""

from __future__ import annotations

import msgspec

from bkctl.runtime.replication.config import OpenLedgers, ReplicationConfig


class CopyPace(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the bytes per second; None: no limit."""

    bytes_per_s: int | None = None
    """Of all copies of the run together."""
    bytes_per_s_per_bookie: int | None = None
    """Of all reads from and writes to one bookie."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What a run may do, and how fast. Its caller makes it once, and it travels unchanged to the turn of each ledger.

    ``config`` has the limits, and says which copies are verified, how strict placement is, and how long the run waits
    for ZooKeeper. ``pace`` is the one that the run begins with: the byte rates of a job can be edited while it runs.
    """

    config: ReplicationConfig = ReplicationConfig()
    open_ledgers: OpenLedgers = OpenLedgers.WAIT
    pace: CopyPace = CopyPace()

    def leaves_writers(self, *, is_drain: bool) -> bool:
        """Whether an open ledger that may have a writer is left alone: in a drain, its writer moves on by itself."""
        return self.open_ledgers is OpenLedgers.SKIP or (is_drain and self.open_ledgers is OpenLedgers.WAIT)

    def gives_writers_time(self, *, is_drain: bool) -> bool:
        """Whether such a ledger is closed, but only if its last segment has stayed the same for some time."""
        return self.open_ledgers is OpenLedgers.WAIT and not is_drain


DEFAULT_POLICY = Policy()
