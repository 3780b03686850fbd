"""Shared by the commands that recover and decommission bookies: their parts, plans and reports."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from commands.context import CommandContext, CopyFlags
from commands.errors import Outcome
from commands.outages import report_outage
from commands.parse import parse_duration_s
from commands.recovery_rendering import PLAN_TABLE, PlanItems, RecoveryChoices, plan_body, plan_row, plan_summary
from commands.rendering import Table
from commands.session import Session
from runtime.replication.config import OpenLedgers, PlacementMode, ReplicationConfig

if TYPE_CHECKING:
    from commands.safety.gate import Change
    from commands.safety.plan import Plan
    from runtime.metadata.ledgers.ledgers import LedgerStore
    from runtime.replication.plan.recovery_plan import LedgerPlan, RecoveryPlan
    from runtime.replication.run.recovery import BookieRecovery


class ReplicationAccess(NamedTuple):
    """Recovery of the bookies of one cluster."""

    recovery: BookieRecovery
    session: Session
    ledgers: LedgerStore
    config: ReplicationConfig = ReplicationConfig()
    open_ledgers: OpenLedgers = OpenLedgers.WAIT
    bytes_per_s: float | None = None
    """Limit of the whole run."""
    lock_holder: str = ""
    """Name of this host in replication locks."""
    drain_wait_s: float | None = None
    """How long writers get to leave bookies that serve, which never ends with a fence; None: the bookies are down."""

    @property
    def choices(self) -> RecoveryChoices:
        """What the plan promises by the options."""
        is_best_effort = self.config.placement is PlacementMode.BEST_EFFORT
        drain_wait_s = self.drain_wait_s if self.open_ledgers is OpenLedgers.WAIT else None
        policy = self.open_ledgers if drain_wait_s is None else OpenLedgers.SKIP
        wait_s = self.config.open_ledger_wait_s
        return RecoveryChoices(is_best_effort, policy, wait_s, self.bytes_per_s, drain_wait_s)

    def change_plan(
        self,
        found: RecoveryPlan,
        *,
        more_summary: Sequence[str] = (),
        more_items: Sequence[dict[str, Any]] = (),
    ) -> Plan:
        """A recovery as a plan that can be shown, saved, compared and confirmed like that of any other command."""
        choices = self.choices

        def item_of(ledger: LedgerPlan) -> dict[str, Any]:
            row = plan_row(ledger, is_best_effort=choices.is_best_effort, open_ledgers=choices.open_ledgers)
            return {"action": "recover", "path": self.ledgers.path(ledger.ledger_id), **row}

        return self.session.plan(
            subject=", ".join(found.bookie_ids),
            summary=(*plan_summary(found, choices), *more_summary),
            items=PlanItems(found.ledgers, item_of, more_items),
            arguments={
                "bookie_ids": list(found.bookie_ids),
                "placement": self.config.placement.value,
                "open_ledgers": self.open_ledgers.value,
                **({"to": list(found.targets)} if found.is_restricted else {}),
            },
        )

    def open_change(
        self, context: CommandContext, plan: Plan, found: RecoveryPlan, table: Table = PLAN_TABLE
    ) -> AbstractAsyncContextManager[Change]:
        """The gate for a plan about these bookies: locks only them, and waits out an outage."""
        from commands.safety.gate import open_change

        return open_change(
            context,
            plan,
            self.session.store,
            bookie_ids=found.bookie_ids,
            table=table,
            totals=plan_body(found, self.choices.open_ledgers),
            outlast=self.recovery.outage.outlast,
        )


async def replication_access(
    context: CommandContext,
    session: Session,
    flags: CopyFlags,
    open_ledgers: OpenLedgers = OpenLedgers.WAIT,
) -> ReplicationAccess:
    """Parts for one run; InvalidArgumentError, ClusterNotFoundError.

    What ``flags`` does not say comes from the settings.
    """
    import asyncio

    from runtime.metadata.cluster.operation_lock import leaving_bookies
    from runtime.metadata.replication.lock import ReplicationLocks
    from runtime.net.host import canonical_host_name
    from runtime.replication.run.recovery import BookieRecovery
    from storage.adapters.sqlite import temporary_database

    config = context.settings.replication
    if flags.outage_max is not None:
        config = msgspec.structs.replace(config, metadata_outage_max_s=parse_duration_s(flags.outage_max))
    if flags.placement is not None:
        config = msgspec.structs.replace(config, placement=flags.placement)
    if flags.verify is not None:
        config = msgspec.structs.replace(config, verify=flags.verify)
    ports = (await session.client()).ports
    lock_holder = await asyncio.to_thread(canonical_host_name)
    locks = ReplicationLocks(session.store, session.root, lock_holder)
    on_outage = partial(report_outage, context.console)
    recovery = BookieRecovery(
        ports,
        session.registrations,
        session.cookies,
        locks,
        config,
        on_outage,
        partial(leaving_bookies, session.store, session.root),
        open_database=temporary_database,
    )
    return ReplicationAccess(recovery, session, ports.ledgers, config, open_ledgers, lock_holder=lock_holder)


def note_end(change: Change, body: dict[str, object], outcome: Outcome) -> None:
    """Record the result in the audit trail."""
    change.details |= body
    change.result = {Outcome.OK: "done", Outcome.PARTIAL: "partial"}.get(outcome, "failed")


def waiting_sentence(bookie_id: str) -> str:
    """Explain the wait while the session of a killed bookie lasts."""
    return f"bookie {bookie_id} does not respond but is still registered: waiting for its session to end"
