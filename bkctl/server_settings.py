"""Settings of servers: options, BKCTL_BOOKIE_* and BKCTL_AUTORECOVERY_* variables, bk_server.conf, TOML, defaults."""

from __future__ import annotations

import msgspec

from bkctl.commands.context import BookieFlags, BookieSettings, DaemonFlags, DaemonSettings, JavaComparison, LogSettings
from bkctl.commands.errors import InvalidArgumentError, NoDirectoryError
from bkctl.java_conf import JavaConf
from bkctl.java_keys import REFUSED, ignored_keys, is_refused, missing_feature_notes, unknown_key_notes
from bkctl.java_security import (
    bookie_security,
    clear_text_warnings,
    old_version_warnings,
    with_admin_stores,
    with_file_keys,
)
from bkctl.runtime.autorecovery.config import AutorecoveryConfig, DaemonConfig
from bkctl.runtime.config import AdminConfig, BookieConfig, ClientConfig, ZooKeeperConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.security_config import BookieClientConfig
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
from bkctl.settings import (
    Sources,
    java_metadata_uri,
    resolve_metadata_uri,
    resolve_settings,
    section_values,
    server_zookeeper_values,
)
from bkctl.storage.config import normal_directory
from bkctl.storage.journal.format import EXPLICIT_LAC_VERSION_MIN
from bkctl.storage.setting import described

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


DATA_DIRECTORY = "bkctl-data"
"""Directory for all data if nothing is configured."""

_LOG = described(LogSettings, "bookie")
_DIRECTORIES = {each.path[-1]: each.path for each in settings_of("bookie") if each.path[-1].endswith("_directories")}
_NOTHING_CONFIGURED = "nothing is configured"


def resolve_bookie_settings(sources: Sources, flags: BookieFlags) -> BookieSettings:
    """Merge all sources; ConfigurationError, InvalidArgumentError."""
    is_configured = has_file(sources)  # --set does not count as a file
    sources = with_overrides(sources, flags)
    conf = sources.conf
    if conf is not None:
        _refuse_unprotected(conf)
    metadata_uri, origin = resolve_metadata_uri(sources)
    if metadata_uri is None and is_configured:
        raise ConfigurationError(
            "no cluster specified: set metadataServiceUri in the configuration file, or use --metadata-uri "
            f"(a bookie starts its own ZooKeeper only if nothing is configured){_perhaps_meant(conf)}"
        )
    values = bookie_values(sources, flags, has_own_cluster=metadata_uri is None)
    for name, option in (("journal_directories", "--journal-dir"), ("ledger_directories", "--ledger-dir")):
        given = values.get(_DIRECTORIES[name])
        if given is None or not given.value:
            raise NoDirectoryError(
                f"no {name.replace('_', ' ')} specified: use {option} or the configuration file{_perhaps_meant(conf)}"
            )
    config, log = build_bookie(sources, values, metadata_uri, origin)
    warnings = [*_uri_warnings(sources, metadata_uri, origin), *_journal_warnings(values)]
    comparison = JavaComparison()
    if conf is not None:
        warnings += [*unknown_key_notes(conf.settings()), *old_version_warnings(conf)]
        # Without TLS, keys that would not count with it are of no interest.
        considered = [each for each in conf.settings() if config.tls is not None or not each[0].startswith("tls")]
        comparison = JavaComparison(
            missing=tuple(missing_feature_notes(conf.settings())),
            admin=tuple(_admin_differences(config)),
            ignored={reason: tuple(keys) for reason, keys in ignored_keys(considered).items()},
            clear_text=clear_text_warnings(conf, config.tls),
        )
    return BookieSettings(
        config=config,
        data_directory=DATA_DIRECTORY if metadata_uri is None else None,
        warnings=tuple(warnings),
        comparison=comparison,
        log=log,
        autorecovery=resolve_daemon_of_bookie(sources) if config.is_autorecovery_enabled else None,
    )


def has_file(sources: Sources) -> bool:
    """Whether a file configures the bookie. If none does, and there is no metadata URI, it has a cluster of its own."""
    return sources.conf is not None or bool(sources.toml.bookie) or sources.is_toml_named


def build_bookie(
    sources: Sources, values: Givens, metadata_uri: str | None, origin: str
) -> tuple[BookieConfig, LogSettings]:
    """The configuration of a bookie and of its log, from its values; ConfigurationError."""
    log_paths = {each.path for each in _LOG}
    log = build({path: given for path, given in values.items() if path in log_paths}, LogSettings, _LOG, "bookie")
    values = {path: given for path, given in values.items() if path not in log_paths}
    values["bookie", "metadata_uri"] = Given(metadata_uri or "", origin, f"metadata URI of {origin}")
    values |= {("bookie", *path): given for path, given in server_zookeeper_values(sources).items()}
    of_client = section_values(sources, "bookie_client")
    values |= {("bookie", "client", *path[1:]): given for path, given in of_client.items()}
    settings = (
        *settings_of("bookie"),
        *described(ZooKeeperConfig, "bookie", "zookeeper"),
        *described(BookieClientConfig, "bookie", "client"),
    )
    return build(with_file_keys(values), BookieConfig, settings, "bookie"), log


