"""The report of an audit, computed entry by entry from the metadata, without any code of the audit but its structs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain
from typing import Any, NamedTuple

from bkctl.runtime.client.recovery import blocking_members
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.ledger.owner import owner_group, owner_of
from bkctl.runtime.placement.isolation import IsolationDemand, isolation_demand
from bkctl.runtime.placement.view import DEFAULT_RACK
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts
from bkctl.runtime.replication.cluster_audit.tables import (
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

STATES = ("empty", "replicated", "under_replicated", "at_risk", "unavailable")
AGES = {
    "under 1 hour": (0, 3600),
    "1 hour to 1 day": (3600, 86_400),
    "1 to 7 days": (86_400, 7 * 86_400),
    "7 to 30 days": (7 * 86_400, 30 * 86_400),
    "over 30 days": (30 * 86_400, 2**62),
}


class Group(NamedTuple):
    """Entries of one segment that the same positions store, as far as their bookies are concerned."""

    segment: int
    bookies: tuple[str, ...]
    is_last_open: bool


class Cluster:
    """Everything that a question needs: the ledgers, and the facts as plain sets."""

    def __init__(self, ledgers: Mapping[int, LedgerMetadata | str], facts: AuditFacts) -> None:
        self.ledgers = {key: value for key, value in ledgers.items() if isinstance(value, LedgerMetadata)}
        self.unreadable = {key: value for key, value in ledgers.items() if isinstance(value, str)}
        self.facts = facts
        self.writable = set(facts.registrations.writable)
        self.live = self.writable | set(facts.registrations.read_only)
        self.entries = {ledger_id: Counter(entry_groups(metadata)) for ledger_id, metadata in self.ledgers.items()}
        self.named = {bookie for groups in self.entries.values() for group in groups for bookie in group.bookies}
        self.known = self.named | self.live | set(facts.with_cookie or ())
        self.returning = {
            each for each in self.known if facts.with_cookie is None or each in self.live or each in facts.with_cookie
        }

    def rack(self, bookie: str) -> str | None:
        survey = self.facts.survey
        if survey is None or not survey.tables:
            return None
        return survey.tables[0].racks.get(bookie, DEFAULT_RACK if bookie in self.writable else None)

    @property
    def has_racks(self) -> bool:
        return self.facts.survey is not None and bool(self.facts.survey.tables)

    @property
    def racks_required(self) -> int:
        """0 unless the registered bookies are in two racks at least."""
        survey = self.facts.survey
        if survey is None or not survey.tables or len({self.rack(each) for each in self.live} - {None}) < 2:
            return 0
        return survey.rules.min_racks_per_write_quorum


def entry_groups(metadata: LedgerMetadata) -> Iterable[Group]:
    """One for each entry; of an open segment, for the next E that a writer may have added."""
    size, quorum = metadata.ensemble_size, metadata.write_quorum_size
    for index, segment in enumerate(metadata.segments):
        is_last = index == len(metadata.segments) - 1
        if not is_last:
            end = metadata.segments[index + 1].first_entry_id
        else:
            end = metadata.last_entry_id + 1 if metadata.is_closed else segment.first_entry_id + size
        for entry in range(segment.first_entry_id, end):
            bookies = tuple(sorted(segment.ensemble[(entry + position) % size] for position in range(quorum)))
            yield Group(index, bookies, is_last and not metadata.is_closed)


def state_of(group: Group, metadata: LedgerMetadata, live: Set[str]) -> str:
    copies = len(set(group.bookies) & live)
    if copies >= metadata.write_quorum_size:
        return "replicated"
    if copies >= metadata.ack_quorum_size:
        return "under_replicated"
    return "at_risk" if copies else "unavailable"


def worst_state(cluster: Cluster, ledger_id: int) -> str:
    metadata = cluster.ledgers[ledger_id]
    states = [state_of(group, metadata, cluster.live) for group in cluster.entries[ledger_id]]
    return max(states, key=STATES.index, default="empty")


def is_unreadable(cluster: Cluster, ledger_id: int, lost: Set[str]) -> bool:
    return any(not set(group.bookies) & (cluster.live - lost) for group in cluster.entries[ledger_id])


def is_lost(cluster: Cluster, ledger_id: int, lost: Set[str]) -> bool:
    return any(not set(group.bookies) & (cluster.returning - lost) for group in cluster.entries[ledger_id])


def is_unwritable(cluster: Cluster, ledger_id: int, lost: Set[str]) -> bool:
    metadata = cluster.ledgers[ledger_id]
    if metadata.state is not LedgerState.OPEN:
        return False
    acks = [
        sum(bookie in cluster.writable - lost for bookie in group.bookies)
        for group in cluster.entries[ledger_id]
        if group.is_last_open
    ]
    return min(acks) < metadata.ack_quorum_size


def is_unreplaceable(cluster: Cluster, ledger_id: int, lost: Set[str]) -> bool:
    metadata = cluster.ledgers[ledger_id]
    if metadata.state is not LedgerState.OPEN:
        return False
    ensemble = set(metadata.last_segment.ensemble)
    writable = cluster.writable - lost
    return len(ensemble - writable) > len(writable - ensemble)


def loss_effect(cluster: Cluster, kind: str, name: str, lost: Set[str]) -> LossEffect:
    effect = LossEffect(kind, name, bookies=len(lost & cluster.returning))
    nothing: set[str] = set()
    for each, metadata in cluster.ledgers.items():
        if is_lost(cluster, each, lost):
            effect.lost_ledgers += not is_lost(cluster, each, nothing)
        elif is_unreadable(cluster, each, lost):
            effect.unreadable_ledgers += not is_unreadable(cluster, each, nothing)
        if is_unwritable(cluster, each, lost) and not is_unwritable(cluster, each, nothing):
            effect.unwritable_ledgers += 1
        loses_member = bool(set(metadata.last_segment.ensemble) & cluster.writable & lost)
        if loses_member and is_unreplaceable(cluster, each, lost) and not is_unreplaceable(cluster, each, nothing):
            effect.unreplaceable_ledgers += 1
    return effect


def losses(cluster: Cluster) -> list[LossEffect]:
    found = [loss_effect(cluster, "bookie", each, {each}) for each in sorted(cluster.returning)]
    racks = sorted({rack for each in cluster.returning if (rack := cluster.rack(each)) is not None})
    for rack in racks:
        found.append(loss_effect(cluster, "rack", rack, {each for each in cluster.known if cluster.rack(each) == rack}))
    for loss in cluster.facts.what_if:
        lost = {each for each in cluster.known if each in loss.bookies or cluster.rack(each) in loss.racks}
        found.append(loss_effect(cluster, "set", loss.name, lost))
    return found


def payload_of(metadata: LedgerMetadata, entries: int) -> int:
    if not metadata.is_closed or metadata.last_entry_id < 0:
        return 0
    return metadata.length * entries // (metadata.last_entry_id + 1)


def copy_bytes(cluster: Cluster, ledger_id: int) -> int:
    groups, metadata = cluster.entries[ledger_id], cluster.ledgers[ledger_id]
    return sum(payload_of(metadata, count) * len(set(group.bookies)) for group, count in groups.items())


def bookie_row(cluster: Cluster, bookie: str) -> BookieReplication:
    row = BookieReplication(bookie, mode_of(cluster, bookie), cluster.rack(bookie))
    if cluster.facts.with_cookie is not None:
        row.has_cookie = bookie in cluster.facts.with_cookie
    for ledger_id, groups in cluster.entries.items():
        metadata = cluster.ledgers[ledger_id]
        own = {group: count for group, count in groups.items() if bookie in group.bookies}
        row.ledgers += bool(own)
        row.open_ledgers += any(group.is_last_open for group in own)
        row.write_sets += len(own)
        row.under_replicated_write_sets += sum(state_of(g, metadata, cluster.live) != "replicated" for g in own)
        row.last_copy_ledgers += any(set(group.bookies) & cluster.live == {bookie} for group in own)
        row.entry_copies += sum(count for group, count in own.items() if not group.is_last_open)
        row.payload_bytes += sum(payload_of(metadata, count) for count in own.values())
    return row


def mode_of(cluster: Cluster, bookie: str) -> str:
    if bookie in cluster.writable:
        return "writable"
    return "read_only" if bookie in cluster.live else "unregistered"


def racks(cluster: Cluster, bookies: Sequence[BookieReplication]) -> list[RackReplication]:
    found = []
    for rack in sorted({bookie.rack for bookie in bookies}, key=lambda each: each or ""):
        members = [bookie for bookie in bookies if bookie.rack == rack]
        modes = Counter(bookie.mode for bookie in members)
        ids = {bookie.bookie_id for bookie in members}
        found.append(
            RackReplication(
                rack,
                bookies_writable=modes["writable"],
                bookies_read_only=modes["read_only"],
                bookies_unregistered=modes["unregistered"],
                ledgers=sum(any(ids & set(g.bookies) for g in groups) for groups in cluster.entries.values()),
                open_ledgers=sum(
                    any(ids & set(g.bookies) for g in groups if g.is_last_open) for groups in cluster.entries.values()
                ),
                entry_copies=sum(bookie.entry_copies for bookie in members),
                payload_bytes=sum(bookie.payload_bytes for bookie in members),
            )
        )
    return found if cluster.has_racks else []


def rack_verdicts(cluster: Cluster, ledger_id: int) -> dict[Group, tuple[str, int]]:
    """For each group of entries: "kept", "broken" or "unknown", and the number of racks that are known."""
    wanted = min(cluster.racks_required, cluster.ledgers[ledger_id].write_quorum_size)
    found = {}
    for group in cluster.entries[ledger_id]:
        racks_ = [cluster.rack(bookie) for bookie in set(group.bookies)]
        spanned = len(set(racks_) - {None})
        verdict = "kept" if spanned >= wanted else "broken" if spanned + racks_.count(None) < wanted else "unknown"
        if cluster.racks_required and needs_known_rack(cluster) and DEFAULT_RACK in racks_:
            verdict = "broken"
        found[group] = (verdict, spanned)
    return found


def needs_known_rack(cluster: Cluster) -> bool:
    assert cluster.facts.survey is not None
    return cluster.facts.survey.rules.needs_known_rack


def is_one_rack(cluster: Cluster, ledger_id: int) -> bool:
    sets = [set(group.bookies) for group in cluster.entries[ledger_id]]
    spans = [{cluster.rack(each) for each in members} for members in sets if len(members) > 1]
    return cluster.racks_required > 0 and any(len(span) == 1 and None not in span for span in spans)


def may_break_rule(cluster: Cluster, ledger_id: int) -> bool:
    """Some write set spans too few known racks, and enough of its bookies have none."""
    wanted = min(cluster.racks_required, cluster.ledgers[ledger_id].write_quorum_size)
    return any(
        len({cluster.rack(each) for each in set(group.bookies)} - {None})
        < wanted
        <= len({cluster.rack(each) for each in set(group.bookies)} - {None})
        + sum(cluster.rack(each) is None for each in set(group.bookies))
        for group in cluster.entries[ledger_id]
    )


def excluded(demand: IsolationDemand, groups: Mapping[str, Set[str]], known: Set[str], size: int) -> Set[str]:
    """The bookies that Pulsar's policy excludes, by its own steps: all, then some are admitted again."""

    def members(names: Iterable[str]) -> set[str]:
        return set(chain.from_iterable(groups.get(name, ()) for name in names))

    if not groups or "*" in demand.primary:
        return set()
    left = (members(groups.keys() - demand.primary) | known) - members(demand.primary)
    admitted = members(demand.primary) & known
    if len(admitted) >= size:
        return left
    if "*" in demand.secondary:
        return set()
    left -= members(demand.secondary)
    if len(admitted | members(demand.secondary)) < size:
        left -= known - members(groups)
    return left


