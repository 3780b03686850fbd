"""Settings of ``autorecovery start``: options, BKCTL_AUTORECOVERY_* variables, bk_server.conf, TOML, defaults."""

from __future__ import annotations

import msgspec

from bkctl.commands.context import DaemonFlags, DaemonSettings, LogSettings
from bkctl.java_security import clear_text_warnings, with_admin_stores, with_file_keys
from bkctl.runtime.autorecovery.config import AutorecoveryConfig, DaemonConfig
from bkctl.runtime.config import ClientConfig, ZooKeeperConfig
from bkctl.setting_readers import (
    Given,
    Givens,
    build,
    flag_values,
    java_values,
    merged,
    settings_of,
    toml_values,
    variable_values,
)
from bkctl.settings import Sources, resolve_metadata_uri, resolve_settings, server_zookeeper_values

_SECTION = "autorecovery"
_LOG_NAMES = LogSettings.__struct_fields__


def resolve_daemon_settings(sources: Sources, flags: DaemonFlags) -> DaemonSettings:
    """Merge all sources; ConfigurationError. ``config.metadata_uri`` is empty if no source specifies a cluster."""
    values = daemon_values(sources, flags)
    log = {path: given for path, given in values.items() if path[-1] in _LOG_NAMES}
    config = _build_daemon(sources, {path: given for path, given in values.items() if path not in log})
    warnings = clear_text_warnings(sources.conf, config.client.security.tls)
    log_settings = build(log, LogSettings, settings_of(_SECTION), _SECTION)
    return DaemonSettings(config=config, warnings=warnings, log=log_settings)


def resolve_daemon_of_bookie(sources: Sources) -> DaemonConfig:
    """The daemon of a bookie; ConfigurationError. The log and the port in bk_server.conf are those of the bookie."""
    values = daemon_values(sources, DaemonFlags(), is_java_admin_used=False)
    return _build_daemon(sources, {path: given for path, given in values.items() if path[-1] not in _LOG_NAMES})


def _build_daemon(sources: Sources, values: Givens) -> DaemonConfig:
    metadata_uri, _ = resolve_metadata_uri(sources)
    of_commands, zookeeper = resolve_settings(sources), settings_of("zookeeper")
    return DaemonConfig(
        metadata_uri=metadata_uri or "",
        autorecovery=build(with_file_keys(values), AutorecoveryConfig, settings_of(_SECTION), _SECTION),
        replication=of_commands.replication,
        client=_as_daemon(of_commands.client),
        zookeeper=build(server_zookeeper_values(sources), ZooKeeperConfig, zookeeper, "zookeeper"),
    )


def _as_daemon(client: ClientConfig) -> ClientConfig:
    """The daemon logs in by another section of the JAAS file than commands, as in Java."""
    sasl = client.security.sasl
    if sasl is None or sasl.jaas_file is None:
        return client
    sasl = msgspec.structs.replace(sasl, jaas_section=sasl.jaas_daemon_section)
    return msgspec.structs.replace(client, security=msgspec.structs.replace(client.security, sasl=sasl))


def daemon_values(sources: Sources, flags: DaemonFlags, *, is_java_admin_used: bool = True) -> Givens:
    """The values from all sources for [autorecovery].

    ``is_java_admin_used`` False: without those of bk_server.conf for the admin interface.
    """
    settings, origin = settings_of(_SECTION), sources.toml_path or ""
    table = dict(sources.toml.autorecovery)
    log: Givens = {
        (_SECTION, name): Given(value, origin, f"{origin}: {_SECTION}.{name} = {value}")
        for name in _LOG_NAMES
        if (value := table.pop(name, None)) is not None
    }
    values = toml_values(table, AutorecoveryConfig, _SECTION, origin, (_SECTION,)) | log
    if sources.conf is not None:
        of_java = (each for each in settings if is_java_admin_used or each.path[:2] != (_SECTION, "admin"))
        values = merged(values, with_admin_stores(java_values(sources.conf, of_java), _SECTION))
    values = merged(values, variable_values(sources.environment, settings, values))
    return values | flag_values(flags, settings)
