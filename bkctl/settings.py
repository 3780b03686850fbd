"""Where settings come from: options, BKCTL_* environment, --context, --conf (Java), --config (TOML), defaults.

Each source wins over the later ones in this list. docs/reference/settings.md lists all settings.

The TOML file (default ``$XDG_CONFIG_HOME/bkctl/config.toml``)::

    metadata_uri = "zk+hierarchical://zk1:2181;zk2:2181/ledgers"
    context = "prod"            # the default cluster
    output = "table"
    timeout = "10s"

    [contexts.prod]
    metadata_uri = "zk+hierarchical://zk1:2181/ledgers"
    read_only = true            # refuse commands that change the cluster
    instance_id = "0b7e1a2c-1111-4222-8333-944455556666"    # refuse them on any other cluster, too

    [contexts.prod.zookeeper]   # [zookeeper] for this cluster only; also [contexts.prod.bookie_client]

    [zookeeper]                 # fields of bkctl.runtime.config.ZooKeeperConfig; also [zookeeper.sasl], [.tls]
    digest = "file:/etc/bkctl/zookeeper-digest"     # secrets: where they are, file:PATH or env:VARIABLE
    [client]                    # fields of bkctl.runtime.config.ClientConfig
    [bookie_client.tls]         # fields of bkctl.runtime.security_config.ClientTlsConfig; also [bookie_client.sasl]
    [replication]               # fields of bkctl.runtime.replication.config.ReplicationConfig
    [autorecovery]              # fields of bkctl.runtime.autorecovery.config.AutorecoveryConfig, and the log
    [bookie]                    # fields of bkctl.runtime.config.BookieConfig, and the three lists of directories
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from bkctl.commands.config import GeneralConfig, GlobalFlags, Settings
from bkctl.commands.context import ContextInfo, Contexts
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.parse import near_miss, parse_duration_s
from bkctl.java_security import client_security, with_file_keys
from bkctl.runtime.config import ClientConfig, ZooKeeperConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.security_config import BookieClientConfig
from bkctl.setting_readers import (
    SECTIONS,
    Given,
    Givens,
    all_settings,
    build,
    flag_values,
    java_values,
    merged,
    settings_of,
    toml_values,
    variable_values,
)
from bkctl.storage.adapters.given_files import read_given_file

if TYPE_CHECKING:
    from bkctl.java_conf import JavaConf


_SECTIONS_OF_CONTEXTS = ("zookeeper", "bookie_client")


class TomlContext(msgspec.Struct, frozen=True):
    """A named cluster."""

    metadata_uri: str
    read_only: bool = False
    instance_id: str | None = None
    zookeeper: dict[str, Any] = {}
    bookie_client: dict[str, Any] = {}


class TomlFile(msgspec.Struct, frozen=True):
    """bkctl's own configuration file: its tables, and the settings before the first table."""

    contexts: dict[str, TomlContext] = {}
    zookeeper: dict[str, Any] = {}
    client: dict[str, Any] = {}
    bookie_client: dict[str, Any] = {}
    replication: dict[str, Any] = {}
    autorecovery: dict[str, Any] = {}
    bookie: dict[str, Any] = {}
    general: dict[str, Any] = {}


class Sources(msgspec.Struct, frozen=True):
    """All sources of one invocation, read once. ``toml_path`` is None when there is no such file."""

    flags: GlobalFlags
    environment: Mapping[str, str]
    conf: JavaConf | None
    toml: TomlFile
    toml_path: str | None
    is_toml_named: bool = False
    """Whether options or environment specify the TOML file; otherwise it has the default path."""


def read_sources(flags: GlobalFlags, environment: Mapping[str, str]) -> Sources:
    """Read the files that flags and environment specify; ConfigurationError, InvalidArgumentError."""
    conf_path = flags.conf or environment.get("BKCTL_CONF") or environment.get("BOOKIE_CONF")
    named_path = flags.config or environment.get("BKCTL_CONFIG")
    if named_path == os.devnull:  # scripts use it for "no file, not even the user's own"
        named_path = toml_path = None
    else:
        toml_path = named_path or _existing_default_path(environment)
    return Sources(
        flags=flags,
        environment=environment,
        conf=_read_conf(conf_path, environment) if conf_path else None,
        toml=_read_toml(toml_path) if toml_path else TomlFile(),
        toml_path=toml_path,
        is_toml_named=bool(named_path),
    )


