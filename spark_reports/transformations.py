"""The audit as transformations of frames. Each checks its columns first; none runs anything by itself.

They say in DataFrame functions what ``runtime.replication.audit`` and ``audit_report`` say in Python; a test holds the
two to equal rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that all PySpark code uses

from runtime.replication.audit import UNDER_REPLICATED_STATES, ReplicationState
from runtime.replication.audit_report import SEVERITY
from spark_reports.errors import MissingColumnsError
from spark_reports.rows import REPLICATION_SCHEMA, WRITE_SET_SCHEMA

_MISSES_COPIES = sorted(state.value for state in UNDER_REPLICATED_STATES)


def require_columns(function: str, frame: DataFrame, columns: Sequence[str]) -> None:
    """MissingColumnsError unless the frame has them all; ``function`` is named in the message."""
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise MissingColumnsError(function, missing, frame.columns)


def with_replication(frame: DataFrame, live_bookies: Sequence[str]) -> DataFrame:
    """Judge every write set: adds the last four columns of ``REPLICATION_SCHEMA``.

    ``live_bookies`` are the registered ones, writable and read-only. ``array_except`` drops duplicates, as it should: a
    bookie that stands twice in a write set is one copy.
    """
    require_columns("with_replication", frame, WRITE_SET_SCHEMA.names)
    live = _string_array(sorted(live_bookies))
    missing = F.array_except("write_set", live)
    live_copies = (F.size(F.array_distinct("write_set")) - F.size(missing)).cast("int")
    has_write_set = F.size("write_set") > 0
    replication = (
        F.when(F.col("problem").isNotNull(), ReplicationState.UNREADABLE.value)
        .when(~has_write_set, ReplicationState.EMPTY.value)
        .when(F.col("live_copies") >= F.col("write_quorum_size"), ReplicationState.REPLICATED.value)
        .when(F.col("live_copies") == 0, ReplicationState.UNAVAILABLE.value)
        .when(F.col("live_copies") < F.col("ack_quorum_size"), ReplicationState.AT_RISK.value)
        .otherwise(ReplicationState.UNDER_REPLICATED.value)
    )
    return (
        frame.withColumn("expected_copies", F.when(has_write_set, F.col("write_quorum_size")).otherwise(F.lit(0)))
        .withColumn("live_copies", live_copies)
        .withColumn("missing_bookies", missing)
        .withColumn("replication", replication)
        .select(*REPLICATION_SCHEMA.names)
    )


def ledger_replication(frame: DataFrame) -> DataFrame:
    """One row per ledger: ``ledger_id``, ``ledger_state``, ``replication`` (its worst), ``entries``, ``payload_bytes``.

    Entries and bytes are those of closed ledgers, one copy; 0 for others.
    """
    require_columns("ledger_replication", frame, REPLICATION_SCHEMA.names)
    is_closed = F.col("ledger_state") == "closed"
    return frame.groupBy("ledger_id").agg(
        F.first("ledger_state").alias("ledger_state"),
        F.max_by("replication", _severity()).alias("replication"),
        F.sum(F.when(is_closed, F.coalesce("entry_count", F.lit(0))).otherwise(F.lit(0))).alias("entries"),
        F.sum(F.when(is_closed, F.coalesce("payload_bytes", F.lit(0))).otherwise(F.lit(0))).alias("payload_bytes"),
    )


def summary_by_state(frame: DataFrame) -> DataFrame:
    """At most a dozen rows: ``replication``, ``is_open``, ``ledgers``, ``entries``, ``payload_bytes``.

    From the rows of ``ledger_replication``. ``is_open`` is false for ledgers that cannot be read.
    """
    require_columns("summary_by_state", frame, ["ledger_state", "replication", "entries", "payload_bytes"])
    is_open = F.coalesce(F.col("ledger_state") != "closed", F.lit(col=False))
    return frame.groupBy("replication", is_open.alias("is_open")).agg(
        F.count("*").alias("ledgers"),
        F.sum("entries").alias("entries"),
        F.sum("payload_bytes").alias("payload_bytes"),
    )


def replication_by_bookie(frame: DataFrame, writable: Sequence[str], read_only: Sequence[str]) -> DataFrame:
    """One row per bookie that is registered or named: the fields of ``BookieReplication``, sorted by id."""
    require_columns("replication_by_bookie", frame, REPLICATION_SCHEMA.names)
    is_last_copy = (F.col("live_copies") == 1) & ~F.array_contains("missing_bookies", F.col("bookie_id"))
    named = (
        frame.withColumn("bookie_id", F.explode(F.array_distinct("write_set")))
        .groupBy("bookie_id")
        .agg(
            F.count_distinct("ledger_id").alias("ledgers"),
            F.count("*").alias("write_sets"),
            F.count(F.when(_misses_copies(), 1)).alias("under_replicated_write_sets"),
            F.count_distinct(F.when(is_last_copy, F.col("ledger_id"))).alias("last_copy_ledgers"),
            F.sum(F.coalesce("entry_count", F.lit(0))).alias("entry_copies"),
            F.sum(F.coalesce("payload_bytes", F.lit(0))).alias("payload_bytes"),
        )
    )
    registered = frame.sparkSession.range(1).select(
        F.explode(_string_array(sorted({*writable, *read_only}))).alias("bookie_id")
    )
    mode = (
        F.when(F.array_contains(_string_array(sorted(writable)), F.col("bookie_id")), "writable")
        .when(F.array_contains(_string_array(sorted(read_only)), F.col("bookie_id")), "read_only")
        .otherwise("unregistered")
    )
    counts = [column for column in named.columns if column != "bookie_id"]
    return (
        named.join(registered, "bookie_id", "full_outer")
        .select("bookie_id", mode.alias("mode"), *(F.coalesce(column, F.lit(0)).alias(column) for column in counts))
        .orderBy("bookie_id")
    )


def under_replicated_ledgers(frame: DataFrame) -> DataFrame:
    """One row per ledger that misses copies: the fields of ``UnderReplicatedLedger``, sorted by id."""
    require_columns("under_replicated_ledgers", frame, REPLICATION_SCHEMA.names)
    return (
        frame.where(_misses_copies())
        .groupBy("ledger_id")
        .agg(
            F.first("ledger_state").alias("ledger_state"),
            F.max_by("replication", _severity()).alias("replication"),
            F.first("expected_copies").alias("expected_copies"),
            F.min("live_copies").alias("live_copies_min"),
            F.first("ack_quorum_size").alias("ack_quorum_size"),
            F.count("*").alias("write_sets"),
            F.sum(F.coalesce("entry_count", F.lit(0))).alias("entry_count"),
            F.array_sort(F.array_distinct(F.flatten(F.collect_list("missing_bookies")))).alias("missing_bookies"),
        )
        .orderBy("ledger_id")
    )


def unreadable_ledgers(frame: DataFrame) -> DataFrame:
    """One row per ledger whose metadata cannot be read: ``ledger_id`` and ``problem``, sorted by id."""
    require_columns("unreadable_ledgers", frame, ["ledger_id", "problem"])
    return frame.where(F.col("problem").isNotNull()).select("ledger_id", "problem").orderBy("ledger_id")


def _misses_copies() -> Column:
    return F.col("replication").isin(_MISSES_COPIES)


def _severity() -> Column:
    """``replication`` as a number that grows with the damage."""
    severity = F.lit(None).cast("int")
    for state, number in SEVERITY.items():
        severity = F.when(F.col("replication") == state.value, number).otherwise(severity)
    return severity


def _string_array(values: Sequence[str]) -> Column:
    """A literal; an empty one needs its type told."""
    return F.array(*(F.lit(value) for value in values)).cast("array<string>")
