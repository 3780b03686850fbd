"""Of which ledgers nothing may be denied once locations were made from entry logs. Source: storage sections 9.2 and 12.

Logs have no checksum, and nothing says which there were. A log that is gone, one cut between two entries, or a flipped
id, leaves no trace in the others: so logs prove what is there, and never what is not. What the bookie remembers adds
nothing. Its former index may be why somebody rebuilds; its write caches go into the logs before these are read, so an
entry that it took itself an hour ago is as well proven as any other. Hence every ledger that has a row when the scan
begins is in limbo before the new index counts, whether the bookie runs or not.

A ledger without a row then is certain: an entry is never stored without one, and rows are kept in a sealed database
that the scan does not touch. (Where the rows themselves are lost, the next boot looks for such ledgers in the
metadata.) Who makes its row while the logs are read, as a fence does, adds no entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self, TypedDict

import msgspec

from storage.ids import LedgerId


class RowFlags(TypedDict):
    """Of a ledger row, to be added to what it has."""

    is_fenced: bool
    is_limbo: bool


class DoubtedLedgers(msgspec.Struct, frozen=True):
    """What a rebuild of one directory leaves open until the ledgers are compared with the other bookies."""

    limbo: frozenset[LedgerId]
    """Of these nothing may be denied."""
    damaged: frozenset[LedgerId]
    """Those of them of which a log says that entries are missing: no add should make more of such a ledger. Of the
    others the fence is known, and stays as it is."""

    @classmethod
    def after_scan(
        cls, known: Iterable[LedgerId], damaged: Iterable[LedgerId], *, are_negatives_proven: bool = False
    ) -> Self:
        """Of the ledgers ``known`` when the scan began, of which ``damaged`` lack entries by what the logs say.

        ``are_negatives_proven``: the locations are not made from the logs, or no log can be missing.
        """
        damaged = frozenset(damaged)
        return cls(damaged if are_negatives_proven else frozenset(known), damaged)

    def flags(self, ledger_id: LedgerId) -> RowFlags:
        """What its row must say before the new index counts."""
        return {"is_fenced": ledger_id in self.damaged, "is_limbo": ledger_id in self.limbo}
