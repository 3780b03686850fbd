"""The report of an audit: a summary, and tables of bookies, racks, owners, losses and ledgers. Data only.

There are no ages, but times of creation, and the time of the audit in ``AuditSummary.judged_at_ms``. Bytes are payload
bytes of closed ledgers: others have no length. In rows of bookies and racks they are of the copies there; in all others
``payload_bytes`` counts one copy, ``copy_bytes`` all. ``make audit-page`` makes a page from the docstrings here.
"""

from __future__ import annotations

from typing import get_args, get_type_hints

import msgspec

from bkctl.runtime.replication.cluster_audit.inventory_tables import (
    BadCopyRange,
    BookieInventory,
    CheckedRange,
    LedgerHead,
    LostRange,
    Sums,
    UnknownEnd,
    UnnamedRange,
)
from bkctl.runtime.replication.judge.drained_bookies import LeavingBookie

FINDINGS_MAX = 100_000
"""Maximum rows of each list of ledgers with missing copies or unreadable metadata."""
EXAMPLES_MAX = 1000
"""Maximum rows of each other list of ledgers."""
OWNERS_MAX = 10_000
"""Maximum owners with a row of their own: the first ones in the order of their names."""
OTHER_OWNERS = "(others)"
"""The row with the sums of the owners that have none of their own."""
NO_OWNER = "(unknown)"
"""The row of ledgers whose custom metadata names no owner."""


class BookieReplication(Sums):
    """Data and load of one bookie that is registered or in a write set."""

    bookie_id: str
    mode: str = "unregistered"
    """``writable``, ``read_only`` or ``unregistered``."""
    rack: str | None = None
    """None if unknown."""
    ledgers: int = 0
    """Those with a write set on it."""
    open_ledgers: int = 0
    """Open ones, with the bookie in the last ensemble."""
    write_sets: int = 0
    """Those that it is in."""
    under_replicated_write_sets: int = 0
    """Those with fewer than Qw live copies."""
    last_copy_ledgers: int = 0
    """Those with a write set whose only live copy is on it."""
    entry_copies: int = 0
    """Entries that it stores, of complete segments."""
    payload_bytes: int = 0
    """Of closed ledgers."""
    maintenance_end_ms: int | None = None
    """Until when it is in maintenance; None if it is not."""
    maintenance_user: str | None = None
    """Who said so."""
    deadline_ms: int | None = None
    """When the auditor will mark its ledgers; None if no auditor of bkctl waits for it."""
    has_cookie: bool | None = None
    """Null if unknown."""
    serves_unregistered: bool = False
    """Whether it is not registered, but answers."""
    ledgers_moving: bool = False
    """Whether a command moves its ledgers to others."""
    no_answer: str | None = None
    """Why a registered bookie did not answer; None if it answered, or was not asked."""
    refusal: str | None = None
    """The error that it answered, or None."""
    disk_total_bytes: int | None = None
    """Of its disks, like the next one; null if it did not say, or was not asked."""
    disk_free_bytes: int | None = None
    out_of_space: str | None = None
    """Why it is read-only, if it has no space left; null if that is not so, or not known."""
    trouble: str | None = None
    """What it publishes that is wrong with it, like entries that it cannot restore; null if nothing is."""
    read_only_by: str | None = None
    """``drain`` or ``operator``: what made it read-only, and no command moves its ledgers now. Null as before."""
    given_up_ledgers: int = 0
    """Ledgers that it was given up for as lost, and that do not name it: it is back, and may have their entries."""
    given_up_first: tuple[str, ...] = ()
    """The first of them."""


class RackReplication(Sums):
    """Data and load of the bookies of one rack."""

    rack: str | None
    """None: bookies with an unknown rack."""
    bookies_writable: int = 0
    bookies_read_only: int = 0
    bookies_unregistered: int = 0
    """In write sets."""
    ledgers: int = 0
    """Those with a copy in the rack, each counted once."""
    open_ledgers: int = 0
    """As in ``bookies``, like the next two."""
    entry_copies: int = 0
    payload_bytes: int = 0


class GroupReplication(Sums):
    """Bookies and ledgers of one of Pulsar's isolation groups."""

    group: str
    bookies_writable: int = 0
    bookies_read_only: int = 0
    bookies_unregistered: int = 0
    """Also those that only Pulsar's node names."""
    ledgers: int = 0
    """Those that have it as a primary group."""
    outside_ledgers: int = 0
    """Those of them with a bookie outside of their groups."""
    payload_bytes: int = 0
    """On the bookies of the group, of all ledgers."""


