"""What is made of files, made again when one of them has changed: a job outlives certificates and passwords."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.security.secrets import FILE, is_reference

logger = logging.getLogger(__name__)

_Made = TypeVar("_Made")
_FileState = tuple[int, int, int] | None
"""Time of change in nanoseconds, size in bytes and inode; None for a file that cannot be examined."""


class FollowedFiles(Generic[_Made]):
    """The value that ``make`` made of files. Comparing their states costs microseconds, so no timer is needed."""

    def __init__(self, make: Callable[[], _Made], paths: Iterable[str | None], note: str = "") -> None:
        """ConfigurationError of ``make``, which then also has ``note``, about the origin of the settings.

        ``paths`` may be references to secrets (``file:PATH``).
        """
        self._make = make
        self._paths = [path for path in map(_path_of, paths) if path is not None]
        # Before the files are read: what is written later differs from this state.
        self._states = self._reported = self._now()
        try:
            self._made = make()
        except ConfigurationError as error:
            raise ConfigurationError("; ".join(filter(None, (str(error), note)))) from error

    def current(self) -> _Made:
        """The value of the files as they are now; if they are unusable, the last one that was usable."""
        states = self._now()
        if states != self._states:
            try:
                made = self._make()
            except ConfigurationError as error:
                # One file of a pair may be written before the other one: the next call tries again.
                if states != self._reported:
                    logger.warning("Keeping the previous certificates and passwords, files changed: %s", error)
                self._reported = states
            else:
                self._made, self._states, self._reported = made, states, states
        return self._made

    def _now(self) -> list[_FileState]:
        return [_state(path) for path in self._paths]


def _path_of(reference: str | None) -> str | None:
    """None for secrets that are in no file."""
    if reference is None or (is_reference(reference) and not reference.startswith(FILE)):
        return None
    return reference.removeprefix(FILE)


def _state(path: str) -> _FileState:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
