"""What rows of several tables of an audit's report have in common. Data only."""

from __future__ import annotations

import msgspec


class Sums(msgspec.Struct):
    """Counters that can be added to those of other ledgers."""

    def add(self, other: Sums) -> None:
        """Add every counter of ``other``, which is of the same type; of two times, the older remains."""
        for name in self.__struct_fields__:
            value, more = getattr(self, name), getattr(other, name)
            if name.endswith("_ms"):
                setattr(self, name, min((time for time in (value, more) if time is not None), default=None))
            elif isinstance(value, int):
                setattr(self, name, value + more)


class LedgerHead(msgspec.Struct, frozen=True):
    """What all lists of ledgers with readable metadata say about one."""

    ledger_id: int
    ledger_state: str
    """``open``, ``in_recovery`` or ``closed``."""
    owner: str | None
    """In words; None if unknown."""
    created_ms: int | None
    """None if unknown."""
