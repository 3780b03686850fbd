"""Secrets that settings refer to as ``file:/path`` or ``env:NAME`` and never contain.

A secret is read where it is used, so it cannot leak from settings, plans, pickles or logs.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping

from bkctl.runtime.errors import ConfigurationError
from bkctl.storage.adapters.given_files import read_given_file

logger = logging.getLogger(__name__)

_FILE, _VARIABLE = "file:", "env:"
_GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_secret(reference: str, purpose: str, environment: Mapping[str, str]) -> str:
    """Read the secret that a setting refers to; ConfigurationError, which never shows the value of the setting."""
    if reference.startswith(_FILE):
        path = reference.removeprefix(_FILE)
        try:
            if os.stat(path).st_mode & _GROUP_AND_OTHERS:
                logger.warning("%s contains %s and is readable by other users: chmod 600 %s", path, purpose, path)
            secret = read_given_file(path).decode().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ConfigurationError(f"cannot read {purpose} from {path}: {reason}") from error
    elif reference.startswith(_VARIABLE):
        path = f"the environment variable {reference.removeprefix(_VARIABLE)}"
        secret = environment.get(reference.removeprefix(_VARIABLE), "")
    else:
        raise ConfigurationError(
            f"{purpose} must not be in the settings: give its location as file:PATH or env:VARIABLE"
        )
    if not secret:
        raise ConfigurationError(f"{purpose} is empty in {path}")
    return secret
