"""The numbers that the keys of a bk_server.conf may have."""

from __future__ import annotations

from bkctl.setting_readers import all_settings
from bkctl.storage.setting import Range

RANGES = {
    each.java_key: each.java_range
    for each in all_settings()
    if each.java_key is not None
    and each.type in {int, float}
    and each.setting.java is not None
    and not each.setting.java.is_capped
}


def ends(bounds: Range) -> tuple[float, float]:
    """The smallest and the largest number of a range that includes its ends."""
    low = -bounds.number_max if bounds.low is None else bounds.low
    return low, bounds.number_max if bounds.high is None else bounds.high
