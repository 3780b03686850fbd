"""No process is left over when a test run is killed."""

from __future__ import annotations

import subprocess
from typing import Self

_KILL_AT_END_OF_INPUT = """\
while read -r pid; do
    [ "$pid" != done ] || exit 0
    pids="$pids $pid"
done
kill -9 $pids
"""


class OrphanKiller:
    """A shell that kills the watched processes if this process ends before ``close``."""

    def __init__(self) -> None:
        # A session of its own: Ctrl-C on the terminal of the tests must not end it.
        self._shell = subprocess.Popen(
            ["sh", "-c", _KILL_AT_END_OF_INPUT],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, pid: int) -> None:
        """Add a process."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(b"%d\n" % pid)
        self._shell.stdin.flush()

    def close(self) -> None:
        """Kill nothing; call it when the watched processes have ended."""
        self._shell.communicate(b"done\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
