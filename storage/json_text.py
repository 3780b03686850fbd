"""JSON out of files and nodes that other programs and people can write to: one error for all that it may be."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


class JsonTextError(ValueError):
    """The bytes are no JSON, or not of the wanted shape; it says what is wrong with them."""


def decode_json(data: bytes, kind: type[T]) -> T:
    """A value of ``kind``; fields that it does not have are skipped. JsonTextError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # a string's bytes are decoded on their own
        raise JsonTextError(str(error)) from error
    except RecursionError as error:
        raise JsonTextError("it is nested too deeply") from error
