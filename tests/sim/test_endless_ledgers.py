"""Ledgers whose metadata claims far more entries than any bookie has: every walk over their entries ends."""

from __future__ import annotations

import pytest

from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.ports import ReadReply
from bkctl.runtime.protocol.entry_list import EntryGroup, EntryList
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.entry_lists import EntryLists
from bkctl.runtime.replication.judge.check_scope import WHOLE, CheckScope, Sample
from bkctl.runtime.replication.judge.copies import CopyState
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.judge.ledger_result import FailureReason
from bkctl.runtime.replication.survey.checker import LedgerChecker
from bkctl.runtime.replication.survey.loss_proof import LossProof
from tests.runtime.client.fakes import credentials
from tests.runtime.replication.samples import ledger
from tests.sim.bookies import BookieRequest
from tests.sim.repair_cluster import RepairCluster, simulate
from tests.sim.test_in_place_repair import adds, recover

LAST = 2**62
IMPATIENT = ReplicationConfig(barren_entries_max=1000)
BOOKIES = ["b1", "b2", "b3"]
REQUESTS_MAX = 20_000


def limit_requests(cluster: RepairCluster, count_max: int = REQUESTS_MAX) -> None:
    def rule(request: BookieRequest) -> None:
        assert len(cluster.requests) <= count_max, f"still asking: {request}"

    cluster.rules.append(rule)


async def impatient(cluster: RepairCluster) -> LedgerChecker:
    live = (await cluster.ports.registrations.snapshot()).live
    return LedgerChecker(cluster.ports, live, IMPATIENT)


async def claim(cluster: RepairCluster, *, ensemble: list[str], quorum: int, entries: int = 0, last: int = LAST) -> int:
    """A closed ledger that claims to end at ``last``; all bookies have the first ``entries`` of it."""
    ledger_id, _ = await cluster.ports.ledgers.create(
        ledger({0: ensemble}, quorum, quorum, last_entry_id=last, length=last)
    )
    for entry_id in range(entries):
        put(cluster, ledger_id, entry_id, *ensemble)
    return ledger_id


def put(cluster: RepairCluster, ledger_id: int, entry_id: int, *bookie_ids: str, lac: int | None = None) -> None:
    body = credentials(ledger_id).codec.encode(entry_id, entry_id - 1 if lac is None else lac, 10, b"0123456789")
    for bookie_id in bookie_ids:
        if bookie_id in cluster.copies:
            cluster.copies[bookie_id].setdefault(ledger_id, {})[entry_id] = body


@pytest.mark.parametrize("scope", [WHOLE, CheckScope(sample=Sample(0.01, 1))], ids=["whole", "sample"])
@pytest.mark.parametrize("entries", [0, 100])
def test_what_no_bookie_has_is_missing_at_once(entries: int, scope: CheckScope) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await claim(cluster, ensemble=BOOKIES, quorum=3, entries=entries)
        limit_requests(cluster)

        check = await (await impatient(cluster)).check(ledger_id, scope)

        assert check.problem is None
        assert check.lost[-1].last_entry_id == LAST
        assert check.copies_missing == 3 * sum(each.count for each in check.lost)
        assert check.unreadable == ()
        if scope is WHOLE:
            assert check.lost == (EntryRange(entries, LAST),)
            assert (check.entries, check.copies_good) == (LAST + 1, 3 * entries)
            assert [each.entries for each in check.defects] == [(EntryRange(entries, LAST),)] * 3

    simulate(scenario)


def test_copies_of_a_stripe_are_counted_without_reading_them() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await claim(cluster, ensemble=BOOKIES, quorum=2, last=3 * 10**15 - 1)
        limit_requests(cluster)

        check = await (await impatient(cluster)).check(ledger_id)

        assert {each.bookie_id: each.copies for each in check.defects} == dict.fromkeys(BOOKIES, 2 * 10**15)
        assert (check.copies_expected, check.copies_missing) == (6 * 10**15, 6 * 10**15)

    simulate(scenario)


def test_entries_after_a_wide_hole_are_read() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await claim(cluster, ensemble=BOOKIES, quorum=3, entries=10)
        put(cluster, ledger_id, 2**61, "b2")
        put(cluster, ledger_id, LAST, *BOOKIES)
        limit_requests(cluster)

        check = await (await impatient(cluster)).check(ledger_id)

        assert check.lost == (EntryRange(10, 2**61 - 1), EntryRange(2**61 + 1, LAST - 1))
        assert check.copies_good == 10 * 3 + 1 + 3

    simulate(scenario)