class OwnerReplication(Sums):
    """Ledgers of one owner that can be read, those with the most bytes first. ``(others)``: after the first 10,000."""

    owner: str
    """A Pulsar namespace, ``application NAME``, ``(cursor)`` and the like without one, ``(unknown)``, ``(others)``."""
    ledgers: int = 0
    open_ledgers: int = 0
    oldest_open_ms: int | None = None
    """Creation of the oldest; None if there is none, or unknown."""
    entries: int = 0
    payload_bytes: int = 0
    copy_bytes: int = 0
    under_replicated: int = 0
    at_risk: int = 0
    unavailable: int = 0
    unclosable: int = 0
    misplaced: int = 0
    """0 if it is unknown."""
    ack_quorum_one: int = 0


class OpenLedgerAges(Sums):
    """Ledgers that are not closed, by their age."""

    age: str
    """``under 1 hour``, ``1 hour to 1 day``, ``1 to 7 days``, ``7 to 30 days``, ``over 30 days``, ``unknown``."""
    open_ledgers: int = 0
    in_recovery_ledgers: int = 0
    unclosable_ledgers: int = 0
    """Of all that are not closed."""


class LossEffect(Sums):
    """What would happen if bookies were lost permanently as well.

    A row for each bookie with a registration or cookie, each rack, each ``--what-if``. No ledger already in the state.
    """

    kind: str
    """``bookie``, ``rack`` or ``set``."""
    name: str
    """A bookie, the path of a rack, or the text of ``--what-if``."""
    bookies: int = 0
    """Of the cluster, that would be lost."""
    unwritable_ledgers: int = 0
    """Open ones, with fewer than Qa writable bookies in a write set until their writers have replaced bookies."""
    unreplaceable_ledgers: int = 0
    """Open ones, whose next ensemble change would fail, placement rules aside."""
    unreadable_ledgers: int = 0
    """Without a live copy of some write set until a bookie that is down comes back."""
    lost_ledgers: int = 0
    """Those with a write set without a copy on any bookie of the cluster, live or down."""


class UnderReplicatedLedger(LedgerHead, frozen=True):
    """A ledger with a write set that has fewer than Qw live copies."""

    replication: str
    """State of the worst write set."""
    expected_copies: int
    """Qw."""
    live_copies_min: int
    """Of the write set with the fewest."""
    ack_quorum_size: int
    """Qa."""
    write_sets: int
    """Those with missing copies."""
    entry_count: int
    """Of these; open segments count as 0."""
    payload_bytes: int
    """Of these."""
    is_closable: bool | None
    """None if it is closed."""
    is_lost: bool
    """Some entries have no copy on any bookie of the cluster."""
    missing_bookies: tuple[str, ...]
    """Those that are not registered."""
    no_copy_bookies: tuple[str, ...] = ()
    """Those in a write set without a live copy."""
    ensemble_size: int = 0
    """E."""
    no_copy_sets: tuple[tuple[str, ...], ...] = ()
    """Of each write set without a live copy, those that may come back: one of each must be started."""
    has_source: bool = True
    """Whether a segment with missing copies has a live one of each entry, from which a recovery makes them."""
    has_target: bool = True
    """Whether enough other bookies are writable for the missing copies of a segment."""


class UnreadableLedger(msgspec.Struct, frozen=True):
    """A ledger whose metadata could not be read, with the reason. Its copies are unknown."""

    ledger_id: int
    problem: str


class MisplacedLedger(LedgerHead, frozen=True):
    """A ledger with a write set in fewer racks, or regions, than the rules require, or outside of its groups."""

    write_sets: int
    """Those that break a rule."""
    racks_min: int | None
    """The fewest known racks of one; None if none breaks a rule about racks."""
    payload_bytes: int
    """Of these."""
    isolation_groups: tuple[str, ...] = ()
    """Those that it demands; empty: none, or bookies in no group."""
    secondary_groups: tuple[str, ...] = ()
    outside_bookies: tuple[str, ...] = ()
    """Its bookies that the groups do not admit."""


class ListedLedger(LedgerHead, frozen=True):
    """A ledger in a list of examples."""

    ensemble_size: int
    """E."""
    write_quorum_size: int
    """Qw."""
    ack_quorum_size: int
    """Qa."""
    payload_bytes: int
    """0 if it is not closed."""
    is_closable: bool | None
    """None if it is closed."""


class AuditSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One row: counts of ledgers and of bookies. Bytes and entries are those of closed ledgers, one copy.

    The states, ``empty`` to ``unreadable``, count ledgers by their worst write set; their sum is ``ledgers``.
    ``bookies_named_unregistered``: bookies that ledgers reference but that are not registered. A bookie that is down
    and has no data is in none of the counts. The counts of racks are None if racks are unknown or do not matter;
    ``outside_groups`` if no isolation group is known; ``misplaced`` if neither is.
    """

    judged_at_ms: int
    metadata_uri: str | None = None
    """The cluster; None: no metadata URI was given."""
    instance_id: str | None = None
    """The identity of the cluster; None: it has none, or the report is of an older bkctl."""
    ledgers_from: str
    """Where the metadata of ledgers was read: ``zookeeper``, or ``snapshot`` or ``backup`` and its path."""
    bookies_from: str
    """Where the registrations of bookies were read, in the same form."""
    file_written_ms: int | None = None
    """Of the newest change in the ledgers' snapshot, or when the backup was made. None: no file, or unknown."""
    as_of_file: int = 0
    """Ledgers of the file that were not read again from ZooKeeper, so they are as of ``file_written_ms``."""
    replicated_as_of_file: int = 0
    """Those of them that are replicated; the rest of ``replicated`` was read now."""
    empty_as_of_file: int = 0
    """Those of them that are empty."""
    is_repaired: bool | None = None
    """Whether autorecovery is enabled, and has an auditor or a marked ledger. None: unknown, as in older reports."""
    is_auditor_elected: bool | None = None
    """None: unknown, as in older reports."""
    autorecovery_off_ms: int | None = None
    """Since when autorecovery is disabled; None: it is enabled, or that is unknown."""
    autorecovery_off_by: str | None = None
    """Who disabled it, as far as that was given, like the next two."""
    autorecovery_off_reason: str | None = None
    autorecovery_off_until: str | None = None
    auditor: str | None = None
    """The bookie id of the auditor; None: there is none, or its vote cannot be read."""
    skipped_snapshots: int = 0
    """Newer snapshots of the directory that are damaged or incomplete, so that an older one was read."""
    looked_up: int
    """Ledgers that had findings in the file, and were read again from ZooKeeper. The report has what was read then."""
    not_looked_up: int = 0
    """Ledgers with findings that were not: too many miss no copy. What is in the file is in the report."""
    deleted_since: int
    """Ledgers looked up that no longer exist. They are not in the report."""
    healthy_since: int
    """Ledgers looked up that have no such finding now."""
    ledgers: int
    open_ledgers: int
    """Open or in recovery."""
    in_recovery_ledgers: int
    empty: int
    replicated: int
    given_up: int = 0
    """Ledgers of which an operator accepted the loss: the entries without a live copy were on bookies given up."""
    given_up_ms: int | None = None
    """When the last of these losses was accepted; None: none was, or the report is of an older bkctl."""
    given_up_by: str | None = None
    """Who accepted it; None if it is unknown."""
    under_replicated: int
    at_risk: int
    unavailable: int
    unreadable: int
    one_copy: int
    """Ledgers with a write set of which one live copy is left, although it should have more."""
    lost: int
    """Ledgers with a write set of which no bookie is registered or has a cookie; part of ``unavailable``."""
    unclosable: int
    """Ledgers that cannot be closed: fewer than Qw - Qa + 1 of a write set of the last segment are registered."""
    unwritable: int
    """Open ledgers of which some write set has fewer than Qa writable bookies."""
    unreplaceable: int
    """Open ledgers whose writers find too few writable bookies to replace those that do not accept writes."""
    ack_quorum_one: int
    """Ledgers with Qa = 1: an acknowledged entry may have had one copy."""
    write_quorum_one: int
    """Ledgers with Qw = 1: each entry has one copy by design."""
    racks_required: int | None
    """Racks that a write set should span, at most Qw."""
    misplaced: int | None
    """Ledgers with a write set that breaks a rule of placement: those of the next two counts."""
    too_few_racks: int | None = None
    """Ledgers with a write set in fewer racks, or regions, than required."""
    outside_groups: int | None = None
    """Ledgers with a write set on a bookie that their isolation groups do not admit."""
    one_rack: int | None
    """Ledgers with a write set of several bookies that are all in one rack."""
    rack_unknown: int | None
    """Ledgers with a write set that may break the rules: the rack of one of its bookies is unknown."""
    entries: int
    """Of closed ledgers, like the next two."""
    payload_bytes: int
    """One copy."""
    copy_bytes: int
    """All copies, live or not."""
    bookies_writable: int
    bookies_read_only: int
    bookies_named_unregistered: int
    """In write sets, but not registered."""
    usual_ensemble_size: int = 0
    """What at least a quarter of the ledgers need, or more. 0: no ledgers, or a report of an older bkctl."""
    inventory: str | None = None
    """How copies are known: "listed", "sampled" or "all_entries". None, like the counts that follow: no inventory."""
    inventory_ledgers: int | None = None
    """Ledgers whose bookies were asked."""
    left_out_ledgers: int | None = None
    """Those that were not, because the time of the inventory was over; None: it had no limit."""
    expected_copies: int | None = None
    """Copies of entries that the metadata places on bookies, up to the proven end of each ledger."""
    read_copies: int | None = None
    """Read and good. The sum of this and the next three is ``expected_copies``."""
    listed_copies: int | None = None
    """Listed and not read."""
    unknown_copies: int | None = None
    bad_copies: int | None = None
    """Missing, corrupt, failed or different."""
    bad_copy_ledgers: int | None = None
    lost_entries: int | None = None
    """Entries of which all bookies of the write set answered, and none has a good copy."""
    lost_entry_ledgers: int | None = None
    unknown_ends: int | None = None
    """Ledgers that are not closed and whose end is unknown: entries that no bookie calls confirmed were left out."""
    bytes_read: int | None = None
    """Of all entries that were read."""
    unnamed_copies: int | None = None
    """Copies that bookies list and the metadata does not name; None in a report of an older bkctl, like the next."""
    elsewhere_ledgers: int | None = None
    """Ledgers of which a bookie lists entries that the metadata places on other bookies."""
    after_end_ledgers: int | None = None
    """Closed ledgers of which a bookie lists entries after the last one."""
    requests: int | None = None
    """To bookies: lists, and reads of one or up to 64 entries."""
    bad_copies_file: str | None = None
    """The path that the file of bad copies had when it was written; None: there is none."""

    @property
    def breaking_racks(self) -> int | None:
        """``too_few_racks``, also of a report of an older bkctl, which knows no groups and no such count."""
        return self.misplaced if self.outside_groups is None else self.too_few_racks


