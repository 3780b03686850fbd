"""Converts results to text, with one writer per output format.

Every structured result has ``apiVersion: bkctl/v1`` and ``kind``; a listing also has ``items`` and ``truncated``. Rows
are mappings of JSON values: long ids as strings, sizes as integer bytes, times as RFC 3339 text, unknown as None.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeGuard, TypeVar, cast

import msgspec

from bkctl.commands.config import ColorMode
from bkctl.storage.severity import Severity
from bkctl.storage.words import UNKNOWN

API_VERSION = "bkctl/v1"

_INDENT = 2
_PART_CHARACTERS = 1 << 16
_CSV_LINE_END = "\r\n"

_PROSE = frozenset({"problem", "finding", "reason", "detail", "error", "sentence", "consequence", "cure", "fix"})
"""Keys of columns with sentences."""

_WITH_COMMANDS = _PROSE | {"command", "next_step", "next_steps", "note", "problems", "summary", "verdict"}
"""Keys of texts by bkctl that may contain commands. Texts under other keys are data, which is printed as it is."""

_NESTED = (dict, list, tuple)

_STYLES: Final = {Severity.INFORMATION: "36", Severity.WARNING: "33", Severity.CRITICAL: "1;31"}
"""How a severity looks on a terminal: parameters of the escape sequence SGR."""

_TIME_LIMIT_MS = 253_402_300_800_000
"""The year 10000: metadata may contain any number."""


Row: TypeAlias = Mapping[str, object]
Complete: TypeAlias = Callable[[str], str]
_Value = TypeVar("_Value")


def time_text(time_ms: int | None) -> str | None:
    """RFC 3339 in UTC; None for a time outside the calendar."""
    if time_ms is None or not 0 <= time_ms < _TIME_LIMIT_MS:
        return None
    moment = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_of_day(time_ms: float) -> str:
    """The time of a moment near to now: ``14:20:31 UTC``."""
    return f"{datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC):%H:%M:%S} UTC"


def clean(text: str, kept: str = "") -> str:
    """Text that is safe for a terminal: unprintable characters are escaped, except those in ``kept``.

    Names and values in the metadata are written by others, and a terminal would execute escape sequences in them.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in kept else each.encode("unicode_escape").decode() for each in text
    )


def completed(value: _Value, complete: Complete, *, is_text: bool = False) -> _Value:
    """A row, or rows, with the commands in its texts completed; ``is_text``: the value itself is such a text."""
    if complete is str:
        return value
    found: object = value
    if isinstance(value, dict):  # a listing may have millions of rows: only what may change is looked at
        texts = {
            key: completed(each, complete, is_text=key in _WITH_COMMANDS)
            for key, each in value.items()
            if key in _WITH_COMMANDS or isinstance(each, _NESTED)
        }
        found = {**value, **texts}
    elif isinstance(value, (list, tuple)):
        if is_text or any(isinstance(each, _NESTED) for each in value):
            found = [completed(each, complete, is_text=is_text) for each in value]
    elif is_text and isinstance(value, str):
        found = complete(value)
    return cast("_Value", found)


