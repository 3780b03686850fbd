"""Settings of checking and copying: frozen, with unit, default, range and the Java key each one answers to."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

PositiveFloat = Annotated[float, Meta(gt=0)]
PositiveInt = Annotated[int, Meta(gt=0)]


class ReplicationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one check or one recovery, all ledgers of the run together unless said otherwise."""

    ledgers_in_parallel: PositiveInt = 16
    """Ledgers under way at once; each recovery holds one replication lock."""
    bytes_in_flight_max: PositiveInt = 64 * 1024 * 1024
    """Entry bytes asked for and not yet disposed of."""
    entries_in_flight_max: PositiveInt = 512
    """Entries asked for and not yet disposed of (inFlightReadEntryNumInLedgerChecker, rereplicationEntryBatchSize)."""
    attempts_max: PositiveInt = 7
    """Requests to a registered bookie before its refused connections, or its overload, are taken as an answer."""
    backoff_first_s: PositiveFloat = 0.25
    """Pause after the first failed request; it doubles with each further one."""
    backoff_max_s: PositiveFloat = 5.0
    """Longest pause between two requests."""
    silence_pause_s: PositiveFloat = 10.0
    """Wait before a registered bookie that failed to answer twice is asked again; until then none of its copies is."""
    late_copy_wait_s: Annotated[float, Meta(ge=0)] = 1.0
    """Wait before a copy that is missing in an open ledger is asked for again: its add may be on the way."""
    lock_wait_s: Annotated[float, Meta(ge=0)] = 30.0
    """Longest wait for the replication lock of a ledger that somebody else holds."""
    lock_poll_s: PositiveFloat = 1.0
    """Time between two attempts to take that lock."""
    registration_wait_s: Annotated[float, Meta(ge=0)] = 30.0
    """Longest wait for the registration of a killed bookie to lapse; its session outlives it (zkTimeout)."""
    metadata_outage_max_s: PositiveFloat = 600.0
    """Longest wait for a metadata store that stopped answering, before the run ends."""
    metadata_attempts_max: PositiveInt = 50
    """Compare-and-set attempts for one ledger before its recovery gives up."""
    metadata_reads_in_flight_max: PositiveInt = 256
    """Ledger metadata read ahead by a scan over all ledgers."""