def general_values(sources: Sources) -> Givens:
    """The settings of every command, from all sources except the Java file."""
    path = sources.toml_path or ""
    values: Givens = {
        (name,): Given(value, path, f"{path}: {name} = {value}") for name, value in sources.toml.general.items()
    }
    values |= variable_values(sources.environment, settings_of(""), values)
    return values | flag_values(sources.flags, settings_of(""))


def section_values(sources: Sources, section: str) -> Givens:
    """The values from files and environment for a section; a table of the selected context wins."""
    settings, struct, origin = settings_of(section), SECTIONS[section], sources.toml_path or ""
    own = getattr(sources.toml, section)
    if section == "client" and "security" in own:
        raise ConfigurationError(f"{origin}: client.security belongs in [bookie_client.tls] and [bookie_client.sasl]")
    values = toml_values(own, struct, section, origin, (section,))
    context_name = _context_name(sources) or ""
    if section in _SECTIONS_OF_CONTEXTS and context_name in sources.toml.contexts:
        table = getattr(sources.toml.contexts[context_name], section)
        values = {path: given for path, given in values.items() if path[1] not in table}
        values |= toml_values(table, struct, f"contexts.{context_name}.{section}", origin, (section,))
    if sources.conf is not None:
        java = java_values(sources.conf, settings)
        if section == "bookie_client":
            java = client_security(sources.conf)
        limit = java.get(("client", "writer_frame_bytes_max"))
        if limit is not None and limit.value > ClientConfig().frame_bytes_max:
            values.setdefault(("client", "frame_bytes_max"), limit)
        values = merged(values, java)
    return merged(values, variable_values(sources.environment, settings, values))


def resolve_settings(sources: Sources) -> Settings:
    """Settings of this invocation; ConfigurationError, InvalidArgumentError."""
    flags = sources.flags
    general = build(general_values(sources), GeneralConfig, settings_of(""), "")
    metadata_uri, origin = resolve_metadata_uri(sources)
    timeout_s = parse_duration_s(general.timeout)
    if flags.metadata_rate is not None and not math.isfinite(flags.metadata_rate):
        raise InvalidArgumentError(
            f"--zk-rate {flags.metadata_rate}: not a valid rate: use a positive number, or 0 for no limit"
        )
    context_name = _context_name(sources)
    context = sources.toml.contexts.get(context_name) if context_name is not None else None
    return Settings(
        metadata_uri=metadata_uri,
        metadata_uri_origin=origin,
        output=general.output,
        sort=flags.sort,
        limit=flags.limit,
        has_headers=not flags.no_headers,
        timeout_s=timeout_s,
        assume_yes=general.yes,
        confirmed_name=flags.confirm,
        is_dry_run=bool(flags.dry_run),
        plan_out_path=flags.plan_out,
        apply_path=flags.apply,
        is_read_only_by_environment=general.read_only,
        is_context_read_only=context is not None and context.read_only,
        context_name=context_name,
        pinned_instance_id=context.instance_id if context is not None else None,
        state_directory=_state_directory(sources.environment),
        trash_retention_days=general.trash_retention_days,
        admin_token_hosts=frozenset(each.strip() for each in (general.admin_token_hosts or "").lower().split(","))
        - {""},
        is_quiet=bool(flags.quiet),
        is_debug=bool(flags.debug) or general.log.lower() == "debug",
        color=general.color,
        has_progress=not general.no_progress,
        zookeeper=build(zookeeper_values(sources), ZooKeeperConfig, settings_of("zookeeper"), "zookeeper"),
        client=resolve_client(sources),
        replication=build(
            section_values(sources, "replication"), ReplicationConfig, settings_of("replication"), "replication"
        ),
    )


def resolve_client(sources: Sources) -> ClientConfig:
    """[client], with [bookie_client] as its security; ConfigurationError."""
    client = build(section_values(sources, "client"), ClientConfig, settings_of("client"), "client")
    values = section_values(sources, "bookie_client")
    if not values:
        return client
    security = build(with_file_keys(values), BookieClientConfig, settings_of("bookie_client"), "bookie_client")
    return msgspec.structs.replace(client, security=security)


def zookeeper_values(sources: Sources) -> Givens:
    """[zookeeper] for a command: --timeout is the time for an operation unless the section has its own."""
    general = general_values(sources)
    timeout = general.get(("timeout",), Given(GeneralConfig().timeout, "timeout", ""))
    rate = sources.flags.metadata_rate
    seconds = timeout._replace(value=parse_duration_s(str(timeout.value)))
    values = {("zookeeper", "operation_timeout_s"): seconds} | section_values(sources, "zookeeper")
    if rate is not None:
        values["zookeeper", "scan_operations_per_s_max"] = Given(rate, "--zk-rate", f"--zk-rate {rate}")
    return values


