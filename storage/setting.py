"""Descriptions of settings: range, unit, Java key and help, defined once in the annotation of a setting's field.

Readers of files, variables and options, error messages, ``bkctl config`` and docs/reference/settings.md use them.
"""

from __future__ import annotations

import enum
import functools
import math
import types
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin

import msgspec

from bkctl.storage.words import exact_size

MEBIBYTE: Final = 1024 * 1024

WHOLE_NUMBER_MAX: Final = 2**63 - 1
"""Largest number of the file formats, and of a Java long."""

DECIMAL_MAX: Final = 10**15
"""Doubles represent whole numbers up to this exactly."""

DURATION_S_MAX: Final = 100 * 365 * 86_400
"""Longest duration; "never" is capped to this. Timers accept at most about three times as much."""

FIELDS_FOR_ERRORS: Final = ("_java_key", "variables_note")
"""The ends of names of fields that say where values come from. They are no settings."""


JavaUnit: TypeAlias = Literal["", "decimal", "s", "ms", "MiB"]
"""Unit of a number in bk_server.conf; "" for whole numbers in the unit of the setting."""


class Java(msgspec.Struct, frozen=True):
    """The key of a setting in bk_server.conf; "{parent}" in it is the name of the table that contains the field.

    ``older``: key in earlier releases. The value is divided by the number of directories in the list ``shared_by``.
    Numbers from ``off_from`` to 0 mean "off" and set nothing. ``is_capped``: a number above the field's range sets the
    largest allowed one. ``is_zero_off``: negative numbers and 0 mean "off", which is 0 in the setting.
    """

    key: str
    unit: JavaUnit = ""
    older: str | None = None
    shared_by: str | None = None
    off_from: int | None = None
    is_capped: bool = False
    is_zero_off: bool = False


class Setting(msgspec.Struct, frozen=True):
    """Metadata of a field: ``Annotated[int, Setting("What it is", unit="bytes", low=0)]``.

    The variable and the TOML key follow from the path of the field unless they are given here. ``toml`` empty: the
    setting is not available in the TOML file. For a secret only the reference to its storage is shown. ``is_live``:
    SIGHUP changes it while the bookie runs.
    """

    help: str
    unit: str = ""
    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None
    step: int = 1
    java: Java | None = None
    flag: str | None = None
    variable: str | None = None
    toml: str | None = None
    is_secret: bool = False
    is_live: bool = False
    unset: str = "none"
    """Meaning of the default None."""

    @property
    def range(self) -> Range:
        """Allowed numbers of the field."""
        return Range(self.low, self.above, self.high, self.below, self.step, unit=self.unit)


