"""Decodes JSON from files and nodes that others may have edited; raises one error for all kinds of bad input."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


class JsonTextError(ValueError):
    """The bytes are not JSON, or not of the expected shape; the text says why."""


def decode_json(data: bytes, kind: type[T]) -> T:
    """Decode a value of type ``kind``; unknown fields are skipped. JsonTextError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # msgspec decodes the bytes of strings separately
        raise JsonTextError(str(error)) from error
    except RecursionError as error:
        raise JsonTextError("it is nested too deeply") from error
