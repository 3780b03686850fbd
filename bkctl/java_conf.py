"""A Java bk_server.conf with the reading rules of Commons Configuration.

Comma is the list delimiter for every key: a list reader gets all parts, a scalar reader ONLY the first part. Values
of a key that occurs twice accumulate. ``${key}``, ``${env:NAME}`` and ``${sys:name}`` are expanded; ``sys`` is always
unknown here, and unknown references stay unchanged. ``include`` has the path of another file, relative to this one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

import javaproperties

from bkctl.runtime.errors import ConfigurationError
from bkctl.storage.adapters.given_files import read_given_file

_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_DEPTH_MAX = 16


class JavaConf:
    """Keys of one or more merged sources; for a single value, earlier sources win."""

    def __init__(
        self,
        values: Mapping[str, list[str]],
        origin: str,
        environment: Mapping[str, str],
        given_keys: Collection[str] = (),
        sources: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._values = values
        self._environment = environment
        self._given_keys = given_keys
        self._sources = sources
        self.origin = origin

    @classmethod
    def read(cls, path: str, environment: Mapping[str, str]) -> JavaConf:
        """Read a file and the files it includes; ConfigurationError contains the file's path."""
        values: dict[str, list[str]] = {}
        sources: dict[str, str] = {}
        _read_into(values, sources, path, depth=0)
        return cls(values, path, environment, sources=sources)

    def overridden(self, pairs: Mapping[str, str]) -> JavaConf:
        """The same with these keys replaced, as ``--set`` does."""
        replaced = {key: _split(value) for key, value in pairs.items()}
        return JavaConf({**self._values, **replaced}, self.origin, self._environment, replaced.keys(), self._sources)

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
        """The parts of this key that a scalar reader ignores: everything after its first comma."""
        return tuple(self._values.get(key, ())[1:])

    def all_values(self) -> list[str]:
        """Every value of every key, unparsed."""
        return [part for parts in self._values.values() for part in parts]

    def settings(self) -> Iterator[tuple[str, str | None, str]]:
        """Each key with its first value and its source."""
        for key in self._values:
            yield key, self.text(key), "--set" if key in self._given_keys else self.origin

    def source(self, key: str) -> str:
        """Source of a key: ``bk_server.conf:12 (bookiePort)``, or ``--set bookiePort``."""
        return f"--set {key}" if key in self._given_keys else f"{self._sources.get(key, self.origin)} ({key})"

    def written(self, key: str) -> str:
        """The key with its value and its file, for an error message."""
        source = f"--set {key}" if key in self._given_keys else f"{self.origin}: {key}"
        return f"{source} = {self.text(key)}"

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
    """Java defines properties files as Latin-1, but most are UTF-8; other text is rarely valid UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _read_into(values: dict[str, list[str]], sources: dict[str, str], path: str, depth: int) -> None:
    if depth >= _DEPTH_MAX:
        raise ConfigurationError(f"{path}: circular include")
    try:
        elements = list(javaproperties.parse(_text(read_given_file(path))))
    except (OSError, javaproperties.InvalidUEscapeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"cannot read the configuration file {path}: {reason}") from error
    line = 1
    for element in elements:
        source, line = f"{path}:{line}", line + len(element.source.splitlines())
        if not isinstance(element, javaproperties.KeyValue):
            continue
        if element.key == "include":
            for name in _split(element.value):
                _read_into(values, sources, os.path.join(os.path.dirname(path), name), depth + 1)
        else:
            sources.setdefault(element.key, source)
            values.setdefault(element.key, []).extend(_split(element.value))
