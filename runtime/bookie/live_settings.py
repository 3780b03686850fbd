"""Settings that can change while the bookie runs, and those that need a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from bkctl.runtime.config import BookieConfig
from bkctl.storage.setting import described, setting_values

logger = logging.getLogger(__name__)

RateSetter: TypeAlias = Callable[[BookieConfig], None]
"""Applies the rates to one part of the bookie."""

LIVE: Final = frozenset(".".join(each.path) for each in described(BookieConfig) if each.setting.is_live)
"""Settings (rates) that can change at run time, by their TOML names below ``[bookie]``, or in ``[zookeeper]``."""


class LiveSettings:
    """The settings of a running bookie."""

    def __init__(self, config: BookieConfig) -> None:
        self._config = config
        self._values = dict(_flat(setting_values(config)))
        self._setters: list[RateSetter] = []

    @property
    def values(self) -> Mapping[str, object]:
        """The values in use, by their TOML names below ``[bookie]``."""
        return self._values

    def on_change(self, setter: RateSetter) -> None:
        """Register a callback that gets the new settings when any of them changes."""
        self._setters.append(setter)

    def reload(self, config: BookieConfig) -> None:
        """Apply the rates of ``config``, and log other settings that have changed since the start."""
        if not config.metadata_uri:  # a bookie with its own ZooKeeper
            config = msgspec.structs.replace(config, metadata_uri=self._config.metadata_uri)
        fresh = dict(_flat(setting_values(config)))
        changed = sorted(
            name for name in fresh.keys() | self._values.keys() if fresh.get(name) != self._values.get(name)
        )
        rates = [name for name in changed if name in LIVE]
        for setter in self._setters:
            setter(config)
        for name in rates:
            logger.info("setting changed: %s = %s (was %s)", name, fresh[name], self._values[name])
            self._values[name] = fresh[name]
        # Without the values: they are not in use, and may show where secrets are.
        if others := [name for name in changed if name not in LIVE]:
            logger.warning("settings changed that take effect after a restart: %s", ", ".join(others))
        if not changed:
            logger.info("settings reloaded: no bookie setting has changed")


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
