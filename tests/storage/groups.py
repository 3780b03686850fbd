"""A journal group in one piece, as tests put it into files by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from bkctl.storage.ids import JournalId
from bkctl.storage.journal.format import VERSION_MAX
from bkctl.storage.journal.group import encode_group


def group_bytes(
    records: Sequence[bytes],
    position: int,
    alignment_bytes: int = 512,
    journal_id: JournalId | None = None,
    version: int = VERSION_MAX,
) -> bytes:
    """The parts of ``encode_group``, joined."""
    return b"".join(itertools.chain(*encode_group(records, position, alignment_bytes, journal_id, version).writes))
