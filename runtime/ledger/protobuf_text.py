"""Protobuf text syntax as Java prints it, byte for byte. Source: metadata section 5.

The writer is ours because Java readers and golden bytes demand one exact spelling. The reader is protobuf's.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from runtime.errors import MetadataFormatError

if TYPE_CHECKING:
    from google.protobuf.message import Message

    MessageT = TypeVar("MessageT", bound=Message)

Field: TypeAlias = "tuple[str, Value]"
Value: TypeAlias = "int | str | bytes | EnumName | list[Field]"

_ESCAPES = {
    0x08: "\\b",
    0x0C: "\\f",
    0x0A: "\\n",
    0x0D: "\\r",
    0x09: "\\t",
    0x5C: "\\\\",
    0x27: "\\'",
    0x22: '\\"',
}


class EnumName(str):
    """A word printed without quotes; enums go by name, never by number."""

    __slots__ = ()


def format_fields(fields: Iterable[Field], indent: str = "") -> str:
    """Text of a message: fields in the order given, which must be that of their numbers; a list is a sub-message."""
    lines: list[str] = []
    for name, value in fields:
        if isinstance(value, list):
            lines.append(f"{indent}{name} {{\n{format_fields(value, indent + '  ')}{indent}}}\n")
        else:
            lines.append(f"{indent}{name}: {_format_scalar(value)}\n")
    return "".join(lines)


def _format_scalar(value: int | str | bytes) -> str:
    if isinstance(value, EnumName):
        return str(value)
    if isinstance(value, int):
        return str(value)
    raw = value.encode() if isinstance(value, str) else value
    return '"' + "".join(map(_escape, raw)) + '"'


def _escape(byte: int) -> str:
    escape = _ESCAPES.get(byte)
    if escape is not None:
        return escape
    return chr(byte) if 0x20 <= byte <= 0x7E else f"\\{byte:03o}"


def parse_fields(text: str, message: MessageT, what: str) -> MessageT:
    """Fill ``message`` from text and return it; unknown fields are skipped, of a single field the last one wins.

    MetadataFormatError names ``what`` and the place of the fault.
    """
    from google.protobuf import text_format  # noqa: PLC0415  10 ms that most commands do not need

    try:
        with warnings.catch_warnings():
            # An unknown escape is only warned about, on the way through a codec; Java refuses it.
            warnings.simplefilter("error", DeprecationWarning)
            text_format.Merge(text, message, allow_unknown_field=True)
    except (text_format.ParseError, ValueError, DeprecationWarning) as error:
        raise MetadataFormatError(f"{what}: not the text of its message: {error}") from error
    return message