INVENTORY_FIELDS = AuditSummary.__struct_fields__[AuditSummary.__struct_fields__.index("inventory") :]
"""Fields of the summary that are None without an inventory."""


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an audit. Lists of ledgers may be truncated; the summary counts all.

    Bookies are sorted by id, racks by path, owners by bytes (most first), losses by kind and name, lists of ledgers by
    ledger id, the oldest open ledgers by their time of creation.
    """

    summary: AuditSummary
    bookies: tuple[BookieReplication, ...]
    racks: tuple[RackReplication, ...]
    """Empty if no rack is known."""
    groups: tuple[GroupReplication, ...] = ()
    """By name; empty if none is known."""
    owners: tuple[OwnerReplication, ...]
    open_ages: tuple[OpenLedgerAges, ...]
    losses: tuple[LossEffect, ...]
    leaving: tuple[LeavingBookie, ...] = ()
    """Empty in a report of an older bkctl."""
    under_replicated: tuple[UnderReplicatedLedger, ...]
    """At most ``FINDINGS_MAX``, the worst ones."""
    unreadable: tuple[UnreadableLedger, ...]
    """At most ``FINDINGS_MAX``, those with the lowest ids."""
    misplaced: tuple[MisplacedLedger, ...] = ()
    """At most ``EXAMPLES_MAX``, those with the lowest ids."""
    ack_quorum_one: tuple[ListedLedger, ...] = ()
    """At most ``EXAMPLES_MAX``, those with the lowest ids."""
    oldest_open: tuple[ListedLedger, ...] = ()
    """At most ``EXAMPLES_MAX`` ledgers that are not closed, the oldest ones."""
    holdings: tuple[BookieInventory, ...] = ()
    """Empty without an inventory, like the next four."""
    bad_copy_ranges: tuple[BadCopyRange, ...] = ()
    """At most ``FINDINGS_MAX``, those of the ledgers with the lowest ids."""
    lost_ranges: tuple[LostRange, ...] = ()
    """At most ``FINDINGS_MAX``, those of the ledgers with the lowest ids."""
    unknown_ends: tuple[UnknownEnd, ...] = ()
    """At most ``FINDINGS_MAX``, those with the lowest ids."""
    unnamed_ranges: tuple[UnnamedRange, ...] = ()
    """At most ``FINDINGS_MAX``, those of the ledgers with the lowest ids."""
    checked_ranges: tuple[CheckedRange, ...] = ()
    """Those of which some copy was read or listed, or none is expected; empty without a limit of time."""
    tried_ranges: tuple[CheckedRange, ...] = ()
    """The others that were begun: nothing could be read or listed."""

    @property
    def is_truncated(self) -> bool:
        """Whether there are more ledgers with missing copies, or unreadable ones, than in the lists."""
        missing_copies = self.summary.under_replicated + self.summary.at_risk + self.summary.unavailable
        return len(self.under_replicated) < missing_copies or len(self.unreadable) < self.summary.unreadable


TABLES: dict[str, type[msgspec.Struct]] = {
    name: (get_args(kind) or (kind,))[0] for name, kind in get_type_hints(AuditReport).items()
}
"""The fields of a report, with the type of their rows. They are also the names of its Parquet datasets."""
