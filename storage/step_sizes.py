"""Sizes of the steps in which storage does its work."""

from __future__ import annotations

from typing import Final

import msgspec

from bkctl.storage.setting import MEBIBYTE


class StepSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Not settings, because they never affect what is stored. Tests use small values."""

    slice_entry_count_max: int = 8192
    slice_bytes_max: int = 4 * MEBIBYTE
    """A checkpoint appends this much to the entry log in one call, and indexes it in one batch. Longer calls would hold
    the interpreter lock while clients wait."""

    deleted_row_count_max: int = 128 * 1024
    """Index rows of deleted ledgers that one checkpoint deletes. A ledger may have millions of rows, and callers wait
    for the checkpoint."""

    delete_batch_row_count_max: int = 8192
    """Rows deleted in one index batch."""

    journal_part_bytes: int = 128 * 1024
    """A group is joined and checksummed in parts of this size, so that each part stays in the processor's cache."""

    journal_write_bytes: int = 256 * 1024
    """A journal write is started once its parts reach this size: the disk writes while the next parts are prepared."""

    replay_batch_bytes: int = MEBIBYTE
    """Replay applies groups together until they reach this size, because every ledger in a batch costs extra."""


USUAL_STEPS: Final = StepSizes()
