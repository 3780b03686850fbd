"""Reads of wire protocol v3 and their answers without protobuf, for speed, bookie side. Source: wire section 4.

As for adds (``v3_adds``), exactly one form of each message is supported: a read of an entry without priority, fence or
long poll, and an answer with a body. Protobuf handles all others, and a property test compares both.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from bkctl.runtime.protocol.messages import ReadRun, read_runs
from bkctl.runtime.protocol.v3_adds import header_starts, number_of, varint, varints

_READ_ENTRY: Final = 1
_HEADS: Final = header_starts(_READ_ENTRY)
_OPERATION_AT: Final = 5
_OPERATION: Final = bytes([_READ_ENTRY])
_TXN_START: Final = len(_HEADS[0])

_REQUEST_TAG: Final = b"\xa2\x06"
_ANSWER_TAG: Final = b"\x10\x00\xa2\x06"
"""Status OK, then the inner message."""
_LEDGER_AT: Final = len(_REQUEST_TAG) + 2
"""Offset of a ledger id after a transaction id: the inner message has less than 128 bytes."""
_PLAIN_BYTES: Final = range(_TXN_START + 1 + _LEDGER_AT + 3, _TXN_START + 10 + _LEDGER_AT + 21 + 1)
"""Sizes of plain requests: each of the three ids has 1 to 10 bytes."""

READ_OVERHEAD_BYTES: Final = 128
"""More than what an answer has in addition to its body, in any protocol."""

_LENGTH: Final = struct.Struct(">I")
_LIKE_COUNT_MIN: Final = 8
"""From so many reads on, checking them together costs less."""
_I64_END: Final = 1 << 63
_U64_END: Final = 1 << 64


class ReadForm(NamedTuple):
    """Ids of the last plain read on a connection, and how they differed from those before: the next ones often do."""

    txn_id: int = 0
    ledger_id: int = 0
    entry_id: int = 0
    txn_step: int = 1
    entry_step: int = 1


FIRST_FORM: Final = ReadForm()


def may_be_read(payload: bytes) -> bool:
    """Whether a payload has the operation of a read where plain requests have theirs."""
    return payload[_OPERATION_AT : _OPERATION_AT + 1] == _OPERATION


def parse_reads(payloads: Sequence[bytes], first: int, form: ReadForm) -> tuple[list[ReadRun], ReadForm]:
    """Decode plain reads from index ``first`` on, up to the first payload that is none; also returns the next form.

    This guesses the ids, and the payload must then be exactly the request with these ids.
    """
    rest = payloads[first:] if first else payloads
    if len(rest) >= _LIKE_COUNT_MIN and len(rest[-1]) == len(rest[0]) and (like := _parse_like(rest)) is not None:
        return like
    return _parse_each(rest, form)


def _parse_like(payloads: Sequence[bytes]) -> tuple[list[ReadRun], ReadForm] | None:
    """All payloads, if they have the same size and their ids the same steps. All loops but one run in C code."""
    count = len(payloads)
    if len(payloads[0]) not in _PLAIN_BYTES or set(map(len, payloads)) != {len(payloads[0])}:
        return None
    txn_id, ledger_id, entry_id = _ids(payloads[0])
    next_txn_id, _, next_entry_id = _ids(payloads[1])
    txn_step, entry_step = next_txn_id - txn_id, next_entry_id - entry_id
    last = ReadForm(
        txn_id + txn_step * (count - 1), ledger_id, entry_id + entry_step * (count - 1), txn_step, entry_step
    )
    if 0 in last[3:] or min(last[:3]) < 0 or max(txn_id, entry_id, *last[:3]) >= _I64_END:
        return None
    txn_ids = list(range(txn_id, last.txn_id + txn_step, txn_step))
    entry_ids = list(range(entry_id, last.entry_id + entry_step, entry_step))
    txns, entries, ledger = varints(txn_ids), varints(entry_ids), _ledger_field(ledger_id)
    begin = _HEADS[len(txns[0])]
    middle = _REQUEST_TAG + bytes([len(ledger) + len(entries[0])]) + ledger
    if [begin + txn + middle + entry for txn, entry in zip(txns, entries, strict=True)] != list(payloads):
        return None
    return [ReadRun(txn_id, ledger_id, False, txn_ids, entry_ids)], last


def _parse_each(payloads: Sequence[bytes], form: ReadForm) -> tuple[list[ReadRun], ReadForm]:
    txn_id, ledger_id, entry_id, txn_step, entry_step = form
    txn_ids: list[int] = []
    ledger_ids: list[int] = []
    entry_ids: list[int] = []
    ledger = _ledger_field(ledger_id)
    for payload in payloads:
        next_txn_id, next_entry_id = txn_id + txn_step, entry_id + entry_step
        is_possible = 0 <= next_txn_id < _I64_END and 0 <= next_entry_id < _I64_END
        if not is_possible or payload != _encoded(next_txn_id, ledger, next_entry_id):
            if len(payload) not in _PLAIN_BYTES:
                break
            next_txn_id, ledger_id, next_entry_id = _ids(payload)
            ledger = _ledger_field(ledger_id)
            is_possible = max(next_txn_id, ledger_id, next_entry_id) < _I64_END
            if not is_possible or payload != _encoded(next_txn_id, ledger, next_entry_id):
                break
            txn_step, entry_step = next_txn_id - txn_id, next_entry_id - entry_id
        txn_id, entry_id = next_txn_id, next_entry_id
        txn_ids.append(txn_id)
        ledger_ids.append(ledger_id)
        entry_ids.append(entry_id)
    # After a break the ids may be of a payload that is no plain read: then the next guess fails, no more.
    runs = read_runs(txn_ids, ledger_ids, entry_ids, is_high_priority=False)
    return runs, ReadForm(txn_id, min(ledger_id, _I64_END - 1), entry_id, txn_step, entry_step)


def encode_read_answers(run: ReadRun, bodies: Sequence[bytes], lac: int | None) -> bytes:
    """Encode the frames of positive answers; no id of the run must be negative."""
    ledger = b"\x08\x00\x10" + varint(run.ledger_id) + b"\x18"
    after = b"" if lac is None else b"\x28" + varint(lac % _U64_END)
    parts: list[bytes] = []
    sizes = (0, 0, 0)
    begin = middle = tail = b""
    for txn, entry, body in zip(varints(run.txn_ids), varints(run.entry_ids), bodies, strict=True):
        if (len(txn), len(entry), len(body)) != sizes:
            sizes = txn_bytes, entry_bytes, body_bytes = len(txn), len(entry), len(body)
            tail = b"\x22" + varint(body_bytes)
            rest_bytes = entry_bytes + len(tail) + body_bytes + len(after)
            middle = _ANSWER_TAG + varint(len(ledger) + rest_bytes) + ledger
            begin = _LENGTH.pack(_TXN_START + txn_bytes + len(middle) + rest_bytes) + _HEADS[txn_bytes]
        parts += (begin, txn, middle, entry, tail, body, after)
    return b"".join(parts)


def _ledger_field(ledger_id: int) -> bytes:
    return b"\x08" + varint(ledger_id) + b"\x10"


def _encoded(txn_id: int, ledger: bytes, entry_id: int) -> bytes:
    txn, entry = varint(txn_id), varint(entry_id)
    return b"%b%b\xa2\x06%c%b%b" % (_HEADS[len(txn)], txn, len(ledger) + len(entry), ledger, entry)


def _ids(payload: bytes) -> tuple[int, int, int]:
    """Transaction, ledger and entry id of a plain read; of any other payload, any numbers."""
    txn_end = min(payload[1] + 2, len(payload))
    start = end = txn_end + _LEDGER_AT
    while end < len(payload) and payload[end] & 128:
        end += 1
    return number_of(payload[_TXN_START:txn_end]), number_of(payload[start : end + 1]), number_of(payload[end + 2 :])
