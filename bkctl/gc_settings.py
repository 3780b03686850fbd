"""Garbage collection and compaction in a Java bk_server.conf. Source: storage section 7.3."""

from __future__ import annotations

from typing import Any, Final

from bkctl.java_conf import JavaConf
from bkctl.settings import put, put_all

_DURATIONS: Final = {"wait_s": "gcWaitTime", "overreplicated_wait_s": "gcOverreplicatedLedgerWaitTime"}
_WHOLE_NUMBERS: Final = {
    "overreplicated_in_flight_max": "gcOverreplicatedLedgerMaxConcurrentRequests",
    "copied_bytes_per_s_max": "compactionRateByBytes",
    "outstanding_entries_max": "compactionMaxOutstandingRequests",
}
_TRUTHS: Final = {
    "is_forced_compaction_allowed": "forceAllowCompaction",
    "is_forced_when_full": "isForceGCAllowWhenNoSpace",
    "is_throttled_by_bytes": "isThrottleByBytes",
    "is_transactional": "useTransactionalCompaction",
    "is_target_size_used": "useTargetEntryLogSizeForGc",
}


def garbage_collection_values(conf: JavaConf) -> dict[str, Any]:
    """Fields of GarbageCollectionConfig that the file sets."""
    values: dict[str, Any] = {}
    put_all(values, conf.seconds, _DURATIONS)
    put_all(values, conf.whole_number, _WHOLE_NUMBERS)
    put_all(values, conf.truth, _TRUTHS)
    put(values, "metadata_operations_per_s_max", conf.decimal_number("gcMetadataOpRateLimit"))
    # compactionRate is what releases before 4.5 called it.
    rate = conf.whole_number("compactionRate")
    by_entries = conf.whole_number("compactionRateByEntries")
    put(values, "copied_entries_per_s_max", rate if by_entries is None else by_entries)
    for kind in ("minor", "major"):
        values[kind] = _compaction_values(conf, kind)
    return values


def garbage_collection_warnings(conf: JavaConf) -> list[str]:
    """What the file asks for and does not get."""
    warnings = []
    if conf.truth("verifyMetadataOnGC") is False:
        warnings.append(
            f"{conf.origin}: verifyMetadataOnGC=false has no effect: a ledger's metadata is always read before its "
            "entries are deleted"
        )
    return warnings


def _compaction_values(conf: JavaConf, kind: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    put(values, "threshold", conf.decimal_number(f"{kind}CompactionThreshold"))
    put(values, "interval_s", conf.whole_seconds(f"{kind}CompactionInterval"))
    duration_s = conf.seconds(f"{kind}CompactionMaxTimeMillis")
    if duration_s is not None and duration_s > 0:
        values["duration_s_max"] = duration_s
    return values
