"""Scans of whole entry logs by child processes, message by message (``storage.compaction_scan_child``)."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Sequence
from typing import Final, Protocol

import msgspec

from storage.compaction_scan import LENGTH, ScanMessage
from storage.errors import EntryLogError
from storage.ids import EntryLogId

_CHILD: Final = "storage.compaction_scan_child"
_decoder: Final = msgspec.msgpack.Decoder(ScanMessage)


class LogScanner(Protocol):
    """Reads whole logs somewhere else than on the loop and its lanes. EntryLogError when that cannot be done at all."""

    def measure(self, directory: str, log_ids: Sequence[EntryLogId]) -> AsyncGenerator[ScanMessage, None]:
        """One MeasuredLog or UnreadableLog for each log."""

    def entries(self, directory: str, log_id: EntryLogId) -> AsyncGenerator[ScanMessage, None]:
        """ScannedRows, then a ScanEnd; or an UnreadableLog. Close the generator to stop early."""


class ChildLogScanner:
    """Starts a process for every scan; it ends with the scan, and with this process."""

    def measure(self, directory: str, log_ids: Sequence[EntryLogId]) -> AsyncGenerator[ScanMessage, None]:
        """See ``LogScanner``."""
        return _messages("measure", directory, *(f"{log_id:x}" for log_id in log_ids))

    def entries(self, directory: str, log_id: EntryLogId) -> AsyncGenerator[ScanMessage, None]:
        """See ``LogScanner``."""
        return _messages("entries", directory, f"{log_id:x}")


async def _messages(*arguments: str) -> AsyncGenerator[ScanMessage, None]:
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", _CHILD, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the bookie, which ends its scans itself
        )
    except OSError as error:
        raise EntryLogError(f"{arguments[1]}: no process can be started to scan entry logs: {error}") from error
    assert process.stdout is not None, "a pipe was asked for"
    try:
        while (head := await _read(process.stdout, LENGTH.size)) is not None:
            message = await _read(process.stdout, LENGTH.unpack(head)[0])
            if message is None:
                break
            yield _decoder.decode(message)
        if await process.wait() != 0:
            raise EntryLogError(f"{arguments[1]}: the scan of its entry logs ended with code {process.returncode}")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.communicate()


async def _read(stream: asyncio.StreamReader, size_bytes: int) -> bytes | None:
    """So many bytes, or None when the child has said all it will."""
    try:
        return await stream.readexactly(size_bytes)
    except asyncio.IncompleteReadError:
        return None
