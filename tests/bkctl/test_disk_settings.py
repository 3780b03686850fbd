from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.commands.context import BookieFlags
from bkctl.runtime.config import DiskConfig
from bkctl.runtime.errors import ConfigurationError
from tests.bkctl.test_bookie_settings import resolve

KEYS = {
    "diskUsageThreshold": "0.9",
    "diskUsageWarnThreshold": ".8",
    "diskUsageLwmThreshold": "0.85",
    "diskCheckInterval": "500",
    "readOnlyModeEnabled": "false",
    "readOnlyModeOnAnyDiskFullEnabled": "false",
    "persistBookieStatusEnabled": "true",
    "minUsableSizeForEntryLogCreation": "1000",
    "minUsableSizeForHighPriorityWrites": "2000",
}


def test_every_java_key() -> None:
    config = resolve(BookieFlags(overrides=tuple(f"{key}={value}" for key, value in KEYS.items()))).config
    assert config.disks == DiskConfig(
        full_fraction=0.9,
        almost_full_fraction=0.8,
        recovered_fraction=0.85,
        check_interval_s=0.5,
        is_read_only_mode_enabled=False,
        is_read_only_when_any_is_full=False,
        is_status_kept=True,
        checkpoint_reserve_bytes=1000,
        high_priority_room_bytes=2000,
    )


def test_without_keys_the_defaults_stand_but_on_a_developers_machine() -> None:
    flags = BookieFlags(journal_directories=("j",), ledger_directories=("l",))
    assert resolve(flags, BKCTL_METADATA_URI="zk://a/ledgers").config.disks == DiskConfig()
    assert resolve().config.disks == DiskConfig(full_fraction=0.99)


def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[bookie.disks]\nfull_fraction = 0.99\n")
    flags = BookieFlags(journal_directories=("j",), ledger_directories=("l",))
    config = resolve(flags, BKCTL_CONFIG=str(path), BKCTL_METADATA_URI="zk://a/ledgers").config
    assert config.disks == DiskConfig(full_fraction=0.99)


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        (("diskUsageThreshold=0.8",), r"diskUsageWarnThreshold\) is 0.9 and must not be above .* 0.8"),
        (("diskUsageLwmThreshold=0.995",), "diskUsageLwmThreshold"),
        (("diskUsageThreshold=1.0",), "diskUsageThreshold = 1.0: must be above 0 and below 1"),
        (("diskUsageWarnThreshold=0",), "diskUsageWarnThreshold = 0: must be above 0"),
        (("diskUsageThreshold=95%",), "diskUsageThreshold = 95%: not a decimal number"),
        (("diskUsageThreshold=nan",), "not a decimal number"),
        (("diskCheckInterval=0",), "diskCheckInterval = 0: must be at least 1"),
        (("minUsableSizeForHighPriorityWrites=-1",), "minUsableSizeForHighPriorityWrites = -1: must be at least 0"),
    ],
)
def test_what_does_not_fit_together_is_one_sentence(pairs: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        resolve(BookieFlags(overrides=pairs))
    assert "\n" not in str(raised.value)
