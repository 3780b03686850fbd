"""Decides which ledgers are in limbo after a rebuild from entry logs. Source: storage sections 9.2 and 12.

Logs have no checksums, and there is no list of them. A missing log, a log cut between two entries, or a flipped id
leaves no trace in the others. So the logs prove which entries exist, never which do not. A running bookie knows no
more: its old index may be the reason for the rebuild, and its write caches are flushed to the logs before the scan.
Therefore every ledger that has a row when the scan begins is put in limbo before the new index is used, online or
offline.

A ledger without a row at that time is certain: no entry is stored without a row, and the scan does not touch the
sealed database of the rows. (If the rows are lost too, the next boot finds such ledgers in the metadata.) A row that
is created during the scan, for example by a fence, adds no entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self, TypedDict

import msgspec

from bkctl.storage.ids import LedgerId


class RowFlags(TypedDict):
    """Flags to set in a ledger row, in addition to those it has."""

    is_fenced: bool
    is_limbo: bool


class DoubtedLedgers(msgspec.Struct, frozen=True):
    """Ledgers of a rebuilt directory that must be compared with other bookies."""

    limbo: frozenset[LedgerId]
    """Ledgers whose missing entries are reported as unknown."""
    damaged: frozenset[LedgerId]
    """The subset of ``limbo`` that a damaged log affects. They are fenced, so that no add extends them. The other
    ledgers keep their known fence state."""

    @classmethod
    def after_scan(
        cls, known: Iterable[LedgerId], damaged: Iterable[LedgerId], *, are_negatives_proven: bool = False
    ) -> Self:
        """``known``: ledgers with a row when the scan began; ``damaged``: those with entries missing from damaged logs.

        ``are_negatives_proven``: the locations were not rebuilt from the logs, or no log can be missing.
        """
        damaged = frozenset(damaged)
        return cls(damaged if are_negatives_proven else frozenset(known), damaged)

    def flags(self, ledger_id: LedgerId) -> RowFlags:
        """Flags that the ledger's row needs before the new index is used."""
        return {"is_fenced": ledger_id in self.damaged, "is_limbo": ledger_id in self.limbo}
