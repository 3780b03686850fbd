"""Ledgers of which an operator gave up bookies, as the cluster has them now."""

from __future__ import annotations

from collections.abc import Mapping, Set
from contextlib import aclosing

from bkctl.runtime.errors import LedgerNotFoundError, MetadataFormatError
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.replication.recovery_notes import GivenUpNote
from bkctl.runtime.replication.judge.accepted_losses import GivenUpLedger
from bkctl.runtime.replication.judge.verdict import judge_ledger, write_set_rows

_READ_IN_FLIGHT_MAX = 64


async def judge_given_up(
    ledgers: LedgerStore, given_up: Mapping[int, GivenUpNote], live: Set[str]
) -> dict[int, GivenUpLedger]:
    """Of the ledgers with notes, those that exist and have no other copy of some entries."""

    async def judge(ledger_id: int) -> tuple[int, GivenUpLedger] | None:
        try:
            stored = await ledgers.read(ledger_id)
        except (LedgerNotFoundError, MetadataFormatError):
            return None
        given = frozenset(given_up[ledger_id].member_since)
        verdict = judge_ledger(write_set_rows(ledger_id, stored.value), live, given)
        loss = GivenUpLedger(stored.value, given - live, verdict.replication)
        return (ledger_id, loss) if verdict.has_given_up else None

    async with aclosing(pipelined(each_of(given_up), judge, _READ_IN_FLIGHT_MAX)) as judged:
        return dict([each async for each in judged if each is not None])
