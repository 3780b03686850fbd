"""Settings of ``autorecovery start``: options, BKCTL_AUTORECOVERY_* variables, bk_server.conf, TOML, defaults."""

from __future__ import annotations

from bkctl.setting_readers import (
    Given,
    Givens,
    build,
    flag_values,
    java_values,
    settings_of,
    toml_values,
    variable_values,
)
from bkctl.settings import Sources, resolve_metadata_uri, resolve_settings, server_zookeeper_values
from commands.context import DaemonFlags, DaemonSettings, LogSettings
from runtime.autorecovery.config import AutorecoveryConfig, DaemonConfig
from runtime.config import ZooKeeperConfig

_SECTION = "autorecovery"
_LOG_NAMES = LogSettings.__struct_fields__


def resolve_daemon_settings(sources: Sources, flags: DaemonFlags) -> DaemonSettings:
    """Merge all sources; ConfigurationError. ``config.metadata_uri`` is empty if no source specifies a cluster."""
    metadata_uri, _ = resolve_metadata_uri(sources)
    values, of_commands = daemon_values(sources, flags), resolve_settings(sources)
    log = {path: given for path, given in values.items() if path[-1] in _LOG_NAMES}
    own = {path: given for path, given in values.items() if path not in log}
    zookeeper = settings_of("zookeeper")
    config = DaemonConfig(
        metadata_uri=metadata_uri or "",
        autorecovery=build(own, AutorecoveryConfig, settings_of(_SECTION), _SECTION),
        replication=of_commands.replication,
        client=of_commands.client,
        zookeeper=build(server_zookeeper_values(sources), ZooKeeperConfig, zookeeper, "zookeeper"),
    )
    return DaemonSettings(config=config, log=build(log, LogSettings, settings_of(_SECTION), _SECTION))


def daemon_values(sources: Sources, flags: DaemonFlags) -> Givens:
    """The values from all sources for [autorecovery]."""
    settings, origin = settings_of(_SECTION), sources.toml_path or ""
    table = dict(sources.toml.autorecovery)
    log: Givens = {
        (_SECTION, name): Given(value, origin, f"{origin}: {_SECTION}.{name} = {value}")
        for name in _LOG_NAMES
        if (value := table.pop(name, None)) is not None
    }
    values = toml_values(table, AutorecoveryConfig, _SECTION, origin, (_SECTION,)) | log
    if sources.conf is not None:
        values |= java_values(sources.conf, settings)
    values |= variable_values(sources.environment, settings, values)
    return values | flag_values(flags, settings)
