"""Rows as the text of a table. Loads rich, so only a command that prints a table imports it."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console as RichConsole
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from bkctl.commands.rendering import Column, Row, painted
from bkctl.commands.table_layout import Layout
from bkctl.storage.severity import Severity


def table_text(layout: Layout, rows: Sequence[Row], *, has_headers: bool, is_colored: bool) -> str:
    """A table as wide as it needs to be: no id is cut because the terminal is narrow."""

    def cell(column: Column, row: Row) -> Text:
        text = "\n".join(layout.cell(column, row))
        if column.key == "severity" and text:
            return Text.from_ansi(painted(text, Severity(text), is_colored=is_colored))
        return Text(text)

    table = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_header=has_headers, show_edge=False)
    for column in layout.columns:
        table.add_column(column.title, justify="right" if column.is_right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(cell(column, row) for column in layout.columns))
    text = io.StringIO()
    console = RichConsole(
        file=text, no_color=not is_colored, force_terminal=is_colored, highlight=False, emoji=False, width=10_000
    )
    console.width = max(1, Measurement.get(console, console.options, table).maximum)
    console.print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip("\n").split("\n"))
