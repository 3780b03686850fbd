"""Makes the plan of a recovery: checks what was asked for, and reads the metadata of all ledgers once."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Collection
from typing import NamedTuple, TypeAlias

from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import (
    BookieNotFoundError,
    LedgerNotFoundError,
    MetadataAuthError,
    MetadataError,
    MetadataFormatError,
    RefusedError,
)
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.metadata_format import NewerFormatError
from bkctl.runtime.metadata.bookies.cookies import CookieStore
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.config import PlacementMode, ReplicationConfig
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerFailure, rule_counts
from bkctl.runtime.replication.judge.targets import PlacementForecast
from bkctl.runtime.replication.plan.recovery_plan import RecoveryPlan, plan_ledger
from bkctl.runtime.replication.plan.store import OpenDatabase, PlanStore

SCANNED_METADATA_MAX = 20_000
"""A plan keeps the metadata of so many ledgers, about a kilobyte each; a run reads that of the others again."""

_Found: TypeAlias = tuple[int, Versioned[LedgerMetadata] | MetadataError | None]


class PlanDemand(NamedTuple):
    """What to plan. ``ledger_ids`` None: all ledgers. ``only_targets`` empty: all writable bookies are targets.

    ``may_be_gone``: the ids are of an earlier plan, so ledgers may have been deleted or repaired meanwhile.
    """

    leaving: frozenset[str]
    unreachable: frozenset[str]
    ledger_ids: tuple[int, ...] | None = None
    only_targets: frozenset[str] = frozenset()
    may_be_gone: bool = False

    @property
    def barred(self) -> frozenset[str]:
        """Bookies that are no targets."""
        return self.leaving | self.unreachable


@dataclasses.dataclass(frozen=True)
class RecoveryScan:
    """Makes plans of recoveries. It writes nothing."""

    ports: ClientPorts
    cookies: CookieStore
    config: ReplicationConfig
    open_database: OpenDatabase

    async def plan(self, demand: PlanDemand) -> RecoveryPlan:
        """See ``BookieRecovery.plan``."""
        await self._require_targets(demand)
        plan = await self.scan(demand)
        if not demand.may_be_gone:
            none_of = "none of these ledgers" if demand.ledger_ids else "no ledger"
            await self._require_known(plan.unreferenced, none_of + (" that can be read" if plan.unreadable else ""))
        broken = rule_counts(plan.totals.broken_rules)
        if demand.only_targets and broken and self.config.placement is PlacementMode.STRICT:
            rules = ", ".join(f"{rule}: {count}" for rule, count in broken.items())
            raise RefusedError(
                f"nothing was changed: copies to {', '.join(sorted(demand.only_targets))} alone would break placement "
                f"rules of some fragments ({rules}): allow more targets, or use --placement best-effort"
            )
        return plan

    async def scan(self, demand: PlanDemand) -> RecoveryPlan:
        """Find all ledgers that reference a leaving bookie; LedgerNotFoundError if one of the given ids is absent."""
        registrations = await self.ports.registrations.snapshot()
        live = registrations.live - demand.unreachable
        survey = await self.ports.placement.survey(registrations.writable)
        forecast = PlacementForecast(survey, demand.barred, self.ports.clock.random, demand.only_targets)
        plans = PlanStore(self.open_database())
        unreadable: list[LedgerFailure] = []
        referenced: set[str] = set()
        scanned_metadata: dict[int, Versioned[LedgerMetadata]] = {}
        scanned = 0
        async with contextlib.aclosing(self._read(demand)) as ledgers:
            async for ledger_id, found in ledgers:
                scanned += 1
                if found is None:
                    continue
                if not isinstance(found, Versioned):
                    is_newer = isinstance(found, NewerFormatError)
                    reason = FailureReason.METADATA_NEWER if is_newer else FailureReason.METADATA_UNREADABLE
                    is_refused = isinstance(found, MetadataAuthError)
                    unreadable.append(LedgerFailure(ledger_id, reason, (), str(found), is_refused=is_refused))
                    continue
                if members := demand.leaving & found.value.bookies():
                    if found.value.is_closed and len(scanned_metadata) < SCANNED_METADATA_MAX:
                        scanned_metadata[ledger_id] = found
                    referenced |= members
                    plans.add(
                        plan_ledger(
                            ledger_id, found.value, found.version, demand.leaving, live, forecast.of, found.ctime_ms
                        )
                    )
        return RecoveryPlan(
            bookie_ids=tuple(sorted(demand.leaving)),
            ledgers_scanned=scanned,
            ledgers=plans,
            known_totals=plans.totals,
            unreadable=tuple(sorted(unreadable, key=lambda failure: failure.ledger_id)),
            targets=_targets(registrations, demand),
            is_restricted=bool(demand.only_targets),
            registered=tuple(sorted(registrations.live & demand.leaving)),
            unreachable=tuple(sorted(demand.unreachable)),
            unreferenced=tuple(sorted(demand.leaving - referenced)),
            scanned_at_ns=self.ports.clock.monotonic_ns(),
            placement=survey.origin,
            scanned_metadata=scanned_metadata,
            is_of_ledgers=demand.ledger_ids is not None,
        )

    def _read(self, demand: PlanDemand) -> AsyncGenerator[_Found, None]:
        window = self.config.metadata_reads_in_flight_max
        if demand.ledger_ids is None:
            return self.ports.ledgers.read_all(window=window)
        read = self._read_if_present if demand.may_be_gone else self._read_one
        return pipelined(each_of(demand.ledger_ids), read, window)

    async def _read_if_present(self, ledger_id: int) -> _Found:
        try:
            return await self._read_one(ledger_id)
        except LedgerNotFoundError:
            return ledger_id, None

    async def _read_one(self, ledger_id: int) -> _Found:
        try:
            return ledger_id, await self.ports.ledgers.read(ledger_id)
        except (MetadataFormatError, MetadataAuthError) as error:
            return ledger_id, error

    async def _require_known(self, bookie_ids: Collection[str], none_of: str) -> None:
        for bookie_id in bookie_ids:
            if not await self._is_known(bookie_id):
                raise BookieNotFoundError(
                    f"bookie {bookie_id} is unknown: no cookie, and {none_of} references it", bookie_id
                )

    async def _is_known(self, bookie_id: str) -> bool:
        is_registered = bookie_id in (await self.ports.registrations.snapshot()).live
        return is_registered or await self.cookies.find(bookie_id) is not None

    async def _require_targets(self, demand: PlanDemand) -> None:
        if not demand.only_targets:
            return
        registrations = await self.ports.registrations.snapshot()
        for bookie_id in sorted(demand.only_targets):
            if bookie_id in demand.barred:
                raise RefusedError(f"nothing was changed: bookie {bookie_id} cannot be a target: its ledgers are moved")
            if bookie_id in registrations.writable:
                continue
            if bookie_id in registrations.live:
                raise RefusedError(f"nothing was changed: bookie {bookie_id} cannot be a target: it is read-only")
            if not await self._is_known(bookie_id):
                raise BookieNotFoundError(
                    f"bookie {bookie_id} is unknown: no cookie, and it is not registered", bookie_id
                )
            raise RefusedError(f"nothing was changed: bookie {bookie_id} cannot be a target: it is not registered")


def _targets(registrations: Registrations, demand: PlanDemand) -> tuple[str, ...]:
    targets = set(registrations.writable) - demand.barred
    return tuple(sorted(targets & demand.only_targets if demand.only_targets else targets))
