"""How much storage does in one step, and how long it waits for one."""

from __future__ import annotations

from typing import Final

import msgspec

from storage.setting import MEBIBYTE


class StepSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of steps, not settings: what is stored in the end never depends on them. Tests make them small."""

    slice_entry_count_max: int = 8192
    slice_bytes_max: int = 4 * MEBIBYTE
    """A checkpoint appends so much to the entry log at once, and names it in one index batch: a longer call would hold
    the interpreter while clients wait."""

    deleted_row_count_max: int = 128 * 1024
    """Index rows of deleted ledgers that one checkpoint deletes. A ledger may have millions, and the caller waits for
    the end of the checkpoint."""

    delete_batch_row_count_max: int = 8192
    """Rows deleted in one index batch."""

    journal_part_bytes: int = 128 * 1024
    """A group is joined and checksummed in parts of this size: the part is still in the processor's cache."""

    journal_write_bytes: int = 256 * 1024
    """A write to the journal ends with the part that reaches this: the disk has it while the next one is made."""

    replay_batch_bytes: int = MEBIBYTE
    """Replay applies groups together until they reach this. Every ledger in a batch has a cost of its own."""


USUAL_STEPS: Final = StepSizes()
