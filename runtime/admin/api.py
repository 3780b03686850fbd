"""What the admin interface answers: the server encodes these structs, commands decode them.

Unknown fields are ignored, so that an older command understands a newer server. Every user who can write to ZooKeeper
can name an address, so an answer may come from anything that speaks HTTP: types and ranges are checked. Java's paths
have Java's keys; their answers whose keys are data, such as the names of settings, are plain mappings.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, TypeAlias

import msgspec

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Truth: TypeAlias = bool | str
"""Java's answers have "true" as text in some places."""


class ErrorAnswer(msgspec.Struct, frozen=True):
    """A sentence, and the word for the kind of failure."""

    error: str
    problem: str = ""


# --- jobs ----------------------------------------------------------------------------------------------------------


class JobState(enum.Enum):
    """What became of a job."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StepProgress(msgspec.Struct):
    """Progress of the current step; the job itself updates it. ``total`` None: not known."""

    step: str = ""
    done: Count = 0
    total: Count | None = None
    unit: str = ""

    def begin(self, step: str, total: int | None = None, unit: str = "") -> None:
        """A step begins."""
        self.step, self.done, self.total, self.unit = step, 0, total, unit

    def advance(self, amount: int) -> None:
        """The step has progressed by ``amount``."""
        self.done += amount


class Job(msgspec.Struct, kw_only=True):
    """One job."""

    id: Count
    kind: str
    started_ms: Number
    state: JobState
    progress: StepProgress
    ended_ms: Number | None
    is_cancelling: bool = False
    result: Any = None
    error: str | None
    problem: str | None
    """The word for the kind of error, as in the answer to a failed request."""


class JobsAnswer(msgspec.Struct, frozen=True):
    """All of them, the oldest first."""

    jobs: tuple[Job, ...]


# --- the state of a bookie -----------------------------------------------------------------------------------------


class ModeReason(msgspec.Struct, frozen=True, kw_only=True):
    """One reason for the mode: a stable word, and a text."""

    reason: str = ""
    text: str


class TroubleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Something that does not work, and since when."""

    trouble: str = ""
    text: str
    since_ms: Number


class Order(msgspec.Struct, frozen=True):
    """Since when and why an operator keeps the bookie read-only, or deletion is stopped."""

    since_ms: Number
    reason: str


class RepairProgress(msgspec.Struct, frozen=True):
    """Repair of what a crash or a lost disk took, since the start of the process."""

    is_due: bool
    ledgers_in_limbo: Count
    ledgers_checked: Count
    entries_fetched: Count


class ModeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The mode, why, whether it is registered as far as is known, and the order of an operator.

    None in the other fields: a Java bookie does not report it.
    """

    mode: str
    reasons: tuple[ModeReason, ...] | None = None
    registered: bool | None = None
    operator: Order | None = None


class StateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a bookie; ``version`` None: of a Java bookie, with what that can say.

    ``bookie_id`` is empty early in the start. ``mode`` to ``operator`` are those of ``ModeAnswer``.
    ``deletion_stopped`` None: garbage collection deletes ledgers, or has not begun.
    """

    bookie_id: str
    metadata_uri: str = ""
    metadata_root: str = ""
    instance_id: str | None = None
    version: str | None = None
    running: bool
    stopping: bool
    stage: str | None = None
    mode: str
    reasons: tuple[ModeReason, ...] | None = None
    registered: bool | None = None
    operator: Order | None = None
    troubles: tuple[TroubleAnswer, ...] = ()
    accepts_recovery_writes: bool
    started_ms: Number | None = None
    uptime_s: Seconds | None = None
    port: Count | None = None
    http_port: Count | None = None
    ledger_directories: tuple[str, ...] | None = None
    repair: RepairProgress | None = None
    deletion_stopped: Order | None = None
    jobs: tuple[Job, ...] = ()

    @property
    def is_java(self) -> bool:
        """Whether a Java bookie answers."""
        return self.version is None

    def may_be_of(self, bookie_id: str) -> bool:
        """Whether this is the state of that bookie, which has no ID yet early in its start."""
        return self.bookie_id == bookie_id or not (self.bookie_id or self.running)


