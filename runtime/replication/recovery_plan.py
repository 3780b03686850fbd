"""What a recovery of failed bookies would do, ledger by ledger. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from runtime.ledger.metadata import LedgerMetadata
from runtime.ledger.write_set import write_set
from runtime.replication.fragments import Fragment, fragments_naming, stripe_count
from runtime.replication.ledger_outcome import LedgerFailure


class FragmentPlan(msgspec.Struct, frozen=True):
    """One segment that names a failed bookie.

    ``entries`` to copy and their range are None in an open segment: its end is known when it is closed.
    ``surviving_copies``: live members left for the worst entry to copy; 0 means that entries may be lost.
    """

    first_entry_id: int
    last_entry_id: int | None
    ensemble: tuple[str, ...]
    failed_bookies: tuple[str, ...]
    entries: int | None
    surviving_copies: int


class LedgerPlan(msgspec.Struct, frozen=True):
    """One ledger that references a failed bookie. ``needs_fencing``: it will be fenced and closed first."""

    ledger_id: int
    metadata_version: int
    ledger_state: str
    needs_fencing: bool
    fragments: tuple[FragmentPlan, ...]

    @property
    def surviving_copies(self) -> int:
        """Of the worst fragment."""
        return min(fragment.surviving_copies for fragment in self.fragments)


class RecoveryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a recovery would do. Making it writes nothing anywhere.

    ``ledgers`` are in the order of work: fewest surviving copies first, then the newest. ``unreadable`` have metadata
    that nobody can read: they may name the bookies, and stay as they are. ``targets``: writable bookies to copy to.
    ``registered``: those of the bookies that are still registered, so that the plan cannot be carried out yet.
    """

    bookie_ids: tuple[str, ...]
    ledgers_scanned: int
    ledgers: tuple[LedgerPlan, ...]
    unreadable: tuple[LedgerFailure, ...]
    targets: tuple[str, ...]
    registered: tuple[str, ...] = ()

    @property
    def ledgers_without_target(self) -> int:
        """Ledgers that would still name a failed bookie: too few writable bookies are outside of an ensemble."""
        targets = set(self.targets)
        return sum(
            any(len(targets.difference(part.ensemble)) < len(part.failed_bookies) for part in ledger.fragments)
            for ledger in self.ledgers
        )

    @property
    def without_live_copy(self) -> frozenset[int]:
        """Ledgers with entries of which no live bookie should have a copy."""
        return frozenset(ledger.ledger_id for ledger in self.ledgers if ledger.surviving_copies == 0)

    def without(self, ledger_ids: Collection[int]) -> RecoveryPlan:
        """The plan for all other ledgers."""
        return msgspec.structs.replace(
            self, ledgers=tuple(ledger for ledger in self.ledgers if ledger.ledger_id not in ledger_ids)
        )

    @property
    def fragments(self) -> int:
        """Segments to rewrite."""
        return sum(len(ledger.fragments) for ledger in self.ledgers)

    @property
    def entries(self) -> int:
        """Copies to make, as far as known: open segments are not counted."""
        return sum(fragment.entries or 0 for ledger in self.ledgers for fragment in ledger.fragments)


def plan_ledger(
    ledger_id: int, metadata: LedgerMetadata, version: int, failed: frozenset[str], live: frozenset[str]
) -> LedgerPlan:
    """What to do to one ledger that references ``failed`` bookies; ``live`` are the registered others. Pure."""
    fragments = fragments_naming(metadata, failed)
    return LedgerPlan(
        ledger_id=ledger_id,
        metadata_version=version,
        ledger_state=metadata.state.name.lower(),
        needs_fencing=any(fragment.is_open for fragment in fragments),
        fragments=tuple(_plan_fragment(metadata, fragment, failed, live) for fragment in fragments),
    )


def _plan_fragment(
    metadata: LedgerMetadata, fragment: Fragment, failed: frozenset[str], live: frozenset[str]
) -> FragmentPlan:
    sizes = (metadata.ensemble_size, metadata.write_quorum_size)
    return FragmentPlan(
        first_entry_id=fragment.entries.first_entry_id,
        last_entry_id=None if fragment.is_open else fragment.entries.last_entry_id,
        ensemble=fragment.ensemble,
        failed_bookies=tuple(sorted(failed.intersection(fragment.ensemble))),
        entries=None
        if fragment.is_open
        else sum(stripe_count(fragment.entries, index, *sizes) for index in fragment.bookie_indexes),
        surviving_copies=_surviving_copies(metadata, fragment, live),
    )


def _surviving_copies(metadata: LedgerMetadata, fragment: Fragment, live: frozenset[str]) -> int:
    """Live copies of the worst entry that has one at an index at issue; Qw when there is no such entry."""
    size, quorum = metadata.ensemble_size, metadata.write_quorum_size
    used = size if fragment.is_open else min(size, fragment.entries.count)
    first = fragment.entries.first_entry_id
    counts = [
        len({fragment.ensemble[index] for index in indexes} & live)
        for indexes in (write_set(entry_id, size, quorum) for entry_id in range(first, first + used))
        if not set(indexes).isdisjoint(fragment.bookie_indexes)
    ]
    return min(counts, default=quorum)
