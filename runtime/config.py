"""Settings of the runtime floor: frozen, with unit, default, range and the Java key each one answers to."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

PositiveFloat = Annotated[float, Meta(gt=0)]
PositiveInt = Annotated[int, Meta(gt=0)]


class ZooKeeperConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the metadata store is reached."""

    session_timeout_ms: PositiveInt = 10_000
    """Session time-out asked for (zkTimeout)."""
    operation_timeout_s: PositiveFloat = 15.0
    """Longest wait for one operation, reconnecting included."""
    in_flight_max: PositiveInt = 128
    """Requests under way at once in a scan."""
    has_secure_acl: bool = False
    """Nodes are created for the authenticated session alone (zkEnableSecurity)."""


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a ledger client treats its bookies."""

    add_timeout_s: PositiveFloat = 5.0
    """Longest wait for the answer to one add (addEntryTimeoutSec)."""
    read_timeout_s: PositiveFloat = 5.0
    """Longest wait for the answer to one read (readEntryTimeoutSec)."""
    connect_timeout_s: PositiveFloat = 10.0
    """Longest wait for a connection (clientConnectTimeoutMillis)."""
    frame_bytes_max: PositiveInt = 5 * 1024 * 1024
    """Largest frame, its length word included (nettyMaxFrameSizeBytes)."""
    speculative_read_timeout_s: PositiveFloat = 2.0
    """Ask the next replica when the first has not answered for this long (speculativeReadTimeout)."""
    pending_adds_max: PositiveInt = 10_000
    """Adds of one writer under way at once; more wait in ``append``."""
