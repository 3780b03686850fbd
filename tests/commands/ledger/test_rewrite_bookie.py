"""``bkctl ledger rewrite-bookie`` against real bookies.

Ledgers are written, and then made to name an id that nobody has any more, as after a bookie was given another one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.errors import BadVersionError
from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata, Segment
from bkctl.runtime.ledger.metadata_format import decode_ledger_metadata
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.replication.run.ensemble_rewrite import rewrite_bookie
from tests.commands.ledger.conftest import LedgerShell
from tests.operation_locks import end_locks
from tests.processes import Cluster
from tests.until import until

pytestmark = pytest.mark.cluster

OLD = "old-name.example:3181"


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory, new_metadata_uri: Callable[[], str]) -> Iterator[Cluster]:
    """Three bookies for the whole module; each test cleans up its ledgers."""
    cluster = Cluster(str(tmp_path_factory.mktemp("rewrite")), new_metadata_uri())
    try:
        cluster.up(3)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
async def shell(shared_cluster: Cluster, tmp_path: Path) -> AsyncIterator[LedgerShell]:
    uri = parse_metadata_uri(shared_cluster.metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        shell = LedgerShell(
            store, await open_ledger_store(store, uri.root, uri.tree), shared_cluster.metadata_uri, tmp_path
        )
        yield shell
        for ledger_id in await shell.contents():
            await shell.ledgers.delete(ledger_id)


@pytest.fixture
def bookies(shared_cluster: Cluster) -> list[str]:
    return sorted(bookie.id for bookie in shared_cluster.bookies)


async def write(shell: LedgerShell, ensemble_size: int, *, entries: int = 5, is_closed: bool = True) -> int:
    """A ledger with entries on that many bookies."""
    async with await LedgerClient.connect(shell.uri) as client:
        writer = await client.create(ensemble_size=ensemble_size, write_quorum_size=1, ack_quorum_size=1)
        for number in range(entries):
            await writer.append(b"entry %d" % number)
        if is_closed:
            await writer.close()
        return writer.ledger_id


async def rename(shell: LedgerShell, ledger_id: int, present: str, new: str) -> LedgerMetadata:
    """Behind everybody's back; the metadata before it."""
    found = await shell.ledgers.read(ledger_id)
    renamed = rewrite_bookie(found.value, present, new, has_open_ends=True).metadata
    if renamed is not None:
        await shell.ledgers.write(ledger_id, renamed, found.version)
    return found.value


async def metadata(shell: LedgerShell) -> dict[int, LedgerMetadata]:
    return {ledger_id: decode_ledger_metadata(data) for ledger_id, (data, _) in (await shell.contents()).items()}


async def written(shell: LedgerShell, bookie_id: str, count: int = 4) -> dict[int, LedgerMetadata]:
    """Ledgers on all three bookies, one of which goes by its old name; as they should become."""
    expected = {}
    for _ in range(count):
        ledger_id = await write(shell, 3)
        expected[ledger_id] = await rename(shell, ledger_id, bookie_id, OLD)
    return expected


async def fill(shell: LedgerShell, ensemble: tuple[str, ...], count: int) -> list[int]:
    """Closed ledgers without entries: nobody can be asked about them, but they name the bookie."""
    empty = to_closed(new_ledger(ensemble, 2, 2, DigestType.CRC32C, b""), -1, 0)
    ids = list(range(10_000, 10_000 + count))
    for ledger_id in ids:
        await shell.plant(ledger_id, empty)
    return ids


def rewrite(old: str, new: str, *more: str) -> tuple[str, ...]:
    return ("rewrite-bookie", "--from", old, "--to", new, *more)


