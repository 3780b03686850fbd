"""Settings of checking and copying ledgers, see ``bkctl.storage.setting``; the choices of one run."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from bkctl.storage.setting import Java, Setting

# fmt: off
# A setting takes at most three lines here; the formatter would use nine.


class PlacementMode(enum.StrEnum):
    """What a recovery does if every possible target breaks a placement rule."""

    STRICT = "strict"
    BEST_EFFORT = "best-effort"


class VerifyMode(enum.StrEnum):
    """Which copies a recovery reads back from their target before the metadata references them."""

    ALL = "all"
    SAMPLE = "sample"
    """The first and the last entry of each stripe, and one of each hundred."""
    NONE = "none"


class OpenLedgers(enum.StrEnum):
    """What a recovery does with an open ledger whose last segment references a leaving bookie.

    The complete segments of such a ledger are repaired in any case, without disturbing its writer. A ledger in recovery
    has no writer, so it is always closed.
    """

    WAIT = "wait"
    """Look twice; fence and close the ledger only if its last segment is still the same. Otherwise report it."""
    SKIP = "skip"
    """Leave the open segment alone, and report it."""
    FENCE = "fence"
    """Fence and close the ledger, which stops its writer."""


class ReplicationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one verification or recovery, for all of its ledgers together unless noted otherwise."""

    ledgers_in_parallel: Annotated[int, Setting(
        "Ledgers processed at once; a recovery holds the replication lock of each", unit="ledgers", low=1)] = 256
    bytes_in_flight_max: Annotated[int, Setting("Bytes of entries in flight",
        unit="bytes", low=1)] = 64 * 1024 * 1024
    entries_in_flight_max: Annotated[int, Setting("Entries that are read one by one at the same time",
        unit="entries", low=1)] = 512
    attempts_max: Annotated[int, Setting("Requests to a registered bookie before it counts as failed or overloaded",
        unit="attempts", low=1)] = 7
    backoff_first_s: Annotated[float, Setting("Pause after the first failed request; it doubles after each further one",
        unit="s", above=0)] = 0.25
    backoff_max_s: Annotated[float, Setting("Longest pause between two requests", unit="s", above=0)] = 5.0
    silence_pause_s: Annotated[float, Setting("How long a registered bookie that did not respond twice is skipped",
        unit="s", above=0)] = 10.0
    late_copy_wait_s: Annotated[float, Setting(
        "Pause before a missing copy in an open ledger is checked again, since its add may be in flight", unit="s",
        low=0)] = 1.0
    barren_entries_max: Annotated[int, Setting(
        "Entries in a row without a good copy after which the rest of a ledger is not read, because its metadata may "
        "claim any number of entries", unit="entries", low=64)] = 1_000_000
    lock_wait_s: Annotated[float, Setting(
        "Longest wait for the replication lock of a ledger that another process holds", unit="s", low=0)] = 30.0
    lock_poll_s: Annotated[float, Setting("Time between two attempts to take that lock", unit="s", above=0)] = 1.0
    registration_wait_s: Annotated[float, Setting(
        "Longest wait until the registration of a stopped bookie expires, or a target that failed is tried again",
        unit="s", low=0)] = 30.0
    metadata_outage_max_s: Annotated[float, Setting(
        "Longest wait for ZooKeeper in the middle", unit="s", above=0,
        flag="--metadata-outage-max")] = 600.0
    placement: Annotated[PlacementMode, Setting(
        "best-effort: may break placement rules",
        flag="--placement")] = PlacementMode.STRICT
    is_placement_repaired: Annotated[bool, Setting(
        "Workers repair placement; if not, marks that ask only for that are cleared",
        java=Java("repairedPlacementPolicyNotAdheringBookieEnabled"))] = True
    verify: Annotated[VerifyMode, Setting(
        "Copies to read back: all, sample or none",
        flag="--verify")] = VerifyMode.ALL
    open_ledger_wait_s: Annotated[float, Setting(
        "How long the last segment of an open ledger must stay the same before a recovery fences the ledger", unit="s",
        low=0, java=Java("openLedgerRereplicationGracePeriod", "ms"))] = 30.0
    metadata_attempts_max: Annotated[int, Setting("Compare-and-set attempts before the recovery of a ledger fails",
        unit="attempts", low=1)] = 50
    metadata_reads_in_flight_max: Annotated[int, Setting("Ledger metadata read ahead by a scan of all ledgers",
        unit="ledgers", low=1)] = 256
# fmt: on


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
