"""Reading an strace log: what a bookie wrote, synced and sent, in the order of the system calls."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bkctl.runtime.protocol.bookkeeper_wire_pb2 import Response
from bkctl.runtime.protocol.status import Status
from bkctl.storage.journal.format import HEADER_BYTES, PADDING_MARK

TRACED = "pwrite64,pwritev,pwritev2,fdatasync,write,writev,sendto,sendmsg"
_SENDS = frozenset({"write", "writev", "sendto", "sendmsg"})
_OFFSET_AT = {"pwrite64": -1, "pwritev": -1, "pwritev2": -2}
"""Which of the last arguments is the offset: flags may follow it."""
_START = re.compile(r"^(\d+) +(\w+)\((.*)$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")
_RESULT = re.compile(r"\) += (-?\d+)")
_NUMBERS = re.compile(r"((?:, \d+)+) *\) += ")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')

Entry = tuple[int, int]


class JournalWrite(NamedTuple):
    """Entries that reached the journal file of a descriptor."""

    descriptor: str
    entries: list[Entry]


class SyncEnd(NamedTuple):
    """A sync of a descriptor returned."""

    descriptor: str
    is_ok: bool


class Acknowledgement(NamedTuple):
    """The system call that sends these answers to adds began."""

    entries: list[Entry]


class ConfirmedFences(NamedTuple):
    """The system call that sends these answers to fencing reads began: ledgers whose fence they confirm.

    For traces in which every read is a fencing one.
    """

    ledger_ids: list[int]


class ForcedLedgers(NamedTuple):
    """The system call that sends these answers to FORCE_LEDGER began: ledgers that they confirm to be durable."""

    ledger_ids: list[int]


Event = JournalWrite | SyncEnd | Acknowledgement | ConfirmedFences | ForcedLedgers


def events(log: str) -> Iterator[Event]:
    """Events of a log written with ``strace -f -y -xx -s <large>``; a send counts at its start, the rest at its end."""
    pending: dict[str, tuple[str, str]] = {}
    for line in log.splitlines():
        if (started := _START.match(line)) is not None:
            thread, name, arguments = started.groups()
            if name in _SENDS:
                responses = list(_responses(_data(arguments)))
                if entries := _acknowledged(responses):
                    yield Acknowledgement(entries)
                if ledger_ids := _fenced(responses):
                    yield ConfirmedFences(ledger_ids)
                if ledger_ids := _forced(responses):
                    yield ForcedLedgers(ledger_ids)
            if "<unfinished" in arguments:
                pending[thread] = (name, arguments)
            else:
                yield from _end(name, arguments)
        elif (resumed := _RESUMED.match(line)) is not None:
            thread, _, rest = resumed.groups()
            if thread in pending:
                name, arguments = pending.pop(thread)
                yield from _end(name, arguments.replace("<unfinished ...>", "") + rest)


def _end(name: str, arguments: str) -> Iterator[Event]:
    descriptor = arguments.split(",", maxsplit=1)[0].split(")", maxsplit=1)[0].strip()
    result = _RESULT.search(arguments)
    if result is None:
        assert arguments.endswith("= ?"), arguments[-200:]
        return  # the process was killed inside the call
    if name in _OFFSET_AT and _path(descriptor).endswith(".txn") and int(result[1]) > 0:
        numbers = _NUMBERS.search(arguments)
        assert numbers is not None, arguments[-200:]
        offset = int(numbers[1].split(", ")[_OFFSET_AT[name]])
        yield JournalWrite(descriptor, list(_journaled(_data(arguments))) if offset >= HEADER_BYTES else [])
    elif name == "fdatasync" and _path(descriptor).endswith(".txn"):
        yield SyncEnd(descriptor, is_ok=int(result[1]) == 0)


def _path(descriptor: str) -> str:
    path = descriptor.partition("<")[2].rstrip(">")
    return bytes.fromhex(path.replace("\\x", "")).decode() if path.startswith("\\x") else path


def _data(arguments: str) -> bytes:
    return b"".join(bytes.fromhex(text.replace("\\x", "")) for text in _STRING.findall(arguments))


def _journaled(data: bytes) -> Iterator[Entry]:
    position = 0
    while position + 4 <= len(data):
        length = struct.unpack_from(">i", data, position)[0]
        if length == PADDING_MARK:
            position += 8 + struct.unpack_from(">i", data, position + 4)[0]
            continue
        if length <= 0:
            return
        yield struct.unpack_from(">qq", data, position + 4)
        position += 4 + length


def _responses(data: bytes) -> Iterator[Response]:
    """The answers in what goes to a socket; none if it goes somewhere else."""
    position = 0
    while position + 4 <= len(data):
        length = struct.unpack_from(">I", data, position)[0]
        frame = data[position + 4 : position + 4 + length]
        position += 4 + length
        if len(frame) < length or not frame.startswith(b"\x0a"):
            return
        yield Response.FromString(frame)


def _acknowledged(responses: Sequence[Response]) -> list[Entry]:
    """Entries of the positive answers to adds."""
    adds = [each for each in responses if each.HasField("addResponse") and Status(each.status) is Status.OK]
    return [(each.addResponse.ledgerId, each.addResponse.entryId) for each in adds]


def _fenced(responses: Sequence[Response]) -> list[int]:
    """Ledgers of which a fencing read was answered with an entry, or with "no such entry"."""
    confirming = (Status.OK, Status.NO_SUCH_ENTRY)
    reads = [each for each in responses if each.HasField("readResponse") and Status(each.status) in confirming]
    return [each.readResponse.ledgerId for each in reads]


def _forced(responses: Sequence[Response]) -> list[int]:
    """Ledgers of the positive answers to FORCE_LEDGER."""
    forced = [each for each in responses if each.HasField("forceLedgerResponse") and Status(each.status) is Status.OK]
    return [each.forceLedgerResponse.ledgerId for each in forced]
