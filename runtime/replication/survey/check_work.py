"""What a check of copies does now, and how much there is to read, for progress reports."""

from __future__ import annotations

import math

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.copy.reader import entry_bytes_estimate
from bkctl.runtime.replication.judge.check_scope import CheckScope
from bkctl.runtime.replication.judge.fragments import EntryRange


class CheckWork(LedgerActivity):
    """A ledger that is being checked, of which about ``bytes_planned`` will be read."""

    def __init__(self, ledger_id: int, since_ns: int, bytes_planned: int) -> None:
        super().__init__(ledger_id, since_ns)
        self.bytes_planned = bytes_planned
        self.bytes_read = 0

    @property
    def bytes_done(self) -> int:
        """What is done of the plan."""
        return min(self.bytes_read, self.bytes_planned)


def bytes_to_check(metadata: LedgerMetadata, scope: CheckScope) -> int:
    """About how much a check reads of a ledger; 0 while it is open, because its size is unknown."""
    if not metadata.is_closed:
        return 0
    entries = sum(each.count for each in scope.within(EntryRange(0, metadata.last_entry_id)))
    if scope.sample is not None:
        entries = math.ceil(entries * scope.sample.share)
    return entries * metadata.write_quorum_size * entry_bytes_estimate(metadata)
