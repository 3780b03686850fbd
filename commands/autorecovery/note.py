"""Why replication is off: a note for people inside the switch, which Java neither writes nor reads.

One JSON object: ``by``, ``reason``, ``until`` (RFC 3339), each of them text or null.
"""

from __future__ import annotations

import msgspec

from storage.json_text import JsonTextError, decode_json


class SwitchNote(msgspec.Struct, frozen=True):
    """Who switched replication off, why, and until when it is meant to last; None: not told."""

    by: str | None = None
    reason: str | None = None
    until: str | None = None


def encode_note(note: SwitchNote) -> bytes:
    """Bytes for the switch."""
    return msgspec.json.encode(note)


def decode_note(data: bytes) -> SwitchNote:
    """The note; whatever else lies there tells nothing."""
    try:
        return decode_json(data, SwitchNote)
    except JsonTextError:
        return SwitchNote()
