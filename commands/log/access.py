"""Shared by the commands of logs: the argument, the nodes, what a log looks like in lists."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.rendering import Column, Table
from bkctl.commands.session import Session
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.ledger_logs.format import LedgerLog, check_log_name
from bkctl.runtime.metadata.ledger_logs.nodes import LogNodes

LogName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the log")]

CHANGES_TABLE = Table("Changes", Column("action", "ACTION"), Column("ledger_id", "LEDGER", is_right=True))


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


def deletions(log: LedgerLog, kept: LedgerLog) -> list[dict[str, object]]:
    """Plan items for the ledgers of a log that a change deletes; ``kept`` is the log afterwards."""
    ledger_ids = [*log.released, *kept.released[len(log.released) :]]
    return [{"action": "delete", "ledger_id": str(ledger_id)} for ledger_id in ledger_ids]
