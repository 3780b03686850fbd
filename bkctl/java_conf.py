"""A Java bk_server.conf with the reading rules of Commons Configuration. Source: operations section 3.1.

Comma is the list delimiter for every key: a list reader gets all parts, a scalar reader the FIRST part alone. A key
that occurs twice accumulates. ``${key}``, ``${env:NAME}`` and ``${sys:name}`` are expanded; ``sys`` is always unknown
here, and what is unknown stays as it is. ``include`` names another file, relative to this one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

import javaproperties

from bkctl.java_ranges import refusal_of
from runtime.errors import ConfigurationError
from storage.config import DURATION_S_MAX, MEBIBYTE

Number = TypeVar("Number", int, float)

_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)", re.ASCII)
_DEPTH_MAX = 16
_TRUE = frozenset({"true", "yes", "on"})
_FALSE = frozenset({"false", "no", "off"})


class JavaConf:
    """Keys of one or more merged sources; earlier ones win where one value is wanted."""

    def __init__(
        self,
        values: Mapping[str, list[str]],
        origin: str,
        environment: Mapping[str, str],
        given_keys: Collection[str] = (),
    ) -> None:
        self._values = values
        self._environment = environment
        self._given_keys = given_keys
        self.origin = origin

    @classmethod
    def read(cls, path: str, environment: Mapping[str, str]) -> JavaConf:
        """Read a file and what it includes; ConfigurationError names the file."""
        values: dict[str, list[str]] = {}
        _read_into(values, path, depth=0)
        return cls(values, path, environment)

    def overridden(self, pairs: Mapping[str, str]) -> JavaConf:
        """The same with these keys replaced, as ``--set`` does."""
        replaced = {key: _split(value) for key, value in pairs.items()}
        return JavaConf({**self._values, **replaced}, self.origin, self._environment, replaced.keys())

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def text(self, key: str) -> str | None:
        """First value of a key; None when it is absent or empty."""
        parts = self._values.get(key)
        return self._expand(parts[0]) or None if parts else None

    def texts(self, key: str) -> tuple[str, ...]:
        """All values of a list key, empty ones dropped."""
        return tuple(text for part in self._values.get(key, ()) if (text := self._expand(part)))

    def parts_dropped(self, key: str) -> tuple[str, ...]:
        """What a scalar reader never sees of this key: everything behind its first comma."""
        return tuple(self._values.get(key, ())[1:])

    def all_values(self) -> list[str]:
        """Every value of every key, as it is written."""
        return [part for parts in self._values.values() for part in parts]

    def settings(self) -> Iterator[tuple[str, str | None, str]]:
        """Each key with its first value and the place that sets it."""
        for key in self._values:
            yield key, self.text(key), "--set" if key in self._given_keys else self.origin

    def whole_number(self, key: str) -> int | None:
        """A plain decimal number."""
        text = self.text(key)
        if text is None:
            return None
        try:
            number = int(text)
        except ValueError:
            raise self._refused(key, "not a whole number") from None
        return self._in_range(key, number)

    def whole_seconds(self, key: str) -> int | None:
        """A whole number of seconds, at most DURATION_S_MAX: the largest numbers of Java mean "never"."""
        seconds = self.whole_number(key)
        return None if seconds is None else min(seconds, DURATION_S_MAX)

    def seconds(self, key: str) -> float | None:
        """A whole number of milliseconds, in seconds, at most DURATION_S_MAX."""
        milliseconds = self.whole_number(key)
        return None if milliseconds is None else min(milliseconds / 1000, DURATION_S_MAX)

    def size_bytes(self, key: str) -> int | None:
        """A whole number of MiB, in bytes."""
        mebibytes = self.whole_number(key)
        return None if mebibytes is None else mebibytes * MEBIBYTE

    def share_bytes(self, key: str, directory_count: int, bytes_min: int = 0) -> int | None:
        """A whole number of MiB for all directories together, as the bytes of each; it must have ``bytes_min``."""
        size_bytes = self.size_bytes(key)
        if size_bytes is None:
            return None
        if size_bytes // directory_count < bytes_min:
            mebibytes = -(-bytes_min * directory_count // MEBIBYTE)
            raise self._refused(key, f"must be at least {mebibytes}, as there are {directory_count} directories")
        return size_bytes // directory_count

    def decimal_number(self, key: str) -> float | None:
        """A number with or without a decimal point; no exponents, no NaN."""
        text = self.text(key)
        if text is None:
            return None
        if _DECIMAL.fullmatch(text) is None:
            raise self._refused(key, "not a decimal number")
        return self._in_range(key, float(text))

    def truth(self, key: str) -> bool | None:
        """true/false, yes/no, on/off."""
        text = self.text(key)
        if text is None:
            return None
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise self._refused(key, "neither true nor false")

    def _in_range(self, key: str, number: Number) -> Number:
        if (reason := refusal_of(key, number)) is not None:
            raise self._refused(key, reason)
        return number

    def _refused(self, key: str, reason: str) -> ConfigurationError:
        place = f"--set {key}" if key in self._given_keys else f"{self.origin}: {key}"
        return ConfigurationError(f"{place} = {self.text(key)}: {reason}")

    def _expand(self, text: str, depth: int = 0) -> str:
        if depth >= _DEPTH_MAX:
            raise ConfigurationError(f"{self.origin}: '{text}' refers to itself")

        def value_of(reference: re.Match[str]) -> str:
            name = reference[1]
            if name.startswith("env:"):
                return self._environment.get(name[4:], reference[0])
            if name in self._values:
                return self._expand(self._values[name][0], depth + 1)
            return reference[0]

        return _REFERENCE.sub(value_of, text)


def _split(value: str) -> list[str]:
    return [part.strip() for part in value.split(",")]


def _text(data: bytes) -> str:
    """A properties file is Latin-1 by Java's rule; most are UTF-8, which hardly any other text passes for."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _read_into(values: dict[str, list[str]], path: str, depth: int) -> None:
    if depth >= _DEPTH_MAX:
        raise ConfigurationError(f"{path}: files include each other in a circle")
    try:
        with open(path, "rb") as file:
            elements = list(javaproperties.parse(_text(file.read())))
    except (OSError, javaproperties.InvalidUEscapeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"cannot read the configuration file {path}: {reason}") from error
    for element in elements:
        if not isinstance(element, javaproperties.KeyValue):
            continue
        if element.key == "include":
            for name in _split(element.value):
                _read_into(values, os.path.join(os.path.dirname(path), name), depth + 1)
        else:
            values.setdefault(element.key, []).extend(_split(element.value))
