"""What a command may do to a cluster, to a bookie's files or to the servers of this machine.

A command declares its effect once (``command(effect=...)``). Its options follow from the effect, and so does what the
gate (``commands.safety.gate``) asks for before anything is changed.
"""

from __future__ import annotations

import enum

_REHEARSED = frozenset({"dry_run"})
_PLANNED = frozenset({"dry_run", "plan_out", "apply"})


class Effect(enum.Enum):
    """The effect of a command; a ``Plan`` and the audit trail record its tier."""

    LOOKS = "looks"
    """Changes nothing."""
    REVERSIBLE = "reversible"
    """One command undoes it. Asks nothing."""
    HARMFUL = "harmful"
    """Hurts a service, or takes long to undo. Asks for y, or ``--yes``."""
    DESTROYS = "destroys"
    """Cannot be undone, or only from the trash. The name of the thing must be typed, or given by ``--confirm``."""
    SERVES = "serves"
    """Starts or stops servers on this machine. Asks nothing; has no saved plan."""

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
            Effect.HARMFUL: _PLANNED | {"yes"},
            Effect.DESTROYS: _PLANNED | {"confirm"},
            Effect.SERVES: _REHEARSED,
        }[self]
