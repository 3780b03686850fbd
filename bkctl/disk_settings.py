"""Settings of the disks that a bk_server.conf makes. Source: storage section 8."""

from __future__ import annotations

from typing import Any

from bkctl.java_conf import JavaConf
from bkctl.settings import put


def java_disk_values(conf: JavaConf) -> dict[str, Any]:
    """Fields of ``DiskConfig`` under their Java keys."""
    values: dict[str, Any] = {}
    for name, key in (
        ("full_fraction", "diskUsageThreshold"),
        ("almost_full_fraction", "diskUsageWarnThreshold"),
        ("recovered_fraction", "diskUsageLwmThreshold"),
    ):
        put(values, name, conf.decimal_number(key))
    if (interval_ms := conf.whole_number("diskCheckInterval")) is not None:
        values["check_interval_s"] = interval_ms / 1000
    for name, key in (
        ("is_read_only_mode_enabled", "readOnlyModeEnabled"),
        ("is_read_only_when_any_is_full", "readOnlyModeOnAnyDiskFullEnabled"),
        ("is_status_kept", "persistBookieStatusEnabled"),
    ):
        put(values, name, conf.truth(key))
    put(values, "checkpoint_reserve_bytes", conf.whole_number("minUsableSizeForEntryLogCreation"))
    put(values, "high_priority_room_bytes", conf.whole_number("minUsableSizeForHighPriorityWrites"))
    return values
