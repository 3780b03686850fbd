"""How rows fit on a terminal: which columns a table shows, and rows as blocks of lines where no table fits."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise, zip_longest
from types import MappingProxyType
from typing import NamedTuple

from bkctl.commands.rendering import Column, Row

_COLUMN_GAP = "   "
"""Separator that the table library writes between two columns."""
_LABEL_GAP = "  "
_PROSE_WIDTH_MIN = 24
_WRAPPED_WIDTH_MIN = 20
"""Text is not wrapped where there is less room for it."""

_BREAK = re.compile(r"[ ,]")
_CONTINUED = " \\"
_WORD = re.compile(r"(?:'[^']*'|[^\s'])+")
"""A word of a shell command, with its quoted parts."""
_VALUE = r"(?:'[^']*'|[^\s']+)"
_OPTION = rf" --?[a-z][\w-]*(?:[= ]{_VALUE})?"
_ARGUMENT = rf"(?:{_OPTION}| '[^']*'| [^\s']*[A-Z\d/:={{}}][^\s']*)"
_VERB = "would|will|clears|closes|counts|does|ends|finishes|lists|moves|prevents|reads|runs|shows|starts|writes"
_UNBROKEN = re.compile(
    rf"(?<=: )bkctl .+?(?=; |, | (?:{_VERB}) |$)"
    rf"|\bbkctl(?:{_OPTION})*(?: [a-z][a-z-]*(?![\w:/.=])){{0,3}}{_ARGUMENT}*"
    r"|(?<![^\s(])/\S+|'/[^']+'"
)
"""Commands and paths. After a colon a command goes on to the next part of the sentence, or to a verb that says what it
does; elsewhere it has up to three words, then options and what is no plain word."""


class Layout(NamedTuple):
    """What is shown of rows: ``columns`` as a table, or as blocks; ``hidden`` are the columns left out.

    ``prose``: the width of each column of sentences that is wrapped, by its key.
    """

    columns: Sequence[Column]
    hidden: Sequence[Column] = ()
    is_blocks: bool = False
    prose: Mapping[str, int] = MappingProxyType({})

    def cell(self, column: Column, row: Row) -> list[str]:
        """Lines of the cell."""
        return wrapped(column.cell(row), self.prose.get(column.key))

    def widths(self, rows: Sequence[Row], *, has_headers: bool) -> list[int]:
        """Characters that each column of a table with these rows takes."""
        return [
            max([len(each.title) if has_headers else 0, *(len(line) for row in rows for line in self.cell(each, row))])
            for each in self.columns
        ]

    def row(self, widths: Sequence[int], row: Row) -> str:
        """One more row below a table with columns of these widths; longer text is not cut."""
        lines = zip_longest(*(self.cell(column, row) for column in self.columns), fillvalue="")
        return "\n".join(
            _COLUMN_GAP.join(
                text.rjust(width) if column.is_right else text.ljust(width)
                for column, width, text in zip(self.columns, widths, line, strict=True)
            ).rstrip()
            for line in lines
        )


def fit(
    columns: Sequence[Column], rows: Sequence[Row], width: int | None, *, has_headers: bool, is_wide: bool
) -> Layout:
    """The layout of a table within ``width`` characters; None: any width.

    Sentences are wrapped. If that is not enough, columns without a value in any row are left out first, then columns by
    their priority, the highest number first, and sentences last; ``wide`` shows all. Rows become blocks, with all
    columns, when the columns that must be shown do not fit.
    """
    layout = Layout(columns)
    if width is None:
        return layout
    while (prose := _prose_widths(layout, rows, width, has_headers=has_headers)) is None:
        shown = [*layout.columns]
        dispensable = [] if is_wide else [column for column in shown if column.priority or _is_blank(column, rows)]
        if not dispensable:
            return Layout(columns, is_blocks=bool(rows))
        shown.remove(max(reversed(dispensable), key=lambda each: _dispensability(each, rows)))
        layout = Layout(shown, [column for column in columns if column not in shown])
    return layout._replace(prose=prose)


def _prose_widths(layout: Layout, rows: Sequence[Row], width: int, *, has_headers: bool) -> dict[str, int] | None:
    """Widths of wrapped columns with which the table fits; None: it does not fit."""
    natural = layout.widths(rows, has_headers=has_headers)
    excess = sum(natural) + len(_COLUMN_GAP) * (len(natural) - 1) - width
    widths = {
        column.key: each
        for column, each in zip(layout.columns, natural, strict=True)
        if column.is_prose and each > _PROSE_WIDTH_MIN
    }
    least = {
        column.key: max([_PROSE_WIDTH_MIN, len(column.title), *(_longest_word(column.cell(row)) for row in rows)])
        for column in layout.columns
        if column.key in widths
    }
    wrapped_keys = set()
    while excess > 0:
        shrinkable = [key for key in widths if widths[key] > least[key]]
        if not shrinkable:
            return None
        widest = max(shrinkable, key=widths.__getitem__)
        wrapped_keys.add(widest)
        widths[widest] -= 1
        excess -= 1
    return {key: widths[key] for key in wrapped_keys}


def _longest_word(text: str) -> int:
    return max((len(part.rstrip()) for part in _parts(text)), default=0)


def _is_blank(column: Column, rows: Sequence[Row]) -> bool:
    return bool(rows) and all(row.get(column.key) is None for row in rows)


def _dispensability(column: Column, rows: Sequence[Row]) -> tuple[bool, bool, bool, int]:
    has_content = any(row.get(column.key) for row in rows)  # zero and "no" are not content
    return _is_blank(column, rows), not has_content, not column.is_prose, column.priority


def block(columns: Sequence[Column], row: Row, width: int | None) -> str:
    """A row as one line per column, or more where its text is long."""
    commands = [column.title for column in columns if column.is_command]
    return "\n".join(labeled([(column.title, column.cell(row)) for column in columns], width, commands))


def labeled(fields: Sequence[tuple[str, str]], width: int | None, commands: Collection[str] = ()) -> list[str]:
    """Lines of labels and texts, the texts below each other; long ones are wrapped between words, never inside.

    A text that does not fit next to its label begins on the next line. ``commands``: labels of shell commands; one that
    does not fit continues after a backslash, so that a shell takes its lines as one command.
    """
    indent = max((len(label) for label, _ in fields), default=0) + len(_LABEL_GAP)
    lines = []
    for label, text in fields:
        room = len(text) if width is None else width - indent
        if label in commands and len(text) > room and width is not None:
            lines += [label, *(_LABEL_GAP + line for line in _command_lines(text, width - len(_LABEL_GAP)))]
            continue
        if len(text) > room and (room < _WRAPPED_WIDTH_MIN or room < _longest_word(text)) and width is not None:
            below = wrapped(text, width - len(_LABEL_GAP))
            if max(map(len, below)) + len(_LABEL_GAP) <= width:
                lines += [label, *(_LABEL_GAP + line for line in below)]
                continue
        first, *more = wrapped(text, room)
        lines.append(label.ljust(indent) + first)
        lines += [" " * indent + line for line in more]
    return lines


def _command_lines(command: str, width: int) -> list[str]:
    """The command in lines of at most ``width`` characters, if its words are not longer."""
    first, *words = _WORD.findall(command)
    lines = [first]
    for word in words:
        if len(lines[-1]) + len(word) + 1 + len(_CONTINUED) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return [*(line + _CONTINUED for line in lines[:-1]), lines[-1]]


def wrapped(text: str, width: int | None) -> list[str]:
    """The text in lines of at most ``width`` characters, broken at spaces and after commas alone.

    Commands and paths are not broken, however long they are: a shell would run the lines of a pasted command, and the
    terminal breaks it without a new line.
    """
    if width is None or width < _WRAPPED_WIDTH_MIN or len(text) <= width:
        return [text]
    lines, line = [], ""
    for part in _parts(text):
        if line and len(line) + len(part.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += part
    return [*lines, line.rstrip()]


def _parts(text: str) -> list[str]:
    """The text in parts that are never broken."""
    inside = {place for found in _UNBROKEN.finditer(text) for place in range(found.start() + 1, found.end())}
    ends = [found.end() for found in _BREAK.finditer(text) if found.end() not in inside]
    return [text[begin:end] for begin, end in pairwise([0, *ends, len(text)]) if begin < end]
