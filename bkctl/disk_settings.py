"""Settings of the disks that a bk_server.conf makes. Source: storage section 8."""

from __future__ import annotations

from typing import Any, Final

from bkctl.java_conf import JavaConf
from bkctl.settings import put, put_all

_FRACTIONS: Final = {
    "full_fraction": "diskUsageThreshold",
    "almost_full_fraction": "diskUsageWarnThreshold",
    "recovered_fraction": "diskUsageLwmThreshold",
}
_TRUTHS: Final = {
    "is_read_only_mode_enabled": "readOnlyModeEnabled",
    "is_read_only_when_any_is_full": "readOnlyModeOnAnyDiskFullEnabled",
    "is_status_kept": "persistBookieStatusEnabled",
}
_WHOLE_NUMBERS: Final = {
    "checkpoint_reserve_bytes": "minUsableSizeForEntryLogCreation",
    "high_priority_room_bytes": "minUsableSizeForHighPriorityWrites",
}


def java_disk_values(conf: JavaConf) -> dict[str, Any]:
    """Fields of ``DiskConfig`` under their Java keys."""
    values: dict[str, Any] = {}
    put_all(values, conf.decimal_number, _FRACTIONS)
    put_all(values, conf.truth, _TRUTHS)
    put_all(values, conf.whole_number, _WHOLE_NUMBERS)
    put(values, "check_interval_s", conf.seconds("diskCheckInterval"))
    return values
