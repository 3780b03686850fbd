"""Reads all nodes of a Pulsar cluster that name ledgers. Writes nothing. Source: metadata section 16."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

import msgspec

from bkctl.runtime.errors import MetadataFormatError, RefusedError
from bkctl.runtime.ledger.pulsar_owner import PulsarTopic, schema_at, topics_at
from bkctl.runtime.metadata.pulsar.format import (
    COMPACTION_CURSOR,
    NamedLedgers,
    decode_cursor,
    decode_schema,
    decode_topic,
)
from bkctl.runtime.metadata.pulsar_migration import FLAG_PATH, why_forbidden
from bkctl.runtime.metadata.store import MetadataStore, find_node
from bkctl.runtime.metadata.tree import TreeNode, walk_tree

TOPICS_PATH = "/managed-ledgers"
SCHEMAS_PATH = "/schemas"
NAMESPACES_PATH = "/admin/policies"
_NAMESPACE_LENGTHS = (2, 3)
_NODES_PER_PROGRESS = 1000
_UNKNOWN_KIND = "it is not known what this node is"


class PulsarStore(msgspec.Struct, frozen=True):
    """Where a Pulsar cluster keeps its metadata: a session and a chroot, empty or like ``/pulsar``."""

    store: MetadataStore
    chroot: str
    name: str
    """For errors: servers and chroot."""


class PulsarReferences(msgspec.Struct):
    """All that the nodes of Pulsar clusters say about ledgers, over one or more readings.

    ``named``: ids that a node names. ``offloaded``: ids of which a topic says that Pulsar has deleted the ledger; they
    may be in ``named`` too. ``unclear``: topics with a node that cannot be decoded, and the first problem of each;
    ``unclear_schemas`` likewise. ``unclear_namespaces``: those with a node of unknown kind.
    ``compacted``: the compacted ledgers that the node of the cursor for compaction names; ``compaction_cursors``: the
    ledgers of that cursor. ``newest_ms``: when the node that changed last did so.
    """

    named: set[int] = msgspec.field(default_factory=set)
    offloaded: set[int] = msgspec.field(default_factory=set)
    namespaces: set[str] = msgspec.field(default_factory=set)
    topics: set[PulsarTopic] = msgspec.field(default_factory=set)
    schemas: set[PulsarTopic] = msgspec.field(default_factory=set)
    unclear: dict[PulsarTopic, str] = msgspec.field(default_factory=dict)
    unclear_schemas: dict[PulsarTopic, str] = msgspec.field(default_factory=dict)
    unclear_namespaces: dict[str, str] = msgspec.field(default_factory=dict)
    compacted: dict[PulsarTopic, set[int]] = msgspec.field(default_factory=dict)
    compaction_cursors: dict[PulsarTopic, set[int]] = msgspec.field(default_factory=dict)
    nodes_read: int = 0
    newest_ms: int = 0

    def problem_of(self, topic: PulsarTopic) -> str | None:
        """Why it is not known which ledgers the nodes of a topic name."""
        return self.unclear.get(topic) or self._problem_of_namespace(topic)

    def problem_of_schema(self, topic: PulsarTopic) -> str | None:
        """Why it is not known which ledgers the schema of a topic names."""
        return self.unclear_schemas.get(topic) or self._problem_of_namespace(topic)

    def _problem_of_namespace(self, topic: PulsarTopic) -> str | None:
        parts = topic.namespace.split("/")
        prefixes = ("/".join(parts[:length]) for length in range(1, len(parts) + 1))
        return next((self.unclear_namespaces[each] for each in prefixes if each in self.unclear_namespaces), None)

    def problems(self) -> list[str]:
        """One sentence for each topic, schema and namespace that is not clear."""
        return sorted({*self.unclear.values(), *self.unclear_schemas.values(), *self.unclear_namespaces.values()})

    def note(self, named: NamedLedgers) -> None:
        """Add what a node names."""
        self.named |= named.ledger_ids
        self.offloaded |= named.offloaded_ids


async def read_references(
    place: PulsarStore, references: PulsarReferences, on_progress: Callable[[int], None] = lambda _: None
) -> None:
    """Add everything that the nodes of a cluster say to ``references``.

    Any error ends the reading: what was read so far must not be used. RefusedError if the cluster has no topics here,
    or keeps its metadata in another store by now.
    """
    await place.store.sync(place.chroot or "/")
    migration = await find_node(place.store, place.chroot + FLAG_PATH)
    if migration is not None and (reason := why_forbidden(migration.data)) is not None:
        raise RefusedError(f"{place.name}: {reason}")
    if await place.store.exists(place.chroot + TOPICS_PATH) is None:
        raise RefusedError(
            f"{place.name}: there is no Pulsar metadata here ({place.chroot + TOPICS_PATH} does not exist): specify "
            "the metadata store of the brokers with --pulsar-metadata"
        )
    for path, take in ((TOPICS_PATH, _take_topic), (SCHEMAS_PATH, _take_schema), (NAMESPACES_PATH, _take_namespace)):
        top = place.chroot + path
        async with aclosing(walk_tree(place.store, top)) as nodes:
            async for found in nodes:
                parts = found.path.removeprefix(top).split("/")[1:]
                if parts:
                    take(references, parts, found)
                references.nodes_read += 1
                references.newest_ms = max(references.newest_ms, found.node.stat.mtime_ms)
                if references.nodes_read % _NODES_PER_PROGRESS == 0:
                    on_progress(references.nodes_read)


def _take_topic(references: PulsarReferences, parts: list[str], found: TreeNode) -> None:
    data, readings = found.node.data, topics_at(parts)
    if not readings:
        _take_upper(references, parts, found)
        return
    for topic, rest in readings:
        references.namespaces.add(topic.namespace)
        references.topics.add(topic)
        if len(readings) > 1 or len(rest) > 1:
            references.unclear.setdefault(topic, f"{found.path}: {_UNKNOWN_KIND}")
            continue
        try:
            named = decode_cursor(data) if rest else decode_topic(data)
        except MetadataFormatError as error:
            references.unclear.setdefault(topic, f"{found.path}: {error}")
            continue
        references.note(named)
        if rest == [COMPACTION_CURSOR]:
            compacted = references.compacted.setdefault(topic, set())
            ledgers = references.compaction_cursors.setdefault(topic, set())
            compacted |= set() if named.compacted_id is None else {named.compacted_id}
            ledgers |= set() if named.cursor_ledger_id is None else {named.cursor_ledger_id}


def _take_schema(references: PulsarReferences, parts: list[str], found: TreeNode) -> None:
    topic = schema_at(parts)
    if topic is None:
        _take_upper(references, parts, found)
        return
    if not found.node.data and found.node.stat.children_count:
        references.namespaces.add("/".join(parts))  # of the older form, whose schemas are one level deeper
        return
    references.namespaces.add(topic.namespace)
    references.schemas.add(topic)
    try:
        references.note(decode_schema(found.node.data))
    except MetadataFormatError as error:
        references.unclear_schemas.setdefault(topic, f"{found.path}: {error}")


def _take_upper(references: PulsarReferences, parts: list[str], found: TreeNode) -> None:
    """A node above the topics, which is empty; one with contents may be of a kind that is not known here."""
    if found.node.data:
        references.unclear_namespaces.setdefault("/".join(parts[:2]), f"{found.path}: {_UNKNOWN_KIND}")
    elif len(parts) in _NAMESPACE_LENGTHS:
        references.namespaces.add("/".join(parts))


def _take_namespace(references: PulsarReferences, parts: list[str], found: TreeNode) -> None:  # noqa: ARG001
    if len(parts) in _NAMESPACE_LENGTHS:
        references.namespaces.add("/".join(parts))
