"""How rows fit on a terminal: which columns a table shows, and rows as blocks of lines where no table fits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from bkctl.commands.rendering import COLUMN_GAP, Column, Row, table_widths

_LABEL_GAP = "  "
_WRAPPED_WIDTH_MIN = 20
"""Text is not wrapped where there is less room for it."""

_BREAK_AFTER = re.compile(r"(?<=[ ,])")


class Layout(NamedTuple):
    """What is shown of rows: ``columns`` as a table, or as blocks; ``hidden`` are the columns left out."""

    columns: Sequence[Column]
    hidden: Sequence[Column] = ()
    is_blocks: bool = False


def fit(
    columns: Sequence[Column], rows: Sequence[Row], width: int | None, *, has_headers: bool, is_wide: bool
) -> Layout:
    """The layout of a table within ``width`` characters; None: any width.

    Columns without a value in any row are left out first, then columns by their priority, the highest number first;
    ``wide`` shows all. Rows become blocks, with all columns, when the columns that must be shown do not fit.
    """
    shown = list(columns)
    while width is not None and _table_width(shown, rows, has_headers=has_headers) > width:
        dispensable = [] if is_wide else [column for column in shown if column.priority or _is_blank(column, rows)]
        if not dispensable:
            return Layout(columns, is_blocks=bool(rows))
        shown.remove(max(reversed(dispensable), key=lambda each: _dispensability(each, rows)))
    return Layout(shown, [column for column in columns if column not in shown])


def _is_blank(column: Column, rows: Sequence[Row]) -> bool:
    return bool(rows) and all(row.get(column.key) is None for row in rows)


def _dispensability(column: Column, rows: Sequence[Row]) -> tuple[bool, bool, int]:
    has_content = any(row.get(column.key) for row in rows)  # zero and "no" are not content
    return _is_blank(column, rows), not has_content, column.priority


def block(columns: Sequence[Column], row: Row, width: int | None) -> str:
    """A row as one line per column, or more where its text is long."""
    return "\n".join(labeled([(column.title, column.cell(row)) for column in columns], width))


def labeled(fields: Sequence[tuple[str, str]], width: int | None) -> list[str]:
    """Lines of labels and texts, the texts below each other; long ones are wrapped between words, never inside."""
    indent = max((len(label) for label, _ in fields), default=0) + len(_LABEL_GAP)
    lines = []
    for label, text in fields:
        first, *more = wrapped(text, None if width is None else width - indent)
        lines.append(label.ljust(indent) + first)
        lines += [" " * indent + line for line in more]
    return lines


def _table_width(columns: Sequence[Column], rows: Sequence[Row], *, has_headers: bool) -> int:
    return sum(table_widths(columns, rows, has_headers=has_headers)) + len(COLUMN_GAP) * (len(columns) - 1)


def wrapped(text: str, width: int | None) -> list[str]:
    """The text in lines of at most ``width`` characters, broken at spaces and after commas alone."""
    if width is None or width < _WRAPPED_WIDTH_MIN or len(text) <= width:
        return [text]
    lines, line = [], ""
    for part in _BREAK_AFTER.split(text):
        if line and len(line) + len(part.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += part
    return [*lines, line.rstrip()]
