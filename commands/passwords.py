"""Ledger passwords: from a file or the environment, never from the command line, where every user could see them."""

from __future__ import annotations

import os

from commands.errors import InvalidArgumentError

ENVIRONMENT_NAME = "BKCTL_LEDGER_PASSWORD"
OPTION_HELP = f"File with the ledger password (default: ${ENVIRONMENT_NAME})"


def read_password(path: str | None) -> bytes | None:
    """The password, without one line end behind it; None when none is given."""
    if path is None:
        text = os.environ.get(ENVIRONMENT_NAME)
        return None if text is None else text.encode()
    try:
        with open(path, "rb") as file:
            return file.read().removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise InvalidArgumentError(f"cannot read the password file {path}: {error.strerror}") from error
