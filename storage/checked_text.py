"""Small text files with a checksum: a format line, lines of words, and the CRC-32 of all these."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence


def encode_checked_text(format_line: str, lines: Sequence[str]) -> bytes:
    """Encode a file with these ``lines``. Neither they nor ``format_line`` may contain line breaks."""
    body = "".join(f"{line}\n" for line in (format_line, *lines))
    return f"{body}crc32 {zlib.crc32(body.encode()):08x}\n".encode()


def decode_checked_text(format_line: str, data: bytes) -> list[str] | None:
    """The lines, or None if the bytes are not a valid file of this format."""
    try:
        lines = data.decode("ascii").split("\n")[1:-2]
    except UnicodeDecodeError:
        return None
    return lines if encode_checked_text(format_line, lines) == data else None


def encode_checked_numbers(format_line: str, numbers: Mapping[str, int]) -> bytes:
    """Encode a file with one line per number: its name, a space, the number."""
    return encode_checked_text(format_line, [f"{name} {number}" for name, number in numbers.items()])


def decode_checked_numbers(format_line: str, names: Sequence[str], data: bytes) -> list[int] | None:
    """The numbers, or None if the bytes are not a valid file of this format with these names."""
    lines = decode_checked_text(format_line, data) or ()
    try:
        numbers = {name: int(line.removeprefix(name)) for name, line in zip(names, lines, strict=True)}
    except ValueError:
        return None
    return list(numbers.values()) if encode_checked_numbers(format_line, numbers) == data else None
