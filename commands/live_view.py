"""Lines at the bottom of a terminal that are drawn again in place, while other text is printed above them.

The cursor waits at the start of the first line, so that everything from the cursor on can be erased, whatever a resized
terminal has done to the lines. ``rich.live`` instead moves up by the height it remembers, which leaves old lines on a
resized terminal, and it does not handle Ctrl-Z.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

DRAW_PAUSE_S = 0.1
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_ERASE_REST, _ERASE_BELOW = "\x1b[K", "\x1b[J"
_ERASE = f"\r{_ERASE_REST}\x1b[C{_ERASE_BELOW}\r"
"""Not from the first column: tmux would take it for a new screen, and keep the lines in its history."""
_ENTER_SCREEN, _LEAVE_SCREEN, _HOME = "\x1b[?1049h", "\x1b[?1049l", "\x1b[H"
_USUAL_SIZE = os.terminal_size((80, 24))

DrawnLines = Callable[[int], Sequence[str]]
"""The lines for a terminal of this width. Called from another thread, and must not take a lock."""


class LiveView:
    """What is shown at the bottom of the terminal ``stream``. Any thread may print above it."""

    def __init__(self, stream: TextIO, environment: Mapping[str, str]) -> None:
        self._stream = stream
        self._environment = environment
        self._parts: list[DrawnLines] = []
        self._lock = threading.RLock()  # re-entrant: Ctrl-Z may come while this thread has it
        self._drawn: tuple[Sequence[str], os.terminal_size] | None = None
        self._is_over = threading.Event()
        self._is_screen = False
        self._questions = 0

    def can_draw_on(self, stream: TextIO) -> bool:
        """Whether ``stream`` is a terminal that can move its cursor."""
        return stream.isatty() and self._environment.get("TERM") != "dumb"

    @contextmanager
    def showing(self, lines: DrawnLines, *, is_screen: bool = False) -> Iterator[None]:
        """Show these lines, below those that are shown already; with ``is_screen`` on a screen of their own."""
        self._parts.append(lines)
        try:
            if len(self._parts) == 1:
                self._is_screen = is_screen
                self._start()
            yield
        finally:
            with self._lock:
                self._parts.remove(lines)
                if not self._parts:
                    self._stop()

    @contextmanager
    def above(self, stream: TextIO) -> Iterator[None]:
        """Inside, ``stream`` may be written, and the terminal shows no lines of this; the end must be a line end."""
        if self._parts and stream.isatty():
            with self._lock:
                self._erase()
                yield
        else:
            yield

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Inside, nothing is drawn: the operator is asked something. Other threads may print meanwhile."""
        with self._lock:
            self._erase()
            self._questions += 1
        try:
            yield
        finally:
            self._questions -= 1

    def _start(self) -> None:
        if _is_main_thread() and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._suspend)  # before there is anything to erase
        self._is_over, is_drawn = threading.Event(), threading.Event()
        # Never in this thread: Ctrl-Z would come between the drawing and the note that there is something to erase.
        drawing = (self._is_over, is_drawn)
        threading.Thread(target=self._draw_until, args=drawing, name="live-view", daemon=True).start()
        is_drawn.wait()  # also if the work is short

    def _stop(self) -> None:
        self._is_over.set()
        self._erase()
        if _is_main_thread() and signal.getsignal(signal.SIGTSTP) == self._suspend:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def _draw_until(self, is_over: threading.Event, is_drawn: threading.Event) -> None:
        while not is_over.is_set():
            try:
                self._draw(is_over)
            finally:
                is_drawn.set()
            is_over.wait(DRAW_PAUSE_S)

    def _draw(self, is_over: threading.Event) -> None:
        with self._lock:
            if is_over.is_set() or self._questions or not self._is_in_foreground():
                return
            size = self._size()
            lines = _cut([line for part in self._parts for line in part(size.columns - 1)], size)
            if not lines:
                self._erase()
            elif self._drawn != (lines, size):
                up = 0 if self._is_screen else sum(_rows(line, size) for line in lines) - 1
                start = "\r"
                if self._is_screen:
                    start = _HOME if self._drawn is not None else _ENTER_SCREEN + _HOME
                text = "\n".join(line if _fills_its_rows(line, size) else line + _ERASE_REST for line in lines)
                self._put(f"{start}{_HIDE_CURSOR}{text}{_ERASE_BELOW}\r" + (f"\x1b[{up}A" if up else ""))
                self._drawn = lines, size

    def _erase(self) -> None:
        if self._drawn is not None:
            self._put((_LEAVE_SCREEN if self._is_screen else _ERASE) + _SHOW_CURSOR)
            self._drawn = None

    def _suspend(self, number: int, _: object) -> None:
        """Ctrl-Z: the shell gets a clean terminal. When the process goes on, the lines are drawn again."""
        with self._lock:
            self._erase()
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            signal.signal(number, self._suspend)

    def _put(self, text: str) -> None:
        # Not through the stream's buffer: a signal may come while the stream writes it. A closed terminal is no error.
        with contextlib.suppress(OSError):
            try:
                descriptor = self._stream.fileno()
            except OSError:  # not of the system
                self._stream.write(text)
            else:
                data = text.encode(self._stream.encoding or "utf-8", "replace")
                while data:  # a signal ends a write that has begun
                    data = data[os.write(descriptor, data) :]

    def _is_in_foreground(self) -> bool:
        """Whether the terminal is this process's: a background job must not draw between the lines of the shell."""
        try:
            return os.tcgetpgrp(self._stream.fileno()) == os.getpgrp()
        except OSError:  # it is not the terminal of this session, so no shell shares it
            return True

    def _size(self) -> os.terminal_size:
        try:
            found = os.get_terminal_size(self._stream.fileno())
        except OSError:
            found = _USUAL_SIZE
        columns = min(filter(None, (found.columns, given_width(self._environment))), default=_USUAL_SIZE.columns)
        return os.terminal_size((columns, found.lines or _USUAL_SIZE.lines))


def given_width(environment: Mapping[str, str]) -> int | None:
    """The width that the user has set for every terminal."""
    columns = environment.get("COLUMNS", "")
    return int(columns) or None if columns.isdecimal() else None


def _width_of(line: str) -> int:
    from rich.cells import cell_len  # most invocations draw nothing

    return cell_len(_ESCAPE.sub("", line))


def _fills_its_rows(line: str, size: os.terminal_size) -> bool:
    """Whether the cursor stays on the last character, which erasing the rest would take."""
    width = _width_of(line)
    return width > 0 and width % size.columns == 0


def _rows(line: str, size: os.terminal_size) -> int:
    return max(1, -(-_width_of(line) // size.columns))


def _cut(lines: Sequence[str], size: os.terminal_size) -> Sequence[str]:
    """The first lines that fit the terminal; the last of them says how many are missing."""
    rows_max, rows = max(1, size.lines - 1), 0
    for number, line in enumerate(lines):
        rows += _rows(line, size)
        if rows > rows_max or (rows == rows_max and number + 1 < len(lines)):
            return [*lines[:number], f"... and {len(lines) - number} more lines"[: size.columns - 1]]
    return lines


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class LogStream(io.TextIOBase):
    """Where log lines go: to ``stream``, above what ``view`` draws there."""

    def __init__(self, stream: TextIO, view: LiveView) -> None:
        self._stream = stream
        self._view = view

    def write(self, text: str) -> int:
        """Write whole lines."""
        with self._view.above(self._stream):
            count = self._stream.write(text)
            self._stream.flush()
        return count
