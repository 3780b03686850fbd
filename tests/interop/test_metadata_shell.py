"""Java's shell on what bkctl wrote, and bkctl on what Java wrote: registrations, cookies, marks, votes, switches."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from typing import Any

import pytest

from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.bookies.cookies import Cookie, CookieStore
from bkctl.runtime.metadata.bookies.registration import BookieMode, BookieRegistration
from bkctl.runtime.metadata.bookies.service_info import BookieServiceInfo, Endpoint
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.election import AuditorElection
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.replication.switches import PeriodicCheck, ReplicationSwitches, WatchedSwitch
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.host import canonical_host_name
from bkctl.runtime.net.loop import LoopClock
from tests.interop.java import JavaError
from tests.interop.java_metadata import JavaMetadata
from tests.interop.metadata_exchange import bkctl, init_by_java
from tests.runtime.replication.samples import ledger
from tests.until import until

_CAPITAL = re.compile("[A-Z]")
WRITABLE = "10.0.0.1:3181"
READ_ONLY = "bk-3.example_com"
ENDPOINTS: list[dict[str, Any]] = [
    {"id": "httpserver", "port": 8080, "host": "0.0.0.0", "protocol": "http"},
    {"id": "bookie", "port": 3181, "host": "10.0.0.3", "protocol": "bookie-rpc", "extensions": ["tls"]},
]
COOKIE: dict[str, Any] = {"journals": ["/j1", "/j 2"], "ledgers": ["/l1", "/l'2", '/"ü\\'], "indexes": ["/i"]}


def service_info() -> BookieServiceInfo:
    """What Java makes of ``ENDPOINTS``."""
    return BookieServiceInfo(
        tuple(
            Endpoint(each["id"], each["host"], each["port"], each["protocol"], (), tuple(each.get("extensions", ())))
            for each in ENDPOINTS
        ),
        {"rack": "/a"},
    )


def cookie(bookie_id: str, instance_id: str | None) -> Cookie:
    """What Java makes of ``COOKIE``."""
    return Cookie(
        bookie_id=bookie_id,
        journal_directories=tuple(COOKIE["journals"]),
        ledger_directories=tuple(COOKIE["ledgers"]),
        index_directories=tuple(COOKIE["indexes"]),
        instance_id=instance_id,
    )


async def register(store: ZooKeeperStore, root: str, bookie_id: str, mode: BookieMode) -> BookieRegistration:
    """Our registration."""
    registration = BookieRegistration(
        store, root, bookie_id, service_info(), clock=LoopClock(), session_timeout_ms=2000, on_failed=lambda _: None
    )
    await registration.register(mode)
    return registration


async def compare_summaries(java: JavaMetadata) -> dict[str, Any]:
    """Both sides' summary of the cluster says the same; ours is returned.

    Java writes "" if no auditor is elected, and a guess where ours is None, not known.
    """
    summary = await java.shell("clusterinfo")
    theirs = json.loads(next(value for value in summary.values("value") if value.startswith("{")))
    ours: dict[str, Any] = (await bkctl(java, "cluster", "info", "-o", "json")).json()
    spelled = {_CAPITAL.sub(r"_\g<0>", key).lower(): value for key, value in theirs.items()}
    unknown = {key: None for key in ("cluster_under_replicated", "ledger_replication_enabled") if ours[key] is None}
    assert bool(unknown) is not (theirs["auditorElected"] or theirs["clusterUnderReplicated"])
    assert {key: ours[key] for key in spelled} == spelled | unknown | {"auditor_id": theirs["auditorId"] or None}
    return ours


async def test_java_reads_our_cluster_registrations_and_cookies(
    java: JavaMetadata, store: ZooKeeperStore, root: str
) -> None:
    await bkctl(java, "cluster", "init")
    instance_id = (await bkctl(java, "cluster", "instance-id", "-o", "name")).stdout.strip()
    told = await java.shell("whatisinstanceid")
    assert told.values("readInstanceId") == [instance_id]

    await (await register(store, root, WRITABLE, BookieMode.WRITABLE)).publish("2 ledgers still miss entries")
    read_only = await register(store, root, READ_ONLY, BookieMode.READ_ONLY)
    await read_only.publish("a ledger disk hangs")
    cookies = CookieStore(store, root)
    for bookie_id in (WRITABLE, READ_ONLY):
        await cookies.create(cookie(bookie_id, instance_id))

    listed = await java.shell("listbookies", "-rw")
    assert listed.values("bookieAddr") == [f"BookieID:{WRITABLE}, IP:10.0.0.3, Port:3181, Hostname:10.0.0.3"]
    listed = await java.shell("listbookies", "-ro")
    assert listed.values("bookieAddr") == [f"BookieID:{READ_ONLY}, IP:10.0.0.3, Port:3181, Hostname:10.0.0.3"]
    listed = await java.shell("listbookies", "-a")
    assert sorted(each.split(",")[0] for each in listed.values("bookieAddr")) == [
        f"BookieID:{WRITABLE}",
        f"BookieID:{READ_ONLY}",
    ]
    shown = await java.shell("endpointinfo", "-b", READ_ONLY)
    assert shown.exit_code == 0, shown.text
    assert sorted(shown.values("id")) == ["bookie", "httpserver"]
    assert "[tls]" in shown.values("extensions")
    assert (await java.call("is_registered", bookie_id=READ_ONLY))["is_registered"]

    stored = await java.call("cookie_read", bookie_id=WRITABLE)
    assert stored["version"] == 0
    assert base64.b64decode(stored["data"]).decode() == stored["understood"], "as Java itself would write it"
    got = await java.shell("cookie_get", WRITABLE)
    assert (got.exit_code, stored["understood"] in got.stdout) == (0, True)
    await java.call("cookie_verify", bookie_id=READ_ONLY, instance_id=instance_id, **COOKIE)
    with pytest.raises(JavaError, match="InvalidCookie"):
        await java.call("cookie_verify", bookie_id=READ_ONLY, instance_id="another", **COOKIE)

    await compare_summaries(java)

    await read_only.register(BookieMode.WRITABLE)
    assert len((await java.shell("listbookies", "-rw")).values("bookieAddr")) == 2
    await read_only.unregister()
    assert len((await java.shell("listbookies", "-rw")).values("bookieAddr")) == 1


async def test_bkctl_reads_javas_cluster_registrations_and_cookies(
    java: JavaMetadata, store: ZooKeeperStore, root: str
) -> None:
    await init_by_java(java, LedgerTree.HIERARCHICAL)
    instance_id = (await java.shell("whatisinstanceid")).values("readInstanceId")[0]
    for bookie_id, is_read_only in ((WRITABLE, False), (READ_ONLY, True)):
        await java.call(
            "register", bookie_id=bookie_id, is_read_only=is_read_only, endpoints=ENDPOINTS, properties={"rack": "/a"}
        )
    for bookie_id in (WRITABLE, READ_ONLY, "gone.example.com:3181"):
        await java.call("cookie_write", bookie_id=bookie_id, instance_id=instance_id, **COOKIE)

    assert (await bkctl(java, "cluster", "instance-id", "-o", "name")).stdout.strip() == instance_id
    rows = (await bkctl(java, "bookie", "list", "-o", "json")).json()["items"]
    assert {row["id"]: (row["state"], row["address"]) for row in rows} == {
        WRITABLE: ("writable", "10.0.0.3:3181"),
        READ_ONLY: ("read-only", "10.0.0.3:3181"),
        "gone.example.com:3181": ("down", None),
    }
    cookies = CookieStore(store, root)
    for bookie_id in (WRITABLE, READ_ONLY):
        found = await cookies.read(bookie_id)
        assert found.value == cookie(bookie_id, instance_id)
        assert found.value.differences(cookie(bookie_id, instance_id)) == ()
    ours = await compare_summaries(java)
    assert [ours[f"{mode}_bookies_count"] for mode in ("writable", "readonly", "unavailable")] == [1, 1, 1]


async def test_a_registration_of_one_side_keeps_the_other_from_the_name(
    java: JavaMetadata, store: ZooKeeperStore, root: str
) -> None:
    await init_by_java(java, LedgerTree.HIERARCHICAL)
    ours = await register(store, root, WRITABLE, BookieMode.WRITABLE)
    taking = asyncio.create_task(java.call("register", bookie_id=WRITABLE, endpoints=ENDPOINTS))
    await asyncio.sleep(0.2)
    assert not taking.done(), "Java waits for our session to end"
    await ours.unregister()
    await taking
    waiting = asyncio.create_task(ours.register(BookieMode.WRITABLE))
    await asyncio.sleep(0.2)
    assert not waiting.done(), "we wait for Java's session to end"
    await java.close()
    await waiting
    stat = await store.exists(Paths(root).writable_bookie(WRITABLE))
    assert stat is not None
    assert stat.ephemeral_owner == store.session_id


async def test_java_reads_our_marks_locks_votes_and_switches(
    java: JavaMetadata, store: ZooKeeperStore, root: str
) -> None:
    await bkctl(java, "cluster", "init")
    marks = UnderReplicationMarks(store, root, LoopClock(1))
    await marks.mark(7, [WRITABLE, READ_ONLY])
    await marks.mark(2**63 - 2, [])
    lock = await ReplicationLocks(store, root, canonical_host_name()).acquire(7)
    assert lock is not None
    election = AuditorElection(store, root, READ_ONLY, lambda _: None)
    await election.campaign()

    listed = await java.shell("listunderreplicated", "-pmr", "-prw")
    assert listed.exit_code == 0, listed.text
    assert sorted(listed.values("ledgerId"), key=int) == ["7", str(2**63 - 2)]
    assert listed.values("missingReplica") == [WRITABLE, READ_ONLY]
    assert listed.values("replicationWorkerId") == [canonical_host_name()]
    only = await java.shell("listunderreplicated", "-mr", READ_ONLY)
    assert only.values("ledgerId") == ["7"]
    assert (await java.shell("whoisauditor")).values("auditor") == [READ_ONLY]
    running = await java.shell("queryautorecoverystatus")
    assert (running.values("ledgerId"), running.values("bookieId")) == (["7"], [canonical_host_name()])

    assert (await java.shell("autorecovery")).values("status") == ["enabled"]
    await bkctl(java, "autorecovery", "disable", "--reason", "maintenance", "--yes")
    assert (await java.shell("autorecovery")).values("status") == ["disabled"]
    await bkctl(java, "autorecovery", "enable")
    assert (await java.shell("autorecovery")).values("status") == ["enabled"]

    await bkctl(java, "autorecovery", "delay", "set", "600")
    assert (await java.shell("lostbookierecoverydelay", "-g")).values("delay") == ["600"]
    switches = ReplicationSwitches(store, root)
    for number, check in enumerate(PeriodicCheck):
        await switches.set_check_time_ms(check, 1_700_000_000_123 + number)
    assert await java.call("switches") == {
        "is_enabled": True,
        "delay_s": 600,
        "all_ledgers_ms": 1_700_000_000_123,
        "placement_ms": 1_700_000_000_124,
        "replicas_ms": 1_700_000_000_125,
    }
    await lock.release()
    await election.resign()
    nobody = await java.shell("whoisauditor")
    assert nobody.values("auditor") == []


async def test_java_lists_the_marks_that_repair_marks_leaves(
    java: JavaMetadata, store: ZooKeeperStore, root: str
) -> None:
    """Java marked a ledger that was deleted, and one whose bookies are all down; it can mark the first one again."""
    await init_by_java(java, LedgerTree.HIERARCHICAL)
    lost = ledger({0: [WRITABLE, READ_ONLY]}, 2, 2, last_entry_id=9, length=90)
    await store.create(f"{root}/00/0000/L0008", encode_ledger_metadata(lost), make_parents=True)
    await java.call("mark", ledger_ids=[7, 8], missing=[WRITABLE, READ_ONLY])
    await bkctl(java, "autorecovery", "repair-marks", "--yes", exit_code=10)
    listed = await java.shell("listunderreplicated", "-pmr")
    assert (listed.values("ledgerId"), listed.values("missingReplica")) == (["8"], [WRITABLE, READ_ONLY])
    await java.call("mark", ledger_ids=[7], missing=[WRITABLE])
    assert sorted((await java.shell("listunderreplicated")).values("ledgerId")) == ["7", "8"]


async def test_bkctl_reads_javas_marks_locks_votes_and_switches(
    java: JavaMetadata, store: ZooKeeperStore, root: str
) -> None:
    await init_by_java(java, LedgerTree.HIERARCHICAL)
    await java.call("mark", ledger_ids=[7], missing=[WRITABLE, READ_ONLY])
    await java.call("mark", ledger_ids=[2**63 - 2], missing=[])
    assert (await java.call("acquire", ledger_id=7))["acquired"]
    await java.call("campaign", session="auditor", bookie_id=READ_ONLY)

    async def is_elected() -> bool:
        return bool((await java.call("is_elected", session="auditor"))["is_elected"])

    await until(is_elected)

    rows = (await bkctl(java, "autorecovery", "pending", "-o", "json")).json()["items"]
    assert [(row["ledger_id"], row["missing_bookies"]) for row in rows] == [
        ("7", [WRITABLE, READ_ONLY]),
        (str(2**63 - 2), []),
    ]
    marked = {mark["ledger_id"]: mark["ctime_ms"] for mark in (await java.call("marks"))["marks"]}
    found = {each["ledger_id"]: each["marked_at"] for each in rows}
    assert len(marked) == len(found) == 2
    running = (await bkctl(java, "autorecovery", "running", "-o", "json")).json()["items"]
    assert [(row["ledger_id"], row["worker"], row["marked"]) for row in running] == [("7", canonical_host_name(), True)]
    assert (await bkctl(java, "autorecovery", "auditor", "-o", "name")).stdout.strip() == READ_ONLY

    await java.shell("autorecovery", "-d")
    await java.shell("lostbookierecoverydelay", "-s", "30")
    await java.shell("forceauditchecks", "-calc")
    status = (await bkctl(java, "autorecovery", "status", "-o", "json")).json()
    assert (status["enabled"], status["disabled_by"], status["auditor"]) == (False, None, READ_ONLY)
    assert (status["lost_bookie_recovery_delay_s"], status["pending"], status["running"]) == (30, 2, 1)
    assert (await bkctl(java, "autorecovery", "delay", "get", "-o", "name")).stdout.strip() == "30"
    times = await java.call("switches")
    switches = ReplicationSwitches(store, root)
    assert await switches.check_time_ms(PeriodicCheck.ALL_LEDGERS) == times["all_ledgers_ms"] > 0
    assert await switches.check_time_ms(PeriodicCheck.REPLICAS) is None
    assert times["replicas_ms"] == -1
    await bkctl(java, "autorecovery", "enable")
    assert (await java.call("switches"))["is_enabled"]

    version = (await store.get(Paths(root).lost_bookie_recovery_delay)).stat.version
    await bkctl(java, "autorecovery", "trigger")
    triggered = await store.get(Paths(root).lost_bookie_recovery_delay)
    assert (triggered.data, triggered.stat.version) == (b"30", version + 1)
    assert (await java.shell("triggeraudit")).exit_code == 0
    assert (await store.get(Paths(root).lost_bookie_recovery_delay)).stat.version == version + 2


async def test_java_wakes_up_and_goes_to_sleep_by_our_switch(
    java: JavaMetadata, store: ZooKeeperStore, root: str
) -> None:
    await init_by_java(java, LedgerTree.HIERARCHICAL)
    await java.call("mark", ledger_ids=[7], missing=[WRITABLE])
    await java.call("set_switches", is_enabled=False)
    changed = asyncio.Event()
    watched = WatchedSwitch(store, root, changed.set)
    assert await watched.is_off()
    await java.call("set_switches", is_enabled=True)
    await asyncio.wait_for(changed.wait(), 60)
    assert not await watched.is_off()
