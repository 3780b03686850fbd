"""Bodies and LAC packets as Java writes them; whatever is damaged or foreign is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.errors import EntryDigestError
from bkctl.runtime.protocol.digest import DigestType
from bkctl.runtime.protocol.entry_body import DecodedEntry, EntryCodec
from tests.runtime.protocol.golden import vectors

PASSWORD = b"testPasswd"
DIGEST_TYPES = list(DigestType)
PROTECTED = [digest_type for digest_type in DigestType if digest_type is not DigestType.DUMMY]


@pytest.mark.parametrize("digest_type", DIGEST_TYPES)
def test_body_is_java_s(digest_type: DigestType) -> None:
    codec = EntryCodec(1, digest_type, PASSWORD)
    body = vectors()[f"body {digest_type.name}"]
    assert codec.encode(0, -1, 5, b"hello") == body
    assert codec.decode(0, body) == DecodedEntry(0, -1, 5, b"hello")


@pytest.mark.parametrize("digest_type", DIGEST_TYPES)
def test_lac_packet_is_java_s(digest_type: DigestType) -> None:
    codec = EntryCodec(1, digest_type, PASSWORD)
    packet = vectors()[f"lac {digest_type.name}"]
    assert codec.encode_lac(7) == packet
    assert codec.decode_lac(packet) == 7


@given(
    digest_type=st.sampled_from(DIGEST_TYPES),
    entry_id=st.integers(0, 2**63 - 1),
    last_add_confirmed=st.integers(-1, 2**63 - 1),
    length=st.integers(0, 2**63 - 1),
    payload=st.binary(max_size=200),
)
def test_what_was_encoded_is_decoded(
    digest_type: DigestType, entry_id: int, last_add_confirmed: int, length: int, payload: bytes
) -> None:
    codec = EntryCodec(2**63 - 2, digest_type, b"")
    body = codec.encode(entry_id, last_add_confirmed, length, payload)
    assert codec.decode(None, body) == DecodedEntry(entry_id, last_add_confirmed, length, payload)


@pytest.mark.parametrize("digest_type", PROTECTED)
def test_any_flipped_bit_is_found(digest_type: DigestType) -> None:
    codec = EntryCodec(1, digest_type, PASSWORD)
    for whole, decode in (
        (codec.encode(0, -1, 5, b"hello"), lambda body: codec.decode(0, body)),
        (codec.encode_lac(7), codec.decode_lac),
    ):
        for position in range(len(whole) * 8):
            damaged = bytearray(whole)
            damaged[position // 8] ^= 1 << position % 8
            with pytest.raises(EntryDigestError):
                decode(bytes(damaged))


@pytest.mark.parametrize("digest_type", DIGEST_TYPES)
def test_short_ones_are_refused(digest_type: DigestType) -> None:
    codec = EntryCodec(1, digest_type, PASSWORD)
    shortest = codec.encode(0, -1, 0, b"")
    assert codec.decode(0, shortest).payload == b""
    with pytest.raises(EntryDigestError):
        codec.decode(0, shortest[:-1])
    with pytest.raises(EntryDigestError):
        codec.decode_lac(codec.encode_lac(3)[:-1])


@pytest.mark.parametrize("digest_type", DIGEST_TYPES)
def test_other_ledger_s_and_other_entries_are_refused(digest_type: DigestType) -> None:
    codec = EntryCodec(1, digest_type, PASSWORD)
    stranger = EntryCodec(2, digest_type, PASSWORD)
    with pytest.raises(EntryDigestError):
        codec.decode(None, stranger.encode(0, -1, 0, b""))
    with pytest.raises(EntryDigestError):
        codec.decode(1, codec.encode(0, -1, 0, b""))
    with pytest.raises(EntryDigestError):
        codec.decode_lac(stranger.encode_lac(3))


def test_hmac_under_another_password_is_refused() -> None:
    body = EntryCodec(1, DigestType.HMAC, b"one").encode(0, -1, 0, b"")
    with pytest.raises(EntryDigestError):
        EntryCodec(1, DigestType.HMAC, b"two").decode(0, body)


@pytest.mark.parametrize("digest_type", DIGEST_TYPES)
@pytest.mark.parametrize("payload", [b"", b"hello", bytes(range(256)) * 40])
def test_many_bodies_are_verified_like_one(digest_type: DigestType, payload: bytes) -> None:
    codec = EntryCodec(1, digest_type, PASSWORD)
    good = codec.encode(7, 3, 5, payload)
    candidates = [
        good,
        codec.encode(8, 3, 5, payload),
        codec.encode(-1, 3, 5, payload),
        EntryCodec(2, digest_type, PASSWORD).encode(7, 3, 5, payload),
        good[:-1],
        good[:32],
        good[:7],
        b"",
        good + b"x",
        *(good[:at] + bytes([good[at] ^ 64]) + good[at + 1 :] for at in range(0, len(good), max(9, len(good) // 100))),
    ]
    for body, outcome in zip(candidates, codec.verify_many([7] * len(candidates), candidates), strict=True):
        if outcome is None:
            codec.decode(7, body)
        else:
            with pytest.raises(EntryDigestError, match=f"^{re.escape(str(outcome))}$"):
                codec.decode(7, body)
    assert codec.verify_many([7], [good]) == [None]
