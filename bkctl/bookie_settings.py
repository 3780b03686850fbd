"""Settings of ``bookie start``: flags, BKCTL_BOOKIE_* environment, bk_server.conf (with --set), TOML, defaults.

All sources are brought into the nested shape of ``BookieConfig`` and laid over each other; msgspec checks the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bkctl import engine_settings
from bkctl.conversion import convert
from bkctl.disk_settings import java_disk_values
from bkctl.gc_settings import garbage_collection_values, garbage_collection_warnings
from bkctl.integrity_settings import java_integrity_values
from bkctl.java_conf import JavaConf
from bkctl.java_keys import REFUSED, ignored_key_notes, is_refused, unknown_key_notes
from bkctl.journal_settings import journal_values, journal_warnings
from bkctl.settings import Sources, java_metadata_uri, put, resolve_metadata_uri, zookeeper_values
from commands.context import BookieFlags, BookieSettings, LogLevel, LogSettings
from commands.errors import InvalidArgumentError
from commands.parse import parse_duration_s
from runtime.config import BookieConfig
from runtime.errors import ConfigurationError
from storage.config import normal_directory

DATA_DIRECTORY = "bkctl-data"
"""Where everything goes when nothing is configured."""

_LOOPBACK = "127.0.0.1"
_PORT_MAX = 65535
_PORT_DIGITS_MAX = 5
_DIRECTORY_LISTS = ("journal_directories", "ledger_directories", "index_directories")
_LOG_SETTINGS = {"log_file": ("path", "logFile"), "log_level": ("level", "logLevel")}
"""Names below ``[bookie]``, fields of ``LogSettings``, keys of bk_server.conf."""
_ENVIRONMENT_LISTS = {
    "journal_directories": "BKCTL_BOOKIE_JOURNAL_DIRS",
    "ledger_directories": "BKCTL_BOOKIE_LEDGER_DIRS",
    "index_directories": "BKCTL_BOOKIE_INDEX_DIRS",
}


def resolve_bookie_settings(sources: Sources, flags: BookieFlags) -> BookieSettings:
    """Merge all sources; ConfigurationError, InvalidArgumentError."""
    has_file = sources.conf is not None or bool(sources.toml.bookie) or sources.is_toml_named
    conf = _overridden(sources, flags)
    if conf is not None:
        _refuse_unprotected(conf)
    sources = msgspec.structs.replace(sources, conf=conf)
    metadata_uri, origin = resolve_metadata_uri(sources)
    if metadata_uri is None and has_file:
        raise ConfigurationError(
            "no cluster is named: set metadataServiceUri in the configuration file, or give --metadata-uri "
            f"(a bookie brings its own ZooKeeper only when nothing at all is configured){_perhaps_meant(conf)}"
        )
    is_configured = metadata_uri is not None
    values: dict[str, Any] = {} if is_configured else _own_cluster_values()
    _lay_over(values, _with_normal_directories(_toml_values(sources)))
    if conf is not None:
        _lay_over(values, _with_normal_directories(_java_values(conf)))
    _lay_over(values, _with_normal_directories(_environment_values(sources.environment)))
    _lay_over(values, _with_normal_directories(_flag_values(flags)))
    storage = values.setdefault("storage", {})
    for name, option in (("journal_directories", "--journal-dir"), ("ledger_directories", "--ledger-dir")):
        if not storage.get(name):
            raise ConfigurationError(
                f"no folder for {name.replace('_', ' ')}: give {option} (or the configuration file)"
                f"{_perhaps_meant(conf)}"
            )
    log = convert(_log_values(sources, flags), LogSettings, "bookie", toml_path=sources.toml_path)
    values["zookeeper"] = _zookeeper_values(sources)
    values["metadata_uri"] = metadata_uri or ""
    warnings = _uri_warnings(sources, metadata_uri, origin)
    if conf is not None:
        warnings += [*journal_warnings(conf), *garbage_collection_warnings(conf)]
        warnings += [*unknown_key_notes(conf.settings()), *ignored_key_notes(conf.settings())]
    return BookieSettings(
        config=convert(values, BookieConfig, "bookie", toml_path=sources.toml_path),
        data_directory=None if is_configured else DATA_DIRECTORY,
        warnings=tuple(warnings),
        log=log,
    )


def _own_cluster_values() -> dict[str, Any]:
    """What a bookie without any configuration starts from: a cluster of its own that only this machine reaches."""
    return {
        "advertised_address": _LOOPBACK,
        "is_loopback_allowed": True,
        # A machine of one's own is not a server of disks: 5 % of a large disk is more than a trial ever needs.
        "disks": {"full_fraction": 0.99},
        "storage": {
            "journal_directories": [f"{DATA_DIRECTORY}/journal"],
            "ledger_directories": [f"{DATA_DIRECTORY}/ledgers"],
        },
    }


def _toml_values(sources: Sources) -> dict[str, Any]:
    values = {name: value for name, value in sources.toml.bookie.items() if name not in _LOG_SETTINGS}
    if "metadata_uri" in values or "zookeeper" in values:
        raise ConfigurationError(f"{sources.toml_path}: metadata_uri and [zookeeper] belong outside of [bookie]")
    storage = {name: values.pop(name) for name in _DIRECTORY_LISTS if name in values}
    if storage:
        values["storage"] = {**values.get("storage", {}), **storage}
    return values


def _log_values(sources: Sources, flags: BookieFlags) -> dict[str, Any]:
    values = {field: sources.toml.bookie.get(name) for name, (field, _) in _LOG_SETTINGS.items()}
    if sources.conf is not None:
        values |= {field: text for field, key in _LOG_SETTINGS.values() if (text := sources.conf.text(key)) is not None}
    if path := flags.log_path or sources.environment.get("BKCTL_LOG_FILE"):
        values["path"] = path
    level = values["level"]
    if level is not None and level not in list(LogLevel):
        raise ConfigurationError(f"the log level {level} is unknown: give one of {', '.join(LogLevel)}")
    return {field: value for field, value in values.items() if value is not None}


def _with_normal_directories(values: dict[str, Any]) -> dict[str, Any]:
    """The values of one source with all directories in their normal form.

    So that one directory has one name for all commands, however and from wherever it is given.
    """
    storage = values.get("storage", {})
    for name in _DIRECTORY_LISTS:
        paths = storage.get(name)
        if isinstance(paths, (list, tuple)) and all(isinstance(path, str) for path in paths):
            storage[name] = list(map(normal_directory, paths))
    return values


def _java_values(conf: JavaConf) -> dict[str, Any]:
    """Fields that a bk_server.conf sets (operations section 3.5)."""
    values: dict[str, Any] = {}
    put(values, "bookie_id", conf.text("bookieId"))
    put(values, "advertised_address", conf.text("advertisedAddress"))
    put(values, "listening_interface", conf.text("listeningInterface"))
    put(values, "is_host_name_id", conf.truth("useHostNameAsBookieID"))
    put(values, "is_host_name_short", conf.truth("useShortHostName"))
    put(values, "is_storage_expansion_allowed", conf.truth("allowStorageExpansion"))
    put(values, "port", conf.whole_number("bookiePort"))
    put(values, "is_loopback_allowed", conf.truth("allowLoopback"))
    put(values, "is_read_only", conf.truth("forceReadOnlyBookie"))
    put(values, "frame_bytes_max", conf.whole_number("nettyMaxFrameSizeBytes"))
    put(values, "flush_interval_s", conf.seconds("flushInterval"))
    put(values, "throttle_max_s", conf.seconds("dbStorage_maxThrottleTimeMs"))
    values["disks"] = java_disk_values(conf)
    values["integrity"] = java_integrity_values(conf)
    storage: dict[str, Any] = {}
    put(
        storage, "journal_directories", list(conf.texts("journalDirectories") or conf.texts("journalDirectory")) or None
    )
    put(storage, "ledger_directories", list(conf.texts("ledgerDirectories")) or None)
    put(storage, "index_directories", list(conf.texts("indexDirectories")) or None)
    values["storage"] = {**storage, "journal": journal_values(conf), "engine": engine_settings.engine_values(conf)}
    values["garbage_collection"] = garbage_collection_values(conf)
    return values


def _environment_values(environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    put(values, "bookie_id", environment.get("BKCTL_BOOKIE_ID") or None)
    put(values, "advertised_address", environment.get("BKCTL_BOOKIE_ADVERTISED_ADDRESS") or None)
    if port := environment.get("BKCTL_BOOKIE_PORT"):
        if not (port.isascii() and port.isdigit()) or len(port) > _PORT_DIGITS_MAX or int(port) > _PORT_MAX:
            raise ConfigurationError(f"BKCTL_BOOKIE_PORT={port}: not a port number")
        values["port"] = int(port)
    storage = {
        field: [part.strip() for part in text.split(",") if part.strip()]
        for field, name in _ENVIRONMENT_LISTS.items()
        if (text := environment.get(name))
    }
    if storage:
        values["storage"] = storage
    return values


def _flag_values(flags: BookieFlags) -> dict[str, Any]:
    values: dict[str, Any] = {}
    put(values, "port", flags.port)
    put(values, "bookie_id", flags.bookie_id)
    put(values, "advertised_address", flags.advertised_address)
    put(values, "is_read_only", flags.is_read_only)
    storage = {name: list(paths) for name in _DIRECTORY_LISTS if (paths := getattr(flags, name))}
    if storage:
        values["storage"] = storage
    return values


def _zookeeper_values(sources: Sources) -> dict[str, Any]:
    timeout = sources.flags.timeout or sources.environment.get("BKCTL_TIMEOUT") or sources.toml.timeout
    chosen = {"operation_timeout_s": parse_duration_s(timeout)} if timeout else {}
    return {**chosen, **zookeeper_values(sources)}


def _overridden(sources: Sources, flags: BookieFlags) -> JavaConf | None:
    """The Java file with ``--set`` on top, or ``--set`` alone, or None."""
    if not flags.overrides:
        return sources.conf
    conf = sources.conf or JavaConf({}, "--set", sources.environment)
    return conf.overridden(_pairs(flags))


def _pairs(flags: BookieFlags) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in flags.overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InvalidArgumentError(f"--set {text}: give KEY=VALUE with a key of bk_server.conf")
        pairs[key.strip()] = value.strip()
    return pairs


def _perhaps_meant(conf: JavaConf | None) -> str:
    """The end of a sentence about what is missing: a misspelt key is the likeliest cause."""
    return "" if conf is None else "".join(f"; {note}" for note in unknown_key_notes(conf.settings()))


def _refuse_unprotected(conf: JavaConf) -> None:
    for key, value, place in conf.settings():
        if value is not None and is_refused(key, value):
            raise ConfigurationError(
                f"{place}: {key}: {REFUSED[key]}; to start without it, add --set {key}= to the command"
            )


def _uri_warnings(sources: Sources, metadata_uri: str | None, origin: str) -> list[str]:
    """A variable left over from another terminal must not move a configured bookie to another cluster unnoticed."""
    configured = java_metadata_uri(sources.conf) if sources.conf is not None else None
    if configured in {None, metadata_uri}:
        return []
    assert sources.conf is not None
    return [f"the metadata URI {metadata_uri} of {origin} is used, not {configured} of {sources.conf.origin}"]


def _lay_over(values: dict[str, Any], stronger: Mapping[str, Any]) -> None:
    """Put ``stronger`` over ``values``, table by table."""
    for name, value in stronger.items():
        if isinstance(value, Mapping):
            _lay_over(values.setdefault(name, {}), value)
        else:
            values[name] = value
