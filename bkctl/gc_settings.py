"""Garbage collection and compaction in a Java bk_server.conf. Source: storage section 7.3."""

from __future__ import annotations

from typing import Any, Final

from bkctl.java_conf import JavaConf
from bkctl.settings import put

_MILLISECONDS: Final = (("wait_s", "gcWaitTime"), ("overreplicated_wait_s", "gcOverreplicatedLedgerWaitTime"))
_NUMBERS: Final = (("metadata_operations_per_s_max", "gcMetadataOpRateLimit"),)
_WHOLE_NUMBERS: Final = (
    ("overreplicated_in_flight_max", "gcOverreplicatedLedgerMaxConcurrentRequests"),
    ("copied_bytes_per_s_max", "compactionRateByBytes"),
    ("outstanding_entries_max", "compactionMaxOutstandingRequests"),
)
_TRUTHS: Final = (
    ("is_forced_compaction_allowed", "forceAllowCompaction"),
    ("is_forced_when_full", "isForceGCAllowWhenNoSpace"),
    ("is_throttled_by_bytes", "isThrottleByBytes"),
    ("is_transactional", "useTransactionalCompaction"),
    ("is_target_size_used", "useTargetEntryLogSizeForGc"),
)
_NO_EFFECT: Final = {
    "entryLocationCompactionInterval": "LevelDB compacts its index by itself",
    "gcEntryLogMetadataCacheEnabled": "what each log holds is kept in memory, and read again after a start",
}


def garbage_collection_values(conf: JavaConf) -> dict[str, Any]:
    """Fields of GarbageCollectionConfig that the file sets."""
    values: dict[str, Any] = {}
    for name, key in _MILLISECONDS:
        put(values, name, _seconds(conf, key))
    for name, key in _NUMBERS:
        put(values, name, conf.decimal_number(key))
    for name, key in _WHOLE_NUMBERS:
        put(values, name, conf.whole_number(key))
    for name, key in _TRUTHS:
        put(values, name, conf.truth(key))
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
    for key, reason in _NO_EFFECT.items():
        text = conf.text(key)
        if text is not None and text.lower() not in {"-1", "0", "false", "no", "off"}:
            warnings.append(f"{conf.origin}: {key}={text} has no effect: {reason}")
    return warnings


def _compaction_values(conf: JavaConf, kind: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    put(values, "threshold", conf.decimal_number(f"{kind}CompactionThreshold"))
    put(values, "interval_s", conf.whole_number(f"{kind}CompactionInterval"))
    duration_ms = conf.whole_number(f"{kind}CompactionMaxTimeMillis")
    if duration_ms is not None and duration_ms > 0:
        values["duration_s_max"] = duration_ms / 1000
    return values


def _seconds(conf: JavaConf, key: str) -> float | None:
    milliseconds = conf.whole_number(key)
    return None if milliseconds is None else milliseconds / 1000
