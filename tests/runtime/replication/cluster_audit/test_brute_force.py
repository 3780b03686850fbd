"""Every number of the report, against a computation entry by entry, and however the ledgers are divided."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState, Segment
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.placement.rack_sources import RackTable
from bkctl.runtime.placement.rules import PlacementRules
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.replication.cluster_audit.counter import SHAPES_MAX, AuditCounter
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts, Loss
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from bkctl.runtime.replication.cluster_audit.totals import AuditTotals, report_of
from bkctl.runtime.replication.judge.verdict import LedgerVerdict, WriteSetRow, judge_ledger, write_set_rows
from tests.runtime.replication.cluster_audit.brute_force import report_by_brute_force
from tests.runtime.replication.samples import demand_of

BOOKIES = [f"b{number}" for number in range(6)]
NOW_MS = 1_000_000_000_000
HOUR_MS = 3_600_000
OWNERS = (
    (("pulsar/managed-ledger", b"acme/shop/persistent/orders"),),
    (("pulsar/managed-ledger", b"acme/shop/persistent/bills"),),
    (("pulsar/managed-ledger", b"acme/lab/persistent/x"),),
    (("application", b"other"),),
    (),
)


GROUPS = st.sampled_from(["gold", "silver", "lead"])
DEMANDS = st.builds(demand_of, st.lists(GROUPS | st.just("*"), max_size=2), st.lists(GROUPS, max_size=2))
TIMES = st.none() | st.sampled_from(
    [NOW_MS - hours * HOUR_MS + more for hours in (-1, 0, 1, 24, 168, 720, 9999) for more in (-1, 0, 1)]
)


@st.composite
def facts_of_clusters(draw: st.DrawFn) -> AuditFacts:
    """Some bookies are writable, read-only or both, some are down, some have no cookie; racks may be unknown."""
    some = st.frozensets(st.sampled_from(BOOKIES))
    writable, read_only = draw(some), draw(some)
    survey = None
    if draw(st.booleans()):
        racks = draw(st.dictionaries(st.sampled_from(BOOKIES), st.sampled_from(["/r1", "/r2", "/r3"])))
        rules = PlacementRules(min_racks_per_write_quorum=draw(st.integers(1, 3)), needs_known_rack=draw(st.booleans()))
        survey = BookieSurvey(
            writable=writable,
            tables=(RackTable(racks),) if racks else (),
            groups=draw(st.dictionaries(GROUPS, some)),
            rules=rules,
        )
    losses = [
        Loss(f"loss {number}", draw(some), draw(st.frozensets(st.sampled_from(["/r1", "/r2", "/default-rack"]))))
        for number in range(draw(st.integers(0, 2)))
    ]
    return AuditFacts(
        registrations=Registrations(tuple(sorted(writable)), tuple(sorted(read_only))),
        now_ms=NOW_MS,
        with_cookie=draw(st.none() | some),
        survey=survey,
        what_if=tuple(losses),
    )


@st.composite
def ledgers_of_clusters(draw: st.DrawFn) -> LedgerMetadata:
    """Up to three segments, all states; a bookie may be in an ensemble twice."""
    size = draw(st.integers(1, 4))
    write_quorum = draw(st.integers(1, size))
    starts = [0]
    for step in draw(st.lists(st.integers(1, 6), max_size=2)):
        starts.append(starts[-1] + step)
    ensembles = st.lists(st.sampled_from(BOOKIES), min_size=size, max_size=size, unique=draw(st.integers(0, 4)) > 0)
    state = draw(st.sampled_from(LedgerState))
    is_closed = state is LedgerState.CLOSED
    last_entry_id = starts[-1] - 1 + draw(st.integers(0, 9)) if is_closed else -1
    return LedgerMetadata(
        ensemble_size=size,
        write_quorum_size=write_quorum,
        ack_quorum_size=draw(st.integers(1, write_quorum)),
        segments=tuple(Segment(start, tuple(draw(ensembles))) for start in starts),
        state=state,
        last_entry_id=last_entry_id,
        length=draw(st.integers(0, 9999)) if is_closed and last_entry_id >= 0 else 0,
        ctime_ms=draw(TIMES),
        custom_metadata=draw(st.sampled_from(OWNERS)) + draw(st.just(()) | st.tuples(DEMANDS)),
    )


CLUSTERS = st.dictionaries(
    st.integers(0, 99), st.one_of(*[ledgers_of_clusters()] * 9, st.just("garbage")), min_size=1, max_size=12
)


def verdict(ledger_id: int, metadata: LedgerMetadata | str, facts: AuditFacts) -> LedgerVerdict:
    rows = [WriteSetRow(ledger_id, problem=metadata)] if isinstance(metadata, str) else []
    if isinstance(metadata, LedgerMetadata):
        rows = write_set_rows(ledger_id, metadata)
    return judge_ledger(rows, facts.registrations.live)


def totals_of(
    ledgers: Mapping[int, LedgerMetadata | str], ids: Sequence[int], facts: AuditFacts, limit: int | None = None
) -> AuditTotals:
    """The totals as an executor sends them."""
    counter = AuditCounter(facts, None if limit is None else limited(limit))
    for ledger_id in ids:
        counter.add(verdict(ledger_id, ledgers[ledger_id], facts))
    return msgspec.json.decode(msgspec.json.encode(counter.totals), type=AuditTotals)


def limited(limit: int) -> AuditTotals:
    return AuditTotals(findings_max=limit, examples_max=limit, owners_max=limit)


def report(ledgers: Mapping[int, LedgerMetadata | str], facts: AuditFacts) -> AuditReport:
    return report_of(totals_of(ledgers, list(ledgers), facts), facts)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(CLUSTERS, facts_of_clusters())
def test_every_number_is_that_of_brute_force(ledgers: Mapping[int, LedgerMetadata | str], facts: AuditFacts) -> None:
    facts = msgspec.json.decode(msgspec.json.encode(facts), type=AuditFacts)  # as an executor gets them
    found, expected = report(ledgers, facts), report_by_brute_force(ledgers, facts)
    for name in AuditReport.__struct_fields__:
        assert getattr(found, name) == getattr(expected, name), name


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(CLUSTERS, facts_of_clusters(), st.randoms(use_true_random=False), st.sampled_from([1, 2, 1000]))
def test_any_division_and_order_has_the_same_report(
    ledgers: Mapping[int, LedgerMetadata | str], facts: AuditFacts, source: random.Random, limit: int
) -> None:
    whole = report_of(totals_of(ledgers, sorted(ledgers), facts, limit), facts)
    ids = list(ledgers)
    source.shuffle(ids)
    parts: list[list[int]] = [[], [], []]
    for ledger_id in ids:
        source.choice(parts).append(ledger_id)
    merged = limited(limit)
    for part in parts:
        merged.merge(totals_of(ledgers, part, facts, limit))
    assert report_of(merged, facts) == whole
    assert max(map(len, (whole.unreadable, whole.misplaced, whole.ack_quorum_one, whole.oldest_open))) <= limit
    assert len(whole.owners) <= limit + 1
    assert sum(owner.ledgers for owner in whole.owners) == whole.summary.ledgers - whole.summary.unreadable


def test_owners_without_a_row_are_summed_up() -> None:
    closed = LedgerMetadata(1, 1, 1, (Segment(0, ("b0",)),), LedgerState.CLOSED, 9, 1000)
    names = [b"c", b"e", b"a", b"d", b"b", b"e", b"d", b"c"]
    ledgers: dict[int, LedgerMetadata | str] = {
        ledger_id: msgspec.structs.replace(closed, custom_metadata=(("application", name),))
        for ledger_id, name in enumerate(names)
    }
    facts = AuditFacts(registrations=Registrations(("b0",), ()), now_ms=NOW_MS)
    found = report_of(totals_of(ledgers, list(ledgers), facts, limit=2), facts)
    assert [(owner.owner, owner.ledgers, owner.copy_bytes) for owner in found.owners] == [
        ("application a", 1, 1000),
        ("application b", 1, 1000),
        ("(others)", 6, 6000),
    ]


def test_equal_write_sets_of_different_segments_are_different_shapes() -> None:
    """Three write sets of one open ensemble, and of three ensembles, of which only the last is open."""
    one = LedgerMetadata(3, 2, 2, (Segment(0, ("b0", "b1", "b2")),))
    three = LedgerMetadata(2, 2, 2, (Segment(0, ("b0", "b1")), Segment(4, ("b1", "b2")), Segment(8, ("b2", "b0"))))
    facts = AuditFacts(registrations=Registrations(("b0", "b2"), ()), now_ms=NOW_MS)
    ledgers: dict[int, LedgerMetadata | str] = {1: one, 2: three}
    assert report(ledgers, facts) == report_by_brute_force(ledgers, facts)


def test_more_shapes_than_are_counted_at_once() -> None:
    source = random.Random(4)
    bookies = [f"b{number}" for number in range(40)]
    ledgers: dict[int, LedgerMetadata | str] = {}
    for ledger_id in range(SHAPES_MAX + 1000):
        ensemble = tuple(source.sample(bookies, 3))
        ledgers[ledger_id] = LedgerMetadata(3, 2, 1, (Segment(0, ensemble),), LedgerState.CLOSED, 9, 1000)
    facts = AuditFacts(registrations=Registrations(tuple(bookies[:30]), ()), now_ms=NOW_MS)
    ids = list(ledgers)
    merged = AuditTotals()
    for half in (ids[::2], ids[1::2]):
        merged.merge(totals_of(ledgers, half, facts))
    assert report(ledgers, facts) == report_of(merged, facts)
    assert sum(bookie.ledgers for bookie in report_of(merged, facts).bookies) == 3 * len(ids)


def test_groups_are_judged_for_each_segment() -> None:
    """The same three write sets, of one segment that knows three bookies of gold, and of two: the second knows two."""
    demand = (demand_of(["gold"]),)
    one = LedgerMetadata(3, 2, 2, (Segment(0, ("b0", "b1", "b2")),), LedgerState.CLOSED, 2, 30, custom_metadata=demand)
    two = msgspec.structs.replace(one, segments=(*one.segments, Segment(2, ("b0", "b4", "b2"))))
    survey = BookieSurvey(writable=frozenset(("b0", "b3")), groups={"gold": frozenset(("b0", "b1", "b3"))})
    facts = AuditFacts(registrations=Registrations(("b0", "b3"), ("b1", "b2")), now_ms=NOW_MS, survey=survey)
    ledgers: dict[int, LedgerMetadata | str] = {1: one, 2: two}
    found = report(ledgers, facts)
    assert found == report_by_brute_force(ledgers, facts)
    assert {row.ledger_id: row.write_sets for row in found.misplaced} == {1: 2, 2: 1}
