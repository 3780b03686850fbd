"""Sums over any number of ledgers, in bounded memory, which can be merged with those of other ledgers; their report.

The result does not depend on how the ledgers are divided, or on their order. Of owners that are too many, and of lists
that are too long, the first ones in a fixed order remain; those that are dropped in a part would be dropped in the
whole as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

from bkctl.runtime.replication.cluster_audit.facts import ZOOKEEPER, AuditFacts, KnownBookies
from bkctl.runtime.replication.cluster_audit.tables import (
    EXAMPLES_MAX,
    FINDINGS_MAX,
    INVENTORY_FIELDS,
    OTHER_OWNERS,
    OWNERS_MAX,
    AuditReport,
    AuditSummary,
    BookieReplication,
    GroupReplication,
    ListedLedger,
    LossEffect,
    MisplacedLedger,
    OpenLedgerAges,
    OwnerReplication,
    RackReplication,
    UnderReplicatedLedger,
    UnreadableLedger,
)
from bkctl.runtime.replication.judge.advice import accepted_losses
from bkctl.runtime.replication.judge.needed_bookies import usual_size
from bkctl.runtime.replication.judge.verdict import ReplicationState
from bkctl.storage.words import SHOWN_MAX

UNKNOWN_AGE = "unknown"
AGES = (
    ("under 1 hour", 3600),
    ("1 hour to 1 day", 86_400),
    ("1 to 7 days", 7 * 86_400),
    ("7 to 30 days", 30 * 86_400),
    ("over 30 days", None),
)
"""Ranges of ages, with the end of each in seconds."""
_SEVERITY = {state.value: -position for position, state in enumerate(ReplicationState)}
_ROWS = ("bookies", "racks", "groups", "owners", "ages", "losses")
"""The sums by a key."""
LISTS: dict[str, Callable[[Any], Any]] = {
    "under_replicated": lambda found: (_SEVERITY[found.replication], found.ledger_id),
    "unreadable": attrgetter("ledger_id"),
    "misplaced": attrgetter("ledger_id"),
    "ack_quorum_one": attrgetter("ledger_id"),
    "oldest_open": lambda found: (found.created_ms is None, found.created_ms, found.ledger_id),
}
"""The lists of ledgers, with the order in which they are kept."""
_FINDINGS = frozenset({"under_replicated", "unreadable"})
GIVEN_UP = ReplicationState.GIVEN_UP.value
_RACK_COUNTS = ("too_few_racks", "one_rack", "rack_unknown")
_OF_FACTS = (
    "metadata_uri", "instance_id", "ledgers_from", "bookies_from", "skipped_snapshots", "file_written_ms",
    "is_repaired", "is_auditor_elected", "auditor",
)  # fmt: skip
"""Fields of the summary that are as in the facts."""


class AuditTotals(msgspec.Struct):
    """The sums. ``findings_max``, ``examples_max`` and ``owners_max`` are the limits of the report's lists.

    ``counts``: of ledgers, entries and bytes, by the fields of ``AuditSummary`` with these names, and
    ``replicated_now`` and ``empty_now``: of the ledgers looked up. ``sizes``: ledgers by the size of their ensembles;
    ``losses`` are by
    ``loss_key``; ``racks`` by path, "" if unknown, and ``groups`` by name, both with counts of ledgers only. Lists and
    owners may be longer than their limits until ``shorten``.
    """

    findings_max: int = FINDINGS_MAX
    examples_max: int = EXAMPLES_MAX
    owners_max: int = OWNERS_MAX
    counts: dict[str, int] = {}
    sizes: dict[int, int] = {}
    bookies: dict[str, BookieReplication] = {}
    racks: dict[str, RackReplication] = {}
    groups: dict[str, GroupReplication] = {}
    owners: dict[str, OwnerReplication] = {}
    other_owners: OwnerReplication = msgspec.field(default_factory=lambda: OwnerReplication(OTHER_OWNERS))
    ages: dict[str, OpenLedgerAges] = {}
    losses: dict[str, LossEffect] = {}
    under_replicated: list[UnderReplicatedLedger] = []
    unreadable: list[UnreadableLedger] = []
    misplaced: list[MisplacedLedger] = []
    ack_quorum_one: list[ListedLedger] = []
    oldest_open: list[ListedLedger] = []

    def merge(self, other: AuditTotals) -> None:
        """Add the totals of other ledgers."""
        for name, number in other.counts.items():
            self.count(name, number)
        for size, number in other.sizes.items():
            self.sizes[size] = self.sizes.get(size, 0) + number
        self.other_owners.add(other.other_owners)
        for name in _ROWS:
            rows = getattr(self, name)
            for key, row in getattr(other, name).items():
                if key in rows:
                    rows[key].add(row)
                else:
                    rows[key] = row
        for name in LISTS:
            getattr(self, name).extend(getattr(other, name))
        self.shorten()

    def count(self, name: str, number: int = 1) -> None:
        """Add to one of the counts."""
        self.counts[name] = self.counts.get(name, 0) + number

    def list_ledger(self, name: str, found: Any) -> None:
        """Append to one of the lists."""
        rows = getattr(self, name)
        rows.append(found)
        if len(rows) >= 2 * self._limit(name) + 1:
            self._shorten_list(name)

    def owner(self, name: str) -> OwnerReplication:
        """The row of an owner; the one of all others if there are too many already."""
        found = self.owners.get(name)
        if found is None:
            found = self.owners[name] = OwnerReplication(name)
            if len(self.owners) > 2 * self.owners_max:
                self._shorten_owners()
                found = self.owners.get(name, self.other_owners)
        return found

    def shorten(self) -> None:
        """Cut everything to its limit."""
        for name in LISTS:
            self._shorten_list(name)
        self._shorten_owners()

    def _limit(self, name: str) -> int:
        return self.findings_max if name in _FINDINGS else self.examples_max

    def _shorten_list(self, name: str) -> None:
        rows = getattr(self, name)
        rows.sort(key=LISTS[name])
        del rows[self._limit(name) :]

    def _shorten_owners(self) -> None:
        for name in sorted(self.owners)[self.owners_max :]:
            self.other_owners.add(self.owners.pop(name))


def loss_key(kind: str, name: str) -> str:
    """The key of a loss."""
    return f"{kind} {name}"


def report_of(totals: AuditTotals, facts: AuditFacts) -> AuditReport:
    """The report of the totals, with rows for registered bookies and losses that concern no ledger."""
    totals.shorten()
    known = KnownBookies(facts)
    ids = sorted(known.live | totals.bookies.keys())
    notes = {each.bookie_id: each.note for each in facts.maintenance if each.note is not None}
    returned = dict(facts.returned)
    deadlines = {bookie_id: note.due_ms for bookie_id, note in facts.deadlines}
    bookies = tuple(
        msgspec.structs.replace(
            totals.bookies.get(each, BookieReplication(each)),
            mode=known.mode_of(each),
            rack=known.rack_of(each),
            maintenance_end_ms=notes[each].end_ms if each in notes else None,
            maintenance_user=notes[each].user if each in notes else None,
            deadline_ms=deadlines.get(each),
            no_answer=facts.no_answer.get(each),
            refusal=facts.refusals.get(each),
            disk_total_bytes=facts.disks.get(each, (None, None))[0],
            disk_free_bytes=facts.disks.get(each, (None, None))[1],
            out_of_space=facts.out_of_space.get(each),
            trouble=facts.troubles.get(each),
            has_cookie=None if facts.with_cookie is None else each in facts.with_cookie,
            serves_unregistered=each in facts.serving,
            ledgers_moving=each in facts.moving,
            read_only_by=facts.read_only_by.get(each),
            given_up_ledgers=len(returned.get(each, ())),
            given_up_first=tuple(map(str, returned.get(each, ())[:SHOWN_MAX])),
        )
        for each in ids
    )
    lists: dict[str, Any] = {name: tuple(getattr(totals, name)) for name in LISTS}
    lists["under_replicated"] = tuple(sorted(totals.under_replicated, key=lambda found: found.ledger_id))
    return AuditReport(
        summary=_summary(totals, known, bookies),
        bookies=bookies,
        racks=_racks(totals, bookies) if known.has_racks else (),
        groups=_groups(totals, known, bookies),
        owners=_owners(totals),
        open_ages=tuple(
            totals.ages.get(age, OpenLedgerAges(age)) for age in (*(name for name, _ in AGES), UNKNOWN_AGE)
        ),
        losses=_losses(totals, known, ids),
        leaving=facts.leaving,
        **lists,
    )


def _summary(totals: AuditTotals, known: KnownBookies, bookies: tuple[BookieReplication, ...]) -> AuditSummary:
    found = dict(totals.counts)
    now = {name: found.pop(f"{name}_now", 0) for name in ("replicated", "empty")}
    counts: dict[str, Any] = dict.fromkeys(AuditSummary.__struct_fields__, 0) | found
    ledgers = sum(counts[state.value] for state in ReplicationState)
    counts |= dict.fromkeys(INVENTORY_FIELDS)
    if known.facts.ledgers_from != ZOOKEEPER:
        counts |= {f"{name}_as_of_file": counts[name] - count for name, count in now.items()}
        counts["as_of_file"] = ledgers - (counts["looked_up"] - counts["deleted_since"])
    if not known.rules.has_racks:
        counts |= dict.fromkeys(_RACK_COUNTS)
    if not known.groups:
        counts["outside_groups"] = None
    if not (known.rules.has_racks or known.groups):
        counts["misplaced"] = None
    modes = Counter(bookie.mode for bookie in bookies)
    given_up = {each.ledger_id for each in totals.under_replicated if each.replication == GIVEN_UP}
    accepted = accepted_losses({key: note for key, note in known.facts.given_up.items() if key in given_up})
    counts |= {name: getattr(known.facts, name) for name in _OF_FACTS}
    counts |= {
        "judged_at_ms": known.facts.now_ms,
        "autorecovery_off_ms": known.facts.off_since_ms,
        "autorecovery_off_by": known.facts.off_note.by,
        "autorecovery_off_reason": known.facts.off_note.reason,
        "autorecovery_off_until": known.facts.off_note.until,
        "given_up_ms": accepted.written_ms,
        "given_up_by": accepted.user or None,
        "ledgers": ledgers,
        "racks_required": known.rules.min_racks_per_write_quorum if known.rules.has_racks else None,
        "bookies_writable": modes["writable"],
        "bookies_read_only": modes["read_only"],
        "bookies_named_unregistered": modes["unregistered"],
        "usual_ensemble_size": usual_size(totals.sizes),
    }
    return AuditSummary(**counts)


def _racks(totals: AuditTotals, bookies: tuple[BookieReplication, ...]) -> tuple[RackReplication, ...]:
    racks = {key: msgspec.structs.replace(row) for key, row in totals.racks.items()}
    for bookie in bookies:
        rack = racks.setdefault(bookie.rack or "", RackReplication(bookie.rack))
        name = f"bookies_{bookie.mode}"
        setattr(rack, name, getattr(rack, name) + 1)
        rack.entry_copies += bookie.entry_copies
        rack.payload_bytes += bookie.payload_bytes
    return tuple(racks[key] for key in sorted(racks))


def _groups(
    totals: AuditTotals, known: KnownBookies, bookies: tuple[BookieReplication, ...]
) -> tuple[GroupReplication, ...]:
    by_id, found = {each.bookie_id: each for each in bookies}, []
    for name, members in sorted(known.groups.items()):
        modes = Counter(known.mode_of(each) for each in members)
        found.append(
            msgspec.structs.replace(
                totals.groups.get(name, GroupReplication(name)),
                bookies_writable=modes["writable"],
                bookies_read_only=modes["read_only"],
                bookies_unregistered=modes["unregistered"],
                payload_bytes=sum(by_id[each].payload_bytes for each in members & by_id.keys()),
            )
        )
    return tuple(found)


def _owners(totals: AuditTotals) -> tuple[OwnerReplication, ...]:
    owners = sorted(totals.owners.values(), key=lambda owner: (-owner.copy_bytes, -owner.ledgers, owner.owner))
    return (*owners, totals.other_owners) if totals.other_owners.ledgers else tuple(owners)


def _losses(totals: AuditTotals, known: KnownBookies, ids: list[str]) -> tuple[LossEffect, ...]:
    """A row for every bookie that is registered or may return, for every rack of these, and for what was asked."""
    members = sorted({*ids, *(known.facts.with_cookie or ())})
    members = [each for each in members if known.may_return(each)]
    racks = Counter(rack for each in members if (rack := known.rack_of(each)) is not None)
    wanted = [("bookie", each, 1) for each in members]
    wanted += [("rack", rack, count) for rack, count in sorted(racks.items())]
    for loss in known.facts.what_if:
        wanted.append(("set", loss.name, sum(known.is_part_of(loss, each) for each in members)))
    found = []
    for kind, name, count in wanted:
        effect = totals.losses.get(loss_key(kind, name), LossEffect(kind, name))
        found.append(msgspec.structs.replace(effect, bookies=count))
    return tuple(found)