def outside_of_groups(cluster: Cluster, ledger_id: int) -> Mapping[Group, Set[str]]:
    """The bookies of each group of entries that the isolation groups of the ledger do not admit."""
    metadata, survey = cluster.ledgers[ledger_id], cluster.facts.survey
    demand = isolation_demand(metadata.custom_metadata)
    groups = list(cluster.entries[ledger_id])
    if demand is None or survey is None:
        return {group: set() for group in groups}
    found = {}
    for group in groups:
        segment = {bookie for each in groups if each.segment == group.segment for bookie in each.bookies}
        out = excluded(demand, survey.groups, cluster.writable | segment, metadata.ensemble_size)
        found[group] = set(group.bookies) & out
    return found


def misplaced(cluster: Cluster) -> list[MisplacedLedger]:
    found = []
    for ledger_id, metadata in sorted(cluster.ledgers.items()):
        verdicts, outside = rack_verdicts(cluster, ledger_id), outside_of_groups(cluster, ledger_id)
        broken = {group: spanned for group, (verdict, spanned) in verdicts.items() if verdict == "broken"}
        bad = [group for group in cluster.entries[ledger_id] if group in broken or outside[group]]
        if bad:
            demand = isolation_demand(metadata.custom_metadata) or IsolationDemand(frozenset())
            found.append(
                MisplacedLedger(
                    ledger_id,
                    metadata.state.name.lower(),
                    owner(metadata),
                    metadata.created_ms(None),
                    write_sets=len(bad),
                    racks_min=min(broken.values(), default=None),
                    payload_bytes=metadata.length * metadata.is_closed,
                    isolation_groups=tuple(sorted(demand.primary)),
                    secondary_groups=tuple(sorted(demand.secondary)),
                    outside_bookies=tuple(sorted(set(chain.from_iterable(outside.values())))),
                )
            )
    return found


