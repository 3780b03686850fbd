"""A listing in progress: rows are added one by one, sorted, limited and written in the chosen format."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from bkctl.commands import rendering
from bkctl.commands.config import OutputForm, Settings
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.rendering import Column, Row, Table
from bkctl.commands.table_layout import Layout

_ROWS_MEASURED = 1000
_DIRECTIONS = ("asc", "desc")
_INTEGER = re.compile(r"-?\d+", re.ASCII)


class TableWriter(Protocol):
    """What makes text of table rows: the console, which knows the terminal."""

    def layout(self, columns: Sequence[Column], rows: Sequence[Row]) -> Layout:
        """What is shown of these rows."""

    def table_text(self, layout: Layout, rows: Sequence[Row]) -> str:
        """Rows as a table, or as blocks."""

    def block_text(self, layout: Layout, row: Row) -> str:
        """One row as a block."""

    def completed(self, row: Row) -> Row:
        """A row with the commands in its texts completed."""


class Listing:
    """A listing in progress: formats with one line per item are written immediately, the others at the end.

    A table is as wide as its first rows need; longer ones go on below it as they come.
    """

    def __init__(
        self,
        settings: Settings,
        table: Table,
        write: Callable[[str], None],
        tables: TableWriter,
        *,
        is_live: bool = False,
    ) -> None:
        """``is_live``: a table is written row by row from the first one on, because the next may take long."""
        self._order = None if settings.sort is None else parse_order(settings.sort, table.columns)
        self._settings = settings
        self._form = form = settings.output
        self._kind, self._columns, self._name = table.title, table.columns, table.name
        self._write = write
        self._tables = tables
        self._shown = [each for each in table.columns if form is OutputForm.WIDE or not each.is_wide]
        self._is_table = form in {OutputForm.TABLE, OutputForm.WIDE}
        self.layout: Layout | None = None
        """How the table is shown, once that is known."""
        self._widths: list[int] = []
        self._rows: list[Row] = []
        self._added_count = 0
        self._is_truncated = False
        self._rows_measured = 1 if is_live else _ROWS_MEASURED
        self._is_streamed = settings.sort is None and form in {OutputForm.JSONL, OutputForm.CSV, OutputForm.NAME}
        if form is OutputForm.CSV and settings.has_headers:
            write(rendering.to_csv_line(column.key for column in table.columns))

    def end_if_full(self) -> bool:
        """Whether ``--limit`` is reached: then the listing is truncated, and reading further is of no use."""
        limit = self._settings.limit
        is_full = self._settings.sort is None and limit is not None and self._added_count >= limit
        self._is_truncated = self._is_truncated or is_full
        return is_full

    def add(self, row: Row) -> None:
        """Add a row; beyond ``--limit`` it only marks the listing as truncated."""
        if self.end_if_full():
            return
        self._added_count += 1
        row = self._tables.completed(row)
        if self._is_streamed:
            self._write(self._line(row))
        elif self.layout is not None:
            self._write(self._further_row(self.layout, row))
        else:
            self._rows.append(row)
            if self._is_table and self._settings.sort is None and len(self._rows) == self._rows_measured:
                self._begin_table()

    def truncate(self) -> None:
        """Mark the listing as truncated."""
        self._is_truncated = True

    def _begin_table(self) -> None:
        """Write the rows so far, then the rest line by line, so that a long table is never in memory as a whole."""
        self.layout = layout = self._tables.layout(self._shown, self._rows)
        self._write(self._tables.table_text(layout, self._rows))
        self._widths = layout.widths(self._rows, has_headers=self._settings.has_headers)
        self._rows.clear()

    def _further_row(self, layout: Layout, row: Row) -> str:
        if layout.is_blocks:
            return "\n" + self._tables.block_text(layout, row)
        return layout.row(self._widths, row)

    def finish(self) -> str | None:
        """Text that is still to be written, if any."""
        self._sort_and_cut()
        if self._is_streamed:
            return None
        if self._form in {OutputForm.JSON, OutputForm.YAML}:
            body = {"items": self._rows, "truncated": self._is_truncated}
            full = rendering.envelope(self._kind, body)
            return rendering.to_json(full) if self._form is OutputForm.JSON else rendering.to_yaml(full)
        if self._is_table:
            more = f"... more than {self._added_count if self._settings.sort is None else len(self._rows)}"
            if self.layout is not None:
                return more if self._is_truncated else None
            self.layout = self._tables.layout(self._shown, self._rows)
            text = self._tables.table_text(self.layout, self._rows)
            return f"{text}\n{more}" if self._is_truncated else text
        return "\n".join(map(self._line, self._rows)) or None

    def _line(self, row: Row) -> str:
        if self._form is OutputForm.JSONL:
            return rendering.to_json_line(row)
        if self._form is OutputForm.CSV:
            return rendering.to_csv_line(row.get(column.key) for column in self._columns)
        return rendering.clean(rendering.plain(row[self._name]))

    def _sort_and_cut(self) -> None:
        if self._order is not None:
            self._rows = self._order.sorted(self._rows)
            if self._settings.limit is not None and len(self._rows) > self._settings.limit:
                del self._rows[self._settings.limit :]
                self._is_truncated = True


class RowOrder(NamedTuple):
    """What ``--sort`` asks for."""

    field: str
    is_descending: bool

    def sorted(self, rows: Sequence[Row]) -> list[Row]:
        """Rows without a value are last in both directions; equal ones keep their order."""
        known = [row for row in rows if row.get(self.field) is not None]
        unknown = [row for row in rows if row.get(self.field) is None]
        return sorted(known, key=_sort_key(self.field), reverse=self.is_descending) + unknown


def require_no_listing_options(settings: Settings) -> None:
    """InvalidArgumentError for options of a listing, when ``--count`` asks for the number alone."""
    for option, value in (("--sort", settings.sort), ("--limit", settings.limit)):
        if value is not None:
            raise InvalidArgumentError(f"--count lists nothing: omit {option} or --count")


def parse_order(text: str, columns: Sequence[Column]) -> RowOrder:
    """The value of ``--sort``; InvalidArgumentError unless it names one of the columns, by its key or its heading."""
    named, colon, direction = text.partition(":")
    keys = [column.key for column in columns]
    headings = {column.title.casefold(): column.key for column in columns}
    field = named if named in keys else headings.get(named.casefold())
    if field is None:
        raise InvalidArgumentError(f"cannot sort by '{named}': this listing has the fields {', '.join(keys)}")
    if colon and direction not in _DIRECTIONS:
        raise InvalidArgumentError(f"invalid sort direction '{direction}': use {field}:asc or {field}:desc")
    return RowOrder(field, direction == "desc")


def _sort_key(key: str) -> Callable[[Row], tuple[bool, float, str]]:
    def key_of(row: Row) -> tuple[bool, float, str]:
        value = row.get(key)
        text = rendering.plain(value)
        is_number = isinstance(value, (int, float)) or (
            isinstance(value, str) and _INTEGER.fullmatch(value) is not None
        )
        return not is_number, float(text) if is_number else 0.0, text

    return key_of
