"""When a periodic check runs. Java's auditor and ours share the node that says when a check last reached its end.

A check is due when that time is ``interval_s`` ago, at once if it is unknown, and not before if it is in the future.
"""

from __future__ import annotations

import logging

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.replication.switches import PeriodicCheck, ReplicationSwitches

logger = logging.getLogger(__name__)

DUE_CHECK_INTERVAL_S = 600.0
"""Whether an operator has made a check due is read at least this often."""
REPEAT_FIRST_S = 300.0
"""Pause before the first repeat of a check that could not read everything; it doubles after each further one."""
REPEATS_PER_INTERVAL = 10
"""The pause before a repeat is at most this part of the interval."""
DISABLED = "autorecovery is disabled: nothing is checked"
NOT_YET = "nothing was checked yet"


async def last_check_ms(switches: ReplicationSwitches, check: PeriodicCheck) -> int | None:
    """When a check last reached its end; None if that is unknown. One operation."""
    try:
        return await switches.check_time_ms(check)
    except MetadataFormatError as error:
        logger.warning("ignored, and replaced by the next check: %s", error)
        return None


def wait_s(last_ms: int | None, now_ms: int, interval_s: float) -> float:
    """Time until a check is due that last ended at ``last_ms``; None: that is unknown. Pure."""
    return 0.0 if last_ms is None else max(0.0, interval_s - max(0, now_ms - last_ms) / 1000)


def repeat_in_s(repeats: int, interval_s: float) -> float:
    """Pause before a check that could not read everything is repeated; ``repeats`` so far. Pure."""
    return min(REPEAT_FIRST_S * 2.0 ** min(repeats, 20), interval_s / REPEATS_PER_INTERVAL)