async def test_the_plan_first_then_all_ledgers_then_back_again(shell: LedgerShell, bookies: list[str]) -> None:
    new = bookies[0]
    expected = await written(shell, new)
    before = await shell.contents()
    for arguments in ([], ["--dry-run"]):
        plan = await shell.succeed(*rewrite(OLD, new, *arguments))
        assert (plan["kind"], plan["subject"], plan["items"][0]["ledgers"]) == ("Plan", new, 4)
        assert plan["summary"] == [
            f"will rename {OLD} to {new} in 4 segments of 4 ledgers (4 scanned)",
            f"{new} has all of 4 sampled entries of {OLD}",
        ]
    for wrong, exit_code in ((["--yes"], 3), (["--confirm", OLD], 3), (["--confirm", "4"], 3)):
        assert (await shell.run(*rewrite(OLD, new, *wrong))).exit_code == exit_code
    assert await shell.contents() == before
    done = await shell.succeed(*rewrite(OLD, new, "--confirm", new))
    assert (done["changed"], done["failed"], done["remaining"]) == (4, 0, 0)
    assert await metadata(shell) == expected
    assert {line["path"]: base64.b64decode(line["data"]) for line in shell.trash()} == {
        shell.path(ledger_id): data for ledger_id, (data, _) in before.items()
    }
    again = await shell.succeed(*rewrite(OLD, new, "--confirm", new))
    assert (again["changed"], again["undo_file"]) == (0, None)
    undone = await shell.succeed("import", done["undo_file"], "--if-version", "next", "--confirm", "4")
    assert undone["imported"] == 4
    assert {each: data for each, (data, _) in (await shell.contents()).items()} == {
        each: data for each, (data, _) in before.items()
    }


async def test_another_bookie_is_found_out(shell: LedgerShell, bookies: list[str]) -> None:
    """Its id is valid, it runs, it is configured alike: only the entries tell."""
    ledger_id = await write(shell, 1)
    [holder] = (await shell.ledgers.read(ledger_id)).value.last_segment.ensemble
    await rename(shell, ledger_id, holder, OLD)
    before = await shell.contents()
    for other in sorted({*bookies} - {holder}):
        refused = await shell.run(*rewrite(OLD, other, "--confirm", other))
        assert refused.exit_code == 3
        assert f"{other} does not have it (missing" in refused.stderr
    assert await shell.contents() == before
    assert (await shell.succeed(*rewrite(OLD, holder, "--confirm", holder)))["changed"] == 1


async def test_no_ensemble_gets_the_same_bookie_twice(shell: LedgerShell, bookies: list[str]) -> None:
    await written(shell, bookies[0])
    before = await shell.contents()
    refused = await shell.run(*rewrite(OLD, bookies[1], "--confirm", bookies[1]))
    assert refused.exit_code == 3
    assert f"would have {bookies[1]} twice" in refused.stderr
    assert await shell.contents() == before


async def test_wrong_ids(shell: LedgerShell, bookies: list[str]) -> None:
    await written(shell, bookies[0], 1)
    before = await shell.contents()
    for old, new, sentence in [
        (bookies[1], bookies[0], f"{bookies[1]} is registered"),
        (OLD, "nobody:3181", "nobody:3181 is not registered"),
        (OLD, OLD, "both ids are"),
        (OLD, "no/id", "is not a bookie id"),
        ("readonly", bookies[0], "is not a bookie id"),
        ("", bookies[0], "is not a bookie id"),
    ]:
        refused = await shell.run(*rewrite(old, new, "--confirm", new))
        assert (refused.exit_code, sentence in refused.stderr) == (3, True), refused
    nothing = await shell.succeed(*rewrite("never-heard-of:3181", bookies[0], "--confirm", bookies[0]))
    assert nothing["changed"] == 0
    assert await shell.contents() == before


