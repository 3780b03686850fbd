"""The count of copies: how many ledgers have too few of them on registered bookies, by the metadata alone.

``judge_ledger`` is the rule. It reads no entry, so a bookie that lacks entries counts as if it had them; the check of
copies finds those. Unlike Java's count it never asks a bookie for its entries, because many do not answer that
(replication section 7.4). It marks nothing.
"""

from __future__ import annotations

import logging
from contextlib import aclosing

import msgspec

from runtime.autorecovery.check_times import LOOK_AGAIN_S, CheckTimes, StoredResult, unread_text
from runtime.autorecovery.config import AutorecoveryConfig
from runtime.autorecovery.lane import Lane, Turn
from runtime.client.ports import ClientPorts
from runtime.errors import MetadataFormatError
from runtime.metadata.replication.recovery_notes import RecoveryNotes, ReplicaCountNote
from runtime.metadata.replication.switches import PeriodicCheck, ReplicationSwitches
from runtime.metadata.store import MetadataStore
from runtime.replication.judge.verdict import LedgerVerdict, judge_ledger, write_set_rows
from runtime.replication.turn.live_bookies import LiveBookies

logger = logging.getLogger(__name__)

WARNINGS_MAX = 20
"""Ledgers whose metadata cannot be read are reported one by one up to this number."""


class ReplicaCensus:
    """Counts the copies of all ledgers, once in ``replicas_check_interval_s``."""

    def __init__(self, ports: ClientPorts, store: MetadataStore, config: AutorecoveryConfig) -> None:
        root = ports.ledgers.root
        self._ports = ports
        self._interval_s = config.replicas_check_interval_s
        times = CheckTimes(ReplicationSwitches(store, root), PeriodicCheck.REPLICAS, ports.clock, self._interval_s)
        self._stored = StoredResult(times, RecoveryNotes(store, root).replica_count)
        self._live_bookies = LiveBookies(ports.registrations, ports.clock)
        self.lane = Lane("replicas", self._run, ports.clock, interval_s=self._interval_s)

    @property
    def result(self) -> ReplicaCountNote | None:
        """The last count, of this auditor or of one before; None: not known yet."""
        return self._stored.last

    async def _run(self, turn: Turn) -> str:
        due_in_s = await self._stored.due_in_s()
        if not due_in_s:
            found = await self._count(turn)
            is_fine = not found.no_copy.ledgers and not found.unreadable.ledgers
            logger.log(logging.INFO if is_fine else logging.WARNING, "copies counted: %s", summary_of(found))
            due_in_s = await self._stored.keep(found)
        self.lane.due_in(min(due_in_s, LOOK_AGAIN_S))
        return summary_of(self.result)

    async def _count(self, turn: Turn) -> ReplicaCountNote:
        clock, began_ns = self._ports.clock, self._ports.clock.monotonic_ns()
        counts = ReplicaCountNote(ended_ms=0, seconds=0.0)
        async with aclosing(self._ports.ledgers.read_all()) as ledgers:
            async for ledger_id, found in ledgers:
                turn.beat()
                if isinstance(found, MetadataFormatError):
                    if counts.unreadable.ledgers < WARNINGS_MAX:
                        logger.warning("its copies are not counted: %s", found)
                    counts = msgspec.structs.replace(counts, unreadable=counts.unreadable.plus(ledger_id))
                    continue
                live = (await self._live_bookies.refresh()).live
                counts = with_ledger(counts, ledger_id, judge_ledger(write_set_rows(ledger_id, found.value), live))
        seconds = (clock.monotonic_ns() - began_ns) / 1e9
        return msgspec.structs.replace(counts, ended_ms=clock.now_ms(), seconds=seconds)


def with_ledger(counts: ReplicaCountNote, ledger_id: int, verdict: LedgerVerdict) -> ReplicaCountNote:
    """The counts with one more ledger. Pure."""
    fewest = min(
        (row for row in verdict.rows if row.write_set.write_set), key=lambda row: row.live_copies, default=None
    )
    found = {}
    if fewest is not None:
        live, ack_quorum_size = fewest.live_copies, fewest.write_set.ack_quorum_size
        assert ack_quorum_size is not None
        found = {
            "no_copy": live == 0,
            "one_copy": live == 1 < fewest.expected_copies,
            "below_ack_quorum": live < ack_quorum_size,
            "below_write_quorum": live < fewest.expected_copies,
        }
    changed = {name: getattr(counts, name).plus(ledger_id) for name, applies in found.items() if applies}
    return msgspec.structs.replace(counts, ledgers=counts.ledgers + 1, **changed)


def summary_of(result: ReplicaCountNote | None) -> str:
    """The result in a few words. Pure."""
    if result is None:
        return "copies were not counted yet"
    return (
        f"{result.ledgers} ledgers{unread_text(result)}: {result.no_copy.ledgers} with entries that have no live copy, "
        f"{result.one_copy.ledgers} with one, {result.below_ack_quorum.ledgers} below the ack quorum, "
        f"{result.below_write_quorum.ledgers} below the write quorum"
    )
