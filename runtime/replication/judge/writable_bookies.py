"""Whether writers find enough writable bookies for new ledgers, and what gives them more. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

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
    steps = steps_for_writers(found)
    command, how = steps[0][1], steps[0][0] + next_steps(steps)
    if not found.writable:
        return Advice(Severity.CRITICAL, "no_writable_bookie", f"no bookie is writable: {how}", command)
    return Advice(Severity.CRITICAL, "writers_stop", f"writers stop: {too_few_text(found)}; {how}", command)


def too_few_text(found: WritableBookies) -> str:
    """How many bookies are writable, and what that prevents."""
    which = counted(found.writable, "bookie is", "bookies are") if found.writable else "no bookie is"
    size = f"with {found.usual_size}, like many here, " if found.usual_size else ""
    return f"{which} writable, and ledgers {size}cannot be created"


def steps_for_writers(found: WritableBookies) -> list[tuple[str, str]]:
    """What gives writers as many bookies as they need, the fastest first, each with its command."""
    steps: list[tuple[str, str]] = []
    left = found.missing
    ids = {why: [each for each, reason in found.idle.items() if reason is why] for why in Idle}
    for why, names in ids.items():
        if names and left > 0 and why is not Idle.LEAVING:
            steps.append(_step(why, names, left))
            left -= len(names)
    if left > 0 and not ids[Idle.OTHER]:
        how = "add a bookie" if left == 1 else f"add {left} bookies"
        steps.append((how if found.writable or steps else "start one", "bkctl bookie list"))
    if found.missing > 1:
        how, command = steps[0]
        steps[0] = f"{how} ({found.missing} more bookies are needed)", command
    return steps


def next_steps(steps: Sequence[tuple[str, str]]) -> str:
    """What follows the first step, as the rest of a sentence."""
    return "".join(f"; then {how}: {command}" for how, command in steps[1:])


def _step(why: Idle, names: Sequence[str], needed: int) -> tuple[str, str]:
    """What makes as many of these bookies writable as are needed, if there are so many, and its command."""
    first = names[:needed]
    these = enumerated(first, shown_max=SHOWN_MAX)
    if why is Idle.DRAIN:
        how = f"keep {these}, which a drain made read-only and no command empties now"
        return how, f"bkctl bookie undrain {' '.join(first)}"
    if why is Idle.OPERATOR:
        how = f"make {these} writable, which an operator set read-only"
        return how, f"bkctl bookie set-mode writable {' '.join(first)}"
    if why is Idle.SPACE:
        disks = "give it a disk" if len(first) == 1 else "give them disks"
        return f"free space on {these}, or {disks}", "bkctl help full-disk"
    if why is Idle.DOWN:
        is_choice = 1 < needed < len(names)
        which = enumerated(names, "or" if needed == 1 else "and", SHOWN_MAX)
        return f"start {f'{needed} of ' if is_choice else ''}{which}", show_command(names)
    add = "is not writable, or add a bookie" if len(first) == 1 else "are not writable, or add bookies"
    return f"find out why {these} {add}", f"bkctl bookie state {first[0]}"