async def test_a_flip_takes_both_ids_from_the_settings(shell: LedgerShell, bookies: list[str]) -> None:
    conf = shell.directory / "bk_server.conf"
    directories = f"journalDirectories={shell.directory}/j\nledgerDirectories={shell.directory}/l\n"
    port = bookies[0].rpartition(":")[2]
    name = socket.gethostbyaddr("127.0.0.1")[0]
    conf.write_text(f"{directories}bookiePort={port}\nallowLoopback=true\nlisteningInterface=lo\n")
    ledger_id = await write(shell, 3)
    before = await rename(shell, ledger_id, bookies[0], f"{name}:{port}")
    done = await shell.succeed("rewrite-bookie", "--flip", "ip", "--conf", str(conf), "--confirm", bookies[0])
    assert done["changed"] == 1
    assert (await metadata(shell))[ledger_id].segments == before.segments
    back = await shell.run("rewrite-bookie", "--flip", "hostname", "--conf", str(conf))
    assert (back.exit_code, f"{bookies[0]} is registered" in back.stderr) == (3, True)
    conf.write_text(f"{directories}bookieId=chosen\n")
    fixed = await shell.run("rewrite-bookie", "--flip", "ip", "--conf", str(conf))
    assert (fixed.exit_code, "use --from and --to" in fixed.stderr) == (3, True)
    for arguments in (["--flip", "ip", "--from", OLD], ["--from", OLD], [], ["--flip", "dns"]):
        assert (await shell.run("rewrite-bookie", *arguments)).exit_code == 2


async def test_cookies_must_not_contradict(shell: LedgerShell, bookies: list[str]) -> None:
    new = bookies[0]
    await fill(shell, (OLD, bookies[1]), 3)
    before = await shell.contents()
    plan = await shell.succeed(*rewrite(OLD, new))
    assert plan["summary"][1] == f"no entry is affected: {OLD} has none of these ledgers"
    async with old_cookie(shell, new, b'journalDir: "', b'journalDir: "/elsewhere'):
        refused = await shell.run(*rewrite(OLD, new, "--confirm", new))
        assert (refused.exit_code, "cookies differ in journalDir" in refused.stderr) == (3, True)
        assert await shell.contents() == before
    async with old_cookie(shell, new, b"", b""):
        done = await shell.succeed(*rewrite(OLD, new, "--confirm", new))
        assert done["changed"] == 3


async def test_cookies_decide_where_an_open_end_may_have_no_entry(shell: LedgerShell, bookies: list[str]) -> None:
    new = bookies[0]
    ledger_id = await write(shell, 3, entries=0, is_closed=False)
    await rename(shell, ledger_id, new, OLD)
    before = await shell.contents()
    arguments = rewrite(OLD, new, "--confirm", new, "--include-open")
    refused = await shell.run(*arguments)
    assert (refused.exit_code, "no two cookies to compare" in refused.stderr) == (3, True)
    assert await shell.contents() == before
    async with old_cookie(shell, new, b"", b""):
        assert (await shell.succeed(*arguments))["changed"] == 1


@contextlib.asynccontextmanager
async def old_cookie(shell: LedgerShell, new: str, before: bytes, after: bytes) -> AsyncIterator[None]:
    """The old id's cookie beside the new one's: the same directories, but for what is replaced."""
    paths = Paths(shell.ledgers.root)
    cookie = (await shell.store.get(paths.cookie(new))).data.replace(new.encode(), OLD.encode())
    await shell.store.create(paths.cookie(OLD), cookie.replace(before, after) if before else cookie)
    try:
        yield
    finally:
        await shell.store.delete(paths.cookie(OLD))


