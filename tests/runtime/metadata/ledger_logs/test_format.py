"""The node of a log of ledgers: what is refused, and what a change keeps."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.ledger_logs.format import (
    LedgerLog,
    LogLedger,
    LogWriterClaim,
    decode_log,
    encode_log,
    to_deleted,
    trimmed,
    with_ledger,
)

EMPTY = LedgerLog(
    log_id="1",
    created_ms=1,
    ensemble_size=3,
    write_quorum_size=3,
    ack_quorum_size=2,
    roll_bytes=60,
    roll_s=100,
)


def log_of(lengths: list[int]) -> LedgerLog:
    """A log whose ledgers 0, 1, ... got so many entries each, one after the other."""
    log, position = EMPTY, 0
    for ledger_id, length in enumerate(lengths):
        log = with_ledger(log, LogLedger(ledger_id, position, ledger_id))
        position += length
    return log


LOGS = st.lists(st.integers(0, 3), max_size=6).map(log_of)


@given(LOGS, st.booleans())
def test_a_node_is_read_as_it_was_written(log: LedgerLog, is_written: bool) -> None:
    if is_written:
        log = msgspec.structs.replace(log, writer=LogWriterClaim("t", "n", 1))
    assert decode_log(encode_log(log)) == log


def test_a_newer_format_is_refused_also_with_unknown_fields() -> None:
    newer = encode_log(EMPTY).replace(b'"format": 1', b'"format": 2, "more": 1')
    with pytest.raises(MetadataFormatError, match="has format 2, and this bkctl knows 1: use a newer one"):
        decode_log(newer)


@given(LOGS, st.data())
def test_damaged_bytes_are_refused_or_another_log(log: LedgerLog, data: st.DataObject) -> None:
    encoded = bytearray(encode_log(log))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MetadataFormatError):
        decode_log(bytes(encoded))
    with pytest.raises(MetadataFormatError):
        decode_log(encode_log(log)[: min(at, len(encoded) - 2)])


@pytest.mark.parametrize("firsts", [(3, 1), (-1, 0)])
def test_positions_that_do_not_ascend_are_refused(firsts: tuple[int, ...]) -> None:
    ledgers = b",".join(b'{"ledger_id":1,"first_position":%d,"created_ms":1}' % first for first in firsts)
    with pytest.raises(MetadataFormatError, match="do not ascend"):
        decode_log(encode_log(EMPTY).replace(b'"ledgers": []', b'"ledgers": [' + ledgers + b"]"))


@given(LOGS, st.integers(-1, 20))
def test_a_trim_keeps_every_position_from_there_on_and_forgets_no_ledger(log: LedgerLog, before: int) -> None:
    kept = trimmed(log, before)
    assert kept.ledgers == log.ledgers[len(log.ledgers) - len(kept.ledgers) :]
    assert bool(kept.ledgers) == bool(log.ledgers)
    assert kept.first_position <= max(before, log.first_position)
    for each in (kept, to_deleted(log)):
        assert sorted([*each.released, *(ledger.ledger_id for ledger in each.ledgers)]) == sorted(
            [*log.released, *(ledger.ledger_id for ledger in log.ledgers)]
        )
