"""The answers of an admin interface that commands read. Unknown fields are ignored.

Every user who can write to ZooKeeper can name an address, so an answer may come from anything that speaks HTTP.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Truth: TypeAlias = bool | str
"""Java's answers have "true" as text in some places."""


class Text(msgspec.Struct, frozen=True):
    """One reason for the mode."""

    text: str


class TroubleAnswer(msgspec.Struct, frozen=True):
    """Something that does not work, and since when."""

    text: str
    since_ms: Number


class Order(msgspec.Struct, frozen=True):
    """Since when and why an operator keeps the bookie read-only, or deletion is stopped."""

    since_ms: Number
    reason: str


class ModeState(msgspec.Struct, frozen=True, kw_only=True):
    """The mode; None in the other fields: a Java bookie does not report it."""

    mode: str
    reasons: tuple[Text, ...] | None = None
    registered: bool | None = None
    operator: Order | None = None


class JobProgressAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the current step of a job."""

    step: str
    done: Count
    total: Count | None
    unit: str


class JobAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A job of any kind, without its result."""

    id: Count
    kind: str
    state: str
    started_ms: Number
    ended_ms: Number | None
    progress: JobProgressAnswer
    error: str | None
    problem: str | None


class JobsAnswer(msgspec.Struct, frozen=True):
    """All of them."""

    jobs: tuple[JobAnswer, ...]


class StateAnswer(ModeState, frozen=True, kw_only=True):
    """The state of a bookie; ``version`` None: of a Java bookie, with what that can say.

    ``bookie_id`` is empty early in the start.
    """

    bookie_id: str
    metadata_root: str = ""
    instance_id: str | None = None
    running: bool
    stopping: bool
    accepts_recovery_writes: bool
    version: str | None = None
    metadata_uri: str = ""
    stage: str | None = None
    troubles: tuple[TroubleAnswer, ...] = ()
    started_ms: Number | None = None
    uptime_s: Seconds | None = None
    ledger_directories: tuple[str, ...] | None = None
    repair: dict[str, Any] | None = None
    deletion_stopped: Order | None = None
    jobs: tuple[JobAnswer, ...] = ()

    @property
    def is_java(self) -> bool:
        """Whether a Java bookie answers."""
        return self.version is None


class JavaState(msgspec.Struct, frozen=True, rename="camel"):
    """The state as Java's path has it."""

    running: bool
    read_only: bool
    shutting_down: bool
    available_for_high_priority_writes: bool


class JavaMode(msgspec.Struct, frozen=True, rename="camel"):
    """Java's answer to a change of the mode."""

    read_only: bool


class LogLevelAnswer(msgspec.Struct, frozen=True):
    """The log level."""

    level: str


class ForcedCollection(msgspec.Struct, frozen=True):
    """Whether a collection runs that was asked for."""

    is_in_force_gc: Truth


class SuspendedCompaction(msgspec.Struct, frozen=True, rename="camel"):
    """Which kinds of compaction are suspended."""

    is_major_gc_suspended: Truth
    is_minor_gc_suspended: Truth


class CollectionDetails(msgspec.Struct, frozen=True, rename="camel"):
    """Running and last compactions of one ledger directory."""

    force_compacting: bool
    major_compacting: bool
    minor_compacting: bool
    last_major_compaction_time: Number
    last_minor_compaction_time: Number
    major_compaction_counter: Number
    minor_compaction_counter: Number


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


class RebuiltDirectoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a rebuild in one ledger directory."""

    ledger_directory: str
    log_count: Count
    entry_count: Count
    row_count: Count
    limbo_count: Count
    damages: tuple[tuple[str, str], ...]


class RebuildResult(msgspec.Struct, frozen=True):
    """The directories that have their new index."""

    directories: tuple[RebuiltDirectoryAnswer, ...]


class RebuildJob(JobAnswer, frozen=True, kw_only=True):
    """A rebuild; ``result`` None: no directory has its new index."""

    result: RebuildResult | None

    @property
    def rebuilt(self) -> tuple[RebuiltDirectoryAnswer, ...]:
        """The directories that have their new index."""
        return () if self.result is None else self.result.directories
