"""Shared by the commands of logs: the arguments, the nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.session import Session
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.ledger_logs.format import check_log_name
from bkctl.runtime.metadata.ledger_logs.nodes import LogNodes

LogName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the log")]
LogNames = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of logs")]


def parse_log_name(name: str) -> str:
    """The name; InvalidArgumentError."""
    try:
        check_log_name(name)
    except ConfigurationError as error:
        raise InvalidArgumentError(str(error)) from error
    return name


def log_nodes(session: Session) -> LogNodes:
    """The logs of the session's cluster."""
    return LogNodes(session.store, session.root)
