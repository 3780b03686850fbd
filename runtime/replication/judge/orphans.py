"""Whether a ledger is an orphan: written by Pulsar, and named by none of its nodes. Pure.

Orphans may be deleted, so a ledger is one only if everything about it is known. Every doubt has a reason of its own.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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


class OrphanCandidate(msgspec.Struct, frozen=True, gc=False):
    """A ledger that is an orphan unless a node names it.

    ``owner_text``: the owner for people, without control characters. ``version``: of its node.
    """

    ledger_id: int
    owner: PulsarLedgerOwner
    owner_text: str
    version: int
    created_ms: int
    length_bytes: int


class Witness(msgspec.Struct, frozen=True, gc=False):
    """A ledger in use, or young: if its topic exists in no given cluster, another cluster may be writing."""

    ledger_id: int
    topic: PulsarTopic
    owner_text: str
    version: int = 0
    """Of its node."""


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


def screen(ledger: StoredLedger, terms: OrphanTerms) -> OrphanCandidate | KeptReason:
    """Judge a ledger by its own metadata."""
    metadata, created_ms = ledger.metadata, ledger.created_ms
    if metadata is None or ledger.node is None or created_ms is None:
        return KeptReason.UNREADABLE
    labels = dict(metadata.custom_metadata)
    if not is_pulsars(labels):
        return KeptReason.NOT_PULSAR
    owner = pulsar_owner(labels)
    if owner is None:
        return KeptReason.OWNER_UNKNOWN
    if not metadata.is_closed:
        return KeptReason.NOT_CLOSED
    if terms.is_young(created_ms):
        return KeptReason.YOUNG
    text = owner_of(labels) or ""
    return OrphanCandidate(ledger.ledger_id, owner, text, ledger.node.stat.version, created_ms, metadata.length)


def witness_of(ledger: StoredLedger) -> Witness | None:
    """The topic of a ledger of a topic or cursor; None for others."""
    labels = {} if ledger.metadata is None else dict(ledger.metadata.custom_metadata)
    owner = pulsar_owner(labels)
    if owner is None or ledger.node is None:
        return None
    return _witness(ledger.ledger_id, owner, owner_of(labels) or "", ledger.node.stat.version)


def witness_of_young(candidate: OrphanCandidate) -> Witness | None:
    """The same of a ledger that is too young after all."""
    return _witness(candidate.ledger_id, candidate.owner, candidate.owner_text, candidate.version)


def _witness(ledger_id: int, owner: PulsarLedgerOwner, owner_text: str, version: int) -> Witness | None:
    is_of_topic = owner.use in {PulsarUse.DATA, PulsarUse.CURSOR}
    return Witness(ledger_id, owner.topic, owner_text, version) if is_of_topic else None


class WriterProgress(NamedTuple):
    """How far a ledger's writer is. ``version``: of its node, None: deleted. ``last_confirmed``: None if not known."""

    version: int | None
    last_confirmed: int | None


def is_written(before: WriterProgress, now: WriterProgress) -> bool:
    """Whether a process wrote the ledger between two looks. A deletion proves nothing: all brokers trim."""
    if now.version is None or before.version is None:
        return False
    is_longer = None not in {before.last_confirmed, now.last_confirmed} and before.last_confirmed != now.last_confirmed
    return now.version != before.version or is_longer


def keep_appearing(*arrivals: Sequence[Witness]) -> bool:
    """Whether ledgers that no node names are new in each interval. One broker that fails leaves some in one only."""
    return all(arrivals)


def judge(
    candidate: OrphanCandidate, references: PulsarReferences, compaction: CompactedByTopic, terms: OrphanTerms
) -> OrphanReason | KeptReason:
    """Judge a ledger by all references, read after it."""
    topic = candidate.owner.topic
    if candidate.ledger_id in references.named:
        return KeptReason.NAMED
    if topic.namespace not in references.namespaces:
        return KeptReason.OTHER_CLUSTER
    if candidate.owner.use is PulsarUse.SCHEMA:
        return _judge_schema(topic, references)
    return _judge_topics(candidate, references, compaction, terms)


def _judge_topics(
    candidate: OrphanCandidate, references: PulsarReferences, compaction: CompactedByTopic, terms: OrphanTerms
) -> OrphanReason | KeptReason:
    topic = candidate.owner.topic
    if references.problem_of(topic) is not None:
        return KeptReason.UNCLEAR
    if topic not in references.topics:
        return OrphanReason.OWNER_GONE
    if candidate.owner.use is PulsarUse.COMPACTED:
        return _judge_compacted(candidate, compaction, terms)
    is_offloaded = candidate.owner.use is PulsarUse.DATA and candidate.ledger_id in references.offloaded
    return OrphanReason.OFFLOADED if is_offloaded else OrphanReason.NOT_NAMED


def _judge_schema(topic: PulsarTopic, references: PulsarReferences) -> OrphanReason | KeptReason:
    if references.problem_of_schema(topic) is not None:
        return KeptReason.UNCLEAR
    return OrphanReason.NOT_NAMED_BY_SCHEMA if topic in references.schemas else OrphanReason.SCHEMA_GONE


def _judge_compacted(
    candidate: OrphanCandidate, compaction: CompactedByTopic, terms: OrphanTerms
) -> OrphanReason | KeptReason:
    """A topic that names no compacted ledger may have lost the label for one that it still uses."""
    if not terms.compacted:
        return KeptReason.COMPACTED
    named = compaction.get(candidate.owner.topic, "")
    if isinstance(named, str) or not named:
        return KeptReason.UNCLEAR
    return KeptReason.NAMED if candidate.ledger_id in named else OrphanReason.NOT_CURRENT
