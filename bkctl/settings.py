"""Where settings come from: flags, BKCTL_* environment, --context, --conf (Java), --config (TOML), defaults.

Each source wins over those behind it in this list. Source: cli-parity section 9, operations section 3.

The TOML file (default ``$XDG_CONFIG_HOME/bkctl/config.toml``)::

    metadata_uri = "zk+hierarchical://zk1:2181;zk2:2181/ledgers"
    context = "prod"            # cluster to talk to when none is named
    output = "table"
    timeout = "10s"

    [contexts.prod]
    metadata_uri = "zk+hierarchical://zk1:2181/ledgers"
    read_only = true            # commands that change the cluster are refused
    instance_id = "0b7e1a2c-1111-4222-8333-944455556666"    # they are also refused on any other cluster

    [contexts.prod.zookeeper]   # what [zookeeper] says, for this cluster alone

    [zookeeper]                 # fields of runtime.config.ZooKeeperConfig; also [zookeeper.sasl] and [zookeeper.tls]
    digest = "file:/etc/bkctl/zookeeper-digest"     # secrets: where they are, file:PATH or env:VARIABLE
    [client]                    # fields of runtime.config.ClientConfig
    [bookie]                    # fields of runtime.config.BookieConfig, and the three folder lists
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from bkctl.conversion import convert
from commands.config import ColorMode, GlobalFlags, OutputForm, Settings
from commands.errors import InvalidArgumentError
from commands.parse import parse_duration_s
from runtime.config import ClientConfig, ZooKeeperConfig
from runtime.errors import ConfigurationError

if TYPE_CHECKING:
    from bkctl.java_conf import JavaConf

SECRET_VARIABLES = {
    (None, "digest"): "BKCTL_ZOOKEEPER_DIGEST",
    ("sasl", "password"): "BKCTL_ZOOKEEPER_SASL_PASSWORD",
    ("tls", "key_password"): "BKCTL_ZOOKEEPER_KEY_PASSWORD",
}
"""Settings of ``[zookeeper]`` that name a secret, and the variable that may hold it instead of a file."""

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


class TomlContext(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named cluster."""

    metadata_uri: str
    read_only: bool = False
    instance_id: str | None = None
    zookeeper: dict[str, Any] = {}


class TomlFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of bkctl's own configuration file."""

    metadata_uri: str | None = None
    context: str | None = None
    output: OutputForm | None = None
    color: ColorMode | None = None
    timeout: str | None = None
    trash_retention_days: Annotated[int, msgspec.Meta(ge=0)] = Settings().trash_retention_days
    contexts: dict[str, TomlContext] = {}
    zookeeper: dict[str, Any] = {}
    client: dict[str, Any] = {}
    bookie: dict[str, Any] = {}


class Sources(msgspec.Struct, frozen=True):
    """All sources of one invocation, read once. ``toml_path`` is None when there is no such file."""

    flags: GlobalFlags
    environment: Mapping[str, str]
    conf: JavaConf | None
    toml: TomlFile
    toml_path: str | None
    is_toml_named: bool = False
    """Whether flags or environment name the TOML file, so that it was not merely found."""


def read_sources(flags: GlobalFlags, environment: Mapping[str, str]) -> Sources:
    """Read the files that flags and environment name; ConfigurationError, InvalidArgumentError."""
    conf_path = flags.conf or environment.get("BKCTL_CONF") or environment.get("BOOKIE_CONF")
    named_path = flags.config or environment.get("BKCTL_CONFIG")
    if named_path == os.devnull:  # how scripts say "no file, not even the user's own"
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


