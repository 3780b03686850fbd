"""Digests of entries and the keys derived from a ledger's password. Source: wire sections 8.2 and 9."""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
import zlib
from typing import Protocol

_I32 = struct.Struct(">I")
_I64 = struct.Struct(">Q")


class DigestType(enum.IntEnum):
    """Digest of entries; the numbers are those in the stored metadata."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


class Digest(Protocol):
    """A digest algorithm, with its key if it has one."""

    @property
    def size_bytes(self) -> int:
        """Size of a digest."""

    def compute(self, head: bytes, payload: bytes | memoryview) -> bytes:
        """Digest of ``head`` followed by ``payload``, as stored in a body."""


def master_key(password: bytes) -> bytes:
    """Key (20 bytes) that a bookie checks before it adds to or fences a ledger; the same for all digest types."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


def digest_of(digest_type: DigestType, password: bytes) -> Digest:
    """The digest of a ledger with this type and password."""
    match digest_type:
        case DigestType.CRC32:
            return _Crc32()
        case DigestType.HMAC:
            return _HmacSha1(password)
        case DigestType.CRC32C:
            return _Crc32c()
        case DigestType.DUMMY:
            return _NoDigest()


class _Crc32:
    """CRC-32 with the zlib polynomial, stored as eight bytes of which the first four are zero."""

    size_bytes = 8

    def compute(self, head: bytes, payload: bytes | memoryview) -> bytes:
        return _I64.pack(zlib.crc32(payload, zlib.crc32(head)))


class _Crc32c:
    """CRC-32C (Castagnoli), four bytes."""

    size_bytes = 4

    def __init__(self) -> None:
        import crc32c  # noqa: PLC0415  25 ms, and most commands compute no digest

        self._update = crc32c.crc32c

    def compute(self, head: bytes, payload: bytes | memoryview) -> bytes:
        return _I32.pack(self._update(payload, self._update(head)))


class _HmacSha1:
    """HMAC-SHA1 with the key SHA1("mac" + password), twenty bytes. Named HMAC in the metadata, MAC in Java's API."""

    size_bytes = 20

    def __init__(self, password: bytes) -> None:
        key = hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()
        self._keyed = hmac.new(key, digestmod="sha1")

    def compute(self, head: bytes, payload: bytes | memoryview) -> bytes:
        state = self._keyed.copy()
        state.update(head)
        state.update(payload)
        return state.digest()


class _NoDigest:
    """No digest: stores nothing and accepts everything."""

    size_bytes = 0

    def compute(self, head: bytes, payload: bytes | memoryview) -> bytes:  # noqa: ARG002  the signature of Digest
        return b""
