"""The settings in use, with the keys and units of bk_server.conf. Secrets are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bkctl.runtime.config import BookieConfig
from bkctl.storage.setting import MEBIBYTE, Described, described

_FACTORS: Final = {"ms": 1000.0, "MiB": 1 / MEBIBYTE}


def java_settings(config: BookieConfig, values: Mapping[str, object]) -> dict[str, str]:
    """Every setting that has a Java key and a value. ``values``: by TOML names below ``[bookie]``."""
    settings = described(BookieConfig)
    counts = {
        each.java_key: len(value)
        for each in settings
        if isinstance(value := values.get(".".join(each.path)), list | tuple)
    }
    found = {"metadataServiceUri": config.metadata_uri}
    for each in settings:
        value, key = values.get(".".join(each.path)), each.java_key
        if key is not None and value is not None and not each.setting.is_secret:
            found[key] = _java_text(each, value, counts)
    return dict(sorted(found.items()))


def _java_text(each: Described, value: object, counts: Mapping[str | None, int]) -> str:
    java = each.setting.java
    assert java is not None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        shares = max(1, counts.get(java.shared_by, 1)) if java.shared_by is not None else 1
        number = value * shares * _FACTORS.get(java.unit, 1)
        return str(int(number)) if number == int(number) else repr(number)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    return str(value)
