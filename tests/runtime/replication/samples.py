"""Ledger metadata by hand, and at random."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata, LedgerState, Segment
from bkctl.runtime.placement.isolation import CUSTOM_METADATA_KEY
from bkctl.runtime.replication.run.recovery import RecoveryReport


def ledger(
    segments: dict[int, Sequence[str]],
    write_quorum: int,
    ack_quorum: int,
    *,
    state: LedgerState = LedgerState.CLOSED,
    last_entry_id: int = -1,
    length: int = 0,
) -> LedgerMetadata:
    """Metadata with these segments; end and length mean something only when closed, as in the store."""
    return LedgerMetadata(
        ensemble_size=len(next(iter(segments.values()))),
        write_quorum_size=write_quorum,
        ack_quorum_size=ack_quorum,
        segments=tuple(Segment(first, tuple(ensemble)) for first, ensemble in segments.items()),
        state=state,
        last_entry_id=last_entry_id,
        length=length,
        digest_type=DigestType.CRC32C,
        password=b"sesame",
        custom_metadata=(("owner", b"tests"),),
    )


def demand_of(primary: Sequence[str], secondary: Sequence[str] = ()) -> tuple[str, bytes]:
    """Custom metadata that demands these isolation groups, as a broker writes it: several lines of JSON."""
    properties = {"isolationBookieGroups": ",".join(primary), "secondaryIsolationBookieGroups": ",".join(secondary)}
    policy = "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy"
    text = json.dumps({"policyClass": policy, "properties": properties}, indent=2)
    return CUSTOM_METADATA_KEY, text.encode()


def random_ledger(source: random.Random, bookies: Sequence[str]) -> LedgerMetadata:
    """Any legal shape: one to three segments, empty last ones, all three states."""
    size = source.randint(1, min(5, len(bookies)))
    quorum = source.randint(1, size)
    starts = [0]
    for _ in range(source.randint(0, 2)):
        starts.append(starts[-1] + source.randint(1, 9))
    state = source.choice([LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED, LedgerState.CLOSED])
    last_entry_id = -1
    if state is LedgerState.CLOSED:
        last_entry_id = starts[-1] - 1 + source.randint(0, 20)
    return ledger(
        {start: source.sample(list(bookies), size) for start in starts},
        quorum,
        source.randint(1, quorum),
        state=state,
        last_entry_id=last_entry_id,
        length=(last_entry_id + 1) * source.randint(1, 1000),
    )


def failed_ledgers(report: RecoveryReport) -> dict[str, set[int]]:
    """The ledgers that failed, by reason."""
    found: dict[str, set[int]] = {}
    for failure in report.failures:
        found.setdefault(failure.reason.value, set()).add(failure.ledger_id)
    return found
