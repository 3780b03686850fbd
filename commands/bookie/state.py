"""State of one bookie in the bookie commands: its registration, whether it answers, what it publishes."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import typer

from bkctl.commands.context import BookieFlags, CommandContext, id_by_settings, load_config
from bkctl.commands.parse import parse_bookie_id
from bkctl.commands.rendering import Column, plain
from bkctl.runtime.errors import (
    AuthenticationRequiredError,
    BookieError,
    BookieNotFoundError,
    BookieTimeoutError,
    BookieUnavailableError,
    ConfigurationError,
)
from bkctl.runtime.metadata.bookies.registration import RegistrationClient, Registrations
from bkctl.runtime.ports import Bookies


class BookieState(enum.StrEnum):
    """A bookie's state according to the registrations."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    DOWN = "down"
    """It has a cookie and no registration."""


BookieArguments = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Bookie IDs (default: that of the bookie settings)")
]


class NamedBookie(NamedTuple):
    """A bookie that a command is for. ``metadata_uri`` is empty for the cluster of the settings."""

    bookie_id: str
    metadata_uri: str = ""


def named_bookie(context: CommandContext, bookie_id: str | None) -> NamedBookie:
    """The bookie with this id, else the one that ``bookie start`` would run.

    InvalidArgumentError, ConfigurationError.
    """
    if bookie_id is not None:
        return NamedBookie(parse_bookie_id(bookie_id))
    try:
        config = load_config(context, BookieFlags())
    except ConfigurationError as error:
        raise ConfigurationError(f"specify the ID of a bookie, or the settings of one ({error})") from error
    return NamedBookie(id_by_settings(config), config.metadata_uri)


def _yes_no_unknown(value: object) -> str:
    return "unknown" if value is None else plain(value)


STATE_COLUMNS = (
    Column("id", "ID"),
    Column("state", "STATE"),
    Column("registered", "REGISTERED", priority=1),
    Column("answer", "REACHABLE", _yes_no_unknown),
)
"""The first columns of every listing of bookies."""


_UNKNOWN_FIELDS = (
    *("reachable", "answer", "address", "total_bytes", "free_bytes", "used_fraction", "version", "endpoints"),
    "problem",
)
_REFUSED = "refused"


def state_of(bookie_id: str, registrations: Registrations) -> BookieState:
    """A bookie that is changing its mode may be registered as both; it then counts as writable."""
    if bookie_id in registrations.writable:
        return BookieState.WRITABLE
    return BookieState.READ_ONLY if bookie_id in registrations.read_only else BookieState.DOWN


async def bookie_row(
    registration: RegistrationClient, bookies: Bookies | None, bookie_id: str, state: BookieState
) -> dict[str, object]:
    """All that is known about a bookie. It is asked for its disk space if ``bookies`` is given.

    ``reachable`` and ``answer`` are None when the bookie was not asked: it is not registered, or its registration has
    no address. ``answer`` is "refused" for one that answers, but does not accept this client.
    """
    row: dict[str, object] = {"id": bookie_id, "state": state, "registered": state is not BookieState.DOWN}
    row |= dict.fromkeys(_UNKNOWN_FIELDS)
    if state is BookieState.DOWN:
        return row | {"problem": "not registered"}
    try:
        info = await registration.service_info(bookie_id)
    except BookieUnavailableError as error:
        return row | {"problem": _reason(error)}
    except BookieNotFoundError as error:
        return row | {"problem": str(error)}
    endpoints = [f"{endpoint.protocol}://{endpoint.host}:{endpoint.port}" for endpoint in info.endpoints]
    row |= {"endpoints": endpoints, "version": info.version}
    if info.rpc_address is None:
        return row | {"problem": "its registration has no port for ledger requests"}
    row["address"] = str(info.rpc_address)
    return row if bookies is None else row | await _answer(bookies, bookie_id)


async def _answer(bookies: Bookies, bookie_id: str) -> dict[str, object]:
    try:
        answer = await bookies.info(bookie_id)
    except (BookieTimeoutError, BookieUnavailableError) as error:
        return {"reachable": False, "answer": "no", "problem": _reason(error)}
    except AuthenticationRequiredError as error:
        return {"reachable": True, "answer": _REFUSED, "problem": _reason(error)}
    except BookieError as error:
        return {"reachable": True, "answer": "yes", "problem": _reason(error)}
    used = 1 - answer.free_bytes / answer.total_bytes if answer.total_bytes else None
    return {
        "reachable": True,
        "answer": "yes",
        "total_bytes": answer.total_bytes,
        "free_bytes": answer.free_bytes,
        "used_fraction": None if used is None else round(used, 4),
    }


def require_accepted(rows: Sequence[Mapping[str, object]]) -> None:
    """AuthenticationRequiredError if all bookies of these rows that answer refuse this client."""
    refused = [row for row in rows if row["answer"] == _REFUSED]
    if refused and not any(row["answer"] == "yes" for row in rows):
        raise AuthenticationRequiredError(str(refused[0]["id"]), str(refused[0]["problem"]))


def _reason(error: Exception) -> str:
    """The sentence without the bookie it begins with, because the row has the bookie."""
    return str(error).partition(": ")[2]
