"""All settings, by the sections of the TOML file."""

from __future__ import annotations

import functools

import msgspec

from commands.config import GeneralConfig
from commands.context import LogSettings
from runtime.config import BookieConfig, ClientConfig, ZooKeeperConfig
from runtime.replication.config import ReplicationConfig
from storage.setting import Described, described

SECTIONS: dict[str, type[msgspec.Struct]] = {
    "": GeneralConfig,
    "zookeeper": ZooKeeperConfig,
    "client": ClientConfig,
    "replication": ReplicationConfig,
    "bookie": BookieConfig,
}
"""The struct of each section; that without a name is before the first table."""


@functools.cache
def settings_of(section: str) -> tuple[Described, ...]:
    """The settings of a section. A bookie's [zookeeper] is that of all commands; its log is in [bookie], too."""
    if section == "bookie":
        own = (each for each in described(BookieConfig, section) if each.path[1] != "zookeeper")
        return (*own, *described(LogSettings, section))
    return described(SECTIONS[section], section) if section else described(GeneralConfig)


@functools.cache
def all_settings() -> tuple[Described, ...]:
    """Every setting."""
    return tuple(each for section in SECTIONS for each in settings_of(section))
