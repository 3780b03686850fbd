"""Whether a ledger is an orphan: written by Pulsar, and named by none of its nodes. Pure.

Orphans may be deleted, so a ledger is one only if everything about it is known. Every doubt has a reason of its own.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from bkctl.runtime.ledger.owner import owner_of
from bkctl.runtime.ledger.pulsar_owner import PulsarLedgerOwner, PulsarTopic, PulsarUse, is_pulsars, pulsar_owner
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger
from bkctl.runtime.metadata.pulsar.references import PulsarReferences

AGE_S_MIN = 24 * 3600
"""Pulsar creates a ledger before it stores the reference, and compaction may take hours in between."""


class KeptReason(enum.StrEnum):
    """Why a ledger is not called an orphan, in the order in which they are checked."""

    UNREADABLE = "metadata cannot be read"
    NOT_PULSAR = "not written by Pulsar"
    OWNER_UNKNOWN = "owner not known"
    NOT_CLOSED = "not closed"
    YOUNG = "too young"
    NAMED = "named by Pulsar's metadata"
    OTHER_CLUSTER = "of another cluster?"
    UNCLEAR = "metadata of its owner cannot be decoded"
    COMPACTED = "compacted ledger of an existing topic"
    CHANGED = "changed or deleted meanwhile"


class OrphanReason(enum.StrEnum):
    """Why a ledger is an orphan."""

    OWNER_GONE = "its topic does not exist"
    SCHEMA_GONE = "its schema does not exist"
    NOT_NAMED = "its topic does not name it"
    NOT_NAMED_BY_SCHEMA = "its schema does not name it"
    NOT_CURRENT = "its topic names another compacted ledger"
    OFFLOADED = "offloaded, and its topic says that it is deleted"


class PulsarLedger(msgspec.Struct, frozen=True, gc=False):
    """A ledger that Pulsar wrote. A closed, old one is an orphan unless a node names it.

    ``owner_text``: the owner for people, without control characters. ``version``: of its node.
    """

    ledger_id: int
    owner: PulsarLedgerOwner
    owner_text: str
    version: int
    created_ms: int
    length_bytes: int
    is_closed: bool

    @property
    def is_witness(self) -> bool:
        """Whether it shows that its topic exists, if it is in use or young: if no given cluster has the topic, another
        cluster may be writing."""
        return self.owner.use in {PulsarUse.DATA, PulsarUse.CURSOR}


class OrphanTerms(msgspec.Struct, frozen=True):
    """``now_ms``: by the clock of this machine. ``age_ms``: only ledgers that are older. ``compacted``: judge those of
    existing topics too."""

    now_ms: int
    age_ms: int
    compacted: bool = False

    def is_young(self, created_ms: int, zookeeper_ms: int | None = None) -> bool:
        """``zookeeper_ms``: the newest time in ZooKeeper's nodes, which its clock has reached."""
        now_ms = self.now_ms if zookeeper_ms is None else min(self.now_ms, zookeeper_ms)
        return created_ms >= now_ms - self.age_ms


CompactedByTopic = Mapping[PulsarTopic, frozenset[int] | str]
"""The compacted ledgers that the cursor for compaction of a topic names, or why they are not known."""


def pulsar_ledger(ledger: StoredLedger) -> PulsarLedger | KeptReason:
    """What the ledger's own metadata says about its owner."""
    metadata, created_ms = ledger.metadata, ledger.created_ms
    if metadata is None or ledger.node is None or created_ms is None:
        return KeptReason.UNREADABLE
    labels = dict(metadata.custom_metadata)
    if not is_pulsars(labels):
        return KeptReason.NOT_PULSAR
    owner = pulsar_owner(labels)
    if owner is None:
        return KeptReason.OWNER_UNKNOWN
    return PulsarLedger(
        ledger_id=ledger.ledger_id,
        owner=owner,
        owner_text=owner_of(labels) or "",
        version=ledger.node.stat.version,
        created_ms=created_ms,
        length_bytes=metadata.length,
        is_closed=metadata.is_closed,
    )


def why_in_use(ledger: PulsarLedger, terms: OrphanTerms) -> KeptReason | None:
    """Why its own metadata shows that it is no orphan."""
    if not ledger.is_closed:
        return KeptReason.NOT_CLOSED
    return KeptReason.YOUNG if terms.is_young(ledger.created_ms) else None


def is_written(versions: tuple[int, int | None], last_confirmed: tuple[int | None, int | None]) -> bool:
    """Whether a process wrote a ledger between two reads of its node and its last confirmed entry; None: not known.

    A deletion (no version) proves nothing: all brokers trim.
    """
    if versions[1] is None:
        return False
    is_longer = None not in last_confirmed and last_confirmed[0] != last_confirmed[1]
    return versions[0] != versions[1] or is_longer


def judge(
    candidate: PulsarLedger, references: PulsarReferences, compaction: CompactedByTopic, terms: OrphanTerms
) -> OrphanReason | KeptReason:
    """Judge a ledger by all references, read after it."""
    topic, use = candidate.owner.topic, candidate.owner.use
    if candidate.ledger_id in references.named:
        return KeptReason.NAMED
    if topic.namespace not in references.namespaces:
        return KeptReason.OTHER_CLUSTER
    is_schema = use is PulsarUse.SCHEMA
    if (references.problem_of_schema(topic) if is_schema else references.problem_of(topic)) is not None:
        return KeptReason.UNCLEAR
    if topic not in (references.schemas if is_schema else references.topics):
        return OrphanReason.SCHEMA_GONE if is_schema else OrphanReason.OWNER_GONE
    if use is PulsarUse.COMPACTED:
        return _judge_compacted(candidate, compaction, terms)
    is_offloaded = use is PulsarUse.DATA and candidate.ledger_id in references.offloaded
    not_named = OrphanReason.NOT_NAMED_BY_SCHEMA if is_schema else OrphanReason.NOT_NAMED
    return OrphanReason.OFFLOADED if is_offloaded else not_named


def _judge_compacted(
    candidate: PulsarLedger, compaction: CompactedByTopic, terms: OrphanTerms
) -> OrphanReason | KeptReason:
    """A topic that names no compacted ledger may have lost the label for one that it still uses."""
    if not terms.compacted:
        return KeptReason.COMPACTED
    compacted_ids = compaction.get(candidate.owner.topic, "")
    if isinstance(compacted_ids, str) or not compacted_ids:
        return KeptReason.UNCLEAR
    return KeptReason.NAMED if candidate.ledger_id in compacted_ids else OrphanReason.NOT_CURRENT
