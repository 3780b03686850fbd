"""What a stripe copy is asked for, what it returns, and what all stripe copies of a run share."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import msgspec

from bkctl.runtime.client.bookie_software import BookieSoftware
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.limits import SharedPacer
from bkctl.runtime.replication.copy.reader import CopyReader
from bkctl.runtime.replication.copy.writer import EntryWriter
from bkctl.runtime.replication.judge.fragments import EntryRange, Fragment, first_stored, last_stored, stripe_count
from bkctl.runtime.replication.judge.ledger_result import LedgerFailure, SourceDefect

BATCHES_IN_FLIGHT = 8
"""Batches of one stripe that are read, written or verified at the same time."""


class StripeTask(msgspec.Struct, frozen=True):
    """Copy the entries of ``fragment`` that are striped to ``index`` to ``target``; never ask the ``unreachable``.

    ``copied_until``: the target has the entries up to this one already, from an earlier run. They are verified again,
    and copied only if that fails.

    ``bad``: ``target`` is the present member at ``index``, and only these entries, of which it had bad copies, are
    written to it again. ``unreachable`` and ``copied_until`` do not count then.

    ``outside``: live bookies that are not in the ensemble. They are asked only for entries that no member can give.
    """

    credentials: LedgerCredentials
    metadata: LedgerMetadata
    fragment: Fragment
    index: int
    target: str
    unreachable: frozenset[str]
    copied_until: int = -1
    bad: tuple[EntryRange, ...] = ()
    outside: tuple[str, ...] = ()

    @property
    def entries(self) -> int:
        """Number of entries in the stripe."""
        return stripe_count(self.fragment.entries, self.index, *self.metadata.sizes)

    @property
    def first_entry_id(self) -> int:
        """First entry of the stripe, or -1."""
        return first_stored(self.fragment.entries, self.index, *self.metadata.sizes)

    @property
    def last_entry_id(self) -> int:
        """Last entry of the stripe, or -1."""
        return last_stored(self.fragment.entries, self.index, *self.metadata.sizes)


class StripeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result for one stripe. All entries are on the target, and verified as the config says, if and
    only if ``is_complete``.

    ``target_failure``: why the target cannot be used; try another. ``lost``: entries for which all sources answered and
    none has a good copy. ``unreadable``: entries without a good copy for which a source failed or did not answer. If a
    source does not answer, the copy is abandoned, and the last range extends to the end of the segment. ``reason``:
    the first of these entries, and the answers for it. ``is_refused``: because the target, or each source that did not
    answer, does not accept this client.

    With ``StripeTask.bad``, ``entries`` and ``bytes_copied`` are copies that were written and are good now. ``left``:
    copies that stay bad, by reason. ``must_move``: entries with a bad record that must not be written over, as the
    target does not run bkctl (H18); ``must_move_count`` also counts those that are too many to list.
    """

    entries: int = 0
    bytes_copied: int = 0
    target_failure: str | None = None
    lost: tuple[EntryRange, ...] = ()
    unreadable: tuple[EntryRange, ...] = ()
    reason: str = ""
    is_refused: bool = False
    defects: tuple[SourceDefect, ...] = ()
    left: tuple[LedgerFailure, ...] = ()
    must_move: tuple[EntryRange, ...] = ()
    must_move_count: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether the metadata may reference the target now."""
        return not (self.target_failure or self.lost or self.unreadable or self.left or self.must_move)


@dataclasses.dataclass(frozen=True)
class CopyTools:
    """What the copies of all ledgers of a run share."""

    ports: ClientPorts
    copies: CopyReader
    config: ReplicationConfig
    pacer: SharedPacer
    on_copied: Callable[[int, int], None] = lambda _entries, _bytes: None
    """Called with entries and bytes when a target acknowledges them."""
    on_verified: Callable[[StripeTask, int], None] = lambda _task, _entry_id: None
    """Called when all entries of the stripe up to this one are on the target and verified."""

    @functools.cached_property
    def software(self) -> BookieSoftware:
        """Which bookies run bkctl."""
        return BookieSoftware(self.ports.registrations, self.ports.clock)

    @functools.cached_property
    def writer(self) -> EntryWriter:
        """Writes to the targets."""
        return EntryWriter(self.ports, self.copies.windows, self.config)
