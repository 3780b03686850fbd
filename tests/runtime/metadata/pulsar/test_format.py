"""Decoders of Pulsar's nodes, on bytes that ``pulsar_bytes`` makes by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.pulsar.format import (
    NamedLedgers,
    decode_cursor,
    decode_cursor_entry,
    decode_schema,
    decode_topic,
)
from tests.runtime.metadata.pulsar.pulsar_bytes import (
    CODECS,
    compressed,
    cursor,
    cursor_entry,
    field,
    schema,
    schema_version,
    topic,
    varint,
)

Decoder = Callable[[bytes], NamedLedgers]
DECODERS: tuple[Decoder, ...] = (decode_topic, decode_cursor, decode_cursor_entry, decode_schema)
GOOD: dict[Decoder, bytes] = {
    decode_topic: topic([1, 2], offloaded=[3]),
    decode_cursor: cursor(7, compacted=8, buckets={"1_2": "9"}),
    decode_cursor_entry: cursor_entry(8),
    decode_schema: schema([4, 5]),
}
IDS = st.lists(st.integers(0, 2**63 - 1), max_size=20, unique=True)


def test_an_empty_topic_names_no_ledger() -> None:
    assert decode_topic(b"") == NamedLedgers()


@given(IDS)
def test_all_ledgers_of_a_topic_are_named(ids: list[int]) -> None:
    third = len(ids) // 3
    plain, offloaded, copied = ids[:third], ids[third : 2 * third], ids[2 * third :]
    named = decode_topic(topic(plain, offloaded=offloaded, copied=copied))
    assert named.ledger_ids == {*plain, *copied}, "a copied ledger is in use until Pulsar has deleted it"
    assert named.offloaded_ids == set(offloaded)


def test_a_ledger_that_is_offloaded_and_in_use_is_in_use() -> None:
    assert decode_topic(topic([1], offloaded=[1])) == NamedLedgers(ledger_ids=frozenset({1}))
    incomplete = field(1, field(1, 5) + field(5, field(4, 1)))
    assert decode_topic(incomplete) == NamedLedgers(ledger_ids=frozenset({5})), "the copy is not known to be complete"


@given(st.integers(-1, 2**63 - 1), st.none() | st.integers(0, 2**63 - 1), IDS)
def test_a_cursor_names_its_ledger_the_compacted_one_and_the_buckets(
    ledger_id: int, compacted: int | None, buckets: list[int]
) -> None:
    texts = {f"{number}_{number + 1}": str(each) for number, each in enumerate(buckets)}
    named = decode_cursor(cursor(ledger_id, compacted=compacted, buckets=texts))
    own = set() if ledger_id < 0 else {ledger_id}
    assert named.ledger_ids == own | set(buckets) | (set() if compacted is None else {compacted})
    assert (named.cursor_ledger_id, named.compacted_id) == (ledger_id if own else None, compacted)


@given(st.none() | st.integers(0, 2**63 - 1))
def test_an_entry_of_a_cursors_ledger_names_the_compacted_one(compacted: int | None) -> None:
    assert decode_cursor_entry(cursor_entry(compacted)).compacted_id == compacted


def test_a_schema_names_the_ledgers_of_all_versions() -> None:
    assert decode_schema(schema([4, 9, 11])).ledger_ids == {4, 9, 11}
    nowhere = field(1, schema_version(0, -1)) + field(2, schema_version(0, -1))
    assert decode_schema(nowhere).ledger_ids == set()


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_nodes(codec: str) -> None:
    data = topic(range(5000))
    packed = compressed(data, codec)
    assert codec == "NONE" or len(packed) < len(data)
    assert decode_topic(packed).ledger_ids == set(range(5000))
    assert decode_cursor(compressed(cursor(7), codec)).ledger_ids == {7}
    for wrong in (len(data) - 1, len(data) + 1, 0, -1, 2**31 - 1):
        with pytest.raises(MetadataFormatError, match="compress"):
            decode_topic(compressed(data, codec, size=wrong))
    for cut in (1, 5, 9, len(packed) // 2, len(packed) - 1):
        with pytest.raises(MetadataFormatError, match=r"compress|field|protobuf"):
            decode_topic(packed[:cut] if cut > 1 else packed[:1])


@pytest.mark.parametrize("codec", [5, 99])
def test_an_unknown_codec_is_an_error(codec: int) -> None:
    header = field(1, codec) + field(2, 1)
    with pytest.raises(MetadataFormatError, match=f"codec {codec} is not known"):
        decode_topic(b"\x47\x78" + len(header).to_bytes(4, "big") + header + b"x")


@pytest.mark.parametrize("decode", DECODERS)
def test_a_field_that_is_not_known_is_an_error(decode: Decoder) -> None:
    assert decode(GOOD[decode]).ledger_ids
    for more in (field(19, 1), field(19, b"x"), varint(1 << 3 | 5) + b"1234"):
        with pytest.raises(MetadataFormatError, match="a field that this version of bkctl does not know"):
            decode(GOOD[decode] + more)


@pytest.mark.parametrize(
    ("decode", "data", "problem"),
    [
        (decode_topic, field(1, field(2, 10)), "a ledger has no id"),
        (decode_topic, field(1, field(1, -1)), "a ledger has no id"),
        (decode_topic, field(1, field(1, 7) + field(9, 1)), "does not know"),
        (decode_topic, b"\x08", "not a protobuf message"),
        (decode_cursor, b"", "the id of its ledger is missing"),
        (decode_cursor, field(2, 3), "the id of its ledger is missing"),
        (decode_cursor, cursor(buckets={"1_2": "x"}), "bucket is not a number"),
        (decode_cursor, cursor(buckets={"1_2": ""}), "bucket is not a number"),
        (decode_cursor, cursor(buckets={"1_2": "9" * 5000}), "bucket is not a number"),
        (decode_cursor, cursor(buckets={"1_2": "-3"}), "bucket is not a number"),
        (decode_cursor, cursor(compacted=-1), "the id of the compacted ledger is missing"),
        (decode_cursor_entry, b"", "the position is missing"),
        (decode_schema, b"", "the newest version is missing"),
        (decode_schema, schema([4, 5], first=1), "only its ledgers name the first versions"),
        (decode_schema, field(1, field(1, 0)), "a version has no number or no ledger"),
        (decode_schema, field(1, field(2, field(1, 4))), "a version has no number or no ledger"),
    ],
)
def test_what_is_missing_is_an_error(decode: Decoder, data: bytes, problem: str) -> None:
    with pytest.raises(MetadataFormatError, match=problem):
        decode(data)


@given(st.sampled_from(DECODERS), st.binary(max_size=200))
@example(decode_topic, b"\x47\x78\x7f\xff\xff\xff")
@example(decode_topic, b"\x47\x78")
def test_any_bytes_give_a_value_or_a_format_error(decode: Decoder, data: bytes) -> None:
    with contextlib.suppress(MetadataFormatError):
        assert all(each >= 0 for each in decode(data).ledger_ids)


@given(st.sampled_from(DECODERS), st.data())
def test_damaged_nodes_give_a_value_or_a_format_error(decode: Decoder, data: st.DataObject) -> None:
    good = GOOD[decode]
    packed = data.draw(st.sampled_from([good, *(compressed(good, codec) for codec in CODECS)]))
    place = data.draw(st.integers(0, len(packed) - 1))
    damaged = bytearray(packed)
    damaged[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MetadataFormatError):
        assert all(each >= 0 for each in decode(bytes(damaged)).ledger_ids)


@given(st.binary(max_size=300), st.sampled_from(CODECS), st.binary(max_size=50))
def test_any_compressed_bytes_give_a_value_or_a_format_error(data: bytes, codec: str, more: bytes) -> None:
    with contextlib.suppress(MetadataFormatError):
        decode_topic(compressed(data, codec) + more)
