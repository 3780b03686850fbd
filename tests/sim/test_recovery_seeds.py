"""Recoveries and drains of random ledgers while bookies refuse, lose and damage at random, in virtual time."""

from __future__ import annotations

import random

import pytest

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.judge.fragments import segment_entries
from tests.runtime.replication.samples import random_ledger
from tests.sim.bookies import BookieRequest
from tests.sim.repair_cluster import RepairCluster, simulate

BOOKIES = [f"b{number}" for number in range(1, 8)]
FAULTS = [Status.TOO_MANY_REQUESTS, Status.TIMEOUT, Status.UNAVAILABLE, Status.IO_ERROR, Status.FENCED]


@pytest.mark.parametrize("seed", range(4))
def test_no_ensemble_names_a_new_bookie_that_lacks_an_entry(seed: int) -> None:
    """Whatever fails, what the metadata names beyond the original ensembles is complete, and a second run ends the work
    unless entries are lost."""
    source = random.Random(seed)
    is_drain = seed % 2 == 0

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*(BOOKIES if is_drain else BOOKIES[1:]))
        originals: dict[int, LedgerMetadata] = {}
        for _ in range(8):
            metadata = random_ledger(source, BOOKIES[:5])
            originals[await cluster.store(metadata, entries=source.randint(0, 9))] = metadata
        _lose_some(cluster, source)

        def fail(request: BookieRequest) -> Status | None:
            is_faulty = source.random() < (0.05 if request.kind == "add" else 0.15)
            return source.choice(FAULTS) if is_faulty else None

        cluster.rules.append(fail)
        await cluster.recover("b1", unreachable=() if is_drain else None)
        await _check_new_members(cluster, originals)
        cluster.rules.clear()
        cluster.requests.clear()
        await cluster.clock.sleep(120)

        report = await cluster.recover("b1", unreachable=() if is_drain else None)
        await _check_new_members(cluster, originals)
        if not is_drain:
            closed = {ledger_id for ledger_id, metadata in originals.items() if metadata.is_closed}
            asked = {request.bookie_id for request in cluster.requests if request.ledger_id in closed}
            assert "b1" not in asked
        for ledger_id in originals.keys() - {failure.ledger_id for failure in report.failures}:
            assert "b1" not in (await cluster.ports.ledgers.read(ledger_id)).value.bookies()
        for failure in report.failures:
            assert failure.reason.name in {"LOST", "NOT_CLOSED", "NOT_ENOUGH_BOOKIES", "TARGETS_FAILED"}, failure

    simulate(scenario, ReplicationConfig(backoff_first_s=0.01, backoff_max_s=0.1, silence_pause_s=0.5), seed)


def _lose_some(cluster: RepairCluster, source: random.Random) -> None:
    for ledgers in cluster.copies.values():
        for entries in ledgers.values():
            for entry_id in [each for each in entries if source.random() < 0.02]:
                if source.random() < 0.5:
                    del entries[entry_id]
                else:
                    entries[entry_id] = entries[entry_id][:-1] + b"?"


async def _check_new_members(cluster: RepairCluster, originals: dict[int, LedgerMetadata]) -> None:
    for ledger_id, original in originals.items():
        metadata = (await cluster.ports.ledgers.read(ledger_id)).value
        sizes = (metadata.ensemble_size, metadata.write_quorum_size)
        for number, segment in enumerate(metadata.segments):
            before = original.segment_of(segment.first_entry_id).ensemble
            entries = segment_entries(metadata, number)
            assert len(set(segment.ensemble)) == len(segment.ensemble)
            for entry_id in range(entries.first_entry_id, entries.last_entry_id + 1):
                for index in write_set(entry_id, *sizes):
                    if segment.ensemble[index] != before[index]:
                        assert entry_id in cluster.copies[segment.ensemble[index]].get(ledger_id, {})