def isolation_groups(cluster: Cluster, bookies: Sequence[BookieReplication]) -> list[GroupReplication]:
    rows = []
    for name, members in sorted(cluster.facts.survey.groups.items() if cluster.facts.survey else ()):
        modes = Counter(mode_of(cluster, each) for each in members)
        demands = {key: isolation_demand(each.custom_metadata) for key, each in cluster.ledgers.items()}
        ids = [key for key, demand in demands.items() if demand is not None and name in demand.primary]
        rows.append(
            GroupReplication(
                name,
                bookies_writable=modes["writable"],
                bookies_read_only=modes["read_only"],
                bookies_unregistered=modes["unregistered"],
                ledgers=len(ids),
                outside_ledgers=sum(any(outside_of_groups(cluster, each).values()) for each in ids),
                payload_bytes=sum(each.payload_bytes for each in bookies if each.bookie_id in members),
            )
        )
    return rows


def owner(metadata: LedgerMetadata) -> str | None:
    return owner_of(dict(metadata.custom_metadata))


def is_closable(cluster: Cluster, metadata: LedgerMetadata) -> bool | None:
    return None if metadata.is_closed else not blocking_members(metadata, cluster.live)


def listed(cluster: Cluster, ledger_ids: Iterable[int]) -> list[ListedLedger]:
    found = []
    for ledger_id in ledger_ids:
        metadata = cluster.ledgers[ledger_id]
        found.append(
            ListedLedger(
                ledger_id,
                metadata.state.name.lower(),
                owner(metadata),
                metadata.created_ms(None),
                metadata.ensemble_size,
                metadata.write_quorum_size,
                metadata.ack_quorum_size,
                metadata.length * metadata.is_closed,
                is_closable(cluster, metadata),
            )
        )
    return found


