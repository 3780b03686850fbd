"""Shows a page in the pager of the user, as git and man do."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping

import typer

NO_PAGER = "--no-pager"
_DEFAULT = "less"
_STYLE = re.compile(r"\x1b\[\d*m")
_LESS_OPTIONS = "FRX"
"""Of less, unless LESS is set: end if the page fits the screen, show styles, leave the page on the screen."""


def width_on_terminal() -> int | None:
    """Columns of the terminal that stdout is; None if it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def show_page(text: str, environment: Mapping[str, str], *, is_paged: bool, is_colored: bool | None) -> None:
    """Print a page; on a terminal through ``$PAGER`` or less, unless ``is_paged`` is false or there is none."""
    command = _words(environment.get("PAGER") or _DEFAULT)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not (is_paged and is_terminal and command and shutil.which(command[0])):
        typer.echo(text, color=is_colored)
        return
    sys.stdout.flush()
    shown = _STYLE.sub("", text) if is_colored is False else text
    before = signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the pager, which gets it too
    try:
        variables = {**environment, "LESS": environment.get("LESS", _LESS_OPTIONS)}
        subprocess.run(command, input=f"{shown}\n".encode(), env=variables, check=False)  # noqa: S603  the user's pager
    finally:
        signal.signal(signal.SIGINT, before)


def _words(command: str) -> list[str]:
    """Words of a command line; none if a shell could not run it either."""
    try:
        return shlex.split(command)
    except ValueError:  # a quote that does not close
        return []
