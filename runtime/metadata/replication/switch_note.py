"""The note that bkctl stores when it disables autorecovery. Java ignores it."""

from __future__ import annotations

import datetime

import msgspec

from bkctl.storage.json_text import JsonTextError, decode_json


class SwitchNote(msgspec.Struct, frozen=True):
    """Who disabled replication, why, and the intended end; None: not given."""

    by: str | None = None
    reason: str | None = None
    until: str | None = None

    def is_overdue(self, now_ms: int) -> bool:
        """Whether replication should be enabled again by now."""
        try:
            moment = datetime.datetime.fromisoformat(self.until or "")
        except ValueError:
            return False
        return moment.tzinfo is not None and moment.timestamp() * 1000 < now_ms


def decode_note(data: bytes) -> SwitchNote:
    """The note; an empty one if the data is something else."""
    try:
        return decode_json(data, SwitchNote)
    except JsonTextError:
        return SwitchNote()
