"""Reading whole entry logs for compaction, in a process of its own: ``python -P -m storage.compaction_scan``.

A log of 1 GiB keeps an interpreter busy for seconds, which a bookie does not have. Two jobs, and what they write to
standard output, message by message, each a 4-byte length and MessagePack:

    measure DIRECTORY LOG...    one MeasuredLog or UnreadableLog for each log
    entries DIRECTORY LOG       any number of ScannedRows, then a ScanEnd; or an UnreadableLog

Logs are given by id, in hexadecimal. Nothing is changed on disk.
"""

from __future__ import annotations

import itertools
import os
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO, Final, TypeAlias

import msgspec

from storage.config import EntryLogConfig
from storage.entry_log_reader import EntryLogReader, ScannedEntry
from storage.errors import EntryLogError
from storage.filesystem import OsFileSystem
from storage.framing import LENGTH_BYTES
from storage.ids import EntryId, EntryLogId, LedgerId
from storage.ports import FileSystem

LENGTH: Final = struct.Struct("<I")
"""In front of every message."""

_ROW: Final = struct.Struct("<qqII")
_ROWS_MAX: Final = 2048
_NICENESS: Final = 10
"""Clients wait for the bookie; nobody waits for a scan."""


class ScannedRows(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Some entries of a log, in file order, packed: i64 ledger id, i64 entry id, u32 offset, u32 bytes of the body."""

    packed: bytes


class ScanEnd(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A log was read to its end."""

    is_complete: bool
    """Whether no entry can have been overlooked: the log's own map names the same bytes for each ledger."""


class MeasuredLog(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Bytes of each ledger in a log, size words included: from its map, else counted."""

    log_id: EntryLogId
    ledger_bytes: dict[LedgerId, int]


class UnreadableLog(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A log that could not be read now; ``reason`` is a sentence."""

    log_id: EntryLogId
    reason: str


ScanMessage: TypeAlias = ScannedRows | ScanEnd | MeasuredLog | UnreadableLog


def unpack_rows(rows: ScannedRows) -> Iterator[tuple[LedgerId, EntryId, int, int]]:
    """Ledger id, entry id, offset of the body, bytes of the body."""
    return _ROW.iter_unpack(rows.packed)


def measure_logs(fs: FileSystem, directory: str, log_ids: list[EntryLogId]) -> Iterator[ScanMessage]:
    """What each log holds."""
    reader = EntryLogReader(fs, directory, EntryLogConfig())
    for log_id in log_ids:
        try:
            yield MeasuredLog(log_id, reader.ledgers_map(log_id))
        except EntryLogError as error:
            yield UnreadableLog(log_id, str(error))


def scan_log(fs: FileSystem, directory: str, log_id: EntryLogId) -> Iterator[ScanMessage]:
    """Every entry of a log."""
    reader = EntryLogReader(fs, directory, EntryLogConfig())
    counted: Counter[LedgerId] = Counter()
    try:
        entries = iter(reader.scan(log_id))
        while batch := list(itertools.islice(entries, _ROWS_MAX)):
            for entry in batch:
                counted[entry.ledger_id] += LENGTH_BYTES + entry.size_bytes
            yield ScannedRows(b"".join(map(_pack, batch)))
        ledgers_map = reader.stored_ledgers_map(log_id)
    except EntryLogError as error:
        yield UnreadableLog(log_id, str(error))
        return
    yield ScanEnd(is_complete=ledgers_map is not None and ledgers_map == counted)


def main(arguments: list[str], output: BinaryIO) -> None:
    """Run the job that the arguments name."""
    job, directory, *logs = arguments
    log_ids = [int(log, 16) for log in logs]
    fs = OsFileSystem()
    messages = measure_logs(fs, directory, log_ids) if job == "measure" else scan_log(fs, directory, log_ids[0])
    encoder = msgspec.msgpack.Encoder()
    for message in messages:
        encoded = encoder.encode(message)
        output.write(LENGTH.pack(len(encoded)) + encoded)
        output.flush()


def _pack(entry: ScannedEntry) -> bytes:
    return _ROW.pack(entry.ledger_id, entry.entry_id, entry.location.offset, entry.size_bytes)


if __name__ == "__main__":
    os.nice(_NICENESS)
    try:
        main(sys.argv[1:], sys.stdout.buffer)
    except BrokenPipeError:
        # The bookie has ended. Nobody reads what is left; the interpreter must not try to write it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
