"""Options that name a bookie on this machine, as ``bkctl bookie start`` takes them, and the way to its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import typer

from commands.context import BookieFlags, CommandContext
from commands.errors import InvalidArgumentError

if TYPE_CHECKING:
    from runtime.config import BookieConfig

Port: TypeAlias = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, metavar="PORT", help="The bookie's port; 3181 if not given.")
]
BookieId: TypeAlias = Annotated[
    str | None, typer.Option("--bookie-id", metavar="ID", help="The bookie's id; else ADDRESS:PORT.")
]
Address: TypeAlias = Annotated[
    str | None, typer.Option("--advertised-address", metavar="HOST", help="The bookie's address.")
]
JournalDirectories: TypeAlias = Annotated[
    list[str] | None, typer.Option("--journal-dir", metavar="DIR", help="Journal folder; may be repeated.")
]
LedgerDirectories: TypeAlias = Annotated[
    list[str] | None, typer.Option("--ledger-dir", metavar="DIR", help="Ledger folder; may be repeated.")
]
IndexDirectories: TypeAlias = Annotated[
    list[str] | None, typer.Option("--index-dir", metavar="DIR", help="Index folder, one per ledger folder.")
]
Overrides: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of bk_server.conf.")
]
SETTING_OPTIONS = frozenset(
    {"--port", "--bookie-id", "--advertised-address", "--journal-dir", "--ledger-dir", "--index-dir", "--set"}
)


def bookie_flags(
    port: int | None,
    bookie_id: str | None,
    address: str | None,
    folders: tuple[list[str] | None, list[str] | None, list[str] | None],
    overrides: list[str] | None,
) -> BookieFlags:
    """The options as the roof's loader of settings takes them; ``folders``: journal, ledger, index."""
    journal, ledger, index = folders
    return BookieFlags(
        port=port,
        bookie_id=bookie_id,
        advertised_address=address,
        journal_directories=tuple(journal or ()),
        ledger_directories=tuple(ledger or ()),
        index_directories=tuple(index or ()),
        overrides=tuple(overrides or ()),
    )


def load_config(context: CommandContext, flags: BookieFlags, bookie_id: str | None = None) -> BookieConfig:
    """Settings of the bookie, from all the sources that ``bookie start`` reads; ``bookie_id`` goes before its own.

    ConfigurationError, InvalidArgumentError.
    """
    from runtime.ledger.bookie_id import is_valid_bookie_id

    settings = context.load_bookie_settings(flags)
    for warning in settings.warnings:
        context.console.warn(warning)
    if bookie_id is None:
        return settings.config
    if not is_valid_bookie_id(bookie_id):
        raise InvalidArgumentError(f"'{bookie_id}' cannot be a bookie id")
    return msgspec.structs.replace(settings.config, bookie_id=bookie_id)


def id_by_settings(config: BookieConfig) -> str:
    """Id that ``bookie start`` would take; ConfigurationError, InvalidArgumentError."""
    from runtime.bookie.identity import resolve_identity

    if config.bookie_id is None and config.port == 0:
        raise InvalidArgumentError("the port is chosen when the bookie starts: give --bookie-id, or its --port")
    return resolve_identity(config).bookie_id(config.port)
