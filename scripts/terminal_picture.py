"""Draws the terminal output of a command, with colours, as an SVG that loads nothing from the network.

    .venv/bin/python scripts/terminal_picture.py docs/images/demo.svg --first '5. ' --last '7. ' --fold 4 -- make demo

The command runs on a pseudo terminal. The picture begins at the first line that starts with ``--first`` and ends before
the next one that starts with ``--last``. ``--fold`` shortens long tables of numbered rows.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROWS = 50
_NUMBERED_ROW = re.compile(r"[a-z]* +\d+ {2,}\S+ {2,}\S")
"""A row of a table with a number in its first or second column; a field with its value is none."""


def run_on_terminal(command: list[str], columns: int) -> str:
    """Return the terminal output of the command, and show it here too."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    # A progress bar overwrites its own line, which a still picture cannot show.
    environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor", "BKCTL_NO_PROGRESS": "1"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)  # noqa: S603
    os.close(slave)
    output = bytearray()
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # on Linux: the other end is closed
            break
        if not part:
            break
        sys.stdout.buffer.write(part)
        sys.stdout.flush()
        output += part
    os.close(master)
    if process.wait() != 0:
        raise SystemExit(f"no picture: the command ended with exit code {process.returncode}")
    text = output.decode("utf-8", "replace").replace("\r\n", "\n")
    return text.replace(os.path.expanduser("~/"), "~/")  # the picture is for everyone


def cut(text: Text, first: str | None, last: str | None) -> list[Text]:
    """Lines from the one that starts with ``first`` up to the one before ``last``."""
    lines = list(text.split("\n", allow_blank=True))
    starts = [line.plain for line in lines]
    begin = next((n for n, start in enumerate(starts) if first and start.startswith(first)), 0)
    end = next((n for n, start in enumerate(starts) if n > begin and last and start.startswith(last)), len(lines))
    return lines[begin:end]


def fold(lines: list[Text], rows_max: int) -> list[Text]:
    """The lines with no more than so many numbered rows in succession, and an ellipsis for the rest."""
    folded: list[Text] = []
    rows = 0
    for line in lines:
        rows = rows + 1 if _NUMBERED_ROW.match(line.plain) else 0
        if rows <= rows_max:
            folded.append(line)
        elif rows == rows_max + 1:
            folded.append(Text("   ..."))
    return folded


def save(lines: list[Text], columns: int, title: str, path: str) -> None:
    """Draw the lines into an SVG file."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        console.print(line, soft_wrap=True)
    svg = console.export_svg(title=title, theme=MONOKAI)
    # rich asks for its font from a web server; the reader's own monospaced font will do.
    svg = re.sub(r"@font-face\s*\{[^}]*\}", "", svg)
    with open(path, "w", encoding="utf-8") as file:
        file.write(svg)


def main() -> None:
    """Run, cut, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture")
    parser.add_argument("--first", help="start of the first line shown")
    parser.add_argument("--last", help="start of the line behind the last one shown")
    parser.add_argument("--fold", type=int, default=ROWS, help="numbered rows of a table shown")
    parser.add_argument("--columns", type=int, default=110)
    parser.add_argument("command", nargs="+", help="the command, behind --")
    arguments = parser.parse_args()
    output = run_on_terminal(arguments.command, arguments.columns)
    lines = cut(Text.from_ansi(output), arguments.first, arguments.last)
    save(fold(lines, arguments.fold), arguments.columns, " ".join(arguments.command), arguments.picture)


if __name__ == "__main__":
    main()