def resolve_settings(sources: Sources) -> Settings:
    """Settings of this invocation; ConfigurationError, InvalidArgumentError."""
    flags, environment, toml = sources.flags, sources.environment, sources.toml
    metadata_uri, origin = resolve_metadata_uri(sources)
    timeout = flags.timeout or environment.get("BKCTL_TIMEOUT") or toml.timeout
    timeout_s = parse_duration_s(timeout) if timeout else Settings().timeout_s
    # The wait for the first answer is the user's to choose; an explicit zookeeper.operation_timeout_s still wins.
    zookeeper = {"operation_timeout_s": timeout_s, **zookeeper_values(sources)}
    if flags.metadata_rate is not None and not math.isfinite(flags.metadata_rate):
        raise InvalidArgumentError(f"--rate {flags.metadata_rate}: give a number; 0: as fast as it goes")
    put(zookeeper, "scan_operations_per_s_max", flags.metadata_rate)
    context_name = _context_name(sources)
    context = toml.contexts.get(context_name) if context_name is not None else None
    return Settings(
        metadata_uri=metadata_uri,
        metadata_uri_origin=origin,
        output=flags.output or _choice(environment, "BKCTL_OUTPUT", OutputForm) or toml.output,
        sort=flags.sort,
        limit=flags.limit,
        has_headers=not flags.no_headers,
        timeout_s=timeout_s,
        assume_yes=_truth(flags.yes, environment, "BKCTL_YES"),
        confirmed_name=flags.confirm,
        is_dry_run=bool(flags.dry_run),
        plan_out_path=flags.plan_out,
        apply_path=flags.apply,
        is_read_only_by_environment=_truth(None, environment, "BKCTL_READ_ONLY"),
        is_context_read_only=context is not None and context.read_only,
        context_name=context_name,
        pinned_instance_id=context.instance_id if context is not None else None,
        state_directory=_state_directory(environment),
        trash_retention_days=toml.trash_retention_days,
        is_quiet=bool(flags.quiet),
        is_debug=bool(flags.debug) or environment.get("BKCTL_LOG", "").lower() == "debug",
        color=flags.color or toml.color or ColorMode.AUTO,
        has_progress=not _truth(flags.no_progress, environment, "BKCTL_NO_PROGRESS"),
        zookeeper=convert(zookeeper, ZooKeeperConfig, "zookeeper", toml_path=sources.toml_path),
        client=convert(client_values(sources), ClientConfig, "client", toml_path=sources.toml_path),
    )


def resolve_metadata_uri(sources: Sources) -> tuple[str | None, str]:
    """Metadata URI and the source that won, or None and no words."""
    flags, environment, toml = sources.flags, sources.environment, sources.toml
    found: tuple[str | None, str] = None, ""
    if flags.metadata_uri is not None and not flags.metadata_uri.strip():
        # An unset shell variable; the next source may name another cluster than the one that was meant.
        raise InvalidArgumentError("--metadata-uri is empty: give the cluster, or leave the option out")
    if flags.metadata_uri:
        found = flags.metadata_uri, "--metadata-uri"
    elif not flags.cluster and (uri := environment.get("BKCTL_METADATA_URI")):
        found = uri, "BKCTL_METADATA_URI"
    elif name := _context_name(sources):
        found = _context_uri(sources, name)
    elif sources.conf is not None and (uri := java_metadata_uri(sources.conf)):
        found = uri, sources.conf.origin
    elif toml.metadata_uri:
        found = toml.metadata_uri, str(sources.toml_path)
    return found


def _context_name(sources: Sources) -> str | None:
    """The named cluster that is talked to; None when the URI comes from somewhere else."""
    if sources.flags.metadata_uri:
        return None
    if sources.flags.cluster:
        return sources.flags.cluster
    if sources.environment.get("BKCTL_METADATA_URI"):
        return None
    return sources.environment.get("BKCTL_CONTEXT") or sources.toml.context


def _state_directory(environment: Mapping[str, str]) -> str:
    """Where bkctl keeps backups, trash and the audit trail; empty when the environment names no home."""
    if named := environment.get("BKCTL_STATE_DIR"):
        return named
    home = environment.get("HOME")
    base = environment.get("XDG_STATE_HOME") or (os.path.join(home, ".local", "state") if home else "")
    return os.path.join(base, "bkctl") if base else ""


def _context_uri(sources: Sources, name: str) -> tuple[str, str]:
    contexts = sources.toml.contexts
    if name not in contexts:
        known = ", ".join(sorted(contexts)) or "none"
        raise ConfigurationError(f"no context '{name}' in {sources.toml_path or 'any TOML file'} (there is: {known})")
    return contexts[name].metadata_uri, f"context {name}"