def under_replicated(cluster: Cluster) -> list[UnderReplicatedLedger]:
    found = []
    for ledger_id, metadata in sorted(cluster.ledgers.items()):
        groups = cluster.entries[ledger_id]
        bad = [group for group in groups if state_of(group, metadata, cluster.live) != "replicated"]
        if bad:
            found.append(
                UnderReplicatedLedger(
                    ledger_id=ledger_id,
                    ledger_state=metadata.state.name.lower(),
                    owner=owner(metadata),
                    created_ms=metadata.created_ms(None),
                    replication=worst_state(cluster, ledger_id),
                    expected_copies=metadata.write_quorum_size,
                    live_copies_min=min(len(set(group.bookies) & cluster.live) for group in bad),
                    ack_quorum_size=metadata.ack_quorum_size,
                    write_sets=len(bad),
                    entry_count=sum(groups[group] for group in bad if not group.is_last_open),
                    payload_bytes=sum(payload_of(metadata, groups[group]) for group in bad),
                    is_closable=is_closable(cluster, metadata),
                    is_lost=is_lost(cluster, ledger_id, set()),
                    missing_bookies=tuple(sorted({each for group in bad for each in group.bookies} - cluster.live)),
                    no_copy_bookies=tuple(
                        sorted(
                            {each for group in bad if not set(group.bookies) & cluster.live for each in group.bookies}
                        )
                    ),
                    ensemble_size=metadata.ensemble_size,
                    no_copy_sets=tuple(
                        sorted(
                            {
                                tuple(sorted(cluster.returning.intersection(group.bookies)))
                                for group in bad
                                if cluster.returning.intersection(group.bookies)
                                and not set(group.bookies) & cluster.live
                            }
                        )
                    ),
                    has_source=any(
                        all(set(each.bookies) & cluster.live for each in groups if each.segment == group.segment)
                        for group in bad
                    ),
                    has_target=any(
                        len(cluster.writable - members) >= len(members - cluster.live)
                        for members in (
                            {bookie for each in groups if each.segment == group.segment for bookie in each.bookies}
                            for group in bad
                        )
                        if members - cluster.live
                    ),
                )
            )
    return found


