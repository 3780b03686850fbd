"""Adds of wire protocol v3 and their answers without protobuf, for speed. Source: wire section 4.

Pure functions on bytes and ints. They support exactly one form of each message: fields in the order of their numbers,
shortest varints, no priority. A recovery add has its flag before all other fields; there is no other flag. Protobuf
handles all other forms. A property test compares these functions with protobuf.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

_ONE: Final = [bytes([number]) for number in range(128)]
_MORE: Final = [bytes([number | 128]) for number in range(128)]
_SHORT: Final = _ONE + [low + high for high in _ONE[1:] for low in _MORE]
"""Varints of the numbers of up to 14 bits."""

_LOW: Final = [low + high for high in _MORE for low in _MORE]
"""The low 14 bits of a longer varint: two bytes with continuation bits."""

_SHORT_BITS: Final = 14
_SHORT_COUNT: Final = 1 << _SHORT_BITS
_MASK: Final = _SHORT_COUNT - 1
_LONG_MIN: Final = 1 << 2 * _SHORT_BITS

_TXN_START: Final = 7
_VARINT_BYTES_MAX: Final = 10
_ADD_ENTRY: Final = 2


def header_starts(operation: int) -> list[bytes]:
    """The start of the header of a request or an answer (version 3), by the size of its transaction id."""
    return [bytes([10, 5 + size, 8, 3, 16, operation, 24]) for size in range(_VARINT_BYTES_MAX + 1)]


_HEADS: Final = header_starts(_ADD_ENTRY)

RECOVERY_FLAG: Final = b"\xa0\x06\x01"
"""The flag of a recovery add. Java 4.18 and bkctl write it as the first field, so that the body is the last one."""

_REQUEST_TAG: Final = b"\xaa\x06"
_ANSWER_TAG: Final = b"\x10\x00\xaa\x06"
"""Status OK, then the inner message."""

_IDS: Final = struct.Struct(">qq")
_LENGTH: Final = struct.Struct(">I")
_I64_END: Final = 1 << 63
_STEP_MAX: Final = 1 << 16
_LIKE_COUNT_MIN: Final = 8
"""From so many adds on, checking them together costs less."""
_NOT_YET: Final = 1 << 64
"""Not a valid size or id, not even a negative one."""


class AddForm(NamedTuple):
    """Expected form of the next add on a connection, derived from the last one."""

    master_key: bytes
    overhead_bytes: int
    """Offset of its body."""
    txn_id: int
    step: int
    """Increment of transaction ids: more than 1 if a client sends each entry to several bookies."""
    is_recovery: bool = False
    """Whether it has the flag of recovery adds, as the first field."""


class PlainAdds(NamedTuple):
    """Adds as columns of the same length, and the expected form of the next one."""

    txn_ids: list[int]
    ledger_ids: list[int]
    entry_ids: list[int]
    bodies: list[bytes]
    form: AddForm


def varint(number: int) -> bytes:
    """Encode a number from 0 to 2**64 - 1 as a protobuf varint."""
    if number < _SHORT_COUNT:
        return _SHORT[number]
    if number < _LONG_MIN:
        return _LOW[number & _MASK] + _SHORT[number >> _SHORT_BITS]
    return _LOW[number & _MASK] + varint(number >> _SHORT_BITS)


def consecutive_varints(first: int, count: int) -> list[bytes]:
    """Encode ``count`` numbers from ``first`` on, faster than one by one."""
    varints: list[bytes] = []
    end = first + count
    while first < end:
        if first < _SHORT_COUNT:
            part = _SHORT[first:end]
        else:
            high, low = varint(first >> _SHORT_BITS), first & _MASK
            part = [each + high for each in _LOW[low : low + end - first]]
        varints += part
        first += len(part)
    return varints


def parse_adds(payloads: Sequence[bytes], first: int, form: AddForm) -> PlainAdds:
    """Decode plain adds from index ``first`` on, up to the first payload that does not have the expected form.

    This does not parse: it reads the ids from the body, and the bytes before the body must then be exactly those of a
    request with these ids.
    """
    rest = payloads[first:] if first else payloads
    if len(rest) >= _LIKE_COUNT_MIN and len(rest[-1]) == len(rest[0]):
        begun = _parse_each(rest[:1], form)
        if begun.txn_ids and (adds := _parse_consecutive(rest, begun)) is not None:
            return adds
    return _parse_each(rest, form)


def _parse_each(payloads: Sequence[bytes], form: AddForm) -> PlainAdds:
    master_key, overhead, txn_id, step, is_recovery = form
    flag = RECOVERY_FLAG if is_recovery else b""
    key_field = _key_field(master_key)
    txn_ids: list[int] = []
    ledger_ids: list[int] = []
    entry_ids: list[int] = []
    bodies: list[bytes] = []
    body_bytes = ledger_id = entry_id_bytes = _NOT_YET
    tail = ledger = middle = b""
    for payload in payloads:
        size = len(payload) - overhead
        if size != body_bytes:
            if size < _IDS.size:
                break
            body_bytes, entry_id_bytes = size, _NOT_YET
            tail = key_field + varint(size)
        body_ledger_id, entry_id = _IDS.unpack_from(payload, overhead)
        if body_ledger_id != ledger_id:
            if body_ledger_id < 0:
                break
            ledger_id, entry_id_bytes = body_ledger_id, _NOT_YET
            ledger = flag + b"\x08" + varint(ledger_id) + b"\x10"
        if entry_id < 0:
            break
        entry = (
            _LOW[entry_id & _MASK] + varint(entry_id >> _SHORT_BITS) if entry_id >= _SHORT_COUNT else _SHORT[entry_id]
        )
        if len(entry) != entry_id_bytes:
            entry_id_bytes = len(entry)
            middle = _REQUEST_TAG + varint(len(ledger) + entry_id_bytes + len(tail) + size) + ledger
        expected_id = txn_id + step
        txn = varint(expected_id)
        if not payload.startswith(txn, _TXN_START):
            expected_id = number_of(payload[_TXN_START : payload[1] + 2])
            if expected_id >= _I64_END:
                break
            step = expected_id - txn_id
            if not 0 < step < _STEP_MAX:
                step = 1
            txn = varint(expected_id)
        head = b"".join((_HEADS[len(txn)], txn, middle, entry, tail))
        if len(head) != overhead or not payload.startswith(head):
            break
        txn_id = expected_id
        txn_ids.append(txn_id)
        ledger_ids.append(ledger_id)
        entry_ids.append(entry_id)
        bodies.append(payload[overhead:])
    return PlainAdds(txn_ids, ledger_ids, entry_ids, bodies, AddForm(master_key, overhead, txn_id, step, is_recovery))


def _parse_consecutive(payloads: Sequence[bytes], begun: PlainAdds) -> PlainAdds | None:
    """All payloads, if they are adds of consecutive entries of one ledger and have equal sizes. ``begun``: the first.

    All loops but one run in the interpreter's C code.
    """
    master_key, overhead, txn_id, step, is_recovery = begun.form
    [ledger_id], [entry_id], count = begun.ledger_ids, begun.entry_ids, len(payloads)
    last_txn_id = txn_id + step * (count - 1)
    if max(last_txn_id, entry_id + count) >= _I64_END or set(map(len, payloads)) != {len(payloads[0])}:
        return None
    txn_ids = range(txn_id, last_txn_id + 1, step)
    head = payloads[0][:overhead]
    tail_bytes = len(_key_field(master_key) + varint(len(payloads[0]) - overhead))
    begin, tail = head[:_TXN_START], head[overhead - tail_bytes :]
    middle = head[_TXN_START + len(varint(txn_id)) : overhead - tail_bytes - len(varint(entry_id))]
    heads = _with_counters(begin, txn_ids, middle, range(entry_id, entry_id + count), tail)
    if b"".join(map(operator.itemgetter(slice(overhead)), payloads)) != heads:
        return None
    bodies = list(map(operator.itemgetter(slice(overhead, None)), payloads))
    form = AddForm(master_key, overhead, last_txn_id, step, is_recovery)
    return PlainAdds(list(txn_ids), [ledger_id] * count, list(range(entry_id, entry_id + count)), bodies, form)


def _with_counters(begin: bytes, first: range, middle: bytes, second: range, end: bytes) -> bytes | None:
    """Join ``begin``, a number of ``first``, ``middle``, a number of ``second`` and ``end`` for each pair of numbers.

    None if the varints of a range do not all have the same length. One list per 16,384 numbers, without bytecode for
    each: varints that differ only in their low 14 bits share the others.
    """
    if any(len(varint(numbers[0])) != len(varint(numbers[-1])) for numbers in (first, second)):
        return None
    joined: list[bytes] = []
    while first:
        lows, high = _low_varints(first)
        second_lows, second_high = _low_varints(second)
        count = min(len(lows), len(second_lows))
        parts = [b"", high + middle, b"", second_high + end + begin] * count
        parts[0::4], parts[2::4] = lows[:count], second_lows[:count]
        joined += begin, *parts[:-1], second_high + end
        first, second = first[count:], second[count:]
    return b"".join(joined)


def _low_varints(numbers: range) -> tuple[list[bytes], bytes]:
    """The low parts of the varints of ascending numbers, up to where the high part, which is also returned, changes."""
    low, count = numbers[0] & _MASK, len(numbers) * numbers.step
    if numbers[0] < _SHORT_COUNT:
        return _SHORT[low : low + count : numbers.step], b""
    return _LOW[low : low + count : numbers.step], varint(numbers[0] >> _SHORT_BITS)


def _key_field(master_key: bytes) -> bytes:
    """The master key, and the tag of the body."""
    return b"\x1a" + varint(len(master_key)) + master_key + b"\x22"


def varints(numbers: Sequence[int]) -> list[bytes]:
    """Encode numbers, consecutive ones faster than others."""
    first, count = numbers[0], len(numbers)
    if count == 1:
        return [varint(first)]
    step = numbers[1] - first
    if abs(step) == 1 and list(numbers) == list(range(first, first + step * count, step)):
        return consecutive_varints(min(first, numbers[-1]), count)[::step]
    return list(map(varint, numbers))


def encode_add_answers(ledger_id: int, txn_ids: Sequence[int], entry_ids: Sequence[int]) -> bytes:
    """Encode the frames of positive answers to adds of one ledger; ids must not be negative."""
    ledger = b"\x08\x00\x10" + varint(ledger_id) + b"\x18"
    if len(txn_ids) >= _LIKE_COUNT_MIN and (likes := _like_answers(ledger, txn_ids, entry_ids)):
        return likes
    parts: list[bytes] = []
    txn_bytes = entry_bytes = 0
    begin = middle = b""
    for txn, entry in zip(varints(txn_ids), varints(entry_ids), strict=True):
        if len(txn) != txn_bytes or len(entry) != entry_bytes:
            txn_bytes, entry_bytes = len(txn), len(entry)
            middle = _ANSWER_TAG + varint(len(ledger) + entry_bytes) + ledger
            head = _HEADS[txn_bytes]
            begin = _LENGTH.pack(len(head) + txn_bytes + len(middle) + entry_bytes) + head
        parts += (begin, txn, middle, entry)
    return b"".join(parts)


def _like_answers(ledger: bytes, txn_ids: Sequence[int], entry_ids: Sequence[int]) -> bytes | None:
    """The frames of answers whose ids ascend in equal steps, or None. ``ledger``: the field between the ids."""
    txns, entries = _ascending(txn_ids), _ascending(entry_ids)
    if not txns or not entries:
        return None
    txn_bytes, entry_bytes = len(varint(txns[0])), len(varint(entries[0]))
    middle = _ANSWER_TAG + varint(len(ledger) + entry_bytes) + ledger
    head = _HEADS[txn_bytes]
    begin = _LENGTH.pack(len(head) + txn_bytes + len(middle) + entry_bytes) + head
    return _with_counters(begin, txns, middle, entries, b"")


def _ascending(numbers: Sequence[int]) -> range:
    """The numbers, if there are several and they have the same distance; otherwise an empty range."""
    step = numbers[1] - numbers[0]
    if step > 0:
        expected = range(numbers[0], numbers[0] + step * len(numbers), step)
        if list(expected) == numbers:
            return expected
    return range(0)


def encode_add_request(txn_id: int, ledger_id: int, entry_id: int, master_key: bytes, body: bytes) -> bytes:
    """Encode the frame of a plain add; ids must not be negative."""
    txn = varint(txn_id)
    fields = b"".join(
        (
            b"\x08",
            varint(ledger_id),
            b"\x10",
            varint(entry_id),
            b"\x1a",
            varint(len(master_key)),
            master_key,
            b"\x22",
            varint(len(body)),
        )
    )
    head = b"".join((_HEADS[len(txn)], txn, _REQUEST_TAG, varint(len(fields) + len(body)), fields))
    return b"".join((_LENGTH.pack(len(head) + len(body)), head, body))


def number_of(data: bytes) -> int:
    """The number of a varint, without validation: encode it again to check it."""
    number = 0
    for byte in reversed(data):
        number = number << 7 | byte & 127
    return number
