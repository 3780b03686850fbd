"""The count of copies: how many ledgers have too few of them on registered bookies, by the metadata alone.

``judge_ledger`` is the rule. It reads no entry, so a bookie that lacks entries counts as if it had them; the check of
copies finds those. Unlike Java's count it never asks a bookie for its entries, because many do not answer that
(replication section 7.4). It marks nothing.
"""

from __future__ import annotations

import logging
from contextlib import aclosing

import msgspec

from bkctl.runtime.autorecovery.check_times import CheckTimes
from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.lane import Turn
from bkctl.runtime.autorecovery.metadata_check import MetadataCheck
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes, ReplicaCountNote
from bkctl.runtime.metadata.replication.switches import PeriodicCheck
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.replication.judge.verdict import LedgerVerdict, judge_ledger, write_set_rows
from bkctl.runtime.replication.turn.live_bookies import LiveBookies


class ReplicaCensus(MetadataCheck[ReplicaCountNote]):
    """Counts the copies of all ledgers, once in ``replicas_check_interval_s``."""

    name = "replicas"

    def __init__(self, ports: ClientPorts, store: MetadataStore, config: AutorecoveryConfig) -> None:
        times = CheckTimes(store, ports, PeriodicCheck.REPLICAS, config.replicas_check_interval_s)
        note = RecoveryNotes(store, ports.ledgers.root).replica_count
        super().__init__(ports, times, note, ReplicaCountNote(ended_ms=0, seconds=0.0))
        self._live_bookies = LiveBookies(ports.registrations, ports.clock)

    async def _check(self, turn: Turn) -> bool:
        async with aclosing(self._ledgers(turn)) as ledgers:
            async for ledger_id, metadata in ledgers:
                live = (await self._live_bookies.refresh()).live
                verdict = judge_ledger(write_set_rows(ledger_id, metadata), live)
                self._found = with_ledger(self._found, ledger_id, verdict)
        return True

    def _level(self, result: ReplicaCountNote) -> int:
        return logging.WARNING if result.no_copy.ledgers or result.unreadable.ledgers else logging.INFO

    def _summary(self, result: ReplicaCountNote, unread: str) -> str:
        return (
            f"{result.ledgers} ledgers{unread}: {result.no_copy.ledgers} with entries that have no live copy, "
            f"{result.one_copy.ledgers} with one, {result.below_ack_quorum.ledgers} below the ack quorum, "
            f"{result.below_write_quorum.ledgers} below the write quorum"
        )


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
