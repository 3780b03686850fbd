"""How these commands read a cluster."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from bkctl.commands.context import CommandContext
from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.replication.election import Candidate

T = TypeVar("T")


async def readable(context: CommandContext, reading: Awaitable[T]) -> T | None:
    """The value read; None, with a warning, for an unreadable node, so that the rest is still shown."""
    try:
        return await reading
    except MetadataFormatError as error:
        context.console.warn(str(error))
        return None


def warn_of_second_auditor(context: CommandContext, pulsar_auditor: Candidate | None) -> None:
    """Warn that Pulsar's metadata driver has elected a second auditor."""
    if pulsar_auditor is not None:
        context.console.warn(
            f"there is a second auditor: Pulsar's metadata driver elected {pulsar_auditor.bookie_id or 'one'} "
            f"(underreplication/{pulsar_auditor.vote})"
        )