def java_metadata_uri(conf: JavaConf) -> str | None:
    """URI that Java would derive: metadataServiceUri, or the deprecated zkServers and zkLedgersRootPath."""
    uri = conf.text("metadataServiceUri")
    if uri is not None:
        if dropped := conf.parts_dropped("metadataServiceUri"):
            raise ConfigurationError(
                f"{conf.origin}: metadataServiceUri ends at its first comma for every reader ('{','.join(dropped)}' "
                "would be lost): separate the servers by semicolons"
            )
        return uri
    servers = conf.texts("zkServers")
    if not servers:
        return None
    from runtime.metadata.uri import legacy_metadata_uri

    root, factory_class = conf.text("zkLedgersRootPath"), conf.text("ledgerManagerFactoryClass")
    try:
        return legacy_metadata_uri(",".join(servers), root, factory_class)
    except ConfigurationError as error:
        raise ConfigurationError(f"{conf.origin}: {error}") from error


def zookeeper_values(sources: Sources) -> dict[str, Any]:
    """Fields of ZooKeeperConfig that a file sets; those of the named cluster win."""
    context = sources.toml.contexts.get(_context_name(sources) or "")
    values = {**sources.toml.zookeeper, **(context.zookeeper if context is not None else {})}
    if sources.conf is not None:
        put(values, "session_timeout_ms", sources.conf.whole_number("zkTimeout"))
        put(values, "has_secure_acl", sources.conf.truth("zkEnableSecurity"))
        layout = dict(values.get("layout", {}))
        put(layout, "ledger_manager_type", sources.conf.text("ledgerManagerType"))
        put(layout, "is_shaded_factory_allowed", sources.conf.truth("allowShadedLedgerManagerFactoryClass"))
        put(values, "layout", layout or None)
        # Java's default 0, none, is not ours.
        put(values, "scan_operations_per_s_max", sources.conf.decimal_number("zkRequestRateLimit") or None)
    return _with_secrets_of(sources.environment, values)


def _with_secrets_of(environment: Mapping[str, str], values: dict[str, Any]) -> dict[str, Any]:
    """Refer to the secrets that the environment holds; they themselves never become settings."""
    for (table, field), name in SECRET_VARIABLES.items():
        if not environment.get(name):
            continue
        if table is None:
            values[field] = f"env:{name}"
        elif table in values:
            values[table] = {**values[table], field: f"env:{name}"}
    return values


def client_values(sources: Sources) -> dict[str, Any]:
    """Fields of ClientConfig that a file sets."""
    values = dict(sources.toml.client)
    if sources.conf is not None:
        put(values, "add_timeout_s", sources.conf.whole_seconds("addEntryTimeoutSec"))
        put(values, "read_timeout_s", sources.conf.whole_seconds("readEntryTimeoutSec"))
        put(values, "connect_timeout_s", sources.conf.seconds("clientConnectTimeoutMillis"))
        bookies_limit = sources.conf.whole_number("nettyMaxFrameSizeBytes")
        put(values, "writer_frame_bytes_max", bookies_limit)
        if bookies_limit is not None:
            values.setdefault("frame_bytes_max", max(bookies_limit, ClientConfig().frame_bytes_max))
    return values


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
        with open(path, "rb") as file:
            return msgspec.convert(tomllib.load(file), TomlFile)
    except OSError as error:
        raise ConfigurationError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _truth(flag: bool | None, environment: Mapping[str, str], name: str) -> bool:
    if flag is not None:
        return flag
    text = environment.get(name, "").lower()
    if text not in _TRUE | _FALSE:
        raise ConfigurationError(f"{name}={text}: neither true nor false")
    return text in _TRUE


def _choice(environment: Mapping[str, str], name: str, choices: type[OutputForm]) -> OutputForm | None:
    text = environment.get(name)
    if not text:
        return None
    try:
        return choices(text)
    except ValueError:
        raise InvalidArgumentError(f"{name}={text}: give one of {', '.join(choices)}") from None


def put(values: dict[str, Any], name: str, value: object) -> None:
    """Set a key unless there is nothing to set."""
    if value is not None:
        values[name] = value


def put_all(values: dict[str, Any], read: Callable[[str], object], keys: Mapping[str, str]) -> None:
    """Set each field that ``read`` finds something for under the key beside it."""
    for name, key in keys.items():
        put(values, name, read(key))
