"""Protobuf text syntax as Java prints it, byte for byte. Source: metadata section 5.

We use our own writer, because compatibility requires Java's exact spelling. The reader is protobuf's.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from bkctl.runtime.errors import MetadataFormatError

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

_TOKEN = re.compile(
    r"""\#[^\n]* | (?P<literal> "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' ) | [A-Za-z_]\w*
      | (?P<number>[0-9][\w.+-]*) (?P<is_name>\s*:)?""",
    re.VERBOSE | re.ASCII,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_PYTHON_NUMBER = re.compile(r"0[bBoO]|.*_")
"""Number formats that protobuf's reader accepts because Python does, but Java does not."""


class EnumName(str):
    """A word printed without quotes. Enums are written by name, never by number."""

    __slots__ = ()


def format_fields(fields: Iterable[Field], indent: str = "") -> str:
    """Text of a message. ``fields`` must be in the order of their numbers; a list is a sub-message."""
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
    """Fill ``message`` from text and return it. Skips unknown fields; for a repeated single field the last value wins.

    MetadataFormatError contains ``what`` and the position of the error.
    """
    from google.protobuf import text_format  # noqa: PLC0415  10 ms that most commands do not need

    try:
        with warnings.catch_warnings():
            # Python's codec only warns about an unknown escape; Java rejects it.
            warnings.simplefilter("error", DeprecationWarning)
            text_format.Merge(_TOKEN.sub(_as_java_reads, text), message, allow_unknown_field=True)
    except (text_format.ParseError, ValueError, DeprecationWarning) as error:
        raise MetadataFormatError(f"{what}: not the text of its message: {error}") from error
    return message


def _as_java_reads(token: re.Match[str]) -> str:
    r"""Adapt a token for Python's protobuf reader, which does not support \? and accepts numbers as names."""
    if literal := token["literal"]:
        return _ESCAPE.sub(lambda escape: "?" if escape[1] == "?" else escape[0], literal)
    if token["number"] and (token["is_name"] or _PYTHON_NUMBER.match(token["number"])):
        raise ValueError(f"{token[0]!r} is neither a name nor a number")
    return token[0]
