"""Prints everything: results to stdout in the chosen format, messages to stderr."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final, TextIO, cast

import msgspec

from bkctl.commands import rendering, table_layout
from bkctl.commands.config import OutputForm, Settings
from bkctl.commands.errors import ReaderGoneError
from bkctl.commands.listing import Listing
from bkctl.commands.live_view import LiveView, LogStream, given_width
from bkctl.commands.progress import Progress, ProgressBar, Silence
from bkctl.commands.rendering import Column, Complete, Lines, Row, Table, clean, flat, is_color_wanted, painted, plain
from bkctl.commands.table_layout import Layout
from bkctl.commands.typed_line import read_line
from bkctl.runtime.errors import RefusedError
from bkctl.storage.severity import Severity, word

_TABLE_ROWS_MAX = 50
_LOG_LEVELS: Final = {Severity.WARNING: logging.WARNING, Severity.CRITICAL: logging.ERROR}
_ONE_DOCUMENT: Final = frozenset({OutputForm.JSON, OutputForm.YAML, OutputForm.CSV})
_READER_GONE = "stdout was closed by its reader"


class Console:
    """Prints for one invocation. Built from resolved settings and the streams; independent of the commands."""

    def __init__(
        self,
        settings: Settings,
        environment: Mapping[str, str],
        out: TextIO,
        err: TextIO,
        answers: TextIO,
        complete: Complete = str,
    ) -> None:
        """``complete``: adds to the commands in a text the options that this invocation was given for its cluster."""
        self._settings = settings
        self.complete = complete
        self._environment = environment
        self._out = out
        self._err = err
        self._answers = answers
        self._log: logging.Logger | None = None
        self._reported: set[str] = set()
        self._is_repeating = False
        self._live = LiveView(err if err.isatty() else out, environment)
        self._look: list[str] | None = None
        """What a look of ``watching`` has printed so far."""
        self._last_look: list[str] = []
        self._gathered: list[tuple[str, Row, Row]] | None = None

    @property
    def form(self) -> OutputForm:
        """Output format."""
        return self._settings.output

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
        The names of nested fields have dots.

        ``details`` are rows inside the object, in structured formats only; YAML alone needs all of them at once. Tables
        show them by ``table``. ``lines`` are the details that CSV prints instead of the object's fields.
        """
        body, details = self.completed(body), self.completed(details or {})
        lines = lines and lines._replace(rows=rendering.completed(lines.rows, self.complete))
        if self._gathered is not None:
            self._gathered.append((kind, body, details))
            if self.form in _ONE_DOCUMENT:
                return
            if self.is_for_people and len(self._gathered) > 1:
                self._write("")
        form, full = self.form, rendering.envelope(kind, {**body, **details})
        if form is OutputForm.JSON:
            self._write_parts(rendering.json_parts(full))
        elif form is OutputForm.JSONL:
            self._write_parts(rendering.json_parts(full, is_line=True))
        elif form is OutputForm.YAML:
            self._write(rendering.to_yaml(rendering.in_memory(full)))
        elif form is OutputForm.NAME:
            self._write(clean(plain(dict(flat(body))[name])) if name is not None else kind)
        elif form is OutputForm.CSV:
            self._write_csv(body, lines)
        else:
            self._write_fields(body, show or {})

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Inside, records are those of several: a form that is one document or one table has all at the end."""
        self._gathered = []
        try:
            yield
        finally:
            gathered, self._gathered = self._gathered, None
            if gathered and self.form in _ONE_DOCUMENT:
                kind, first, _ = gathered[0]
                table = Table(kind, *(Column(key, key) for key, _ in flat(first)))
                lines = Lines(table, [dict(flat(body)) for _, body, _ in gathered], is_cut=False)
                items = [{**body, **details} for _, body, details in gathered]
                self.record(f"{kind}List", {}, details={"items": items, "truncated": False}, lines=lines)

    def rows(self, table: Table, rows: Sequence[Row], *, is_truncated: bool = False) -> None:
        """Print a listing that is already complete."""
        with self.listing(table) as listing:
            for row in rows:
                listing.add(row)
            if is_truncated:
                listing.truncate()

    @contextmanager
    def listing(self, table: Table, *, is_live: bool = False) -> Iterator[Listing]:
        """Print objects as they arrive; formats that cannot stream are written at the end, unless the stream failed.

        ``is_live``: the rows of a table are printed from the first one on. Otherwise the first ones are kept until the
        widths of the columns are known.
        """
        listing = Listing(self._settings, table, self._write, self, is_live=is_live)
        yield listing
        self._finish(listing)

    def cut(self, lists: Mapping[str, Sequence[Row]], *, is_truncated: bool = False) -> dict[str, object]:
        """Details of a record: each list cut at ``--limit``, and ``truncated``, which is true if a row is missing."""
        limit = self._settings.limit
        is_cut = limit is not None and any(len(rows) > limit for rows in lists.values())
        return {**{key: rows[:limit] for key, rows in lists.items()}, "truncated": is_truncated or is_cut}

    def verdict(self, severity: Severity | None, sentence: str, *more_sentences: str) -> None:
        """Print what a command has come to in one sentence, before its result. ``severity`` None: nothing is wrong.

        ``more_sentences`` have a line each below it. Structured formats get them as messages.
        """
        if not self.is_for_people:
            self.report(severity or Severity.INFORMATION, sentence)
            for each in more_sentences:
                self.say(each)
            return
        self._write(self._labelled(self._out, word(severity), severity, f": {self._safe(sentence, '')}"))
        self.sentences(*more_sentences)

    def sentences(self, *sentences: str) -> None:
        """Print sentences as a part of the result, a line each, in table format only."""
        if self.is_for_people:
            for each in sentences:
                self._write(self._wrapped(self._out, self._safe(each, "")))

    def table(self, table: Table, rows: Sequence[Row], *, is_cut: bool = True, rows_max: int | None = None) -> None:
        """Print another table below a record, in table format only; structured formats have the rows inside the record.

        It ends at ``--limit`` if ``is_cut`` (for some commands the option has another meaning), on a terminal at
        ``rows_max`` rows (None: 50): ``grep`` must find all of them.
        """
        if not self.is_for_people or not rows:
            return
        limit = self._settings.limit if is_cut else None
        unasked = rows_max or _TABLE_ROWS_MAX if self._out.isatty() else len(rows)
        rows_max = unasked if limit is None else limit
        self._write("")
        self._write(self._wrapped(self._out, clean(table.title, "\n")))
        listing = Listing(msgspec.structs.replace(self._settings, sort=None, limit=None), table, self._write, self)
        for row in islice(rows, rows_max):
            listing.add(row)
        self._finish(listing)
        if len(rows) > rows_max:
            has_all = " (-o json has all)" if limit is None else ""
            self._write(f"... and {len(rows) - rows_max:,} more of {len(rows):,}{has_all}")

    def raw(self, data: bytes) -> None:
        """Write raw bytes to stdout, whatever the output format."""
        try:
            with self._live.above(self._out):
                self._out.flush()
                self._out.buffer.write(data)
                self._out.buffer.flush()
        except OSError as error:
            raise _not_written(error) from error

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
            self._write_message(self._safe(sentence), is_wrapped=True)

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
            self._write_message(self._labelled(self._err, f"{severity.value}:", severity, f" {self._safe(sentence)}"))

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

            self._write_message("".join(traceback.format_exception(traceback_of)), end="")
        self._write_message(self._labelled(self._err, "error:", Severity.CRITICAL, f" {self._safe(sentence)}"))

    async def confirm(self, question: str) -> None:
        """Ask yes or no after a plan was shown; anything but yes, no terminal, or end of input raises RefusedError.

        Must be awaited before any change: a signal cancels it immediately, like all other waiting.
        """
        if self._settings.assume_yes:
            return
        if not self._answers.isatty():
            raise RefusedError("nothing was changed: confirmation required, but stdin is not a terminal: use --yes")
        with self.asking():
            self._write_message(f"{self._safe(question)} [y/N]", end=" ", is_wrapped=True)
            try:
                answer = await read_line(self._answers)
            except BaseException:
                self._write_message("")  # so that the next message begins on its own line
                raise
        if answer.strip().lower() not in {"y", "yes"}:
            if not answer.endswith("\n"):
                self._write_message("")
            raise RefusedError("nothing was changed: the answer was no")

    # --- what is drawn again and again ---------------------------------------------------------------------------

    @property
    def prints_progress_lines(self) -> bool:
        """Whether the progress of a long job is printed as lines, because there is no terminal for a bar."""
        return not self._live.can_draw_on(self._err) and self._has_progress

    @contextmanager
    def progress(self, description: str) -> Iterator[Progress]:
        """A bar on stderr while a long job runs; only on a terminal, and not with ``--no-progress``."""
        if not (self._live.can_draw_on(self._err) and self._has_progress):
            yield Silence()
            return
        bar = ProgressBar(description, time.monotonic)
        with self._live.showing(bar.lines):
            yield bar

    @property
    def _has_progress(self) -> bool:
        return self._settings.has_progress and not self._settings.is_quiet

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around all looks of ``--watch``: on a terminal each replaces the one before, and the last one stays."""
        if not self._live.can_draw_on(self._out) or not self.is_for_people:
            yield
            return
        self._look = []
        try:
            with self._live.showing(lambda _: self._last_look, is_screen=True):
                yield
        finally:
            self._look = None
            for line in self._last_look:
                self._write(line)

    def end_look(self) -> None:
        """Show what was printed since the last call, if ``watching``."""
        if self._look is not None:
            self._look, self._last_look = [], self._look

    @property
    def log_stream(self) -> TextIO:
        """Stderr for log lines: they are printed above what is drawn."""
        return cast("TextIO", LogStream(self._err, self._live))

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Inside, the operator types an answer, and nothing is drawn."""
        with self._live.hidden():
            yield

    # --- streams -----------------------------------------------------------------------------------------------

    def _labelled(self, stream: TextIO, label: str, severity: Severity | None, rest: str) -> str:
        """A label, in the colour of the severity, and a sentence, wrapped for the stream."""
        text = self._wrapped(stream, label + rest)
        if severity is None:
            return text
        return painted(label, severity, is_colored=self._is_colored(stream)) + text[len(label) :]

    def _safe(self, text: str, kept: str = "\n") -> str:
        """A sentence as it is printed. Its line breaks are kept: it may quote text from other sources."""
        return clean(self.complete(text), kept)

    def completed(self, row: Row) -> Row:
        """A row with the commands in its texts completed."""
        return rendering.completed(row, self.complete)

    def _wrapped(self, stream: TextIO, text: str) -> str:
        width = self._width_of(stream)
        return "\n".join(line for part in text.split("\n") for line in table_layout.wrapped(part, width))

    def _write_message(self, text: str, end: str = "\n", *, is_wrapped: bool = False) -> None:
        text = self._wrapped(self._err, text) if is_wrapped else text
        if self._look is not None and self._err.isatty():
            self._look += text.split("\n")
            return
        # A closed pipe or a terminal that was hung up must not stop the work half way.
        with contextlib.suppress(OSError), self._live.above(self._err):
            print(text, end=end, file=self._err, flush=True)

    def _write(self, text: str) -> None:
        if self._look is not None:
            self._look += text.split("\n")
            return
        try:
            with self._live.above(self._out):
                print(text, file=self._out, flush=True)
        except OSError as error:
            raise _not_written(error) from error

    def _write_parts(self, parts: Iterable[str]) -> None:
        with self._live.above(self._out):  # an object is one line, or has no line end before its own
            for part in parts:
                try:
                    self._out.write(part)
                except OSError as error:
                    raise _not_written(error) from error
            self._write("")

    def _write_csv(self, body: Row, lines: Lines | None) -> None:
        fields = dict(flat(body))
        keys = list(fields) if lines is None else [column.key for column in lines.table.columns]
        if self._settings.has_headers:
            self._write(rendering.to_csv_line(keys))
        rows_max = self._settings.limit if lines is None or lines.is_cut else None
        for row in [fields] if lines is None else islice(lines.rows, rows_max):
            self._write(rendering.to_csv_line(map(row.get, keys)))

    def _write_fields(self, body: Row, show: Mapping[str, Callable[[object], str]]) -> None:
        fields = [
            (
                clean(key),
                self._safe(show[key](value), "") if key in show else clean(plain(value)),
            )
            for key, value in flat(body)
        ]
        for line in table_layout.labeled(fields, self.width):
            self._write(line)

    # --- tables ------------------------------------------------------------------------------------------------

    @property
    def width(self) -> int | None:
        """Width in characters of the terminal that results go to; None if it is no terminal or its width is unknown."""
        return self._width_of(self._out)

    def _width_of(self, stream: TextIO) -> int | None:
        if not stream.isatty():
            return None
        if (given := given_width(self._environment)) is not None:
            return given
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(stream.fileno()).columns or None
        return None

    def layout(self, columns: Sequence[Column], rows: Sequence[Row]) -> Layout:
        """Which columns to show of these rows, and how."""
        is_wide = self.form is OutputForm.WIDE
        return table_layout.fit(columns, rows, self.width, has_headers=self._settings.has_headers, is_wide=is_wide)

    def _finish(self, listing: Listing) -> None:
        text = listing.finish()
        if text is not None:
            self._write(text)
        if listing.layout is not None and listing.layout.hidden:
            names = ", ".join(column.title for column in listing.layout.hidden)
            self.say(f"Columns not shown: {names} (-o wide shows all)")

    def table_text(self, layout: Layout, rows: Sequence[Row]) -> str:
        """Rows as a table, or as blocks."""
        if layout.is_blocks:
            return "\n\n".join(self.block_text(layout, row) for row in rows)
        from bkctl.commands.table_text import table_text

        is_colored = self._is_colored(self._out)
        return table_text(layout, rows, has_headers=self._settings.has_headers, is_colored=is_colored)

    def block_text(self, layout: Layout, row: Row) -> str:
        """One row as a block."""
        return table_layout.block(layout.columns, row, self.width)

    def _is_colored(self, stream: TextIO) -> bool:
        is_wanted = is_color_wanted(self._settings.color, self._environment)
        return stream.isatty() if is_wanted is None else is_wanted


def standard_console(settings: Settings, environment: Mapping[str, str], complete: Complete = str) -> Console:
    """A console on this process's standard streams."""
    return Console(settings, environment, sys.stdout, sys.stderr, sys.stdin, complete)


def _not_written(error: OSError) -> Exception:
    """Adds the name stdout to an error of writing to it, so that a full disk can be identified."""
    if isinstance(error, BrokenPipeError):
        return ReaderGoneError(_READER_GONE)
    return OSError(error.errno, error.strerror, "stdout")