async def test_open_ends_are_left_to_their_writers(shell: LedgerShell, bookies: list[str]) -> None:
    new = bookies[0]
    ledger_id = await write(shell, 3, entries=6, is_closed=False)  # the last segment has one for every bookie
    found = await shell.ledgers.read(ledger_id)
    first = found.value.last_segment.ensemble
    rolled = msgspec.structs.replace(found.value, segments=(Segment(0, first), Segment(3, first)))
    await shell.ledgers.write(ledger_id, rolled, found.version)
    await rename(shell, ledger_id, new, OLD)
    result = await shell.run(*rewrite(OLD, new, "--confirm", new))
    assert result.exit_code == 9
    assert (result.json()["changed"], result.json()["remaining"], result.json()["ends_left"]) == (1, 0, 1)
    now = (await metadata(shell))[ledger_id]
    assert now.segments[0].ensemble == first
    assert OLD in now.segments[1].ensemble
    done = await shell.succeed(*rewrite(OLD, new, "--confirm", new, "--include-open"))
    assert (done["changed"], done["ends_left"]) == (1, 0)
    assert (await metadata(shell))[ledger_id].segments == rolled.segments


async def test_an_unreadable_ledger_is_told_of(shell: LedgerShell, bookies: list[str]) -> None:
    expected = await written(shell, bookies[0], 1)
    await shell.plant(20_000, b"garbage")
    result = await shell.run(*rewrite(OLD, bookies[0], "--confirm", bookies[0]))
    assert result.exit_code == 9
    assert (result.json()["changed"], result.json()["unreadable"]) == (1, 1)
    await shell.store.delete(shell.path(20_000))
    assert await metadata(shell) == expected


async def test_a_limit_counts_changed_ledgers(shell: LedgerShell, bookies: list[str]) -> None:
    await write(shell, 3)
    expected = await written(shell, bookies[0], 3)
    for left in (2, 1, 0):
        done = await shell.succeed(*rewrite(OLD, bookies[0], "--confirm", bookies[0], "--limit", "1"))
        assert (done["changed"], done["remaining"]) == (1, left)
    assert await metadata(shell) == (await metadata(shell)) | expected


async def test_changed_between_plan_and_apply(shell: LedgerShell, bookies: list[str]) -> None:
    expected = await written(shell, bookies[0], 2)
    saved = str(shell.directory / "plan.json")
    await shell.succeed(*rewrite(OLD, bookies[0], "--plan-out", saved))
    one = min(expected)
    found = await shell.ledgers.read(one)
    await shell.ledgers.write(one, found.value, found.version)
    before = await shell.contents()
    refused = await shell.run(*rewrite(OLD, bookies[0], "--apply", saved, "--confirm", bookies[0]))
    assert refused.exit_code == 5
    assert await shell.contents() == before
    await shell.succeed(*rewrite(OLD, bookies[0], "--plan-out", saved))
    done = await shell.succeed(*rewrite(OLD, bookies[0], "--apply", saved, "--confirm", bookies[0]))
    assert done["changed"] == 2
    assert await metadata(shell) == expected


async def test_killed_in_the_middle_and_run_again(shell: LedgerShell, bookies: list[str]) -> None:
    new = bookies[0]
    expected = await written(shell, new, 2)
    ids = await fill(shell, (OLD, bookies[1]), 300)
    before = await shell.contents()
    process = await shell.begin(*rewrite(OLD, new, "--confirm", new, "--max-per-second", "25"))

    async def changed() -> int:
        return sum(version != before[each][1] for each, (_, version) in (await shell.contents()).items())

    async def has_begun() -> bool:
        assert process.returncode is None, await process.communicate()
        return await changed() >= 50

    await until(has_begun)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    half = await shell.contents()
    assert (done_count := await changed()) < len(before), "killed too late to tell anything"
    kept = {line["path"]: base64.b64decode(line["data"]) for line in shell.trash()}
    for ledger_id, (data, version) in before.items():
        if half[ledger_id][1] != version:
            assert kept[shell.path(ledger_id)] == data
    await end_locks(shell.store, shell.ledgers.root)
    rest = await shell.succeed(*rewrite(OLD, new, "--confirm", new))
    assert (rest["changed"], rest["remaining"]) == (len(before) - done_count, 0)
    now = await metadata(shell)
    assert {each: now[each] for each in expected} == expected
    assert {now[each].last_segment.ensemble for each in ids} == {(new, bookies[1])}
    assert {version - before[each][1] for each, (_, version) in (await shell.contents()).items()} == {1}


