"""Secrets that settings refer to as ``file:/path``, ``env:NAME`` or ``fd:NUMBER`` and never contain.

A secret is read where it is used, so it cannot leak from settings, plans, pickles or logs.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import stat
from collections.abc import Mapping
from typing import Final

from bkctl.runtime.errors import ConfigurationError
from bkctl.storage.adapters.given_files import read_given_file

logger = logging.getLogger(__name__)

FILE: Final = "file:"
_VARIABLE, _DESCRIPTOR = "env:", "fd:"
_GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def is_reference(text: str) -> bool:
    """Whether a text says where a secret is."""
    return text.startswith((FILE, _VARIABLE, _DESCRIPTOR))


def is_descriptor(reference: str | None) -> bool:
    """Whether only the process that was started with it can read the secret."""
    return reference is not None and reference.startswith(_DESCRIPTOR)


def read_secret(reference: str, purpose: str, environment: Mapping[str, str]) -> str:
    """Read the secret that a setting refers to; ConfigurationError, which never shows the value of the setting."""
    if not is_reference(reference):
        raise ConfigurationError(
            f"{purpose} must not be in the settings: give its location as file:PATH, env:VARIABLE or fd:NUMBER"
        )
    place = reference.partition(":")[2]
    if reference.startswith(_VARIABLE):
        where, secret = f"the environment variable {place}", environment.get(place, "")
    else:
        where = place if reference.startswith(FILE) else f"the file descriptor {place}"
        try:
            content = _read_file(place, purpose) if reference.startswith(FILE) else _read_descriptor(place)
            secret = content.decode().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ConfigurationError(f"cannot read {purpose} from {where}: {reason}") from error
    if not secret:
        raise ConfigurationError(f"{purpose} is empty in {where}")
    return secret


def warn_of_readers(path: str, purpose: str) -> None:
    """Log a warning if other users can read a file with a secret; OSError."""
    if os.stat(path).st_mode & _GROUP_AND_OTHERS:
        logger.warning("%s contains %s and is readable by other users: chmod 600 %s", path, purpose, path)


def _read_file(path: str, purpose: str) -> bytes:
    warn_of_readers(path, purpose)
    return read_given_file(path)


def _is_inherited(number: int) -> bool:
    """Whether the process was started with it: what Python and asyncio open themselves ends at an exec.

    A pipe of the event loop would be read for ever.
    """
    try:
        return os.get_inheritable(number)
    except (OSError, OverflowError):
        return False


@functools.cache
def _read_descriptor(number: str) -> bytes:
    """What is read from a pipe is no longer in it, but a job logs in for hours."""
    if not number.isdecimal():
        raise OSError(errno.EBADF, "it is not a number")
    if not _is_inherited(int(number)):
        raise OSError(errno.EBADF, f"it is not open: start bkctl with {number}<FILE")
    return read_given_file(f"/dev/fd/{number}")
