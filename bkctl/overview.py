"""Descriptions of all settings, for ``bkctl config`` and for docs/reference/settings.md."""

from __future__ import annotations

from bkctl.commands.context import BookieFlags, DaemonFlags, SettingInfo, SettingsOverview, shown_secret
from bkctl.java_keys import IGNORED, MISSING, OLDER_URI, REFUSED
from bkctl.java_security_keys import SECURITY_KEYS
from bkctl.server_settings import bookie_values, build_bookie, daemon_values, has_file
from bkctl.setting_readers import Given, Givens, all_settings
from bkctl.settings import Sources, general_values, resolve_metadata_uri, section_values, zookeeper_values
from bkctl.storage.setting import Described

_DEFAULT = "default"
_REQUIRED: Givens = {
    ("bookie", "storage", name): Given(["unset"], _DEFAULT, "")
    for name in ("journal_directories", "ledger_directories")
}
"""Stand-ins for what only ``bookie start`` needs: on the machine of a client no directories are set."""


def settings_overview(sources: Sources) -> SettingsOverview:
    """Every setting with its value and its origin; ConfigurationError."""
    givens = general_values(sources)
    metadata_uri, origin = resolve_metadata_uri(sources)
    if metadata_uri is not None:
        givens["metadata_uri",] = Given(metadata_uri, origin, origin)
    if sources.flags.cluster is not None:
        givens["context",] = Given(sources.flags.cluster, "--context", "--context")
    givens |= daemon_values(sources, DaemonFlags())
    for section in ("client", "bookie_client", "replication"):
        givens |= section_values(sources, section)
    has_own_cluster = metadata_uri is None and not has_file(sources)
    bookie = bookie_values(sources, BookieFlags(), has_own_cluster=has_own_cluster)
    build_bookie(sources, _REQUIRED | bookie, metadata_uri, origin)  # refuses what bookie start refuses
    givens |= zookeeper_values(sources) | bookie
    refused = {key: f"refused unless empty or false: {reason}" for key, reason in REFUSED.items()}
    ignored = {key: f"ignored: {reason}" for key, reason in (IGNORED | MISSING).items()}
    older = dict.fromkeys(OLDER_URI, "part of the metadata URI (metadata_uri), unless the file has metadataServiceUri")
    other_keys = refused | ignored | older | SECURITY_KEYS
    return SettingsOverview(tuple(setting_info(each, givens) for each in all_settings()), other_keys)


def setting_info(each: Described, givens: Givens) -> SettingInfo:
    """One setting. A secret that is written out is not shown."""
    given, setting, java = givens.get(each.path), each.setting, each.setting.java
    value = each.default if given is None else given.value
    if setting.is_secret:
        value = shown_secret(value)
    java_range = None
    if java is not None and each.type in {int, float}:
        unit = setting.unit if java.unit in {"", "decimal"} else java.unit
        java_range = f"{text} {unit}".strip() if (text := each.java_range.text) else None
    return SettingInfo(
        name=each.name if each.is_in_toml else ".".join(each.path),
        help=setting.help,
        value=value,
        origin=_DEFAULT if given is None else given.origin,
        default=setting.unset if each.default in (None, ()) else each.default,
        unit=setting.unit,
        range=each.range.text if each.type in {int, float} else ", ".join(each.choices),
        java_key=each.java_key,
        older_java_key=None if java is None else java.older,
        java_range=java_range,
        variable=each.variable,
        option=setting.flag,
        is_live=setting.is_live,
    )