@pytest.mark.parametrize("is_certain", [True, False])
def test_a_wide_gap_above_what_is_confirmed_is_not_walked_and_never_lost(*, is_certain: bool) -> None:
    """Of an open ledger, named entries that no bookie has may never have been written."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id, _ = await cluster.ports.ledgers.create(ledger({0: BOOKIES}, 3, 2, state=LedgerState.OPEN))
        for entry_id in (*range(6), 7000):
            put(cluster, ledger_id, entry_id, *BOOKIES, lac=min(entry_id - 1, 4))
        if not is_certain:
            cluster.refuse("read", "b3", Status.UNKNOWN_LEDGER_STATE)
        limit_requests(cluster)

        check = await (await impatient(cluster)).check(ledger_id, CheckScope((EntryRange(3, 90_000),)))

        assert (check.entries, check.last_entry_id, check.lost) == (4, 7000, ())
        doubtful = () if is_certain else (EntryRange(6, 6999), EntryRange(7001, 90_000))
        assert check.unreadable == doubtful
        assert check.problem == (
            None if is_certain else "entries 6-6999, 7001-90000 may exist on bookies that gave no certain answer"
        )

    simulate(scenario)


def test_a_bookie_that_gives_no_list_is_read_up_to_a_limit() -> None:
    """As Java's DbLedgerStorage, with an entry at the claimed end."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2")
        ledger_id = await claim(cluster, ensemble=["b1", "b2"], quorum=2, entries=10)
        put(cluster, ledger_id, LAST, "b1", "b2")
        cluster.refuse("list", "b1", Status.TIMEOUT)
        cluster.refuse("list", "b2", Status.TIMEOUT)
        limit_requests(cluster)

        check = await (await impatient(cluster)).check(ledger_id)

        assert check.lost[0].first_entry_id == 10
        (unread,) = check.unreadable
        assert check.lost == (EntryRange(10, unread.first_entry_id - 1),)
        assert unread.last_entry_id == LAST
        assert {each.reason for each in check.defects if each.state is CopyState.FAILED} == {
            "not read: no bookie has a good copy of the 1000 entries before"
        }

    simulate(scenario)


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.UNKNOWN_LEDGER_STATE, None])
def test_a_bookie_that_does_not_say_what_it_has_loses_nothing_and_ends_the_walk(
    status: Status | None,
) -> None:
    """None: it is not registered."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", *(["b2"] if status else []))
        ledger_id = await claim(cluster, ensemble=["b1", "b2"], quorum=2)
        if status:
            cluster.refuse("read", "b2", status)
            cluster.refuse("list", "b2", status)
        limit_requests(cluster)

        check = await (await impatient(cluster)).check(ledger_id)

        assert check.lost == ()
        assert check.unreadable == (EntryRange(0, LAST),)

    simulate(scenario)


@pytest.mark.parametrize("quorum", [2, 3])
def test_a_repair_reports_what_no_source_has_without_asking_for_each_entry(quorum: int) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        ledger_id = await claim(cluster, ensemble=BOOKIES, quorum=quorum, entries=600)
        limit_requests(cluster)

        report = await cluster.recover("b1")

        (failure,) = report.failures
        assert (failure.ledger_id, failure.reason) == (ledger_id, FailureReason.LOST)
        assert failure.entries[-1].last_entry_id in {LAST, LAST - 1}
        assert (await cluster.ensembles(ledger_id))[0] == tuple(BOOKIES)

    simulate(scenario)


def test_a_repair_in_place_leaves_what_no_bookie_has() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await claim(cluster, ensemble=BOOKIES, quorum=3, entries=600)
        del cluster.copies["b1"][ledger_id][0]
        limit_requests(cluster)

        report = await recover(cluster, ledger_id)

        assert adds(cluster) == [("b1", 0)]
        assert {each.reason for each in report.left} == {FailureReason.LOST}
        assert {each.bookie_id for each in report.left} == set(BOOKIES)

    simulate(scenario)


def test_the_proof_of_a_loss_ends_if_a_bookie_is_gone() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b3")
        ledger_id = await claim(cluster, ensemble=BOOKIES, quorum=3)
        limit_requests(cluster)
        proof = LossProof(cluster.ports, IMPATIENT)
        reason = await proof.why_not_lost(ledger_id, ["b1"])
        assert reason == "bookie b2 may have entry 0: not registered"

    simulate(scenario)


def name_as_last(cluster: RepairCluster, bookie_id: str, entry_id: int) -> None:
    """The bookie names this entry as its last one, as Java's does after low entries were added again."""

    def rule(request: BookieRequest) -> ReadReply | None:
        if (request.kind, request.bookie_id, request.entry_id) != ("read", bookie_id, -1):
            return None
        return ReadReply(cluster.copies[bookie_id][request.ledger_id][entry_id], None)

    cluster.rules.append(rule)


@pytest.mark.parametrize("has_list", [True, False])
def test_entries_after_the_one_that_a_bookie_names_as_its_last_are_not_lost(has_list: bool) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        ledger_id = await claim(cluster, ensemble=["b1", "b2"], quorum=2, last=999)
        for entry_id in (*range(10), *range(500, 1000)):
            put(cluster, ledger_id, entry_id, "b1")
        name_as_last(cluster, "b1", 9)
        if not has_list:
            cluster.refuse("list", "b1", Status.TIMEOUT)
        limit_requests(cluster)

        check = await (await impatient(cluster)).check(ledger_id)

        assert (check.lost, check.unreadable) == ((EntryRange(10, 499),), ())
        assert check.copies_good == 510
        await cluster.stop("b2")
        (failure,) = (await cluster.recover("b2")).failures
        assert failure.entries == (EntryRange(10, 499),)

    simulate(scenario)


@pytest.mark.parametrize("entries", [0, 100])
def test_a_list_that_claims_as_many_entries_as_the_metadata_is_not_compared(entries: int) -> None:
    """A bookie without an entry, or with some, must not keep the auditor busy for years."""
    period = 2**31 - 1
    everything = EntryList([EntryGroup(0, LAST // period * period, period, period)])

    def claims(request: BookieRequest) -> EntryList | None:
        return everything if request.kind == "list" else None

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        endless = await claim(cluster, ensemble=BOOKIES, quorum=2, entries=entries)
        finite = await claim(cluster, ensemble=BOOKIES, quorum=2, entries=entries, last=entries)
        cluster.rules.append(claims)  # type: ignore[arg-type]
        lists = EntryLists(cluster.ports.bookies, cluster.ports.clock)

        async def has_all(ledger_id: int) -> bool:
            metadata = (await cluster.ports.ledgers.read(ledger_id)).value
            listed = await lists.compared("b1", ledger_id, metadata)
            return listed is not None and not listed.missing

        assert not await has_all(endless)
        assert await has_all(finite)

    simulate(scenario)