def server_zookeeper_values(sources: Sources) -> Givens:
    """[zookeeper] for a server: its timeout does not come from the default of ``--timeout`` of commands."""
    timeout = general_values(sources).get(("timeout",))
    values: Givens = {}
    if timeout is not None:
        seconds = parse_duration_s(str(timeout.value))
        values["zookeeper", "operation_timeout_s"] = timeout._replace(value=seconds)
    return values | section_values(sources, "zookeeper")


def resolve_metadata_uri(sources: Sources) -> tuple[str | None, str]:
    """Metadata URI and its source, or None and an empty text."""
    flags, environment, toml = sources.flags, sources.environment, sources.toml
    found: tuple[str | None, str] = None, ""
    if flags.metadata_uri is not None and not flags.metadata_uri.strip():
        # An unset shell variable: the next source may refer to another cluster than intended.
        raise InvalidArgumentError("--metadata-uri is empty: specify a cluster, or omit the option")
    if flags.metadata_uri:
        found = flags.metadata_uri, "--metadata-uri"
    elif not flags.cluster and (uri := environment.get("BKCTL_METADATA_URI")):
        found = uri, "BKCTL_METADATA_URI"
    elif name := _context_name(sources):
        found = _context_uri(sources, name)
    elif sources.conf is not None and (uri := java_metadata_uri(sources.conf)):
        found = uri, sources.conf.origin
    elif uri := toml.general.get("metadata_uri"):
        found = uri, str(sources.toml_path)
    _refuse_credentials(*found)
    return found


def _refuse_credentials(uri: str | None, origin: str) -> None:
    """A metadata URI with a password must not get into an error or a log; ConfigurationError."""
    if uri is not None and "@" in uri:  # most invocations need no parser of URIs
        from bkctl.runtime.metadata.uri import refuse_credentials

        try:
            refuse_credentials(uri)
        except ConfigurationError as error:
            raise ConfigurationError(f"{origin}: {error}") from error


def _context_name(sources: Sources) -> str | None:
    """The context in use; None if the metadata URI comes from another source."""
    if sources.flags.metadata_uri:
        return None
    if sources.flags.cluster:
        return sources.flags.cluster
    if sources.environment.get("BKCTL_METADATA_URI"):
        return None
    return sources.environment.get("BKCTL_CONTEXT") or sources.toml.general.get("context")


def contexts_of(sources: Sources) -> Contexts:
    """The contexts of the TOML file, and which of them is in use."""
    toml, environment = sources.toml, sources.environment
    found = tuple(
        ContextInfo(name=name, metadata_uri=each.metadata_uri, read_only=each.read_only, instance_id=each.instance_id)
        for name, each in sorted(toml.contexts.items())
    )
    variables = ("BKCTL_METADATA_URI", "BKCTL_CONTEXT")
    return Contexts(
        path=sources.toml_path or "",
        contexts=found,
        stored=toml.general.get("context"),
        current=_context_name(sources),
        overriding=next((each for each in variables if environment.get(each)), ""),
    )


def without_context(sources: Sources) -> Sources:
    """The same sources for a command that no context concerns: the current one may not exist."""
    general = {name: value for name, value in sources.toml.general.items() if name != "context"}
    return msgspec.structs.replace(
        sources,
        environment={name: value for name, value in sources.environment.items() if name != "BKCTL_CONTEXT"},
        toml=msgspec.structs.replace(sources.toml, general=general),
    )


def _state_directory(environment: Mapping[str, str]) -> str:
    """Where bkctl keeps backups, trash and the audit trail; empty when there is no home directory."""
    if named := environment.get("BKCTL_STATE_DIR"):
        return named
    home = environment.get("HOME")
    base = environment.get("XDG_STATE_HOME") or (os.path.join(home, ".local", "state") if home else "")
    return os.path.join(base, "bkctl") if base else ""


def _context_uri(sources: Sources, name: str) -> tuple[str, str]:
    contexts = sources.toml.contexts
    if name not in contexts:
        known = ", ".join(sorted(contexts)) or "none"
        raise ConfigurationError(
            f"context '{name}' not found in {sources.toml_path or 'any TOML file'} (defined: {known})"
        )
    return contexts[name].metadata_uri, f"context {name}"


