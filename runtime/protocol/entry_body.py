"""Entry bodies and explicit LAC packets, which clients write and bookies store unchanged. Source: wire section 8.

An entry body: ledger id, entry id, LAC at the time of sending, ledger length including this entry (four i64), the
digest over these 32 bytes and the payload, then the payload. An explicit LAC packet: ledger id, LAC (two i64), the
digest over these 16 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from bkctl.runtime.errors import EntryDigestError
from bkctl.runtime.protocol.digest import DigestType, digest_of
from bkctl.storage.ids import INVALID_ENTRY_ID

_ENTRY_HEAD = struct.Struct(">qqqq")
_IDS = struct.Struct(">qq")
_COPIED_BYTES_MAX = 4096
"""Below this, a copy costs less than a view."""

_LAC_HEAD = struct.Struct(">qq")


class DecodedEntry(msgspec.Struct, frozen=True, gc=False):
    """A verified entry. ``length`` is the ledger's payload bytes up to and including this entry.

    ``last_add_confirmed`` and ``length`` are the writer's claims: a digest does not prove that they are correct.
    """

    entry_id: int
    last_add_confirmed: int
    length: int
    payload: bytes

    @property
    def credible_last_add_confirmed(self) -> int:
        """The last add confirmed, or -1 if it is impossible: a writer cannot know that the entry itself or a later one
        is confirmed before it sends the entry. A value lower than the true one is always safe to start from."""
        return (
            self.last_add_confirmed if INVALID_ENTRY_ID <= self.last_add_confirmed < self.entry_id else INVALID_ENTRY_ID
        )


class EntryCodec:
    """Encodes and verifies the entries of one ledger."""

    def __init__(self, ledger_id: int, digest_type: DigestType, password: bytes) -> None:
        self.ledger_id = ledger_id
        self._digest = digest_of(digest_type, password)
        self._payload_offset = _ENTRY_HEAD.size + self._digest.size_bytes

    def encode(self, entry_id: int, last_add_confirmed: int, length: int, payload: bytes) -> bytes:
        """Encode the body of an entry; ``length``: the ledger's payload bytes including this entry."""
        head = _ENTRY_HEAD.pack(self.ledger_id, entry_id, last_add_confirmed, length)
        return b"".join((head, self._digest.compute(head, payload), payload))

    def decode(self, entry_id: int | None, body: bytes) -> DecodedEntry:
        """Verify and decode a body; ``entry_id`` None accepts any entry of the ledger (for a read of the last one).

        EntryDigestError if it is too short, fails its digest, or belongs to another ledger or entry (wire 8.3).
        """
        offset = self._payload_offset
        if len(body) < offset:
            raise EntryDigestError(f"ledger {self.ledger_id}: an entry body of {len(body)} bytes is too short")
        head = body[: _ENTRY_HEAD.size]
        found_ledger_id, found_entry_id, last_add_confirmed, length = _ENTRY_HEAD.unpack(head)
        payload = body[offset:]
        if self._digest.compute(head, payload) != body[_ENTRY_HEAD.size : offset]:
            raise EntryDigestError(f"ledger {self.ledger_id}: the digest of entry {found_entry_id} does not match")
        if found_ledger_id != self.ledger_id or (entry_id is not None and found_entry_id != entry_id):
            wanted = "the last entry" if entry_id is None else f"entry {entry_id}"
            raise EntryDigestError(
                f"ledger {self.ledger_id}: requested {wanted}, received entry {found_entry_id} of ledger "
                f"{found_ledger_id}"
            )
        return DecodedEntry(found_entry_id, last_add_confirmed, length, payload)

    def decode_for_recovery(self, entry_id: int, body: bytes) -> DecodedEntry:
        """Like ``decode``, but EntryDigestError also for an impossible length, which recovery would store."""
        entry = self.decode(entry_id, body)
        if entry.length < 0:
            raise EntryDigestError(
                f"ledger {self.ledger_id}: the header of entry {entry_id} has the impossible length {entry.length}"
            )
        return entry

    def verify_many(self, entry_ids: Sequence[int], bodies: Sequence[bytes]) -> list[EntryDigestError | None]:
        """Verify bodies like ``decode``, but faster; the sequences have the same length.

        The result for a good body is None, and for any other the error of ``decode``.
        """
        head_bytes, offset, compute = _ENTRY_HEAD.size, self._payload_offset, self._digest.compute
        ledger_id = self.ledger_id
        results: list[EntryDigestError | None] = []
        for entry_id, body in zip(entry_ids, bodies, strict=True):
            payload = body[offset:] if len(body) < _COPIED_BYTES_MAX else memoryview(body)[offset:]
            if (
                len(body) >= offset
                and _IDS.unpack_from(body) == (ledger_id, entry_id)
                and compute(body[:head_bytes], payload) == body[head_bytes:offset]
            ):
                results.append(None)
            else:
                results.append(self._error_of(entry_id, body))
        return results

    def _error_of(self, entry_id: int, body: bytes) -> EntryDigestError:
        try:
            self.decode(entry_id, body)
        except EntryDigestError as error:
            return error
        raise AssertionError("a body is good for decode, but not for verify_many")

    def encode_lac(self, last_add_confirmed: int) -> bytes:
        """Encode an explicit LAC packet (wire 8.4)."""
        head = _LAC_HEAD.pack(self.ledger_id, last_add_confirmed)
        return head + self._digest.compute(head, b"")

    def decode_lac(self, packet: bytes) -> int:
        """Verify an explicit LAC packet and return its LAC; EntryDigestError. Ignores bytes after the digest."""
        end = _LAC_HEAD.size + self._digest.size_bytes
        if len(packet) < end:
            raise EntryDigestError(f"ledger {self.ledger_id}: a LAC packet of {len(packet)} bytes is too short")
        head = packet[: _LAC_HEAD.size]
        found_ledger_id, last_add_confirmed = _LAC_HEAD.unpack(head)
        if self._digest.compute(head, b"") != packet[_LAC_HEAD.size : end]:
            raise EntryDigestError(f"ledger {self.ledger_id}: the digest of a LAC packet does not match")
        if found_ledger_id != self.ledger_id:
            raise EntryDigestError(f"ledger {self.ledger_id}: received a LAC packet of ledger {found_ledger_id}")
        return int(last_add_confirmed)