def bookie_values(sources: Sources, flags: BookieFlags, *, has_own_cluster: bool) -> Givens:
    """The values from all sources for [bookie]; directories are normalized, so that each has one name everywhere."""
    settings = settings_of("bookie")
    values = _toml_values(sources)
    if sources.conf is not None:
        java = with_admin_stores(java_values(sources.conf, settings), "bookie")
        values = merged(values, java | bookie_security(sources.conf))
    values = merged(values, variable_values(sources.environment, settings, values))
    values |= flag_values(flags, settings)
    for path in _DIRECTORIES.values():
        if path in values and isinstance(given := values[path].value, list | tuple):
            directories = [normal_directory(each) if isinstance(each, str) else each for each in given]
            values[path] = values[path]._replace(value=directories)
    if has_own_cluster:
        values = _own_cluster_values() | values
    return values


def _own_cluster_values() -> Givens:
    """The settings of a bookie without any configuration: its own cluster, reachable only from this machine."""
    values = {
        ("bookie", "advertised_address"): "127.0.0.1",
        ("bookie", "is_loopback_allowed"): True,
        # 5 % of a workstation's disk is more than a trial needs.
        ("bookie", "disks", "full_fraction"): 0.99,
        _DIRECTORIES["journal_directories"]: [f"{DATA_DIRECTORY}/journal"],
        _DIRECTORIES["ledger_directories"]: [f"{DATA_DIRECTORY}/ledgers"],
    }
    return {path: Given(value, _NOTHING_CONFIGURED, str(value)) for path, value in values.items()}


def _toml_values(sources: Sources) -> Givens:
    """[bookie]: the fields of ``BookieConfig``, the log, and the lists of directories."""
    table, origin = dict(sources.toml.bookie), sources.toml_path or ""
    if "metadata_uri" in table or "zookeeper" in table:
        raise ConfigurationError(f"{origin}: metadata_uri and [zookeeper] belong outside [bookie]")
    if "client" in table:
        raise ConfigurationError(f"{origin}: bookie.client belongs in [bookie_client]")
    above: Givens = {}
    for path in (*_DIRECTORIES.values(), *(each.path for each in _LOG)):
        if path[-1] in table:
            value = table.pop(path[-1])
            above[path] = Given(value, origin, f"{origin}: bookie.{path[-1]} = {value}")
    return toml_values(table, BookieConfig, "bookie", origin, ("bookie",)) | above


def with_overrides(sources: Sources, flags: BookieFlags) -> Sources:
    """The Java file with ``--set`` over it, or only ``--set``."""
    if not flags.overrides:
        return sources
    conf = sources.conf or JavaConf({}, "--set", sources.environment)
    return msgspec.structs.replace(sources, conf=conf.overridden(_pairs(flags)))


def _pairs(flags: BookieFlags) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in flags.overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InvalidArgumentError(f"--set {text}: give KEY=VALUE with a key of bk_server.conf")
        pairs[key.strip()] = value.strip()
    return pairs


def _perhaps_meant(conf: JavaConf | None) -> str:
    """The end of a sentence about a missing setting: the likeliest cause is a misspelt key."""
    return "" if conf is None else "".join(f"; {note}" for note in unknown_key_notes(conf.settings()))


def _refuse_unprotected(conf: JavaConf) -> None:
    for key, value, place in conf.settings():
        if value is not None and is_refused(key, value):
            raise ConfigurationError(f"{place}: {key}: {REFUSED[key]}; to start without it: --set {key}=")


def _admin_differences(bookie: BookieConfig) -> list[str]:
    """How an admin port differs from that of a Java bookie, which is open to every machine and needs no token."""
    config = bookie.admin
    if not config.is_http_enabled:
        return []
    notes = []
    if config.http_host == AdminConfig().http_host:
        notes.append(
            f"httpServerHost is {config.http_host} (probes and scrapes from other machines do not reach the admin port)"
        )
    tables = (config.tls, bookie.tls) if config.is_tls_enabled else ()
    if config.token_file is None and not any(each is not None and each.authorized_roles for each in tables):
        also = " and adminAuthorizedRoles are" if config.is_tls_enabled else " is"
        notes.append(f"adminTokenFile{also} not set (the admin port refuses requests that change something)")
    return notes


def _journal_warnings(values: Givens) -> list[str]:
    def given(name: str) -> Given | None:
        return values.get(("bookie", "storage", "journal", name))

    warnings = []
    version, written, synced = given("format_version"), given("is_data_written"), given("is_data_synced")
    if version is not None and version.value < EXPLICIT_LAC_VERSION_MIN:
        warnings.append(
            f"{version.written}: journals of this version have no record for explicit LACs: requests to keep one are "
            "refused, because a crash would lose it"
        )
    restart = "the next start restores them from other bookies, and until then reports them as unknown"
    if written is not None and not written.value:
        warnings.append(f"{written.written}: a crash loses the adds since the last flush on this bookie; {restart}")
    elif synced is not None and not synced.value:
        warnings.append(f"{synced.written}: a power cut loses adds that were acknowledged on this bookie; {restart}")
    return warnings


def _uri_warnings(sources: Sources, metadata_uri: str | None, origin: str) -> list[str]:
    """A variable left from another terminal must not move a configured bookie to another cluster unnoticed."""
    configured = java_metadata_uri(sources.conf) if sources.conf is not None else None
    if configured in {None, metadata_uri}:
        return []
    assert sources.conf is not None
    return [f"the metadata URI {metadata_uri} of {origin} is used, not {configured} of {sources.conf.origin}"]
