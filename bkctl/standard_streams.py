"""Standard streams that the parent closed, as some daemons and ``>&-`` do."""

from __future__ import annotations

import os
import sys


def reopen_closed() -> None:
    """Open the null device in place of every closed standard stream.

    Otherwise the first files and sockets would get their numbers: messages would be written into those, and the event
    loop aborts the process if one of its own is below 3.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if not _is_open(number):
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one, for those below are open
            assert descriptor == number
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
