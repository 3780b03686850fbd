"""Pulsar's isolation groups: which bookies may hold the entries of a ledger. Pure.

A ledger of a Pulsar namespace with an affinity group says so in its own custom metadata. The groups are in the node
that also has the racks (``bkctl.runtime.placement.rack_sources``). See docs/reference/placement.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import msgspec

CUSTOM_METADATA_KEY = "EnsemblePlacementPolicyConfig"
ALL_BOOKIES = "*"
_POLICY_CLASSES = frozenset(
    {
        "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy",
        "org.apache.pulsar.zookeeper.ZkIsolatedBookieEnsemblePlacementPolicy",
    }
)
"""Pulsar's class since 2.9, and its older name. Custom metadata of other policies is ignored."""


class IsolationDemand(msgspec.Struct, frozen=True):
    """The groups that a ledger demands. No group at all means the bookies that are in no group."""

    primary: frozenset[str]
    secondary: frozenset[str] = frozenset()

    def __str__(self) -> str:
        primary, secondary = ", ".join(sorted(self.primary)), ", ".join(sorted(self.secondary))
        return (primary or "bookies in no group") + (f"; if these are too few, {secondary}" if secondary else "")


class _Properties(msgspec.Struct):
    primary: str | list[str] | None = msgspec.field(default=None, name="isolationBookieGroups")
    secondary: str | list[str] | None = msgspec.field(default=None, name="secondaryIsolationBookieGroups")


class _PolicyConfig(msgspec.Struct):
    policy_class: str | None = msgspec.field(default=None, name="policyClass")
    properties: _Properties | None = None


def isolation_demand(custom_metadata: Sequence[tuple[str, bytes]]) -> IsolationDemand | None:
    """The groups that a ledger demands; None if there are none, or they cannot be decoded, as in Pulsar."""
    value = dict(custom_metadata).get(CUSTOM_METADATA_KEY)
    return None if value is None else _decoded(value)


@lru_cache(maxsize=1024)
def _decoded(value: bytes) -> IsolationDemand | None:
    """Ledgers of a namespace have the same value: it is decoded once."""
    try:
        config = msgspec.json.decode(value, type=_PolicyConfig)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if config.policy_class not in _POLICY_CLASSES or config.properties is None:
        return None
    return IsolationDemand(_groups(config.properties.primary), _groups(config.properties.secondary))


def _groups(value: str | list[str] | None) -> frozenset[str]:
    names = value if isinstance(value, list) else (value or "").split(",")
    return frozenset(name.strip() for name in names) - {""}


def admitted_bookies(
    demand: IsolationDemand | None,
    groups: Mapping[str, frozenset[str]],
    known: Collection[str],
    ensemble_size: int,
) -> frozenset[str] | None:
    """The ``known`` bookies that may hold the ledger; None if all may.

    Members of the primary groups come first. If they are fewer than ``ensemble_size``, members of the secondary groups
    are added; they count even if they are not known. If that is not enough, bookies without a group are added.
    """
    if demand is None or not groups or ALL_BOOKIES in demand.primary:
        return None
    known = frozenset(known)
    admitted = _members(demand.primary, groups) & known
    if len(admitted) >= ensemble_size:
        return admitted
    if ALL_BOOKIES in demand.secondary:
        return None
    secondary = _members(demand.secondary, groups)
    count = len(admitted | secondary)
    admitted |= secondary & known
    if count < ensemble_size:
        admitted |= known - _members(groups.keys(), groups)
    return admitted


def _members(names: Collection[str], groups: Mapping[str, frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*(groups.get(name, frozenset()) for name in names))
