"""Batches without protobuf say what protobuf says, for the forms that they know; they accept no other form."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from bkctl.runtime.protocol import v3
from bkctl.runtime.protocol.framing import FRAME_BYTES_MAX
from bkctl.runtime.protocol.messages import AddAnswer, AddRun, ReadAnswer, ReadCall
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v3_batches import (
    AddAnswerForm,
    ReadAnswerForm,
    batch_ids,
    encode_adds,
    encode_reads,
    txn_id_of,
)
from bkctl.runtime.protocol.v3_bookie import V3BookieCodec, decode_request
from tests.runtime.protocol.golden import rows

KEY = b"k" * 20
edges = st.sampled_from([0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**21, 2**28 - 1, 2**28, 2**35, 2**63 - 1])
ids = edges | st.integers(0, 2**63 - 1)
lacs = st.none() | st.just(-1) | ids
sizes = st.sampled_from([0, 1, 60, 80, 96, 97, 98, 99, 100, 120, 127, 128, 16300, 16383, 16384]) | st.integers(0, 200)


def add_answer(txn_id: int, ledger_id: int, entry_id: int, status: Status = Status.OK) -> bytes:
    run = AddRun(ledger_id, KEY, False, False, False, [txn_id], [entry_id], [b""])
    return V3BookieCodec(FRAME_BYTES_MAX).encode(run, status)[4:]


def read_answer(txn_id: int, ledger_id: int, entry_id: int, body: bytes, lac: int | None) -> bytes:
    call = ReadCall(txn_id, ledger_id, entry_id, None, False)
    return V3BookieCodec(FRAME_BYTES_MAX).encode(call, ReadAnswer(txn_id, Status.OK, body, lac))[4:]


@st.composite
def changes(draw: st.DrawFn, payload: bytes) -> bytes:
    """The payload, or one with a few other bytes."""
    for _ in range(draw(st.integers(0, 2))):
        position = draw(st.integers(0, min(60, len(payload))) | st.integers(0, len(payload)))
        changed = draw(st.binary(max_size=3))
        payload = payload[:position] + changed + payload[position + draw(st.integers(0, 3)) :]
    return payload


@given(
    first_txn_id=st.integers(1, 2**63) | edges,
    ledger_id=ids,
    key=st.binary(max_size=130),
    adds=st.lists(st.tuples(ids, sizes), min_size=1, max_size=5),
    is_recovery=st.booleans(),
)
def test_adds_are_what_a_bookie_reads(
    first_txn_id: int, ledger_id: int, key: bytes, adds: list[tuple[int, int]], is_recovery: bool
) -> None:
    entries = [(entry_id, bytes(size)) for entry_id, size in adds]
    sent_ids = batch_ids(first_txn_id, ledger_id, [entry_id for entry_id, _ in entries])
    frames = encode_adds(sent_ids, key, [body for _, body in entries], is_recovery)
    for txn_id, (entry_id, body), frame in zip(range(first_txn_id, 2**64), entries, frames, strict=False):
        assert int.from_bytes(frame[:4]) == len(frame) - 4
        expected = AddRun(ledger_id, key, is_recovery, False, False, [txn_id], [entry_id], [body])
        assert decode_request(frame[4:]) == expected
        if not is_recovery:
            assert frame == v3.encode_add_request(txn_id, ledger_id, entry_id, key, body, False, False)
    assert len(frames) == len(adds)


@given(first_txn_id=st.integers(1, 2**63) | edges, ledger_id=ids, entry_ids=st.lists(ids, min_size=1, max_size=5))
def test_reads_are_written_as_protobuf_writes_them(first_txn_id: int, ledger_id: int, entry_ids: list[int]) -> None:
    assert encode_reads(batch_ids(first_txn_id, ledger_id, entry_ids)) == [
        v3.encode_read_request(txn_id, ledger_id, entry_id, None, False)
        for txn_id, entry_id in enumerate(entry_ids, first_txn_id)
    ]


@given(txn_id=ids, ledger_id=ids, entry_ids=st.lists(ids, min_size=1, max_size=4))
def test_positive_answers_to_adds_are_recognized(txn_id: int, ledger_id: int, entry_ids: list[int]) -> None:
    form = AddAnswerForm(ledger_id)
    for number, entry_id in enumerate(entry_ids):
        payload = add_answer(txn_id + number, ledger_id, entry_id)
        assert txn_id_of(payload) == txn_id + number
        assert form.count([payload], batch_ids(txn_id + number, ledger_id, [entry_id])) == 1


@given(
    txn_id=ids,
    ledger_id=ids,
    reads=st.lists(st.tuples(ids, sizes), min_size=1, max_size=4),
    lac=lacs,
)
def test_positive_answers_to_reads_are_recognized(
    txn_id: int, ledger_id: int, reads: list[tuple[int, int]], lac: int | None
) -> None:
    form = ReadAnswerForm(ledger_id)
    form.expect_lac(lac)
    for number, (entry_id, size) in enumerate(reads):
        payload = read_answer(txn_id + number, ledger_id, entry_id, bytes(size), lac)
        assert txn_id_of(payload) == txn_id + number
        assert form.bodies([payload], batch_ids(txn_id + number, ledger_id, [entry_id])) == [bytes(size)]


@given(data=st.data(), txn_id=ids, ledger_id=ids, entry_id=ids, others=st.tuples(ids, ids, ids))
@example(None, 300, 5, 7, (300, 5, 7))
def test_no_other_answer_to_an_add_is_taken_for_a_positive_one(
    data: st.DataObject | None, txn_id: int, ledger_id: int, entry_id: int, others: tuple[int, int, int]
) -> None:
    payload = add_answer(txn_id, ledger_id, entry_id)
    if data is not None:
        payload = data.draw(changes(data.draw(st.sampled_from([payload, add_answer(*others)]))))
    if AddAnswerForm(ledger_id).count([payload], batch_ids(txn_id, ledger_id, [entry_id])):
        assert v3.decode_response(payload) == AddAnswer(txn_id, Status.OK)
        assert payload == add_answer(txn_id, ledger_id, entry_id)
    txn_id_of(payload)  # never fails


@given(data=st.data(), txn_id=ids, ledger_id=ids, entry_id=ids, size=sizes, expected_lac=lacs, lac=lacs)
def test_no_other_answer_to_a_read_is_taken_for_a_positive_one(
    data: st.DataObject,
    txn_id: int,
    ledger_id: int,
    entry_id: int,
    size: int,
    expected_lac: int | None,
    lac: int | None,
) -> None:
    payload = data.draw(changes(read_answer(txn_id, ledger_id, entry_id, bytes(size), lac)))
    form = ReadAnswerForm(ledger_id)
    form.expect_lac(expected_lac)
    for body in form.bodies([payload], batch_ids(txn_id, ledger_id, [entry_id])):
        answer = v3.decode_response(payload)
        assert isinstance(answer, ReadAnswer)
        assert (answer.txn_id, answer.status, answer.body) == (txn_id, Status.OK, body)
    txn_id_of(payload)


@given(first_txn_id=ids, ledger_id=ids, entry_ids=st.lists(ids, min_size=1, max_size=6), wrong=st.integers(0, 6))
def test_a_run_of_answers_ends_at_the_first_other_one(
    first_txn_id: int, ledger_id: int, entry_ids: list[int], wrong: int
) -> None:
    found = {place: bytes(90 + place % 3) for place in range(len(entry_ids))}
    expected_ids = batch_ids(first_txn_id, ledger_id, entry_ids)
    adds, reads = [], []
    for place, entry_id in enumerate(entry_ids):
        answered_id = (entry_id + (place == wrong)) % 2**63
        adds.append(add_answer(first_txn_id + place, ledger_id, answered_id))
        reads.append(read_answer(first_txn_id + place, ledger_id, answered_id, found[place], 7))
    form = ReadAnswerForm(ledger_id)
    form.expect_lac(7)
    assert AddAnswerForm(ledger_id).count(adds, expected_ids) == min(wrong, len(entry_ids))
    assert form.bodies(reads, expected_ids) == list(found.values())[:wrong]


def test_java_s_positive_answers_need_no_protobuf() -> None:
    adds = reads = 0
    for row in rows("v3-bookie-4.18.0.jsonl"):
        is_positive = row.direction == "response" and row.decoded.get("status") == "EOK"
        if not is_positive or row.inner.get("ledgerId", -1) < 0 or row.inner.get("entryId", -1) < 0:
            continue
        txn_id, ledger_id, entry_id = txn_id_of(row.payload), row.inner["ledgerId"], row.inner["entryId"]
        if row.operation == "ADD_ENTRY":
            adds += 1
            assert AddAnswerForm(ledger_id).count([row.payload], batch_ids(txn_id, ledger_id, [entry_id])), row.name
        elif row.operation == "READ_ENTRY" and "lacUpdateTimestamp" not in row.inner:
            answer = v3.decode_response(row.payload)
            assert isinstance(answer, ReadAnswer)
            form = ReadAnswerForm(ledger_id)
            form.expect_lac(answer.max_last_add_confirmed)
            reads += 1
            assert form.bodies([row.payload], batch_ids(txn_id, ledger_id, [entry_id])) == [answer.body], row.name
    assert adds > 5
    assert reads > 5
