"""The settings of this machine's bookie, from all the sources that ``bkctl bookie start`` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from commands.context import BookieFlags, CommandContext
from commands.errors import InvalidArgumentError
from commands.parse import parse_bookie_id

if TYPE_CHECKING:
    from runtime.config import BookieConfig


def load_config(context: CommandContext, flags: BookieFlags, bookie_id: str | None = None) -> BookieConfig:
    """Settings of the bookie; ``bookie_id`` goes before its own.

    ConfigurationError, InvalidArgumentError.
    """
    settings = context.load_bookie_settings(flags)
    for warning in settings.warnings:
        context.console.warn(warning)
    if bookie_id is None:
        return settings.config
    return msgspec.structs.replace(settings.config, bookie_id=parse_bookie_id(bookie_id))


def id_by_settings(config: BookieConfig) -> str:
    """Id that ``bookie start`` would take; ConfigurationError, InvalidArgumentError."""
    from runtime.bookie.identity import resolve_identity
    from runtime.net.host import OsHost

    if config.bookie_id is None and config.port == 0:
        raise InvalidArgumentError("the port is chosen when the bookie starts: give --bookie-id, or its --port")
    return resolve_identity(config, OsHost()).bookie_id(config.port)
