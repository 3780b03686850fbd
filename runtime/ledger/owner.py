"""Whose ledger it is, as its custom metadata tells. Pure.

Keys that Pulsar and others write: ``application``, ``component``, and for Pulsar ``pulsar/managed-ledger`` (a topic),
``pulsar/cursor``, ``pulsar/schemaId``, ``pulsar/compactedTopic``, ``pulsar/compactedTo``. Values are text.
"""

from __future__ import annotations

from runtime.ledger.metadata import LedgerMetadata

_KEYS = ("application", "component")
_PREFIX = "pulsar/"


def owner_labels(metadata: LedgerMetadata) -> dict[str, str]:
    """Labels that name the owner: application and component first, then Pulsar's own by name."""
    values = {key: _text(value) for key, value in metadata.custom_metadata}
    own = [*(key for key in _KEYS if key in values), *sorted(key for key in values if key.startswith(_PREFIX))]
    return {key: values[key] for key in own}


def _text(value: bytes) -> str:
    """Whatever somebody wrote there must not steer the operator's terminal."""
    text = value.decode("utf-8", "replace")
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
