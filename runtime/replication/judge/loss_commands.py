"""The commands that accept a loss, ready to be run. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def accept_loss_command(bookie_ids: Sequence[str], ledgers: str = "lost-ledgers") -> str:
    """What removes bookies whose disks are lost, and accepts the loss of what only they had of ledgers in a file."""
    accepted = " ".join(f"--accept-loss {each}" for each in bookie_ids)
    return f"bkctl decommission {' '.join(bookie_ids)} {accepted} --from-file {shlex.quote(ledgers)}"


def accept_loss_commands(bookie_ids: Sequence[str]) -> str:
    """The same for all ledgers that name them."""
    named = " ".join(f"--bookie {each}" for each in bookie_ids)
    return f"bkctl ledger list {named} -o name > lost-ledgers && {accept_loss_command(bookie_ids)}"
