"""The same actions, by Java at one root and by bkctl at another, leave the same nodes: bytes, versions, permissions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from kazoo.client import KazooClient

from bkctl.runtime.ledger.changes import replace_bookies, to_closed, to_in_recovery
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.bookies.cookies import CookieStore
from bkctl.runtime.metadata.bookies.registration import BookieMode, BookieRegistration
from bkctl.runtime.metadata.bookies.service_info import BookieServiceInfo, rpc_service_info
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.replication.election import AuditorElection
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.replication.switches import PeriodicCheck, ReplicationSwitches
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.host import canonical_host_name
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.replication.run.ensemble_rewrite import rewrite_bookie
from tests.interop.java import JavaProgram
from tests.interop.java_metadata import JavaMetadata
from tests.interop.metadata_exchange import ENSEMBLE, NEW, bkctl, create_ledger, init_by_java, new_metadata, uri_of
from tests.interop.test_metadata_shell import COOKIE, ENDPOINTS, READ_ONLY, WRITABLE, cookie, register
from tests.interop.znodes import Znode, comparable, dump
from tests.until import until

A_TIME_MS = 1_700_000_000_123
LABELS = {"application": "pulsar", "component": "managed-ledger", "empty": ""}
IDS = {
    LedgerTree.FLAT: (50, 2**31, 2**63 - 2),
    LedgerTree.LEGACY_HIERARCHICAL: (50, 10051, 2**31),
    LedgerTree.HIERARCHICAL: (50, 2**31 - 2, 2**31 - 1, 2**63 - 2),
    LedgerTree.LONG_HIERARCHICAL: (50, 2**31, 2**63 - 2),
}


@pytest.fixture
def twin(java_program: JavaProgram, java: JavaMetadata) -> JavaMetadata:
    """The other root, where bkctl acts."""
    return JavaMetadata(java_program, f"{java.metadata_uri}-bkctl")


@pytest.fixture
def twin_root(root: str) -> str:
    return f"{root}-bkctl"


def assert_same(znodes: KazooClient, java_root: str, bkctl_root: str) -> dict[str, Znode]:
    """What Java left is what bkctl left, node by node; what bkctl left is returned."""
    by_java, by_bkctl = comparable(dump(znodes, java_root)), comparable(dump(znodes, bkctl_root))
    assert sorted(by_bkctl) == sorted(by_java)
    for path, node in by_java.items():
        assert by_bkctl[path] == node, path
    return by_bkctl


@pytest.mark.parametrize("tree", LedgerTree)
async def test_ledgers(
    java: JavaMetadata,
    twin: JavaMetadata,
    store: ZooKeeperStore,
    root: str,
    twin_root: str,
    znodes: KazooClient,
    tree: LedgerTree,
) -> None:
    java.metadata_uri, twin.metadata_uri = uri_of(tree, java.metadata_uri), uri_of(tree, twin.metadata_uri)
    await init_by_java(java, tree)
    if tree is LedgerTree.LEGACY_HIERARCHICAL:
        await init_by_java(twin, tree)
    else:
        await bkctl(twin, "cluster", "init")
    assert_same(znodes, root, twin_root)

    ledgers = await open_ledger_store(store, twin_root)
    labels = tuple((key, value.encode()) for key, value in LABELS.items())
    for ledger_id in IDS[tree]:
        await java.call("ledger_create", ledger_id=ledger_id, labels=LABELS, **NEW)
        await create_ledger(ledgers, new_metadata(custom_metadata=labels), ledger_id=ledger_id)
    for _ in range(3):
        await java.call("ledger_create", **NEW, format_version=2, ctime_ms=A_TIME_MS)
        await create_ledger(ledgers, new_metadata(format_version=2, ctime_ms=A_TIME_MS))
    for digest, name in ((DigestType.HMAC, "MAC"), (DigestType.DUMMY, "DUMMY"), (DigestType.CRC32, "CRC32")):
        await java.call("ledger_create", ensemble=ENSEMBLE, digest_type=name, ack_quorum_size=1, ctime_ms=-1)
        await create_ledger(ledgers, new_metadata(digest_type=digest, password=b"", ack_quorum_size=1, ctime_ms=-1))
    assert_same(znodes, root, twin_root)

    first, *_, last = IDS[tree]
    members = [ENSEMBLE[0], "10.0.0.9:3181", ENSEMBLE[2]]
    await java.call("ledger_update", ledger_id=last, new_segments=[[10, members]])
    await java.call("ledger_update", ledger_id=last, state="IN_RECOVERY")
    await java.call("ledger_update", ledger_id=first, state="CLOSED", last_entry_id=-1, length=0)
    found = await ledgers.read(last)
    found = await ledgers.write(last, replace_bookies(found.value, 10, {1: "10.0.0.9:3181"}), found.version)
    await ledgers.write(last, to_in_recovery(found.value), found.version)
    found = await ledgers.read(first)
    await ledgers.write(first, to_closed(found.value, -1, 0), found.version)
    assert_same(znodes, root, twin_root)

    await java.call("ledger_update", ledger_id=last, state="CLOSED", last_entry_id=19, length=2**40)
    await java.call("ledger_update", ledger_id=last, replaced_segments=[[0, members]])
    found = await ledgers.read(last)
    found = await ledgers.write(last, to_closed(found.value, 19, 2**40), found.version)
    repaired = msgspec.structs.replace(
        found.value,
        segments=(msgspec.structs.replace(found.value.segments[0], ensemble=tuple(members)), *found.value.segments[1:]),
    )
    await ledgers.write(last, repaired, found.version)
    assert_same(znodes, root, twin_root)

    for ledger_id in (first, last):
        await java.call("ledger_delete", ledger_id=ledger_id)
        await ledgers.delete(ledger_id)
    assert_same(znodes, root, twin_root)


async def test_long_ids(
    java: JavaMetadata, twin: JavaMetadata, store: ZooKeeperStore, root: str, twin_root: str, znodes: KazooClient
) -> None:
    await init_by_java(java, LedgerTree.HIERARCHICAL)
    await bkctl(twin, "cluster", "init")
    ledgers = await open_ledger_store(store, twin_root)
    for each in (root, twin_root):
        znodes.create(f"{each}/idgen-long")
        for high in (3, 4, 5, 6, 7):
            znodes.create(f"{each}/idgen-long/HOB-{high:010d}")
    for _ in range(2):
        theirs = await java.call("ledger_create", **NEW)
        ours, _ = await create_ledger(ledgers, new_metadata())
        assert theirs["ledger_id"] == ours
        assert ours >> 32 == 7
    tree = assert_same(znodes, root, twin_root)
    assert [path for path in tree if path.startswith("/idgen-long/HOB")] == [
        f"/idgen-long/HOB-{high:010d}" for high in (5, 6, 7)
    ]


async def test_bookies(
    java: JavaMetadata, twin: JavaMetadata, store: ZooKeeperStore, root: str, twin_root: str, znodes: KazooClient
) -> None:
    await init_by_java(java, LedgerTree.HIERARCHICAL)
    await bkctl(twin, "cluster", "init")
    await java.call("register", bookie_id=READ_ONLY, endpoints=ENDPOINTS, properties={"rack": "/a"})
    ours = await register(store, twin_root, READ_ONLY, BookieMode.WRITABLE)
    plain = {"id": "bookie", "port": 3181, "host": "10.0.0.1", "protocol": "bookie-rpc"}
    await java.call("register", bookie_id=WRITABLE, endpoints=[plain])
    await _register_plain(store, twin_root, rpc_service_info("10.0.0.1", 3181))
    assert_same(znodes, root, twin_root)

    await java.call("register", bookie_id=READ_ONLY, is_read_only=True, endpoints=ENDPOINTS, properties={"rack": "/a"})
    await ours.register(BookieMode.READ_ONLY)
    assert_same(znodes, root, twin_root)

    cookies = CookieStore(store, twin_root)
    for bookie_id, instance_id in ((WRITABLE, "0b7e1a2c-1111-4222-8333-944455556666"), (READ_ONLY, None)):
        await java.call("cookie_write", bookie_id=bookie_id, instance_id=instance_id, **COOKIE)
        await cookies.create(cookie(bookie_id, instance_id))
    await java.call("cookie_write", bookie_id=READ_ONLY, version=0, journals=["/j"], ledgers=["/l"])
    await cookies.write(
        msgspec.structs.replace(
            cookie(READ_ONLY, None),
            journal_directories=("/j",),
            ledger_directories=("/l",),
            index_directories=None,
        ),
        0,
    )
    assert_same(znodes, root, twin_root)
    await java.call("cookie_remove", bookie_id=READ_ONLY, version=1)
    await cookies.delete(READ_ONLY, await cookies.read(READ_ONLY))
    await java.call("unregister", bookie_id=READ_ONLY, is_read_only=True)
    await ours.unregister()
    assert_same(znodes, root, twin_root)


async def _register_plain(store: ZooKeeperStore, root: str, info: BookieServiceInfo) -> None:
    registration = BookieRegistration(
        store, root, WRITABLE, info, clock=LoopClock(), session_timeout_ms=2000, on_failed=lambda _: None
    )
    await registration.register(BookieMode.WRITABLE)


async def test_replication(
    java: JavaMetadata, twin: JavaMetadata, store: ZooKeeperStore, root: str, twin_root: str, znodes: KazooClient
) -> None:
    await init_by_java(java, LedgerTree.HIERARCHICAL)
    await bkctl(twin, "cluster", "init")
    marks = UnderReplicationMarks(store, twin_root, LoopClock(1))
    locks = ReplicationLocks(store, twin_root, canonical_host_name())
    for missing in ([WRITABLE], [READ_ONLY, WRITABLE], [WRITABLE], []):
        await java.call("mark", ledger_ids=[0, 7, 2**63 - 2], missing=missing)
        for ledger_id in (0, 7, 2**63 - 2):
            await marks.mark(ledger_id, missing)
    await java.call("acquire", ledger_id=7)
    assert await locks.acquire(7) is not None
    assert_same(znodes, root, twin_root)

    await java.call("mark", ledger_ids=[8], missing=[])
    await marks.mark(8, [])
    for ledger_id in (0, 8):
        await _repair_by_java(java, ledger_id)
        assert await marks.clear(ledger_id, (await store.get(f"{twin_root}/{_mark_path(ledger_id)}")).stat.version)
    assert_same(znodes, root, twin_root)

    election = AuditorElection(store, twin_root, WRITABLE, lambda _: None)
    await java.call("campaign", bookie_id=WRITABLE)

    async def is_elected() -> bool:
        return bool((await java.call("is_elected"))["is_elected"])

    await until(is_elected)
    await election.campaign()
    assert_same(znodes, root, twin_root)

    switches = ReplicationSwitches(store, twin_root)
    await java.call("set_switches", initial_delay_s=0, is_enabled=False, checks_ms=A_TIME_MS)
    await switches.set_recovery_delay(0)
    assert await switches.disable()
    for check in PeriodicCheck:
        await switches.set_check_time_ms(check, A_TIME_MS)
    assert_same(znodes, root, twin_root)


def _mark_path(ledger_id: int) -> str:
    groups = f"{ledger_id:016x}"
    parts = "/".join(groups[i : i + 4] for i in range(0, 16, 4))
    return f"underreplication/ledgers/{parts}/urL{ledger_id:010d}"


async def _repair_by_java(java: JavaMetadata, ledger_id: int) -> None:
    """Java clears the mark of a ledger that it picked; what else it picks on the way it gives back."""
    picked = None
    while picked != ledger_id:
        if picked is not None:
            await java.call("release", ledger_id=picked)
        picked = (await java.call("pick"))["ledger_id"]
    await java.call("finish", ledger_id=ledger_id)


async def test_commands(
    java: JavaMetadata, twin: JavaMetadata, root: str, twin_root: str, znodes: KazooClient, tmp_path: Path
) -> None:
    """Java's shell and bkctl's commands, one by one."""
    pairs: list[tuple[list[str], list[str]]] = [
        (["initnewcluster"], ["cluster", "init"]),
        (["autorecovery", "-d"], ["autorecovery", "disable", "--yes"]),
        (["autorecovery", "-e"], ["autorecovery", "enable"]),
        (["lostbookierecoverydelay", "-s", "600"], ["autorecovery", "delay", "set", "600"]),
        (["forceauditchecks", "-calc", "-ppc", "-rc"], ["autorecovery", "reset-checks"]),
    ]
    for theirs, ours in pairs:
        result = await java.shell(*theirs)
        assert result.exit_code == 0, result.text
        await bkctl(twin, *ours)
        assert_same(znodes, root, twin_root)
    await java.call("set_health_check", is_enabled=False)
    await bkctl(twin, "cluster", "health-check", "disable")
    assert_same(znodes, root, twin_root)


async def test_cookie_commands(
    java: JavaMetadata, twin: JavaMetadata, root: str, twin_root: str, znodes: KazooClient, tmp_path: Path
) -> None:
    await init_by_java(java, LedgerTree.HIERARCHICAL)
    await bkctl(twin, "cluster", "init")
    directories = ["--journal-dir", "/j1", "--journal-dir", "/j2", "--ledger-dir", "/l1", "--ledger-dir", "/l2"]
    directories += ["--index-dir", "/i1", "--index-dir", "/i2"]
    by_java, by_bkctl, java_changed, bkctl_changed = (str(tmp_path / name) for name in "abcd")
    for each, java_file, bkctl_file in ((java, "at java", by_bkctl), (twin, by_java, "at twin")):
        # Each side writes a cookie for the other's command, and both write the same.
        files = [str(tmp_path / java_file), str(tmp_path / bkctl_file)]
        generated = await each.shell(
            *("cookie_generate", "-j", "/j1,/j2", "-l", "/l1,/l2", "-ix", "/i1,/i2", "-o", files[0], WRITABLE)
        )
        assert generated.exit_code == 0, generated.text
        await bkctl(each, "cookie", "generate", WRITABLE, *directories, "--out", files[1])
        assert Path(files[0]).read_bytes() == Path(files[1]).read_bytes()
    directories[1] = "/j9"
    for each, file in ((java, java_changed), (twin, bkctl_changed)):
        await bkctl(each, "cookie", "generate", WRITABLE, *directories, "--out", file)

    pairs = [
        (["cookie_create", "-cf", by_bkctl], ["create", "--from-file", by_java, "--yes"]),
        (["cookie_update", "-cf", java_changed], ["update", "--from-file", bkctl_changed, "--confirm", WRITABLE]),
        (["cookie_delete"], ["delete", "--confirm", WRITABLE]),
    ]
    for (command, *theirs), (verb, *ours) in pairs:
        result = await java.shell(command, *theirs, WRITABLE)
        assert result.exit_code == 0, result.text
        await bkctl(twin, "cookie", verb, WRITABLE, *ours)
        assert_same(znodes, root, twin_root)
        if verb != "delete":
            shown = await bkctl(java, "cookie", "show", WRITABLE, "--raw")
            assert shown.stdout in (await java.shell("cookie_get", WRITABLE)).stdout


async def test_rewriting_a_bookie(
    java: JavaMetadata, twin: JavaMetadata, store: ZooKeeperStore, root: str, twin_root: str, znodes: KazooClient
) -> None:
    """Java's updateBookieInLedger, and our rule: that of ``bkctl ledger rewrite-bookie --include-open``."""
    await init_by_java(java, LedgerTree.HIERARCHICAL)
    await bkctl(twin, "cluster", "init")
    ledgers = await open_ledger_store(store, twin_root)
    for each in (java, twin):
        await each.call("ledger_create", ledger_id=5, **NEW)
        await each.call("ledger_update", ledger_id=5, new_segments=[[10, ["x:1", ENSEMBLE[1], ENSEMBLE[0]]]])
        await each.call("ledger_create", ledger_id=6, **NEW, state="CLOSED", last_entry_id=9, length=100)
        await each.call("ledger_create", ledger_id=2**40, ensemble=["x:1", "y:2", "z:3"], password="secret")
    updated = await java.shell("updateBookieInLedger", "-sb", ENSEMBLE[0], "-db", "10.0.0.99:3181")
    assert updated.exit_code == 0, updated.text
    changed = 0
    async for ledger_id in ledgers.list_ids():
        found = await ledgers.read(ledger_id)
        rewrite = rewrite_bookie(found.value, ENSEMBLE[0], "10.0.0.99:3181", has_open_ends=True)
        if rewrite.metadata is not None:
            await ledgers.write(ledger_id, rewrite.metadata, found.version)
            changed += 1
    assert changed == 2
    assert_same(znodes, root, twin_root)
