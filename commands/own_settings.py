"""The settings of this machine's bookie, from all the sources that ``bkctl bookie start`` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from commands.context import BookieFlags, CommandContext
from commands.errors import InvalidArgumentError

if TYPE_CHECKING:
    from runtime.config import BookieConfig


def load_config(context: CommandContext, flags: BookieFlags, bookie_id: str | None = None) -> BookieConfig:
    """Settings of the bookie; ``bookie_id`` goes before its own.

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