def owners(cluster: Cluster) -> list[OwnerReplication]:
    rows: dict[str, OwnerReplication] = {}
    misplaced_ids = {each.ledger_id for each in misplaced(cluster)}
    for ledger_id, metadata in cluster.ledgers.items():
        text = owner(metadata)
        name = "(unknown)" if text is None else owner_group(text)
        row = rows.setdefault(name, OwnerReplication(name))
        row.ledgers += 1
        row.ack_quorum_one += metadata.ack_quorum_size == 1
        row.misplaced += ledger_id in misplaced_ids
        row.copy_bytes += copy_bytes(cluster, ledger_id)
        row.unclosable += is_closable(cluster, metadata) is False
        state = worst_state(cluster, ledger_id)
        if state not in {"empty", "replicated"}:
            setattr(row, state, getattr(row, state) + 1)
        if metadata.is_closed:
            row.entries += metadata.last_entry_id + 1
            row.payload_bytes += metadata.length
        else:
            row.open_ledgers += 1
            times = [time for time in (row.oldest_open_ms, metadata.created_ms(None)) if time is not None]
            row.oldest_open_ms = min(times, default=None)
    return sorted(rows.values(), key=lambda row: (-row.copy_bytes, -row.ledgers, row.owner))


def open_ages(cluster: Cluster) -> list[OpenLedgerAges]:
    rows = {name: OpenLedgerAges(name) for name in (*AGES, "unknown")}
    for metadata in cluster.ledgers.values():
        if metadata.is_closed:
            continue
        created_ms, name = metadata.created_ms(None), "unknown"
        if created_ms is not None:
            age_s = max(0, cluster.facts.now_ms - created_ms) / 1000
            (name,) = (each for each, (start_s, end_s) in AGES.items() if start_s <= age_s < end_s)
        rows[name].open_ledgers += metadata.state is LedgerState.OPEN
        rows[name].in_recovery_ledgers += metadata.state is LedgerState.IN_RECOVERY
        rows[name].unclosable_ledgers += is_closable(cluster, metadata) is False
    return list(rows.values())


