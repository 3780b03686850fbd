"""What is drawn at the bottom of a terminal does not cover a question, and a question stops no thread."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from bkctl.commands.live_view import LiveView

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
WIDE_FRAME = """
import sys
from bkctl.commands.live_view import LiveView

with LiveView(sys.stderr, {}).showing(lambda width: ["x" * width] * 300):
    sys.stdin.read()
"""
"""Draws more than a terminal takes that is not read."""
FRAME, QUESTION, LINE = "elapsed 0:00", "continue? [y/N] ", "a line of the log"


@contextmanager
def opened_terminal() -> Iterator[tuple[TextIO, int]]:
    """A terminal, and the descriptor from which everything that was written to it is read."""
    reader, writer = os.openpty()
    try:
        with os.fdopen(writer, "w", encoding="utf-8") as stream:
            yield stream, reader
    finally:
        os.close(reader)


def written(stream: TextIO, reader: int, end: str) -> str:
    print(end, file=stream, flush=True)
    text = ""
    while end not in text:
        text += os.read(reader, 65536).decode()
    return text


def test_work_that_begins_during_a_question_is_not_drawn_over_it() -> None:
    """ZooKeeper may get out of reach while the operator thinks."""
    with opened_terminal() as (stream, reader):
        view = LiveView(stream, {})
        with view.hidden():
            print(QUESTION, end="", file=stream, flush=True)
            with view.showing(lambda _: [FRAME]):
                assert FRAME not in written(stream, reader, "yes")
        with view.showing(lambda _: [FRAME]):
            assert FRAME in written(stream, reader, "end")


def test_another_thread_prints_during_a_question() -> None:
    """A thread that waits for the answer would not keep the session with ZooKeeper alive."""
    with opened_terminal() as (stream, reader):
        view = LiveView(stream, {})

        def report() -> None:
            with view.above(stream):
                print(LINE, file=stream, flush=True)

        with view.showing(lambda _: [FRAME]), view.hidden():
            thread = threading.Thread(target=report, daemon=True)
            thread.start()
            thread.join(30)
            assert not thread.is_alive()
            assert LINE in written(stream, reader, "yes")


def test_a_stop_in_the_middle_of_the_first_drawing_shows_the_cursor_again() -> None:
    with opened_terminal() as (stream, reader):
        fcntl.ioctl(reader, termios.TIOCSWINSZ, struct.pack("HHHH", 400, 400, 0, 0))
        command = [sys.executable, "-P", "-c", WIDE_FRAME]
        # In a group of its own: Ctrl-Z does not stop a group without a parent in its session, as this one may be.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=stream, process_group=0)
        try:
            select.select([reader], [], [])  # it draws, and cannot finish
            process.send_signal(signal.SIGTSTP)
            text = ""
            while not is_stopped(process.pid):
                if select.select([reader], [], [], 0.1)[0]:
                    text += os.read(reader, 65536).decode()
            text += written(stream, reader, "end")
            assert text.count(SHOW_CURSOR) == text.count(HIDE_CURSOR) == 1, text[-2000:]
            assert text.index(SHOW_CURSOR) > text.rindex("x"), text[-2000:]
        finally:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def is_stopped(pid: int) -> bool:
    status = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    return status is not None
