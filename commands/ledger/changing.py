"""Shared by the commands that change ledgers: carrying out a plan, counting, reporting failures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from bkctl.commands.context import CommandContext
from bkctl.commands.errors import Outcome
from bkctl.commands.rendering import Column, Table
from bkctl.commands.safety.gate import Change
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.errors import ConflictError, RefusedError
from bkctl.runtime.metadata.ledgers.changes import BATCH, Action, Decide, LedgerChanges, LedgerFate, nothing_to_check
from bkctl.runtime.metadata.request_budget import RequestBudget
from bkctl.runtime.metadata.store import Node
from bkctl.storage.words import counted

FAILURE_TABLE = Table(
    "Not changed",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("reason", "REASON"),
)
_FAILURES_KEPT_MAX = 1000


class Tally:
    """Totals of the outcomes, and the first thousand failures in full."""

    def __init__(self) -> None:
        self.changed = 0
        self.unchanged = 0
        self.failed = 0
        self.failures: list[dict[str, Any]] = []

    @property
    def total(self) -> int:
        """Number of ledgers checked."""
        return self.changed + self.unchanged + self.failed

    def add(self, fate: LedgerFate) -> None:
        """Count one outcome."""
        self.changed += fate.is_change
        self.unchanged += fate.action is Action.NONE
        if fate.action is Action.FAIL:
            self.fail(fate.ledger_id, fate.reason)

    def fail(self, ledger_id: int, reason: str) -> None:
        """Count one ledger that was not changed."""
        self.failed += 1
        if len(self.failures) < _FAILURES_KEPT_MAX:
            self.failures.append({"ledger_id": str(ledger_id), "reason": reason})


async def change_ledgers(
    context: CommandContext,
    client: LedgerClient,
    change: Change,
    decide: Decide,
    ledger_ids: AsyncIterator[int],
    *,
    description: str,
    total: int | None,
    rate: float | None,
    changes_max: int | None = None,
    before_batch: Callable[[], Awaitable[None]] | None = None,
) -> Tally:
    """Carry out a plan on these ledgers; the result goes into the audit trail in any case.

    If the trash cannot be written after a change, the tally counts one more failure.
    """

    def keep(action: str, nodes: Sequence[tuple[str, Node]]) -> None:
        change.require_lock()
        change.trash.keep_all(action, nodes)

    operation = LedgerChanges(
        client.store,
        client.ports.ledgers,
        decide,
        keep=keep,
        before_each=change.require_lock,
        before_batch=before_batch or nothing_to_check,
        budget=RequestBudget(client.ports.clock, rate or None, BATCH),
    )
    tally = Tally()
    try:
        with context.console.progress(description) as progress:
            async with aclosing(operation.run(ledger_ids, changes_max=changes_max)) as fates:
                async for fate in fates:
                    tally.add(fate)
                    progress.update(tally.total, total, f"{tally.failed} failed" if tally.failed else None)
    except RefusedError as error:
        if not tally.changed:
            raise
        reason = str(error).removeprefix("nothing was changed: ")
        context.console.warn(f"stopped after {counted(tally.changed, 'ledger')}: {reason}")
        change.details["stopped"] = reason
        tally.failed += 1
    finally:
        change.details |= {"changed": tally.changed, "failed": tally.failed}
        change.result = "partial" if tally.failed else "done"
    return tally


def outcome_of(tally: Tally, what: str) -> Outcome:
    """PARTIAL when some failed; ConflictError when all did."""
    if tally.failed and tally.failed == tally.total:
        reason = tally.failures[0]["reason"] if tally.failures else ""
        raise ConflictError(f"nothing was {what}: {counted(tally.failed, 'ledger')} failed ({reason})")
    return Outcome.PARTIAL if tally.failed else Outcome.OK
