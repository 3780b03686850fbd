"""Prints everything: results to stdout in the chosen format, messages to stderr."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final, TextIO

from bkctl.commands import rendering, table_layout
from bkctl.commands.config import ColorMode, OutputForm, Settings
from bkctl.commands.errors import ReaderGoneError
from bkctl.commands.listing import Listing
from bkctl.commands.progress import Progress, Silence, progress_bar
from bkctl.commands.rendering import Column, Lines, Row, Table
from bkctl.commands.table_layout import Layout
from bkctl.runtime.errors import RefusedError
from bkctl.storage.severity import Severity

_TABLE_ROWS_MAX = 50
_STYLES: Final = {Severity.INFORMATION: "36", Severity.WARNING: "33", Severity.CRITICAL: "1;31"}
"""How a severity looks on a terminal: parameters of the escape sequence SGR."""
_LOG_LEVELS: Final = {Severity.WARNING: logging.WARNING, Severity.CRITICAL: logging.ERROR}
_READER_GONE = "stdout was closed by its reader"


class Console:
    """Prints for one invocation. Built from resolved settings and the streams; independent of the commands."""

    def __init__(
        self, settings: Settings, environment: Mapping[str, str], out: TextIO, err: TextIO, answers: TextIO
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._out = out
        self._err = err
        self._answers = answers
        self._log: logging.Logger | None = None
        self._reported: set[str] = set()
        self._is_repeating = False

    @property
    def form(self) -> OutputForm:
        """Output format: the requested one, else a table on a terminal and JSON otherwise."""
        if self._settings.output is not None:
            return self._settings.output
        return OutputForm.TABLE if self._out.isatty() else OutputForm.JSON

    @property
    def is_for_people(self) -> bool:
        """Whether results are tables."""
        return self.form in {OutputForm.TABLE, OutputForm.WIDE}

    # --- results -----------------------------------------------------------------------------------------------

    def record(
        self,
        kind: str,
        body: Row,
        *,
        name: str | None = None,
        show: Mapping[str, Callable[[object], str]] | None = None,
        details: Row | None = None,
        lines: Lines | None = None,
    ) -> None:
        """Print one object; ``name`` is the key that ``-o name`` prints, ``show`` formats the fields of a table.

        ``details`` are rows inside the object, in structured formats only; YAML alone needs all of them at once. Tables
        show them by ``table``. ``lines`` are the details that CSV prints instead of the object's fields.
        """
        form, full = self.form, rendering.envelope(kind, {**body, **(details or {})})
        if form is OutputForm.JSON:
            self._write_parts(rendering.json_parts(full))
        elif form is OutputForm.JSONL:
            self._write_parts(rendering.json_parts(full, is_line=True))
        elif form is OutputForm.YAML:
            self._write(rendering.to_yaml(rendering.in_memory(full)))
        elif form is OutputForm.NAME:
            self._write(rendering.clean(rendering.plain(body[name])) if name is not None else kind)
        elif form is OutputForm.CSV:
            self._write_csv(body, lines)
        else:
            self._write_fields(body, show or {})

    def rows(self, table: Table, rows: Sequence[Row], *, is_truncated: bool = False) -> None:
        """Print a listing that is already complete."""
        with self.listing(table) as listing:
            for row in rows:
                listing.add(row)
            if is_truncated:
                listing.truncate()

    @contextmanager
    def listing(self, table: Table) -> Iterator[Listing]:
        """Print objects as they arrive; formats that cannot stream are written at the end, unless the stream failed."""
        listing = Listing(self._settings, self.form, table, self._write, self)
        yield listing
        text = listing.finish()
        if text is not None:
            self._write(text)
        if listing.layout is not None:
            self._say_hidden(listing.layout)

    def cut(self, lists: Mapping[str, Sequence[Row]], *, is_truncated: bool = False) -> dict[str, object]:
        """Details of a record: each list cut at ``--limit``, and ``truncated``, which is true if a row is missing."""
        limit = self._settings.limit
        is_cut = limit is not None and any(len(rows) > limit for rows in lists.values())
        return {**{key: rows[:limit] for key, rows in lists.items()}, "truncated": is_truncated or is_cut}

    def table(self, table: Table, rows: Sequence[Row], *, is_cut: bool = True) -> None:
        """Print another table below a record, in table format only; structured formats have the rows inside the record.

        It ends at ``--limit`` if ``is_cut`` (for some commands the option has another meaning), or at 50 rows.
        """
        if not self.is_for_people or not rows:
            return
        limit = self._settings.limit if is_cut else None
        rows_max = _TABLE_ROWS_MAX if limit is None else limit
        self._write("")
        self._write(rendering.clean(table.title, "\n"))
        shown_rows = rows[:rows_max]
        layout = self.layout(rendering.shown_columns(table.columns, self.form), shown_rows)
        self._write(self.table_text(layout, shown_rows))
        if len(rows) > rows_max:
            self._write(f"... and {len(rows) - rows_max} more" + (" (-o json has them all)" if limit is None else ""))
        self._say_hidden(layout)

    def raw(self, data: bytes) -> None:
        """Write raw bytes to stdout, whatever the output format."""
        try:
            self._out.flush()
            self._out.buffer.write(data)
            self._out.buffer.flush()
        except OSError as error:
            raise _not_written(error) from error

    def verdict(self, severity: Severity | None, sentence: str) -> None:
        """Print what a command has come to, before its result; None: all is well.

        It is the first line of a table's text. Structured formats get it as a message.
        """
        if not self.is_for_people:
            self.report(severity or Severity.INFORMATION, sentence)
            return
        label = (
            ""
            if severity is None
            else f"{_painted(f'{severity.value}:', severity, is_colored=self._is_colored(self._out))} "
        )
        self._write(f"{label}{_escape(sentence)}")

    # --- messages ----------------------------------------------------------------------------------------------

    def log_messages(self, log: logging.Logger) -> None:
        """Log all further messages instead of printing them, so that they have the form of the log's lines."""
        self._log = log

    def say(self, sentence: str) -> None:
        """Print an informational message; silent with ``--quiet``."""
        if self._settings.is_quiet:
            return
        if self._log is not None:
            self._log.info("%s", sentence)
        else:
            self._write_message(_escape(sentence))

    def warn(self, sentence: str) -> None:
        """Print a warning, also with ``--quiet``."""
        self.report(Severity.WARNING, sentence)

    def report(self, severity: Severity, sentence: str) -> None:
        """Print a finding with its severity; ``--quiet`` silences information alone."""
        if severity is Severity.INFORMATION:
            self.say(sentence)
        elif self._log is not None:
            self._log.log(_LOG_LEVELS[severity], "%s", sentence)
        elif not (self._is_repeating and sentence in self._reported):
            self._reported.add(sentence)
            label = _painted(f"{severity.value}:", severity, is_colored=self._is_colored(self._err))
            self._write_message(f"{label} {_escape(sentence)}")

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """Inside, the command looks at the same things again: no warning is printed a second time."""
        self._is_repeating = True
        try:
            yield
        finally:
            self._is_repeating = False

    def error(self, sentence: str, *, traceback_of: BaseException | None = None) -> None:
        """Print why the command failed, also with ``--quiet``; before it the traceback of an error, if given."""
        if self._log is not None:
            self._log.error("%s", sentence, exc_info=traceback_of)
            return
        if traceback_of is not None:
            import traceback

            traceback.print_exception(traceback_of, file=self._err)
        label = _painted("error:", Severity.CRITICAL, is_colored=self._is_colored(self._err))
        self._write_message(f"{label} {_escape(sentence)}")

    async def confirm(self, question: str) -> None:
        """Ask yes or no after a plan was shown; anything but yes, no terminal, or end of input raises RefusedError.

        Must be awaited before any change: a signal cancels it immediately, like all other waiting.
        """
        if self._settings.assume_yes:
            return
        if not self._answers.isatty():
            raise RefusedError("nothing was changed: confirmation required, but stdin is not a terminal: use --yes")
        self._write_message(f"{_escape(question)} [y/N] ", end="")
        try:
            answer = await read_line(self._answers)
        except BaseException:
            self._write_message("")  # so that the next message begins on its own line
            raise
        if answer.strip().lower() not in {"y", "yes"}:
            if not answer.endswith("\n"):
                self._write_message("")
            raise RefusedError("nothing was changed: the answer was no")

    @property
    def prints_progress_lines(self) -> bool:
        """Whether the progress of a long job is printed as lines, because there is no terminal for a bar."""
        return not self._err.isatty() and self._settings.has_progress and not self._settings.is_quiet

    @contextmanager
    def progress(self, description: str) -> Iterator[Progress]:
        """A bar on stderr while a long job runs; only on a terminal, and not with ``--no-progress``."""
        if not self._err.isatty() or not self._settings.has_progress or self._settings.is_quiet:
            yield Silence()
            return
        with progress_bar(self._err, description, is_colored=self._is_colored(self._err)) as progress:
            yield progress

    # --- streams -----------------------------------------------------------------------------------------------

    def _write_message(self, text: str, end: str = "\n") -> None:
        # A closed pipe or a terminal that was hung up must not stop the work half way.
        with contextlib.suppress(OSError):
            print(text, end=end, file=self._err, flush=True)

    def _write(self, text: str) -> None:
        try:
            print(text, file=self._out, flush=True)
        except OSError as error:
            raise _not_written(error) from error

    def _write_parts(self, parts: Iterable[str]) -> None:
        for part in parts:
            try:
                self._out.write(part)
            except OSError as error:
                raise _not_written(error) from error
        self._write("")

    def _write_csv(self, body: Row, lines: Lines | None) -> None:
        fields = dict(rendering.flat(body))
        keys = list(fields) if lines is None else [column.key for column in lines.table.columns]
        if self._settings.has_headers:
            self._write(rendering.to_csv_line(keys))
        rows_max = self._settings.limit if lines is None or lines.is_cut else None
        for row in [fields] if lines is None else islice(lines.rows, rows_max):
            self._write(rendering.to_csv_line(map(row.get, keys)))

    def _write_fields(self, body: Row, show: Mapping[str, Callable[[object], str]]) -> None:
        fields = [(rendering.clean(key), show.get(key, rendering.plain)(value)) for key, value in rendering.flat(body)]
        for line in table_layout.labeled([(key, rendering.clean(text)) for key, text in fields], self.width):
            self._write(line)

    # --- tables ------------------------------------------------------------------------------------------------

    @property
    def width(self) -> int | None:
        """Width in characters of the terminal that results go to; None if it is no terminal or its width is unknown."""
        if not self._out.isatty():
            return None
        if (columns := self._environment.get("COLUMNS", "")).isdecimal() and int(columns) > 0:
            return int(columns)
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(self._out.fileno()).columns or None
        return None

    def layout(self, columns: Sequence[Column], rows: Sequence[Row]) -> Layout:
        """Which columns to show of these rows, and how."""
        is_wide = self.form is OutputForm.WIDE
        return table_layout.fit(columns, rows, self.width, has_headers=self._settings.has_headers, is_wide=is_wide)

    def _say_hidden(self, layout: Layout) -> None:
        if layout.hidden:
            names = ", ".join(column.title for column in layout.hidden)
            for line in table_layout.wrapped(f"Columns not shown: {names} (-o wide shows all)", self.width):
                self.say(line)

    def table_text(self, layout: Layout, rows: Sequence[Row]) -> str:
        """Rows as a table, or as blocks."""
        if layout.is_blocks:
            return "\n\n".join(self.block_text(layout, row) for row in rows)
        return self._table(layout.columns, rows)

    def block_text(self, layout: Layout, row: Row) -> str:
        """One row as a block."""
        return table_layout.block(layout.columns, row, self.width)

    def _table(self, columns: Sequence[Column], rows: Sequence[Row]) -> str:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console as RichConsole
        from rich.measure import Measurement
        from rich.table import Table as RichTable
        from rich.text import Text

        is_colored = self._is_colored(self._out)

        def cell(column: Column, row: Row) -> Text:
            text = column.cell(row)
            if column.key == "severity" and text:
                return Text.from_ansi(_painted(text, Severity(text), is_colored=is_colored))
            return Text(text)

        table = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_header=self._settings.has_headers, show_edge=False)
        for column in columns:
            table.add_column(column.title, justify="right" if column.is_right else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(cell(column, row) for column in columns))
        console = RichConsole(
            file=self._out,
            no_color=not is_colored,
            force_terminal=is_colored,
            highlight=False,
            emoji=False,
            width=10_000,
        )
        # Never truncate an id because the terminal is narrow: a table is as wide as it needs to be.
        console.width = max(1, Measurement.get(console, console.options, table).maximum)
        try:
            with console.capture() as capture:
                console.print(table)
        except OSError as error:  # it uses the stream although the text is held back
            raise _not_written(error) from error
        return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))

    def _is_colored(self, stream: TextIO) -> bool:
        mode = self._settings.color
        if mode is not ColorMode.AUTO:
            return mode is ColorMode.ALWAYS
        if self._environment.get("NO_COLOR") or self._environment.get("TERM") == "dumb":
            return False
        return bool(self._environment.get("FORCE_COLOR")) or stream.isatty()


def standard_console(settings: Settings, environment: Mapping[str, str]) -> Console:
    """A console on this process's standard streams."""
    return Console(settings, environment, sys.stdout, sys.stderr, sys.stdin)


def _painted(text: str, severity: Severity, *, is_colored: bool) -> str:
    return f"\x1b[{_STYLES[severity]}m{text}\x1b[0m" if is_colored else text


def _not_written(error: OSError) -> Exception:
    """Adds the name stdout to an error of writing to it, so that a full disk can be identified."""
    if isinstance(error, BrokenPipeError):
        return ReaderGoneError(_READER_GONE)
    return OSError(error.errno, error.strerror, "stdout")


def _escape(text: str) -> str:
    """Escape the text, but keep its line breaks: it may quote text from other sources."""
    return rendering.clean(text, "\n")


async def read_line(stream: TextIO) -> str:
    """A line typed on a terminal; "" at the end of input. The event loop keeps running, for signals and sessions.

    A terminal becomes readable when a line is complete, so the read itself does not block.
    """
    import asyncio  # most invocations ask nothing

    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(stream.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(stream.fileno())
    return stream.readline()