async def test_two_at_once_and_others_who_write(shell: LedgerShell, bookies: list[str]) -> None:
    """One gets the lock; whoever writes to the ledgers meanwhile loses nothing."""
    new = bookies[0]
    await written(shell, new, 1)
    ids = await fill(shell, (OLD, bookies[1]), 150)
    is_over = asyncio.Event()

    async def disturb() -> int:
        """Somebody else's compare-and-set loops: a repair that puts the third bookie for the second."""
        for ledger_id in ids:
            while True:
                found = await shell.ledgers.read(ledger_id)
                moved = rewrite_bookie(found.value, bookies[1], bookies[2], has_open_ends=False).metadata
                assert moved is not None
                with contextlib.suppress(BadVersionError):
                    await shell.ledgers.write(ledger_id, moved, found.version)
                    break
        is_over.set()
        return len(ids)

    arguments = rewrite(OLD, new, "--confirm", new, "--max-per-second", "300")
    first, second, moved = await asyncio.gather(shell.run(*arguments), shell.run(*arguments), disturb())
    assert moved == 150
    assert is_over.is_set()
    codes = sorted((first.exit_code, second.exit_code))
    assert codes[0] == 0, (first, second)
    assert codes[1] in {0, 5}, (first, second)
    now = await metadata(shell)
    assert {now[each].last_segment.ensemble for each in ids} == {(new, bookies[2])}


async def test_a_source_that_comes_back_stops_it(shell: LedgerShell, bookies: list[str]) -> None:
    new = bookies[0]
    await written(shell, new, 1)
    await fill(shell, (OLD, bookies[1]), 300)
    process = await shell.begin(*rewrite(OLD, new, "--confirm", new, "--max-per-second", "25", "-o", "json"))

    async def left() -> int:
        return sum(OLD in each.last_segment.ensemble for each in (await metadata(shell)).values())

    async def has_begun() -> bool:
        assert process.returncode is None, await process.communicate()
        return await left() <= 270

    await until(has_begun)
    registration = shell.paths.writable_bookie(OLD)
    await shell.store.create(registration, b"", is_ephemeral=True)
    try:
        out, err = await process.communicate()
    finally:
        await shell.store.delete(registration)
    assert process.returncode == 9, (out, err)
    assert b"is registered, so the ids are two bookies" in err
    assert 0 < json.loads(out)["remaining"] == await left()


async def test_nothing_is_written_when_the_undo_file_cannot_be(shell: LedgerShell, bookies: list[str]) -> None:
    new = bookies[0]
    await written(shell, new, 2)
    before = await shell.contents()
    shell.state.mkdir()
    (shell.state / "trash").write_text("a file where a directory should be")
    refused = await shell.run(*rewrite(OLD, new, "--confirm", new))
    assert refused.exit_code == 3, refused
    assert await shell.contents() == before


async def test_a_full_disk_stops_it(shell: LedgerShell, bookies: list[str]) -> None:
    """The file size limit of the process stands for the disk."""
    new = bookies[0]
    await written(shell, new, 1)
    await fill(shell, (OLD, bookies[1]), 200)
    before = await shell.contents()
    process = await shell.begin(*rewrite(OLD, new, "--confirm", new, "-o", "json"), file_bytes_max=40_000)
    out, err = await process.communicate()
    assert process.returncode == 9, (out, err)
    body: dict[str, Any] = json.loads(out)
    assert (body["changed"], body["remaining"]) in {(64, 137), (128, 73)}
    assert b"cannot save the former data" in err
    now = await shell.contents()
    kept = {line["path"] for line in map(json.loads, Path(shell.trash_file()).read_bytes().splitlines()[:-1])}
    assert {shell.path(each) for each in now if now[each] != before[each]} <= kept
