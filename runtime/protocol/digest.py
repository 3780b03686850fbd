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
    """How entries are protected; the numbers are those of the stored metadata."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


class Digest(Protocol):
    """A digest algorithm, with its key where it has one."""

    @property
    def size_bytes(self) -> int:
        """Bytes of every digest."""

    def compute(self, head: bytes, payload: bytes) -> bytes:
        """Digest of ``head`` followed by ``payload``, as written into a body."""


def master_key(password: bytes) -> bytes:
    """Key (20 bytes) that a bookie compares before it adds to or fences a ledger; the same for every digest type."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


def digest_of(digest_type: DigestType, password: bytes) -> Digest:
    """The digest that a ledger of this type and password uses."""
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
    """The zlib polynomial, written as eight bytes of which the first four are zero."""

    size_bytes = 8

    def compute(self, head: bytes, payload: bytes) -> bytes:
        return _I64.pack(zlib.crc32(payload, zlib.crc32(head)))


class _Crc32c:
    """Castagnoli, four bytes."""

    size_bytes = 4

    def __init__(self) -> None:
        import crc32c  # noqa: PLC0415  25 ms, and most commands compute no digest

        self._update = crc32c.crc32c

    def compute(self, head: bytes, payload: bytes) -> bytes:
        return _I32.pack(self._update(payload, self._update(head)))


class _HmacSha1:
    """HMAC-SHA1 under SHA1("mac" + password), twenty bytes; the metadata calls it HMAC, Java's API MAC."""

    size_bytes = 20

    def __init__(self, password: bytes) -> None:
        key = hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()
        self._keyed = hmac.new(key, digestmod="sha1")

    def compute(self, head: bytes, payload: bytes) -> bytes:
        state = self._keyed.copy()
        state.update(head)
        state.update(payload)
        return state.digest()


class _NoDigest:
    """Nothing is written and everything passes."""

    size_bytes = 0

    def compute(self, head: bytes, payload: bytes) -> bytes:  # noqa: ARG002  the signature of Digest
        return b""