class StopAnswer(msgspec.Struct, frozen=True):
    """The bookie stops."""

    bookie_id: str
    is_stopping: bool


class LogLevelAnswer(msgspec.Struct, frozen=True):
    """The log level."""

    level: str


# --- garbage collection --------------------------------------------------------------------------------------------


class ConfirmedMetadata(msgspec.Struct, frozen=True):
    """Why deletion was stopped until now; None: it was not."""

    confirmed: str | None


class ForcedCollection(msgspec.Struct, frozen=True):
    """Whether a collection runs that was asked for."""

    is_in_force_gc: Truth


class SuspendedCompaction(msgspec.Struct, frozen=True, rename="camel"):
    """Which kinds of compaction are suspended."""

    is_minor_gc_suspended: Truth
    is_major_gc_suspended: Truth


class CollectionDetails(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Running and last compactions of one ledger directory. An index in LevelDB compacts by itself."""

    force_compacting: bool
    major_compacting: bool
    minor_compacting: bool
    last_major_compaction_time: Number
    last_minor_compaction_time: Number
    last_entry_location_compaction_time: Number = 0
    major_compaction_counter: Number
    minor_compaction_counter: Number
    entry_location_compaction_counter: Number = 0


# --- the rebuild of the index --------------------------------------------------------------------------------------


class LogsOfDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """What a rebuild of one index would read."""

    path: str
    log_count: Count
    log_bytes: Count
    ledger_count: Count
    entry_count: Count


class RebuildSize(msgspec.Struct, frozen=True, kw_only=True):
    """What a rebuild of the indexes would read."""

    bookie_id: str
    metadata_root: str
    instance_id: str | None
    directories: tuple[LogsOfDirectory, ...]


class RebuiltDirectory(msgspec.Struct, frozen=True):
    """The result of a rebuild for one ledger directory."""

    ledger_directory: str
    log_count: Count
    entry_count: Count
    row_count: Count
    limbo_count: Count
    damages: tuple[tuple[str, str], ...]
    """Logs from which entries may be missing, and why."""


class OnlineRebuildReport(msgspec.Struct, frozen=True):
    """The directories that have their new index."""

    directories: tuple[RebuiltDirectory, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every log could be read."""
        return not any(directory.damages for directory in self.directories)


class RebuildJob(Job, kw_only=True):
    """A rebuild; ``result`` None: no directory has its new index."""

    result: OnlineRebuildReport | None

    @property
    def rebuilt(self) -> tuple[RebuiltDirectory, ...]:
        """The directories that have their new index."""
        return () if self.result is None else self.result.directories


# --- Java's paths --------------------------------------------------------------------------------------------------


class JavaState(msgspec.Struct, frozen=True, rename="camel"):
    """The state as Java's path has it."""

    running: bool
    read_only: bool
    shutting_down: bool
    available_for_high_priority_writes: bool


class JavaMode(msgspec.Struct, frozen=True, rename="camel"):
    """The mode as Java's path has it."""

    read_only: bool


class JavaSpace(msgspec.Struct, frozen=True, rename="camel"):
    """Space on the disks of the ledger directories, in bytes."""

    free_space: Count
    total_space: Count


class SanityAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a sanity test; a read-only bookie is not tested."""

    passed: bool
    read_only: bool


class AutorecoveryEnabled(msgspec.Struct, frozen=True):
    """The switch of autorecovery."""

    enabled: bool


# --- the autorecovery daemon ---------------------------------------------------------------------------------------


class DaemonReady(msgspec.Struct, frozen=True):
    """A daemon that is connected to ZooKeeper, and what fails in it now."""

    ready: bool
    problems: tuple[str, ...]
