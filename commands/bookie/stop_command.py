"""Runs the operator's command that stops a bookie, without a shell."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import sys
from collections.abc import Sequence

from bkctl.commands.errors import InvalidArgumentError
from bkctl.runtime.ledger.metadata import parse_host_and_port
from bkctl.runtime.metadata.bookies.registration import RegistrationClient

ID_PLACE = "{}"
"""Stands for the id of the bookie in a stop command."""
HOST_PLACE = "{host}"
"""Stands for its host."""


def parse_stop_command(text: str | None) -> tuple[str, ...]:
    """The words of a stop command; InvalidArgumentError."""
    if text is None:
        return ()
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise InvalidArgumentError(f"--stop-command cannot be split into words: {error}") from error
    if not words:
        raise InvalidArgumentError("--stop-command is empty")
    return words


async def host_of(registrations: RegistrationClient, bookie_id: str) -> str:
    """The host in the id, or the one where the bookie is registered; errors of ``RegistrationClient.address``."""
    found = parse_host_and_port(bookie_id)
    return found[0] if found is not None else (await registrations.address(bookie_id))[0]


async def run_stop_command(words: Sequence[str], bookie_id: str, host: str, wait_s: float) -> str | None:
    """Run it for one bookie; what failed, or None. Its output goes to stderr."""
    arguments = [word.replace(ID_PLACE, bookie_id).replace(HOST_PLACE, host) for word in words]
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr.fileno(), stderr=None
        )
    except OSError as error:
        return f"the stop command cannot be run: {arguments[0]}: {error.strerror}"
    try:
        async with asyncio.timeout(wait_s):
            status = await process.wait()
    except TimeoutError:
        return f"the stop command has not ended after {wait_s:g} s (--wait)"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return None if status == 0 else f"the stop command ended with exit status {status}"
