"""Whether writers find enough writable bookies for new ledgers, and what gives them more. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from bkctl.runtime.replication.judge.advice import Advice, show_command
from bkctl.storage.severity import Severity
from bkctl.storage.words import SHOWN_MAX, counted, enumerated

_USUAL_PART = 4


class Idle(enum.Enum):
    """Why a bookie takes no entries of new ledgers; first what is ended the fastest."""

    DRAIN = "drain"  # that no command continues now
    OPERATOR = "operator"
    SPACE = "space"
    DOWN = "down"
    OTHER = "other"
    LEAVING = "leaving"  # a command moves its ledgers


class WritableBookies(msgspec.Struct, frozen=True):
    """How many bookies take entries of new ledgers, and why the others do not. ``usual_size``: see the function."""

    writable: int
    idle: Mapping[str, Idle] = {}
    usual_size: int = 0

    @property
    def are_enough(self) -> bool:
        """Whether most new ledgers can be created."""
        return self.missing <= 0

    @property
    def missing(self) -> int:
        """How many more most new ledgers need."""
        return max(1, self.usual_size) - self.writable


def usual_size(ledgers: Mapping[int, int]) -> int:
    """What at least a quarter of the ledgers need: an ensemble of so many bookies, or more. 0 if there are no ledgers.

    ``ledgers``: how many, by the size of their ensembles. A few ledgers of an unusual size do not count.
    """
    enough, found = sum(ledgers.values()) / _USUAL_PART, 0
    for size in sorted(ledgers, reverse=True):
        found += ledgers[size]
        if found >= enough:
            return size
    return 0


def writers_stop(found: WritableBookies) -> Advice:
    """Too few bookies take new entries: new ledgers cannot be created, and writers cannot replace a bookie."""
    how, command = what_helps_writers(found)
    if not found.writable:
        return Advice(Severity.CRITICAL, "no_writable_bookie", f"no bookie is writable: {how}", command)
    return Advice(Severity.CRITICAL, "writers_stop", f"writers stop: {too_few_text(found)}; {how}", command)


def too_few_text(found: WritableBookies) -> str:
    """How many bookies are writable, and what that prevents."""
    which = counted(found.writable, "bookie is", "bookies are") if found.writable else "no bookie is"
    size = f"with {found.usual_size}, like many here, " if found.usual_size else ""
    return f"{which} writable, and ledgers {size}cannot be created"


def what_helps_writers(found: WritableBookies) -> tuple[str, str]:
    """What is the fastest, and its command: one step, after which there may be another."""
    how, command = _fastest(found)
    return how + (f" ({found.missing} more bookies are needed)" if found.missing > 1 else ""), command


def _fastest(found: WritableBookies) -> tuple[str, str]:
    ids = {why: [each for each, reason in found.idle.items() if reason is why] for why in Idle}
    if drained := ids[Idle.DRAIN][: found.missing]:
        how = (
            f"keep {enumerated(drained, shown_max=SHOWN_MAX)}, which a drain made read-only and no command empties now"
        )
        return how, f"bkctl bookie undrain {' '.join(drained)}"
    if ordered := ids[Idle.OPERATOR][: found.missing]:
        how = f"make {enumerated(ordered, shown_max=SHOWN_MAX)} writable, which an operator set read-only"
        return how, f"bkctl bookie set-mode writable {' '.join(ordered)}"
    if ids[Idle.SPACE]:
        return f"free space on {ids[Idle.SPACE][0]}, or give it a disk", "bkctl help full-disk"
    if down := ids[Idle.DOWN]:
        is_choice = 1 < found.missing < len(down)
        names = enumerated(down, "or" if found.missing == 1 else "and", SHOWN_MAX)
        return f"start {f'{found.missing} of ' if is_choice else ''}{names}", show_command(down)
    if ids[Idle.OTHER]:
        first = ids[Idle.OTHER][0]
        return f"find out why {first} is read-only, or add a bookie", f"bkctl bookie state {first}"
    return ("add a bookie" if found.writable else "start one"), "bkctl bookie list"
