"""Rack tables and rack scripts of the operator, on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bkctl.runtime.errors import ConfigurationError
from bkctl.storage.adapters.given_files import read_given_file

SCRIPT_TIMEOUT_S = 30.0
_OUTPUT_SHOWN_MAX = 200


class OsRackFiles:
    """Reads and runs what the settings name. Anything that fails is a ConfigurationError."""

    def __init__(self, timeout_s: float = SCRIPT_TIMEOUT_S) -> None:
        """``timeout_s``: longest run of a script."""
        self._timeout_s = timeout_s

    async def read_table(self, path: str) -> str:
        """Text of a rack table."""
        return await asyncio.to_thread(_read_text, path)

    async def run_script(self, path: str, hosts: Sequence[str]) -> str:
        """What a rack script prints; it must exit with 0."""
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                path, *hosts, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            raise ConfigurationError(f"cannot run the rack script {path}: {error.strerror}") from error
        try:
            async with asyncio.timeout(self._timeout_s):
                output, errors = await process.communicate()
        except TimeoutError as error:
            raise ConfigurationError(f"the rack script {path} ran for more than {self._timeout_s:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            shown = errors.decode("utf-8", "replace").strip()[:_OUTPUT_SHOWN_MAX]
            raise ConfigurationError(f"the rack script {path} failed with exit code {process.returncode}: {shown}")
        return output.decode("utf-8", "replace")


def _read_text(path: str) -> str:
    try:
        return read_given_file(path).decode()
    except OSError as error:
        raise ConfigurationError(f"cannot read the rack table {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the rack table {path} is not UTF-8 text: {error.reason}") from error
