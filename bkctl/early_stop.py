"""Signals before the command runs: nothing has been started or written, so the process ends at once.

SIGTERM and SIGINT end ``bkctl bookie start`` with 0; the handlers of ``commands/event_loop.py`` replace these. SIGINT
ends any other command with 130 and one sentence: an exception in the middle of an import would print more than that.
Importing this module installs the handlers: ``bkctl.main`` imports it first, because its other imports take longest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import NoReturn

_SERVER = ("bookie", "start")
_PROGRAMS = ("/bkctl", "/bkctl/__main__.py")
"""Ends of the first word: other programs import bkctl too."""
_INTERRUPTED = 130


def stop_cleanly(arguments: Sequence[str]) -> None:
    """From now on these signals end the process, if it was started as bkctl."""
    if _SERVER in pairwise(arguments):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: os._exit(0))
    elif arguments[0].endswith(_PROGRAMS) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def begin_command() -> None:
    """From now on SIGINT raises KeyboardInterrupt, as the command expects it."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, b"error: interrupted\n")
    os._exit(_INTERRUPTED)


stop_cleanly(sys.argv)