def summary(cluster: Cluster) -> AuditSummary:
    ids, ledgers = list(cluster.ledgers), list(cluster.ledgers.values())
    states = Counter(worst_state(cluster, each) for each in ids)
    modes = Counter(mode_of(cluster, each) for each in cluster.live | cluster.named)
    rack_counts: dict[str, Any] = dict.fromkeys(("racks_required", "one_rack", "rack_unknown"))
    has_groups, listed_ = bool(cluster.facts.survey and cluster.facts.survey.groups), misplaced(cluster)
    if cluster.racks_required:
        rack_counts = {
            "racks_required": cluster.racks_required,
            "too_few_racks": sum(each.racks_min is not None for each in listed_),
            "one_rack": sum(is_one_rack(cluster, each) for each in ids),
            "rack_unknown": sum(may_break_rule(cluster, each) for each in ids),
        }
    rack_counts["outside_groups"] = sum(bool(each.outside_bookies) for each in listed_) if has_groups else None
    rack_counts["misplaced"] = len(listed_) if has_groups or cluster.racks_required else None
    by_state: dict[str, Any] = {state: states[state] for state in STATES}
    sizes = [each.ensemble_size for each in ledgers]
    return AuditSummary(
        judged_at_ms=cluster.facts.now_ms,
        ledgers_from="zookeeper",
        bookies_from="zookeeper",
        skipped_snapshots=0,
        looked_up=0,
        not_looked_up=0,
        deleted_since=0,
        healthy_since=0,
        ledgers=len(ids) + len(cluster.unreadable),
        open_ledgers=sum(not each.is_closed for each in ledgers),
        in_recovery_ledgers=sum(each.state is LedgerState.IN_RECOVERY for each in ledgers),
        **by_state,
        unreadable=len(cluster.unreadable),
        one_copy=sum(
            any(
                len(set(group.bookies) & cluster.live) == 1 and cluster.ledgers[each].write_quorum_size > 1
                for group in cluster.entries[each]
            )
            for each in ids
        ),
        lost=sum(is_lost(cluster, each, set()) for each in ids),
        unclosable=sum(is_closable(cluster, each) is False for each in ledgers),
        unwritable=sum(is_unwritable(cluster, each, set()) for each in ids),
        unreplaceable=sum(is_unreplaceable(cluster, each, set()) for each in ids),
        ack_quorum_one=sum(each.ack_quorum_size == 1 for each in ledgers),
        write_quorum_one=sum(each.write_quorum_size == 1 for each in ledgers),
        **rack_counts,
        entries=sum(each.last_entry_id + 1 for each in ledgers if each.is_closed),
        payload_bytes=sum(each.length for each in ledgers if each.is_closed),
        copy_bytes=sum(copy_bytes(cluster, each) for each in ids),
        bookies_writable=modes["writable"],
        bookies_read_only=modes["read_only"],
        bookies_named_unregistered=modes["unregistered"],
        usual_ensemble_size=max((each for each in sizes if 4 * sum(s >= each for s in sizes) >= len(sizes)), default=0),
    )


def report_by_brute_force(ledgers: Mapping[int, LedgerMetadata | str], facts: AuditFacts) -> AuditReport:
    """The whole report; a text instead of metadata is the reason why it is unreadable."""
    cluster = Cluster(ledgers, facts)
    bookies = tuple(bookie_row(cluster, each) for each in sorted(cluster.live | cluster.named))
    ids = sorted(cluster.ledgers)
    not_closed = [each for each in ids if not cluster.ledgers[each].is_closed]
    oldest = sorted(
        not_closed, key=lambda each: (cluster.ledgers[each].created_ms(None) is None, created(cluster, each), each)
    )
    return AuditReport(
        summary=summary(cluster),
        bookies=bookies,
        racks=tuple(racks(cluster, bookies)),
        groups=tuple(isolation_groups(cluster, bookies)),
        owners=tuple(owners(cluster)),
        open_ages=tuple(open_ages(cluster)),
        losses=tuple(losses(cluster)),
        under_replicated=tuple(under_replicated(cluster)),
        unreadable=tuple(UnreadableLedger(each, cluster.unreadable[each]) for each in sorted(cluster.unreadable)),
        misplaced=tuple(misplaced(cluster)),
        ack_quorum_one=tuple(listed(cluster, (e for e in ids if cluster.ledgers[e].ack_quorum_size == 1))),
        oldest_open=tuple(listed(cluster, oldest)),
    )


def created(cluster: Cluster, ledger_id: int) -> int:
    return cluster.ledgers[ledger_id].created_ms(None) or 0
