"""What a command may do to a cluster, to a bookie's files or to the servers of this machine.

A command declares its effect once (``command(effect=...)``). The effect determines its options and what the gate
(``bkctl.commands.safety.gate``) requires before a change.
"""

from __future__ import annotations

import enum

_REHEARSED = frozenset({"dry_run", "yes"})
_PLANNED = _REHEARSED | {"plan_out", "apply"}


class Effect(enum.Enum):
    """The effect of a command; a ``Plan`` and the audit trail record its tier."""

    LOOKS = "looks"
    """Changes nothing."""
    REVERSIBLE = "reversible"
    """One command undoes it. Does not ask."""
    HARMFUL = "harmful"
    """Disrupts a service, or takes long to undo. Asks for y, or ``--yes``, which every change accepts."""
    DESTROYS = "destroys"
    """Cannot be undone, or only from the trash. The name of the subject must be typed, or given by ``--confirm``."""
    SERVES = "serves"
    """Starts or stops servers on this machine. Does not ask; has no saved plan."""

    @property
    def tier(self) -> int:
        """The number in plans and in the audit trail; 0 where there is no plan."""
        return {Effect.REVERSIBLE: 1, Effect.HARMFUL: 2, Effect.DESTROYS: 3}.get(self, 0)

    @property
    def is_change(self) -> bool:
        """Whether read-only mode stops it."""
        return self is not Effect.LOOKS

    @property
    def options(self) -> frozenset[str]:
        """The global options that a command of this effect supports."""
        return {
            Effect.LOOKS: frozenset[str](),
            Effect.REVERSIBLE: _PLANNED,
            Effect.HARMFUL: _PLANNED,
            Effect.DESTROYS: _PLANNED | {"confirm"},
            Effect.SERVES: _REHEARSED,
        }[self]
