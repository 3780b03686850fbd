"""What a ledger is to Pulsar, from its custom metadata. Pure. Source: metadata section 16.

Names are compared decoded: Pulsar writes the same topic URL-encoded in paths and plain in names.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote_plus

import msgspec

PERSISTENT = "persistent"
_NAMESPACE_LENGTHS = (2, 3)
"""Parts of a namespace: ``tenant/namespace``, or with a cluster in the middle in the older form."""


class PulsarUse(enum.StrEnum):
    """What Pulsar stores in a ledger."""

    DATA = "data"
    CURSOR = "cursor"
    COMPACTED = "compacted"
    SCHEMA = "schema"
    BUCKET = "delayed-index"


class PulsarTopic(NamedTuple):
    """A topic, or the topic of a schema."""

    namespace: str
    name: str
    """Decoded local name."""


class PulsarLedgerOwner(msgspec.Struct, frozen=True):
    """The topic that a ledger belongs to, and what it holds."""

    use: PulsarUse
    topic: PulsarTopic


_KEYS = {
    "pulsar/managed-ledger": PulsarUse.DATA,
    "pulsar/compactedTopic": PulsarUse.COMPACTED,
    "pulsar/schemaId": PulsarUse.SCHEMA,
    "pulsar/delayedIndexTopic": PulsarUse.BUCKET,
}
_CURSOR_KEY = "pulsar/cursor"


def is_pulsars(custom_metadata: Mapping[str, bytes]) -> bool:
    """Whether the ledger says that it is of Pulsar."""
    return custom_metadata.get("application") == b"pulsar"


def pulsar_owner(custom_metadata: Mapping[str, bytes]) -> PulsarLedgerOwner | None:
    """The owner of a ledger of Pulsar; None unless exactly one key names it, in a form that is known."""
    found = [(use, custom_metadata[key]) for key, use in _KEYS.items() if key in custom_metadata]
    if not is_pulsars(custom_metadata) or len(found) != 1:
        return None
    ((use, value),) = found
    if _CURSOR_KEY in custom_metadata:
        if use is not PulsarUse.DATA:
            return None
        use = PulsarUse.CURSOR
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    if use in {PulsarUse.DATA, PulsarUse.CURSOR}:
        topic = _topic_of_path(text)
    elif use is PulsarUse.SCHEMA:
        topic = schema_at(text.split("/"))
    else:
        topic = _topic_of_name(text)
    return None if topic is None else PulsarLedgerOwner(use, topic)


def topic_of_broker(custom_metadata: Mapping[str, bytes]) -> str | None:
    """The name, as Pulsar's tools take it, of the topic of a data or cursor ledger; None for other ledgers.

    The broker that serves the topic keeps these ledgers open, and closes them when the topic is unloaded.
    """
    owner = pulsar_owner(custom_metadata)
    if owner is None or owner.use not in {PulsarUse.DATA, PulsarUse.CURSOR}:
        return None
    return f"{PERSISTENT}://{owner.topic.namespace}/{owner.topic.name}"


def schema_at(parts: Sequence[str]) -> PulsarTopic | None:
    """The topic of the schema with this path, such as ``tenant/namespace/topic``; None for any other path."""
    *namespace, topic = parts
    return _topic(namespace, unquote_plus(topic))


def topics_at(parts: Sequence[str]) -> list[tuple[PulsarTopic, Sequence[str]]]:
    """Topics that the node with this path may be of, each with the rest of the path.

    None for a node above the topics; two where ``persistent`` may be the domain or a name.
    """
    found = []
    for length in _NAMESPACE_LENGTHS:
        if len(parts) > length + 1 and parts[length] == PERSISTENT:
            topic = _topic(parts[:length], unquote_plus(parts[length + 1]))
            found += [] if topic is None else [(topic, parts[length + 2 :])]
    return found


def _topic_of_path(text: str) -> PulsarTopic | None:
    readings = [topic for topic, rest in topics_at(text.split("/")) if not rest]
    return readings[0] if len(readings) == 1 else None


def _topic_of_name(text: str) -> PulsarTopic | None:
    """``persistent://tenant/namespace/topic``; a local name may contain slashes, so the older form is ambiguous."""
    domain, separator, rest = text.partition("://")
    if separator and domain == PERSISTENT:
        *namespace, name = rest.split("/")
        return _topic(namespace, name)
    return _topic_of_path(text)


def _topic(namespace: Sequence[str], name: str) -> PulsarTopic | None:
    if len(namespace) not in _NAMESPACE_LENGTHS or not all(namespace) or not name:
        return None
    return PulsarTopic("/".join(namespace), name)