def plain(value: object) -> str:
    """A value for display: lists joined by commas, booleans as yes and no."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ",".join(plain(part) for part in value) or UNKNOWN
    return str(value)


def state_words(value: object) -> str:
    """A state for people, like "at-risk"; other formats have its name, ``at_risk``."""
    return plain(value).replace("_", "-")


class Column(NamedTuple):
    """A column of a listing: key in the row, table heading, how a value is shown, whether only ``wide`` shows it.

    ``priority``: on a narrow terminal, columns with the highest number are left out first; 0 is always shown.
    """

    key: str
    title: str
    show: Callable[[object], str] = plain
    is_right: bool = False
    is_wide: bool = False
    priority: int = 0

    @property
    def is_prose(self) -> bool:
        """Whether it says what is wrong, in words: it is wrapped to be shown, and left out last."""
        return self.key in _PROSE

    @property
    def is_command(self) -> bool:
        """Whether it is to be run as it is printed: a new line inside would make two commands of it."""
        return self.key == "command"

    def cell(self, row: Row) -> str:
        """Text of a row in this column of a table."""
        return clean(self.show(row.get(self.key)))


class Table:
    """How to show rows: as a listing of this kind (``title``), or as a table of this title below a result.

    ``name``: the key of each row that ``-o name`` prints.
    """

    def __init__(self, title: str, *columns: Column, name: str = "") -> None:
        self.title = title
        self.columns = columns
        self.name = name

    def titled(self, title: str) -> Table:
        """The same columns under another title."""
        return Table(title, *self.columns, name=self.name)


class Lines(NamedTuple):
    """The main rows of a record: formats with one line per row print them, not the record's own fields.

    ``is_cut``: whether ``--limit`` cuts them. It does not for a plan, where the option limits the changes.
    """

    table: Table
    rows: Sequence[Row]
    is_cut: bool = True


def envelope(kind: str, body: Row) -> dict[str, object]:
    """A result with the two keys that every structured result starts with."""
    return {"apiVersion": API_VERSION, "kind": kind, **body}


def spelled(text: str) -> str:
    """Text as valid Unicode: file names may have any bytes, and undecodable ones are escaped."""
    return text.encode(errors="backslashreplace").decode()


def to_json(value: object, depth: int = 0) -> str:
    """Indented JSON; all lines but the first begin with ``depth`` more indents."""
    return msgspec.json.format(to_json_line(value), indent=_INDENT).replace("\n", _new_line(depth))


def to_json_line(value: object) -> str:
    """JSON on one line. Characters that a terminal executes or that reorder a line are escaped; the values stay."""
    text = _json_bytes(value).decode()
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def json_parts(fields: Row, *, is_line: bool = False) -> Iterator[str]:
    """JSON of an object that is not empty, in parts of moderate size; its lists may make millions of rows one by one.

    ``is_line``: on one line.
    """
    parts: list[str] = []
    size_now = 0
    for part in _line_parts(fields) if is_line else _indented_parts(fields):
        parts.append(part)
        size_now += len(part)
        if size_now >= _PART_CHARACTERS:
            yield "".join(parts)
            parts, size_now = [], 0
    yield "".join(parts)


def _line_parts(fields: Row) -> Iterator[str]:
    yield "{"
    for position, (key, value) in enumerate(fields.items()):
        yield f"{',' if position else ''}{to_json_line(key)}:"
        if _is_list(value):
            yield "["
            for number, each in enumerate(value):
                yield f"{',' if number else ''}{to_json_line(each)}"
            yield "]"
        else:
            yield to_json_line(value)
    yield "}"


def _indented_parts(fields: Row) -> Iterator[str]:
    yield "{"
    for position, (key, value) in enumerate(fields.items()):
        yield f"{',' if position else ''}{_new_line(1)}{to_json(key)}: "
        if _is_list(value) and value:
            yield "["
            for number, each in enumerate(value):
                yield f"{',' if number else ''}{_new_line(2)}{to_json(each, 2)}"
            yield f"{_new_line(1)}]"
        else:
            yield to_json([] if _is_list(value) else value, 1)
    yield f"{_new_line(0)}}}"


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _new_line(depth: int) -> str:
    return "\n" + " " * (_INDENT * depth)


def in_memory(fields: Row) -> dict[str, object]:
    """The object with all rows of its lists."""
    return {key: list(value) if _is_list(value) else value for key, value in fields.items()}


def _json_bytes(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_all_spelled(msgspec.to_builtins(value)))


def _all_spelled(value: object) -> object:
    if isinstance(value, str):
        return spelled(value)
    if isinstance(value, Mapping):
        return {spelled(key): _all_spelled(each) for key, each in value.items()}
    return [_all_spelled(each) for each in value] if isinstance(value, (list, tuple)) else value


def to_yaml(value: object) -> str:
    """YAML that loads back into the same values as the JSON form."""
    import yaml

    loaded = _all_spelled(msgspec.to_builtins(value))
    text: str = yaml.safe_dump(loaded, sort_keys=False, allow_unicode=True, width=1000)
    if not text.replace("\n", "").isprintable():
        text = yaml.safe_dump(loaded, sort_keys=False, allow_unicode=False, width=1000)
    return text.rstrip("\n")


def to_csv_line(values: Iterable[object]) -> str:
    """One CSV record, without the line end; None is the empty field, lists are joined by spaces."""
    buffer = io.StringIO()
    # Before Python 3.13 the writer quotes a field only for the characters of its own line end.
    csv.writer(buffer, lineterminator=_CSV_LINE_END).writerow(map(_csv_field, values))
    return clean(buffer.getvalue().removesuffix(_CSV_LINE_END), "\n")


def flat(body: Row, prefix: str = "") -> list[tuple[str, object]]:
    """Fields of a record with the names of nested ones joined by a dot, for tables and CSV."""
    fields: list[tuple[str, object]] = []
    for key, value in body.items():
        if isinstance(value, Mapping):
            fields += flat(value, f"{prefix}{key}.")
        else:
            fields.append((f"{prefix}{key}", value))
    return fields


def _csv_field(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def painted(text: str, severity: Severity, *, is_colored: bool) -> str:
    """Text in the colour of a severity."""
    return f"\x1b[{_STYLES[severity]}m{text}\x1b[0m" if is_colored else text


def is_color_wanted(mode: ColorMode, environment: Mapping[str, str]) -> bool | None:
    """Whether to colour and style; None: on a terminal."""
    if mode is not ColorMode.AUTO:
        return mode is ColorMode.ALWAYS
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return True if environment.get("FORCE_COLOR") else None
