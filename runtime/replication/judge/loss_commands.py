"""The commands that accept a loss, ready to be run. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

_IDS_MAX = 50
"""Of ledgers in a command."""


def accept_loss_command(bookie_ids: Sequence[str], ledgers: str = "lost-ledgers") -> str:
    """What removes bookies whose disks are lost, and accepts the loss of what only they had of ledgers in a file."""
    accepted = " ".join(f"--accept-loss {each}" for each in bookie_ids)
    return f"bkctl decommission {' '.join(bookie_ids)} {accepted} --from-file {shlex.quote(ledgers)}"


def accept_loss_commands(bookie_ids: Sequence[str], ledger_ids: Sequence[int] = ()) -> str:
    """The same for these ledgers, or for all that only they had entries of: others would be refused."""
    named = " ".join(f"--bookie {each}" for each in bookie_ids)
    ledgers = f"bkctl ledger list {named} --state lost -o name"
    if 0 < len(ledger_ids) <= _IDS_MAX:
        ledgers = f"printf '%s\\n' {' '.join(map(str, ledger_ids))}"
    return f"{ledgers} > lost-ledgers && {accept_loss_command(bookie_ids)}"
