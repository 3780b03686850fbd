"""SIGTERM and SIGINT to ``bkctl bookie start`` before its event loop runs: the process ends with 0.

Nothing has been started or written by then. The handlers of ``commands/event_loop.py`` replace these.
Importing this module installs them: ``bkctl.main`` imports it first, because its other imports take longest.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from itertools import pairwise

_SERVER = ("bookie", "start")


def stop_cleanly(arguments: Sequence[str]) -> None:
    """From now on these signals end the process with 0 if the command is ``bookie start``."""
    if _SERVER in pairwise(arguments):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: os._exit(0))


stop_cleanly(sys.argv)
