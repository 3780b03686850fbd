"""A real terminal for tests: a shell in a window of tmux, whose screen and history can be read."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from typing import Self

from tests.processes import bkctl_command, bkctl_environment
from tests.until import wait_until

PROMPT = "shell> "
DEADLINE_S = 120.0


class Terminal:
    """A window with a shell. Use as a context manager; at the end its processes get SIGHUP."""

    def __init__(self, columns: int, rows: int = 24, **variables: str) -> None:
        self._socket = os.path.join(tempfile.gettempdir(), f"bkctl-tmux-{secrets.token_hex(4)}")
        environment = bkctl_environment(BKCTL_OUTPUT="", **variables)
        for name in ("NO_COLOR", "COLUMNS"):  # the terminal has a width, and colours
            environment.pop(name)
        self._lines_entered = 0
        # With the number of the next line: a prompt that has been there before is not taken for a new one.
        shell = ["env", f"PS1=\\# {PROMPT}", "bash", "--norc", "--noprofile", "-i"]
        size = ("-x", str(columns), "-y", str(rows))
        command = ["tmux", "-S", self._socket, "-f", "/dev/null", "new-session", "-d", *size, shlex.join(shell)]
        subprocess.run(command, env=environment, check=True, stdin=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        try:
            self._tmux("set-option", "-g", "window-size", "manual")
            self.wait_for(PROMPT.strip())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._socket)  # tmux leaves it

    def bkctl(self, *arguments: str) -> None:
        """Type a bkctl command."""
        self.enter(shlex.join(bkctl_command(*arguments)))

    def enter(self, line: str) -> None:
        """Type a line on a clean screen, without history."""
        self._tmux("send-keys", "-l", f"clear; {line}" if line != "fg" else line)
        self._tmux("send-keys", "Enter")
        self._lines_entered += 1

    def press(self, key: str) -> None:
        """Press a key: "C-c", "C-z"."""
        self._tmux("send-keys", key)

    def resize(self, columns: int, rows: int = 24) -> None:
        """Change the size of the window."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def screen(self) -> str:
        """What can be seen; a line that the terminal has wrapped is one line."""
        return self._tmux("capture-pane", "-p", "-J")

    def text(self) -> str:
        """What can be seen, and what has scrolled out of sight."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-")

    def is_cursor_shown(self) -> bool:
        """Whether there is a cursor."""
        return self._tmux("display-message", "-p", "#{cursor_flag}").strip() == "1"

    def wait(self, is_so: Callable[[str], object]) -> str:
        """The screen, once it is so."""
        seen = ""

        def look() -> bool:
            nonlocal seen
            seen = self.screen()
            return bool(is_so(seen))

        wait_until(look, tell=self.text, deadline_s=DEADLINE_S)
        return seen

    def wait_for(self, text: str) -> str:
        """The screen, once it has the text."""
        return self.wait(lambda seen: text in seen)

    def wait_for_prompt(self) -> str:
        """All text, once the shell waits for the next command."""
        prompt = f"{self._lines_entered + 1} {PROMPT.strip()}"
        self.wait(lambda seen: seen.rstrip().endswith(prompt))
        return self.text()

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", self._socket, *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