class Range(msgspec.Struct, frozen=True):
    """Numbers from ``low`` to ``high``, or between ``above`` and ``below``; with a step, only multiples of it."""

    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None
    step: int = 1
    number_max: float = WHOLE_NUMBER_MAX
    """Limit of the number type, if the setting has none."""
    unit: str = ""

    def refusal(self, value: float) -> str | None:
        """Why the value is rejected, as a requirement; None if it is allowed."""
        if not math.isfinite(value):
            return "must be a finite number"
        if (
            (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (self.below is None or value < self.below)
            and (self.step == 1 or value % self.step == 0)
        ):
            if self.high is None and value > self.number_max:
                years = " (100 years)" if self.number_max == DURATION_S_MAX else ""
                return f"must be at most {self.number_max}{years}"
            return f"must be at least {-self.number_max}" if value < -self.number_max else None
        return f"must be {self.text}"

    @property
    def text(self) -> str:
        """The range in words; empty if every number is allowed."""
        if self.low is not None and self.high is not None:
            words = f"from {self._spelled(self.low)} to {self._spelled(self.high)}"
        else:
            bounds = (("at least", self.low), ("above", self.above), ("at most", self.high), ("below", self.below))
            words = " and ".join(f"{word} {self._spelled(bound)}" for word, bound in bounds if bound is not None)
        return f"a multiple of {self.step} {words}" if self.step != 1 else words

    def _spelled(self, bound: float) -> str:
        return exact_size(bound) if self.unit == "bytes" else str(bound)


class Described(NamedTuple):
    """A setting and its field. ``path`` begins with the section: ("bookie", "disks", "full_fraction")."""

    path: tuple[str, ...]
    setting: Setting
    type: Any
    """Type of a value, without None."""
    default: object

    @property
    def name(self) -> str:
        """Its key in the TOML file: ``bookie.disks.full_fraction``."""
        return self.setting.toml or ".".join(self.path)

    @property
    def is_in_toml(self) -> bool:
        """Whether the TOML file can set it, in addition to a variable or an option."""
        return self.setting.toml != ""

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return self.setting.variable or "_".join(("BKCTL", *self.path)).upper()

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values of a setting with a fixed set of values."""
        return tuple(self.type) if isinstance(self.type, enum.EnumType) else ()

    @property
    def java_key(self) -> str | None:
        """The key of bk_server.conf."""
        java = self.setting.java
        return java.key.format(parent=self.path[-2:][0]) if java is not None else None

    @property
    def range(self) -> Range:
        """Allowed numbers, including the limits of the type and of timers."""
        is_duration = self.type is float and self.setting.unit == "s"
        number_max = DURATION_S_MAX if is_duration else WHOLE_NUMBER_MAX
        return msgspec.structs.replace(self.setting.range, number_max=number_max)

    @property
    def java_range(self) -> Range:
        """Allowed numbers of the Java key, in its own unit. A duration has no upper limit; it is capped."""
        setting, java = self.setting, self.setting.java
        assert java is not None
        if java.unit == "decimal":
            return Range(setting.low, setting.above, setting.high, setting.below, number_max=DECIMAL_MAX)
        factor = {"ms": 1 / 1000, "MiB": MEBIBYTE}.get(java.unit, 1)
        low = setting.low if setting.above is None else setting.above
        if low is not None:
            low = math.ceil(low / factor) + (setting.above is not None and low % factor == 0)
        high = None if setting.high is None or java.is_capped else math.floor(setting.high / factor)
        if java.unit == "MiB" and high is None:
            high = WHOLE_NUMBER_MAX // MEBIBYTE
        low = None if java.is_zero_off else low if java.off_from is None else java.off_from
        return Range(low, high=high, step=setting.step)


@functools.cache
def described(struct: type[Any], *section: str) -> tuple[Described, ...]:
    """The settings of a struct and of its nested structs, in the order of the fields."""
    return tuple(_walk(struct, section))


def setting_values(config: msgspec.Struct) -> dict[str, Any]:
    """The values of a struct and of its nested structs, without those that are only for errors."""
    values: dict[str, Any] = _settings_alone(msgspec.to_builtins(config))
    return values


def _settings_alone(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _settings_alone(each) for name, each in value.items() if not name.endswith(FIELDS_FOR_ERRORS)}


def require_ranges(struct: msgspec.Struct) -> None:
    """Raise ValueError if a number is out of the range of its field, however the struct was created."""
    for each in described(type(struct)):
        value = getattr(struct, each.path[0]) if len(each.path) == 1 else None
        if isinstance(value, int | float) and (refusal := each.range.refusal(value)) is not None:
            raise ValueError(f"{each.path[0]} {refusal}")


def _walk(struct: type[Any], path: tuple[str, ...]) -> Iterator[Described]:
    for field in msgspec.structs.fields(struct):
        base, *metadata = get_args(field.type) if get_origin(field.type) is Annotated else (field.type,)
        if get_origin(base) in {Union, types.UnionType}:
            base = next(each for each in get_args(base) if each is not type(None))
        setting = next((each for each in metadata if isinstance(each, Setting)), None)
        if setting is not None:
            default = None if field.required else field.default
            yield Described((*path, field.name), setting, base, default)
        elif hasattr(base, "__struct_fields__"):
            yield from _walk(base, (*path, field.name))