def java_metadata_uri(conf: JavaConf) -> str | None:
    """URI that Java would derive: metadataServiceUri, or the deprecated zkServers and zkLedgersRootPath."""
    uri = conf.text("metadataServiceUri")
    if uri is not None:
        dropped = conf.parts_dropped("metadataServiceUri")
        _refuse_credentials(",".join([uri, *dropped]), conf.origin)
        if dropped:
            raise ConfigurationError(
                f"{conf.origin}: metadataServiceUri has a comma or occurs twice ('{','.join(dropped)}' "
                "would be lost): separate the servers by semicolons, on one line"
            )
        return uri
    servers = conf.texts("zkServers")
    if not servers:
        return None
    from bkctl.runtime.metadata.uri import legacy_metadata_uri

    root, factory_class = conf.text("zkLedgersRootPath"), conf.text("ledgerManagerFactoryClass")
    _refuse_credentials(",".join(servers), conf.origin)
    try:
        return legacy_metadata_uri(",".join(servers), root, factory_class)
    except ConfigurationError as error:
        raise ConfigurationError(f"{conf.origin}: {error}") from error


def _existing_default_path(environment: Mapping[str, str]) -> str | None:
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME", ""), ".config")
    path = os.path.join(base, "bkctl", "config.toml")
    return path if os.path.exists(path) else None


def _read_conf(path: str, environment: Mapping[str, str]) -> JavaConf:
    from bkctl.java_conf import JavaConf  # most invocations need no parser of Java properties

    return JavaConf.read(path, environment)


def _read_toml(path: str) -> TomlFile:
    import tomllib

    try:
        content = tomllib.loads(read_given_file(path).decode())
        names = TomlFile.__struct_fields__[:-1]
        tables = {name: _table(content.pop(name), name, path) for name in names if name in content}
        known = (*(each.name for each in settings_of("") if each.is_in_toml), *names)
        general = toml_values(content, GeneralConfig, "", path, (), known)
        build(general, GeneralConfig, settings_of(""), "")
        if refused := [each.name for each in settings_of("") if each.path in general and not each.is_in_toml]:
            raise ConfigurationError(f"{path}: {refused[0]} cannot be set in a file")
        contexts = {name: _context(each, f"contexts.{name}", path) for name, each in tables.pop("contexts", {}).items()}
        return TomlFile(contexts, general=content, **tables)
    except OSError as error:
        raise ConfigurationError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _table(value: object, name: str, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path}: {name} must be a table: [{name}]")
    return value


def _context(value: object, name: str, path: str) -> TomlContext:
    givens = toml_values(_table(value, name, path), TomlContext, name, path, ())
    if ("metadata_uri",) not in givens:
        raise ConfigurationError(f"{path}: [{name}] has no metadata_uri")
    return build(givens, TomlContext, (), "")


_VARIABLE_PREFIX = "BKCTL_"
_SIMILARITY_MIN = 0.8
_REFERENCE = re.compile(r"env:([A-Za-z0-9_]+)")


def variable_warnings(sources: Sources) -> list[str]:
    """A line for each BKCTL_* variable that bkctl does not read; ConfigurationError if it resembles a known one.

    A misspelt name is refused as in the TOML file: BKCTL_READONLY would not stop a change. Variables that a file
    refers to by ``env:NAME`` may have any name.
    """
    unknown = [name for name, value in sources.environment.items() if name.startswith(_VARIABLE_PREFIX) and value]
    known = {each.variable for each in all_settings()} if unknown else set()
    unknown = sorted(frozenset(unknown) - known)
    if unknown:
        unknown = [name for name in unknown if name not in frozenset(_names_referred_to(sources))]
    for name in unknown:
        meant = near_miss(
            name.removeprefix(_VARIABLE_PREFIX),
            (each.removeprefix(_VARIABLE_PREFIX) for each in known),
            similarity_min=_SIMILARITY_MIN,
        )
        if meant is not None:
            raise ConfigurationError(
                f"{name}: unknown environment variable: set {_VARIABLE_PREFIX}{meant}, or unset this one"
            )
    return [f"{name}: unknown environment variable, ignored" for name in unknown]


def _names_referred_to(sources: Sources) -> Iterator[str]:
    texts = [str(sources.toml)]
    if sources.conf is not None:
        texts += sources.conf.all_values()
    for text in texts:
        yield from _REFERENCE.findall(text)
