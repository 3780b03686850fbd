"""Reads the values that each source gives to settings, using their descriptions, and makes a struct of them."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, get_args

import msgspec

from bkctl.commands.config import GeneralConfig
from bkctl.commands.context import LogSettings
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.parse import near_miss
from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.config import BookieConfig, ClientConfig, ZooKeeperConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.security.secrets import is_reference
from bkctl.runtime.security_config import BookieClientConfig, keytool_command
from bkctl.storage.setting import DURATION_S_MAX, FIELDS_FOR_ERRORS, MEBIBYTE, Described, Java, Setting, described
from bkctl.storage.words import enumerated

if TYPE_CHECKING:
    from bkctl.java_conf import JavaConf

T = TypeVar("T")

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off"})
_DIRECTORIES = tuple[str, ...]
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)")
_SCALARS = (bool, int, float, str)
_SIMILARITY_MIN = 0.6


class Given(NamedTuple):
    """A value, the source that gives it, and how it is written there: ``BKCTL_BOOKIE_PORT=70000``."""

    value: Any
    origin: str
    written: str


Path: TypeAlias = tuple[str, ...]
Givens: TypeAlias = dict[Path, Given]
"""Values by the paths of their settings."""

_LOGIN: Final = ("mechanism", "username", "password", "principal", "keytab", "jaas_file")
_BELONGING: Final = {
    "ca_file": ("ca_type", "ca_password"),
    "key_file": ("key_type", "key_password", "certificate_file"),
    **dict.fromkeys(("username", "keytab", "jaas_file"), _LOGIN),
}
"""What a file or a user needs, so that it must not come from another source than that."""
_OF_FILES_AND_LOGINS: Final = frozenset({*_BELONGING, *itertools.chain.from_iterable(_BELONGING.values())})
_NOTE: Final = "variables_note"


def merged(weaker: Givens, stronger: Givens) -> Givens:
    """The values of two sources. A CA, a certificate with its key, and a login are each of one source."""
    replaced = {(*path[:-1], name) for path in stronger for name in _BELONGING.get(path[-1], ())}
    return {path: given for path, given in weaker.items() if path not in replaced} | stronger


def flag_values(flags: msgspec.Struct, settings: Iterable[Described]) -> Givens:
    """Options of the command line, from the fields of ``flags`` that have the names of settings."""
    givens: Givens = {}
    for each in settings:
        value = getattr(flags, each.path[-1], None)
        if each.setting.flag is not None and value is not None and value != ():
            givens[each.path] = Given(value, each.setting.flag, f"{each.setting.flag} {value}")
    return givens


def variable_values(environment: Mapping[str, str], settings: Iterable[Described], weaker: Givens) -> Givens:
    """BKCTL_* variables. A secret is not copied: the value refers to it, if its table has another value.

    It may be a reference itself, as in a file.
    """
    givens: Givens = {}
    for each in settings:
        if not (text := environment.get(each.variable)):
            continue
        written = f"{each.variable}={text}"
        if each.setting.is_secret:
            table = each.path[:-1]
            if len(each.path) > 2 and not any(path[: len(table)] == table for path in (*weaker, *givens)):
                continue
            if not (each.is_in_toml and is_reference(text)):
                text = written = f"env:{each.variable}"
        givens[each.path] = Given(_parsed(each, text, written), each.variable, written)
    return givens | _variables_notes(givens, weaker)


def _variables_notes(variables: Givens, weaker: Givens) -> Givens:
    """For the tables with files or logins that variables give: which these are, and what does not count then."""
    notes: Givens = {}
    for table in {path[:-1] for path in variables if path[-1] in _OF_FILES_AND_LOGINS}:
        given = [path for path in variables if path[:-1] == table and path[-1] in _OF_FILES_AND_LOGINS]
        names = [variables[path].origin for path in given]
        note = f"{enumerated(names)} {'is' if len(names) == 1 else 'are'} set"
        belonging = {(*table, name) for path in given for name in _BELONGING.get(path[-1], ())}
        if lost := sorted(belonging & weaker.keys() - variables.keys()):
            does = "does" if len(lost) == 1 else "do"
            note += f", so {enumerated([path[-1] for path in lost])} in {weaker[lost[0]].origin} {does} not count"
        notes[*table, _NOTE] = Given(note, "", "")
    return notes


def _parsed(each: Described, text: str, written: str) -> object:
    if each.type == _DIRECTORIES:
        return [part.strip() for part in text.split(",") if part.strip()]
    if each.type is bool:
        return truth(text, written)
    if each.type in {int, float}:
        return _number(text, written, is_decimal=each.type is float)
    if each.choices and (reason := _refusal(each, text)):
        raise InvalidArgumentError(f"{written}: {reason}")
    return text


def toml_values(
    table: Mapping[str, Any], struct: type[Any], where: str, origin: str, path: Path, known: Sequence[str] = ()
) -> Givens:
    """Settings of a TOML table; ConfigurationError for a name that the struct does not have: it may be misspelt.

    ``where`` is empty for the whole file. ``known``: the names to suggest, if these are not all fields of the struct.
    """
    if not table:
        return {}  # the usual case; msgspec takes a millisecond for the fields
    fields = {
        each.name: each.type for each in msgspec.structs.fields(struct) if not each.name.endswith(FIELDS_FOR_ERRORS)
    }
    givens: Givens = {}
    for name, value in table.items():
        if name not in fields:
            known = known or list(fields)
            meant = near_miss(name, known, similarity_min=_SIMILARITY_MIN)
            hint = "" if meant is None else f"; did you mean '{meant}'?"
            of = f"settings of {where}: " if where else ""
            raise ConfigurationError(f"{origin}: {of}unknown name '{name}' (known: {', '.join(known)}){hint}")
        place, types = f"{where}.{name}" if where else name, (fields[name], *get_args(fields[name]))
        inner = next((each for each in types if isinstance(each, type) and issubclass(each, msgspec.Struct)), None)
        table_struct = inner if isinstance(value, Mapping) else None
        is_secret = any(isinstance(each, Setting) and each.is_secret for each in types)
        shown = f" = {value}" if isinstance(value, _SCALARS) and inner is None and not is_secret else ""
        givens[*path, name] = Given({} if table_struct else value, origin, f"{origin}: {place}{shown}")
        if table_struct is not None:
            givens |= toml_values(value, table_struct, place, origin, (*path, name))
    return givens


def java_values(conf: JavaConf, settings: Iterable[Described]) -> Givens:
    """Settings of a bk_server.conf, in our units; ConfigurationError contains the key."""
    givens: Givens = {}
    for each in settings:
        key, java = each.java_key, each.setting.java
        if key is None or java is None:
            continue
        if java.older is not None and conf.text(key) is None:
            key = java.older
        value: object = conf.text(key)
        if each.type == _DIRECTORIES:
            value = list(conf.texts(key)) or None
        elif isinstance(value, str) and each.type is bool:
            value = truth(value, conf.written(key), is_java=True)
        elif isinstance(value, str) and each.type in {int, float}:
            value = _java_number(conf, each, java, key, value)
        if value is not None:
            givens[each.path] = Given(value, conf.source(key), conf.written(key))
    return givens


def _java_number(conf: JavaConf, each: Described, java: Java, key: str, text: str) -> float | None:
    number = _number(text, conf.written(key), is_decimal=java.unit == "decimal")
    reason = each.java_range.refusal(number)
    if java.unit == "MiB" and reason is None:
        directory_count = max(1, len(conf.texts(java.shared_by))) if java.shared_by is not None else 1
        low = int(each.setting.low or 0)
        if directory_count > 1 and number * MEBIBYTE // directory_count < low:
            mebibytes = -(-low * directory_count // MEBIBYTE)
            reason = f"must be at least {mebibytes}, as there are {directory_count} directories"
        number = number * MEBIBYTE // directory_count
    if reason is not None:
        raise ConfigurationError(f"{conf.written(key)}: {reason}")
    if java.off_from is not None and number <= 0:
        return None
    if java.is_zero_off:
        number = max(number, 0)
    if java.is_capped and each.setting.high is not None:
        return min(number, each.setting.high)
    if java.unit in {"s", "ms"}:
        seconds = number / 1000 if java.unit == "ms" else number
        return max(-DURATION_S_MAX, min(seconds, DURATION_S_MAX))
    return number


def truth(text: str, written: str, *, is_java: bool = False) -> bool:
    """The value of a switch; ConfigurationError with ``written``. Java reads no 0 and 1."""
    if text.lower() not in TRUE | FALSE or (is_java and text in {"0", "1"}):
        raise ConfigurationError(f"{written}: neither true nor false")
    return text.lower() in TRUE


def _number(text: str, written: str, *, is_decimal: bool) -> float:
    if _DECIMAL.fullmatch(text) is None or not (is_decimal or text.lstrip("+-").isdigit()):
        raise ConfigurationError(f"{written}: not a {'decimal' if is_decimal else 'whole'} number")
    return float(text) if is_decimal else int(text)


def build(givens: Givens, struct: type[T], settings: Iterable[Described], section: str) -> T:
    """The struct of a section; ConfigurationError with the source of the wrong value and the reason."""
    for each in settings:
        given = givens.get(each.path)
        if given is not None and (reason := _refusal(each, given.value)) is not None:
            raise ConfigurationError(f"{given.written}: {reason}")
    depth = 1 if section else 0
    nested: dict[str, Any] = {}
    for path, given in givens.items():
        table: Any = nested
        for name in path[depth:-1]:
            table = table.setdefault(name, {}) if isinstance(table, dict) else None
        if isinstance(table, dict) and not (given.value == {} and path[-1] in table):
            table[path[-1]] = dict(given.value) if isinstance(given.value, dict) else given.value
    try:
        return msgspec.convert(nested, struct)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).replace("`", "").partition(" - at $")
        path = (*((section,) if section else ()), *re.sub(r"\[.*", "", place).split(".")[1:])
        field = reason.partition(" ")[0]
        if path in givens and not isinstance(givens[path].value, dict):
            written = givens[path].written
        elif (*path, field) in givens:  # concerns two fields together
            written = givens[*path, field].written
        else:
            written = f"setting {'.'.join(path)}"
        raise ConfigurationError(f"{written}: {reason[:1].lower()}{reason[1:]}") from error


_CONVERSIONS: Final = {"JKS": f"; only Java reads JKS, convert it: {keytool_command('FILE', 'FILE.p12')}"}
"""How to get a value that can be used from one that Java can."""


def _refusal(each: Described, value: object) -> str | None:
    """Why a setting cannot have a value of its type. Values of other types are left to msgspec."""
    if each.choices:
        if value in each.choices:
            return None
        return f"give one of {', '.join(each.choices)}" + _CONVERSIONS.get(str(value).upper(), "")
    if each.type in {int, float} and isinstance(value, int | float) and not isinstance(value, bool):
        return each.range.refusal(value)
    return None


SECTIONS: dict[str, type[msgspec.Struct]] = {
    "": GeneralConfig,
    "zookeeper": ZooKeeperConfig,
    "client": ClientConfig,
    "bookie_client": BookieClientConfig,
    "replication": ReplicationConfig,
    "autorecovery": AutorecoveryConfig,
    "bookie": BookieConfig,
}
"""The struct of each section; the section without a name is before the first table."""


ELSEWHERE: dict[str, str] = {"zookeeper": "zookeeper", "client": "bookie_client"}
"""Fields of ``BookieConfig`` that have a section of their own."""


@functools.cache
def settings_of(section: str) -> tuple[Described, ...]:
    """The settings of a section. A bookie's [zookeeper] is that of all commands; its log is in [bookie], too.

    So is the log of a daemon in [autorecovery]. How clients and bookies connect to bookies is in [bookie_client].
    """
    if section == "client":
        return tuple(each for each in described(ClientConfig, section) if each.path[1] != "security")
    if section == "bookie":
        own = (each for each in described(BookieConfig, section) if each.path[1] not in ELSEWHERE)
        return (*own, *described(LogSettings, section))
    if section == "autorecovery":
        # The bookie's log and admin interface have the same settings; a daemon of its own has its own variables.
        found = (*described(AutorecoveryConfig, section), *described(LogSettings, section))
        return tuple(each._replace(setting=msgspec.structs.replace(each.setting, variable=None)) for each in found)
    return described(SECTIONS[section], section) if section else described(GeneralConfig)


@functools.cache
def all_settings() -> tuple[Described, ...]:
    """Every setting."""
    return tuple(each for section in SECTIONS for each in settings_of(section))
