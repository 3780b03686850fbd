"""Settings of all sources, as nested tables, to the struct that holds them; what is out of range is named as written.

Values of a bk_server.conf, of flags and of the environment were looked at where they were read, under their own names:
what is refused here for itself comes from the TOML file. What two values make impossible together may come from
anywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

import msgspec

from runtime.errors import ConfigurationError
from storage.config import DURATION_S_MAX, WHOLE_NUMBER_MAX

T = TypeVar("T")

_SCALARS = (bool, int, float, str)
_DURATION = re.compile(r"(?<!_per)_s(_max)?$")


def convert(values: Mapping[str, Any], struct: type[T], where: str, *, toml_path: str | None = None) -> T:
    """Values to a settings struct; ConfigurationError names the file, the field, its value and what is wrong."""
    require_known(values, struct, where)
    _require_bounded(values, where, toml_path)
    try:
        return msgspec.convert(dict(values), struct)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).replace("`", "").partition(" - at $")
        field, _, rest = reason.partition(" ")
        found: Any = values
        for name in path.split(".")[1:]:
            found = found.get(name) if isinstance(found, Mapping) else None
        # What a struct says of two fields together begins in another way.
        if isinstance(found, Mapping) and isinstance(found.get(field), _SCALARS) and rest.startswith("must "):
            path, found, reason = f"{path}.{field}", found[field], rest
        reason = f"{reason[:1].lower()}{reason[1:]}"
        if isinstance(found, _SCALARS):
            raise _refused(toml_path, f"{where}{path}", found, reason) from error
        raise ConfigurationError(f"setting {where}{path}: {reason}") from error


def require_known(values: Mapping[str, Any], struct: type[Any], where: str) -> None:
    """ConfigurationError for a field that the struct, or a struct inside it, does not have: a typo must not pass."""
    fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
    for name, value in values.items():
        if name not in fields:
            raise ConfigurationError(f"settings of {where}: there is no '{name}' (there is: {', '.join(fields)})")
        inner = next(
            (each for each in (fields[name], *get_args(fields[name])) if hasattr(each, "__struct_fields__")), None
        )
        if isinstance(value, Mapping) and inner is not None:
            require_known(value, inner, f"{where}.{name}")


def _require_bounded(values: Mapping[str, Any], where: str, toml_path: str | None) -> None:
    """ConfigurationError for a number that no timer, and no word of a format or of the system, can hold."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            _require_bounded(value, f"{where}.{name}", toml_path)
        elif isinstance(value, int | float):
            reason = None
            if isinstance(value, float) and not math.isfinite(value):
                reason = "must be a finite number"
            elif _DURATION.search(name) is not None and value > DURATION_S_MAX:
                reason = f"must be at most {DURATION_S_MAX} (100 years)"
            elif abs(value) > WHOLE_NUMBER_MAX:
                reason = f"must be from {-WHOLE_NUMBER_MAX} to {WHOLE_NUMBER_MAX}"
            if reason is not None:
                raise _refused(toml_path, f"{where}.{name}", value, reason)


def _refused(toml_path: str | None, setting: str, value: object, reason: str) -> ConfigurationError:
    place = "setting" if toml_path is None else f"{toml_path}:"
    return ConfigurationError(f"{place} {setting} = {value}: {reason}")
