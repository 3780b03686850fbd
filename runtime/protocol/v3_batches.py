"""Adds and reads of one ledger in wire protocol v3, client side, without protobuf, for speed. Source: wire section 4.

Requests are encoded here. Of the answers, only positive ones in their usual form are recognized: fields in the order of
their numbers, shortest varints, no priority. Protobuf handles all others. A property test compares both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from bkctl.runtime.protocol.v3_adds import RECOVERY_FLAG, consecutive_varints, header_starts, varint

_READ: Final = 1
_ADD: Final = 2
_READ_HEADS: Final = header_starts(_READ)
_ADD_HEADS: Final = header_starts(_ADD)
_TXN_START: Final = len(_ADD_HEADS[0])
_PLAIN_ANSWER_BYTES_MIN: Final = 16
"""All plain answers are longer than a header with the longest transaction id."""

_READ_TAG: Final = b"\xa2\x06"
_ADD_TAG: Final = b"\xaa\x06"
_STATUS_OK: Final = b"\x10\x00"
_BODY_TAG: Final = b"\x22"
_LAC_TAG: Final = b"\x28"
_LENGTH: Final = struct.Struct(">I")
_U64_END: Final = 1 << 64
_SHORT_END: Final = 1 << 14
_MIDDLE_END: Final = 1 << 21
_NO_SIZES: Final = (0, 0, 0)


class BatchIds(NamedTuple):
    """Transaction ids and entry ids of requests about one ledger, as varints, in columns of the same length."""

    ledger_id: int
    txns: list[bytes]
    entries: list[bytes]

    def part(self, start: int, count: int) -> BatchIds:
        """At most ``count`` of them, from index ``start`` on."""
        return BatchIds(self.ledger_id, self.txns[start : start + count], self.entries[start : start + count])


def batch_ids(first_txn_id: int, ledger_id: int, entry_ids: Sequence[int]) -> BatchIds:
    """Ids of requests with consecutive transaction ids. Ids must not be negative."""
    return BatchIds(ledger_id, consecutive_varints(first_txn_id, len(entry_ids)), list(map(varint, entry_ids)))


def encode_adds(ids: BatchIds, master_key: bytes, bodies: Iterable[bytes], is_recovery_add: bool) -> list[bytes]:
    """Encode the frames of adds."""
    ledger = (RECOVERY_FLAG if is_recovery_add else b"") + b"\x08" + varint(ids.ledger_id) + b"\x10"
    key = b"\x1a" + varint(len(master_key)) + master_key + _BODY_TAG
    frames: list[bytes] = []
    sizes = _NO_SIZES
    begin = middle = tail = b""
    for txn, entry, body in zip(ids.txns, ids.entries, bodies, strict=True):
        if (len(txn), len(entry), len(body)) != sizes:
            sizes = txn_bytes, entry_bytes, body_bytes = len(txn), len(entry), len(body)
            tail = key + varint(body_bytes)
            middle = _ADD_TAG + varint(len(ledger) + entry_bytes + len(tail) + body_bytes) + ledger
            rest_bytes = txn_bytes + len(middle) + entry_bytes + len(tail) + body_bytes
            begin = _LENGTH.pack(_TXN_START + rest_bytes) + _ADD_HEADS[txn_bytes]
        frames.append(b"".join((begin, txn, middle, entry, tail, body)))
    return frames


def encode_reads(ids: BatchIds) -> list[bytes]:
    """Encode the frames of reads."""
    ledger = b"\x08" + varint(ids.ledger_id) + b"\x10"
    frames: list[bytes] = []
    txn_bytes = entry_bytes = 0
    begin = middle = b""
    for txn, entry in zip(ids.txns, ids.entries, strict=True):
        if len(txn) != txn_bytes or len(entry) != entry_bytes:
            txn_bytes, entry_bytes = len(txn), len(entry)
            middle = _READ_TAG + varint(len(ledger) + entry_bytes) + ledger
            begin = _LENGTH.pack(_TXN_START + txn_bytes + len(middle) + entry_bytes) + _READ_HEADS[txn_bytes]
        frames.append(begin + txn + middle + entry)
    return frames


def txn_id_of(payload: bytes) -> int:
    """The transaction id of an answer in its usual form. Of any other answer, any number; a form must check it."""
    if len(payload) < _PLAIN_ANSWER_BYTES_MIN:
        return 0
    end = payload[1] + 2
    if end == _TXN_START + 3:
        return payload[7] + (payload[8] << 7) + (payload[9] << 14) - (_SHORT_END + (1 << 7))
    if end == _TXN_START + 4:
        return (
            payload[7]
            + (payload[8] << 7)
            + (payload[9] << 14)
            + (payload[10] << 21)
            - (_MIDDLE_END + _SHORT_END + (1 << 7))
        )
    number = 0
    for byte in reversed(payload[_TXN_START:end]):
        number = number << 7 | byte & 127
    return number


class AddAnswerForm:
    """Recognizes positive answers to adds of one ledger."""

    def __init__(self, ledger_id: int) -> None:
        self._ledger = b"\x08\x00\x10" + varint(ledger_id) + b"\x18"
        self._txn_bytes = self._entry_bytes = 0
        self._head = self._middle = b""

    def count(self, payloads: Sequence[bytes], ids: BatchIds) -> int:
        """How many payloads, from the first one on, are the positive answers to these adds; one payload for each."""
        count = 0
        for payload, txn, entry in zip(payloads, ids.txns, ids.entries, strict=True):
            if len(txn) != self._txn_bytes or len(entry) != self._entry_bytes:
                self._txn_bytes, self._entry_bytes = len(txn), len(entry)
                self._head = _ADD_HEADS[len(txn)]
                self._middle = _STATUS_OK + _ADD_TAG + varint(len(self._ledger) + len(entry)) + self._ledger
            if payload != self._head + txn + self._middle + entry:
                break
            count += 1
        return count


class ReadAnswerForm:
    """Recognizes positive answers to reads of one ledger. All must have the same LAC, or none: see ``expect_lac``."""

    def __init__(self, ledger_id: int) -> None:
        self._ledger = b"\x08\x00\x10" + varint(ledger_id) + b"\x18"
        self._sizes = _NO_SIZES
        self._parts: tuple[bytes, bytes, bytes] | None = None
        self._lac = b""

    def expect_lac(self, last_add_confirmed: int | None) -> None:
        """The LAC that the next answers probably have."""
        self._lac = b"" if last_add_confirmed is None else _LAC_TAG + varint(last_add_confirmed % _U64_END)
        self._sizes = _NO_SIZES

    def bodies(self, payloads: Sequence[bytes], ids: BatchIds) -> list[bytes]:
        """The bodies of the payloads, from the first one on, that are the positive answers to these reads.

        There is one payload for each read.
        """
        bodies: list[bytes] = []
        lac = self._lac
        for payload, txn, entry in zip(payloads, ids.txns, ids.entries, strict=True):
            if (len(payload), len(txn), len(entry)) != self._sizes:
                self._sizes = len(payload), len(txn), len(entry)
                self._parts = self._derived()
            if self._parts is None:
                break
            head, middle, end = self._parts
            start = head + txn + middle + entry + end
            if not (payload.startswith(start) and payload.endswith(lac)):
                break
            bodies.append(payload[len(start) : len(payload) - len(lac)])
        return bodies

    def _derived(self) -> tuple[bytes, bytes, bytes] | None:
        """The bytes around the ids, derived from the sizes of payload and ids."""
        payload_bytes, txn_bytes, entry_bytes = self._sizes
        inner_bytes = _without_length(payload_bytes - _TXN_START - txn_bytes - len(_STATUS_OK) - len(_READ_TAG))
        body_bytes = _without_length(inner_bytes - len(self._ledger) - entry_bytes - len(_BODY_TAG) - len(self._lac))
        if body_bytes < 0:
            return None
        middle = _STATUS_OK + _READ_TAG + varint(inner_bytes) + self._ledger
        return _READ_HEADS[txn_bytes], middle, _BODY_TAG + varint(body_bytes)


def _without_length(size: int) -> int:
    """How many of ``size`` bytes remain after a varint of their number; negative if there is no such number."""
    for length_bytes in range(1, 5):
        rest = size - length_bytes
        if rest >> 7 * length_bytes == 0:
            return rest if len(varint(rest)) == length_bytes else -1
    return -1
