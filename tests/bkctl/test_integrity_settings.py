from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.commands.context import BookieFlags
from bkctl.runtime.config import IntegrityConfig
from bkctl.runtime.errors import ConfigurationError
from tests.bkctl.test_bookie_settings import resolve


def test_every_java_key() -> None:
    keys = ("dataIntegrityChecking=true", "dataIntegrityStampMissingCookies=true")
    config = resolve(BookieFlags(overrides=keys)).config
    assert config.integrity == IntegrityConfig(is_enabled=True, stamps_missing_cookies=True)


def test_flags_and_toml(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[bookie.integrity]\nbytes_per_s_max = 1000\nretry_delay_s = 7\n")
    flags = BookieFlags(
        journal_directories=("j",), ledger_directories=("l",), overrides=("dataIntegrityChecking=true",)
    )
    config = resolve(flags, BKCTL_CONFIG=str(path), BKCTL_METADATA_URI="zk://a/ledgers").config
    assert config.integrity == IntegrityConfig(is_enabled=True, bytes_per_s_max=1000, retry_delay_s=7)


def test_stamping_alone_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"\(dataIntegrityStampMissingCookies\) needs .*dataIntegrityChecking"):
        resolve(BookieFlags(overrides=("dataIntegrityStampMissingCookies=true",)))
