"""How bad a finding is: the one scale of the status, the doctor, `storage check`, audits and plans. Pure.

Results have it under the key ``severity``. A result that sums up findings says ``ok`` if there is none.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable
from typing import Final

OK: Final = "ok"
"""Instead of a severity: nothing was found."""


@functools.total_ordering
class Severity(enum.Enum):
    """Severity of a finding; a worse one is larger."""

    INFORMATION = "information"
    """No damage, but worth knowing."""
    WARNING = "warning"
    """One bookie, ledger or operation fails or will fail, or something could not be read."""
    CRITICAL = "critical"
    """It must not wait: data may be lost, or the operation that was asked for must not go on."""

    @property
    def _rank(self) -> int:
        return list(Severity).index(self)

    def __lt__(self, other: Severity) -> bool:
        return self._rank < other._rank


def worst(severities: Iterable[Severity]) -> Severity | None:
    """The largest; None without any."""
    return max(severities, default=None)


def word(severity: Severity | None) -> str:
    """The value of ``severity`` in a result that sums up findings."""
    return OK if severity is None else severity.value
