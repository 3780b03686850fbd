"""The owner of a ledger, from its custom metadata. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote_plus

_DOMAIN = "persistent"
_PATH_LENGTHS = {4, 5}
"""Parts of ``tenant/ns/persistent/topic``, and of the older form with a cluster before the namespace."""

_NAMESPACE = re.compile(
    r"(?:(?:cursor .*|compacted|delayed-delivery bucket) (?:of )?)?topic [^/\s]+://(?P<topic>[^/]+/[^/]+)/.*"
    r"|schema of (?P<schema>[^/]+/[^/]+)/.*",
    re.DOTALL,
)
_KINDS = ("compacted managed ledger", "managed ledger", "cursor", "schema", "delayed-delivery bucket", "topic", "log ")
"""Kinds of owners of which the namespace is unknown."""


def owner_of(custom_metadata: Mapping[str, bytes]) -> str | None:
    """The owner in words, such as ``topic persistent://t/ns/name``; None if the custom metadata names none.

    Knows the keys of Pulsar and of logs of ledgers; for other applications it returns their name. Accepts any bytes.
    The result has no control characters, which could affect the operator's terminal.
    """
    labels = {key: value.decode("utf-8", "replace") for key, value in custom_metadata.items() if value}
    application = labels.get("application")
    owner = None if application not in {None, "pulsar"} else _pulsar_owner(labels)
    if application == "bkctl" and "bkctl/log" in labels:
        owner = f"log {labels['bkctl/log']}"
    if owner is None and application is not None:
        component = labels.get("component")
        owner = f"application {application}" + (f", component {component}" if component else "")
    return None if owner is None else _printable(owner)


def owner_group(owner: str) -> str:
    """What owners are summed up by: the namespace of an owner that ``owner_of`` returned, such as ``tenant/namespace``.

    For an owner without one, its kind in parentheses; for other applications than Pulsar, their name.
    """
    found = _NAMESPACE.fullmatch(owner)
    if found is not None:
        return found["topic"] or found["schema"]
    kind = next((kind for kind in _KINDS if owner.startswith(kind)), None)
    return owner.partition(", ")[0] if kind is None else f"({kind.rstrip()})"


def _pulsar_owner(labels: Mapping[str, str]) -> str | None:
    topic = labels.get("pulsar/managed-ledger")
    cursor = labels.get("pulsar/cursor")
    if cursor is not None:
        return f"cursor {unquote_plus(cursor)}" + (f" of {_topic(topic)}" if topic else "")
    if topic is not None:
        return _topic(topic)
    if (compacted := labels.get("pulsar/compactedTopic")) is not None:
        return f"compacted {_topic(compacted)}"
    if (schema := labels.get("pulsar/schemaId")) is not None:
        return f"schema of {unquote_plus(schema)}"
    return _delayed_bucket(labels)


def _delayed_bucket(labels: Mapping[str, str]) -> str | None:
    topic, cursor = labels.get("pulsar/delayedIndexTopic"), labels.get("pulsar/delayedIndexCursor")
    key = labels.get("pulsar/delayedIndexBucketKey")
    if topic is not None:
        return f"delayed-delivery bucket of {_topic(topic)}" + (f", cursor {unquote_plus(cursor)}" if cursor else "")
    return None if key is None else f"delayed-delivery bucket {key}"


def _topic(name: str) -> str:
    """A topic, from its full name or from the path of its managed ledger, in which the last part is URL-encoded."""
    if "://" in name:
        return f"topic {name}"
    parts = name.split("/")
    if len(parts) not in _PATH_LENGTHS or parts[-2] != _DOMAIN:
        return f"managed ledger {name}"
    *namespace, _, topic = parts
    return f"topic {_DOMAIN}://{'/'.join(namespace)}/{unquote_plus(topic)}"


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
