"""Settings of the integrity check that a bk_server.conf makes. Source: storage section 9.4."""

from __future__ import annotations

from typing import Any

from bkctl.java_conf import JavaConf
from bkctl.settings import put


def java_integrity_values(conf: JavaConf) -> dict[str, Any]:
    """Fields of ``IntegrityConfig`` under their Java keys."""
    values: dict[str, Any] = {}
    put(values, "is_enabled", conf.truth("dataIntegrityChecking"))
    put(values, "stamps_missing_cookies", conf.truth("dataIntegrityStampMissingCookies"))
    return values
