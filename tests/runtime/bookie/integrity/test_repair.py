"""A bookie that loses what it acknowledged, beside two that do not: nothing is denied, and all of it comes back.

The bookie "traced" runs with journalWriteData=false, makes no checkpoint of its own accord, and is killed: what it
acknowledged since its start is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.admin.api import StepProgress
from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.config import BookieConfig, ClientConfig
from bkctl.runtime.errors import (
    LedgerRecoveryError,
    NoSuchEntryError,
    UnknownLedgerStateError,
)
from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType, LedgerState
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.protocol.entry_body import EntryCodec
from bkctl.runtime.protocol.status import Status
from tests.processes import run_bkctl
from tests.runtime.bookie.bookie_process import BookieUnderTest
from tests.runtime.bookie.conftest import Peer
from tests.until import until

pytestmark = pytest.mark.cluster

VICTIM = "traced"
ENSEMBLE = (VICTIM, "steady-0", "steady-1")
SPARE = "spare"
"""Takes the place of one that is down when a recovery writes back."""
PASSWORD = b"secret"
REPAIRED = "integrity check complete: restored"


class Trio:
    """The victim, which is a process, and two steady bookies in this one."""

    def __init__(
        self,
        victim: BookieUnderTest,
        config: BookieConfig,
        directory: Path,
        store: ZooKeeperStore,
        ledgers: LedgerStore,
    ) -> None:
        self.victim = victim
        self.ledgers = ledgers
        self._config = config
        self._directory = directory
        self._steady: dict[str, contextlib.AsyncExitStack] = {}
        registrations = RegistrationClient(store, ledgers.root)

        self._pool = BookiePool(registrations.address, ClientConfig(), LoopClock())
        self.peers = {bookie_id: Peer(self._pool, bookie_id) for bookie_id in ENSEMBLE}

    async def start(self, bookie_id: str, *, is_read_only: bool = False) -> BookieServer:
        storage = msgspec.structs.replace(
            self._config.storage,
            journal_directories=(str(self._directory / bookie_id / "journal"),),
            ledger_directories=(str(self._directory / bookie_id / "ledgers"),),
        )
        config = msgspec.structs.replace(self._config, bookie_id=bookie_id, storage=storage, is_read_only=is_read_only)
        self._steady[bookie_id] = stack = contextlib.AsyncExitStack()
        return await stack.enter_async_context(running_bookie(config))

    async def stop(self, bookie_id: str) -> None:
        await self._steady.pop(bookie_id).aclose()

    async def close(self) -> None:
        await self._pool.close()
        for bookie_id in list(self._steady):
            await self.stop(bookie_id)

    async def create(self, ledger_id: int, *, write_quorum_size: int = 3) -> None:
        metadata = new_ledger(ENSEMBLE, write_quorum_size, 2, DigestType.CRC32C, PASSWORD)
        await self.ledgers.create(metadata, ledger_id=ledger_id)

    async def add(self, ledger_id: int, entry_ids: range, *bookie_ids: str) -> None:
        for bookie_id in bookie_ids:
            peer = self.peers[bookie_id]
            statuses = await asyncio.gather(*(peer.add(ledger_id, entry_id) for entry_id in entry_ids))
            assert set(statuses) == {Status.OK}

    async def close_ledger(self, ledger_id: int, last_entry_id: int) -> None:
        found = await self.ledgers.read(ledger_id)
        closed = to_closed(
            msgspec.structs.replace(found.value, state=LedgerState.IN_RECOVERY),
            last_entry_id,
            7 * (last_entry_id + 1),
            found.value.segments,
        )
        await self.ledgers.write(ledger_id, closed, found.version)

    async def wait_repaired(self) -> None:
        await until(lambda: REPAIRED in self.victim.said())


def new_victim(tmp_path: Path, metadata_uri: str, store: ZooKeeperStore, toml: str = "") -> BookieUnderTest:
    keys = ("journalWriteData=false", "flushInterval=3600000")
    path = tmp_path / "bkctl.toml"
    path.write_text(toml)
    settings = (word for key in keys for word in ("--set", key))
    return BookieUnderTest(tmp_path, metadata_uri, store, *settings, BKCTL_CONFIG=str(path))


MakeTrio = Callable[[str], contextlib.AbstractAsyncContextManager[Trio]]


@pytest.fixture
def make_trio(bookie_config: BookieConfig, tmp_path: Path, metadata_uri: str, store: ZooKeeperStore) -> MakeTrio:
    """A trio with the steady two and a spare bookie started; the argument is TOML of the victim."""

    @contextlib.asynccontextmanager
    async def make(toml: str) -> AsyncIterator[Trio]:
        uri = parse_metadata_uri(metadata_uri)
        ledgers = await open_ledger_store(store, uri.root, uri.tree)
        victim = new_victim(tmp_path, metadata_uri, store, toml)
        trio = Trio(victim, bookie_config, tmp_path, store, ledgers)
        try:
            for bookie_id in (*ENSEMBLE[1:], SPARE):
                await trio.start(bookie_id)
            yield trio
        finally:
            await trio.close()

    return make


@pytest.fixture
async def trio(make_trio: MakeTrio) -> AsyncIterator[Trio]:
    async with make_trio("[bookie.integrity]\nretry_delay_s = 0.2\n") as trio:
        yield trio


async def recovered(metadata_uri: str, ledger_id: int) -> tuple[int, list[bytes]]:
    """Another client recovers the ledger and reads it."""
    config = ClientConfig(read_timeout_s=2.0, add_timeout_s=15.0)
    async with await LedgerClient.connect(metadata_uri, config=config) as client:
        reader = await client.open(ledger_id, password=PASSWORD, recover=True)
        return reader.last_add_confirmed, [entry.payload async for entry in reader]


async def lose_the_second_copy(trio: Trio, ledger_id: int, *, forget: bool, directory: Path) -> None:
    """Entry 10 is acknowledged by the victim and steady-1 alone, a quorum; then the victim is killed.

    ``forget``: with its DIRTY marks, so that the next start does not know of the crash.
    """
    async with trio.victim.running() as (process, _):
        await trio.create(ledger_id)
        await trio.add(ledger_id, range(10), *ENSEMBLE)
        await trio.add(ledger_id, range(10, 11), VICTIM, "steady-1")
        process.kill()
        await asyncio.to_thread(process.wait)
    marks = list(directory.glob("ledgers/**/DIRTY"))
    assert marks, "killed is unclean"
    if forget:
        for mark in marks:
            mark.unlink()


async def test_what_a_quorum_acknowledged_is_not_cut_off(trio: Trio, metadata_uri: str, tmp_path: Path) -> None:
    """The entry is left on one bookie that is down: a recovery must fail then, and find it later."""
    await lose_the_second_copy(trio, 5, forget=False, directory=tmp_path)
    await trio.stop("steady-1")
    async with trio.victim.running() as (_, peer):
        with pytest.raises(UnknownLedgerStateError):
            await peer.read(5, 10)
        assert await peer.add(5, 11) is Status.FENCED
        with pytest.raises(LedgerRecoveryError, match="recovery stopped"):
            await recovered(metadata_uri, 5)
        await trio.start("steady-1")
        last_entry_id, payloads = await recovered(metadata_uri, 5)
        assert (last_entry_id, payloads) == (10, [b"payload"] * 11)
        await trio.wait_repaired()
        for entry_id in range(11):
            assert await peer.read(5, entry_id) == await trio.peers["steady-1"].read(5, entry_id)
        with pytest.raises(NoSuchEntryError):
            await peer.read(5, 11)


async def test_without_the_check_it_would_have_been(trio: Trio, metadata_uri: str, tmp_path: Path) -> None:
    """What the test above guards against: two bookies that deny the entry are enough to cut it off."""
    await lose_the_second_copy(trio, 5, forget=True, directory=tmp_path)
    await trio.stop("steady-1")
    async with trio.victim.running() as (_, peer):
        with pytest.raises(NoSuchEntryError):
            await peer.read(5, 10)
        last_entry_id, _ = await recovered(metadata_uri, 5)
        assert last_entry_id == 9, "entry 10 is lost, though a quorum acknowledged it"


async def test_everything_comes_back_from_the_others(trio: Trio, tmp_path: Path) -> None:
    """Closed and open ledgers, striped ones too; afterwards the others are not needed any more."""
    async with trio.victim.running() as (process, _):
        await trio.create(1)
        await trio.add(1, range(300), *ENSEMBLE)
        await trio.close_ledger(1, 299)
        await trio.create(2)
        await trio.add(2, range(20), *ENSEMBLE)
        await trio.create(3, write_quorum_size=2)
        for index, bookie_id in enumerate(ENSEMBLE):
            for entry_id in range(9):
                if (index - entry_id) % 3 < 2:
                    await trio.add(3, range(entry_id, entry_id + 1), bookie_id)
        process.kill()
        await asyncio.to_thread(process.wait)
    async with trio.victim.running() as (process, _):
        await trio.wait_repaired()
        process.kill()
        await asyncio.to_thread(process.wait)
    # All 326, but for the last entries of the two open ledgers where their recovery was faster.
    assert re.search(r"restored 32[456] entries \(\d+ bytes\) from other bookies", trio.victim.said())
    for bookie_id in ENSEMBLE[1:]:
        await trio.stop(bookie_id)
    for mark in tmp_path.glob("ledgers/**/DIRTY"):
        mark.unlink()  # what was fetched was durable: the kill cost nothing
    async with trio.victim.running() as (_, peer):
        for ledger_id, entry_count in ((1, 300), (2, 20)):
            for entry_id in range(entry_count):
                assert await peer.read(ledger_id, entry_id) == peer.body(ledger_id, entry_id)
        held = [entry_id for entry_id in range(9) if (0 - entry_id) % 3 < 2]
        for entry_id in held:
            assert await peer.read(3, entry_id) == peer.body(3, entry_id)
        assert await peer.add(2, 20) is Status.FENCED
        with pytest.raises(NoSuchEntryError):
            await peer.read(1, 300)


async def is_there(peer: Peer, ledger_id: int, entry_id: int) -> bool:
    try:
        return await peer.read(ledger_id, entry_id) == peer.body(ledger_id, entry_id)
    except UnknownLedgerStateError:
        return False


async def test_a_kill_in_mid_repair_is_made_up_for(make_trio: MakeTrio, tmp_path: Path) -> None:
    slow = "[bookie.integrity]\nbytes_per_s_max = 20\n"  # minutes for all entries, which a busy machine needs not
    async with make_trio(slow) as trio:
        async with trio.victim.running() as (process, _):
            await trio.create(1)
            await trio.add(1, range(100), *ENSEMBLE)
            process.kill()
            await asyncio.to_thread(process.wait)
        for _ in range(2):
            async with trio.victim.running() as (process, peer):
                async with asyncio.timeout(60):
                    while not await is_there(peer, 1, 0):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                with pytest.raises(UnknownLedgerStateError):
                    await peer.read(1, 100)
                process.terminate()
                assert await asyncio.to_thread(process.wait, 60) == 0
            assert REPAIRED not in trio.victim.said(), "too slow to be done by then"
        (tmp_path / "bkctl.toml").write_text("")
        async with trio.victim.running() as (process, peer):
            await trio.wait_repaired()
            for entry_id in range(100):
                assert await peer.read(1, entry_id) == peer.body(1, entry_id)


async def test_an_entry_that_no_bookie_has_keeps_the_ledger_in_limbo_and_the_repair_due(
    trio: Trio, metadata_uri: str, tmp_path: Path
) -> None:
    def troubles() -> list[str]:
        # By its directory: another test may run a bookie with this id on this machine.
        shown = run_bkctl("bookie", "state", "--ledger-dir", str(tmp_path / "ledgers"), "-o", "json")
        assert shown.exit_code == 0, shown.stderr
        return list(shown.json()["troubles"])

    def advised(*command: str) -> list[tuple[str, str]]:
        shown = run_bkctl(*command, "-u", metadata_uri, "-o", "json").json()
        return [(each["finding"], each["command"]) for each in shown["findings"] if each["part"] == "bookies_troubled"]

    async with trio.victim.running() as (process, _):
        await trio.create(1)
        await trio.add(1, range(5), *ENSEMBLE)
        process.kill()
        await asyncio.to_thread(process.wait)
    await trio.close_ledger(1, 5)  # an entry more than anybody has
    await trio.create(2)
    await trio.add(2, range(5), *ENSEMBLE[1:])
    async with trio.victim.running() as (process, peer):
        await until(lambda: "1 ledger still misses entries, first ledger 1: entry 5: " in trio.victim.said())
        assert REPAIRED not in trio.victim.said()
        await until(lambda: asyncio.to_thread(troubles), "bookie state says why")
        (trouble,) = await asyncio.to_thread(troubles)
        assert "entries are not restored from other bookies yet: 1 ledger still misses entries, first led" in trouble
        await until(lambda: asyncio.to_thread(advised, "status"), "status says why")
        for command in ("status", "audit"):
            ((sentence, helps),) = await asyncio.to_thread(advised, command)
            assert sentence.startswith(f"bookie {VICTIM} reports: entries are not restored from other bookies yet: 1 l")
            assert helps.endswith(f" bookie state {VICTIM}")
        for ledger_id in (1, 2):
            assert await peer.read(ledger_id, 4) == peer.body(ledger_id, 4)
        await trio.ledgers.delete(1)
        await trio.wait_repaired()
        await until(lambda: asyncio.to_thread(lambda: not troubles() and not advised("status")))


async def test_a_ledger_that_cannot_be_repaired_stops_neither_the_bookie_nor_the_repair_of_others(trio: Trio) -> None:
    """Ledger 1 has an entry whose header states a negative length; ledger 2 is closed where no ledger ends."""
    bad_header = EntryCodec(1, DigestType.CRC32C, PASSWORD).encode(0, -1, -7, b"payload")
    async with trio.victim.running() as (process, _):
        await trio.create(1)
        for bookie_id in ENSEMBLE:
            assert await trio.peers[bookie_id].add(1, 0, bad_header) is Status.OK
        for ledger_id in (2, 3):
            await trio.create(ledger_id)
            await trio.add(ledger_id, range(5), *ENSEMBLE)
        process.kill()
        await asyncio.to_thread(process.wait)
    found = await trio.ledgers.read(2)
    impossible = msgspec.structs.replace(
        found.value, state=LedgerState.CLOSED, last_entry_id=2**63 - 1, length=-(2**63)
    )
    await trio.ledgers.write(2, impossible, found.version)
    async with trio.victim.running() as (process, peer):
        await until(
            lambda: (
                "2 ledgers still miss entries, 1 of them for this reason, first ledger 1: " in trio.victim.said()
                and "entry 0 has the impossible length -7" in trio.victim.said()
            )
        )
        assert process.poll() is None
        for entry_id in range(5):
            assert await peer.read(3, entry_id) == peer.body(3, entry_id)
        with pytest.raises(UnknownLedgerStateError):
            await peer.read(1, 1)


async def test_limbo_ends_when_nothing_lacks_and_no_sooner(trio: Trio) -> None:
    """The ledger is recovered and closed, yet of one entry both other copies are damaged."""
    good = trio.peers[VICTIM].body(1, 3)
    damaged = good[:-1] + bytes([good[-1] ^ 1])
    async with trio.victim.running() as (process, _):
        await trio.create(1)
        await trio.add(1, range(10), VICTIM)
        for bookie_id in ENSEMBLE[1:]:
            await trio.add(1, range(3), bookie_id)
            assert await trio.peers[bookie_id].add(1, 3, damaged) is Status.OK
            await trio.add(1, range(4, 10), bookie_id)
        process.kill()
        await asyncio.to_thread(process.wait)
    async with trio.victim.running() as (_, peer):
        await until(lambda: "1 ledger still misses entries, first ledger 1: entry 3: " in trio.victim.said())
        assert "the copy is damaged" in trio.victim.said()
        assert (await trio.ledgers.read(1)).value.last_entry_id == 9
        assert await peer.read(1, 9) == peer.body(1, 9)
        with pytest.raises(UnknownLedgerStateError):
            await peer.read(1, 3)
        assert await trio.peers["steady-0"].add(1, 3, good, recovery=True) is Status.OK
        await trio.wait_repaired()
        assert await peer.read(1, 3) == good
        with pytest.raises(NoSuchEntryError):
            await peer.read(1, 10)


def damage(log: Path) -> None:
    data = log.read_bytes()
    log.write_bytes(data[:1410] + bytes(300) + data[1710:])


@pytest.mark.parametrize(("harm", "last_word"), [(damage, Status.FENCED), (Path.unlink, Status.OK)])
async def test_what_an_online_rebuild_did_not_find_is_fetched_at_once(
    trio: Trio, tmp_path: Path, harm: Callable[[Path], object], last_word: Status
) -> None:
    """A log of a bookie in this process is damaged or gone; nobody restarts it."""
    await trio.start(VICTIM)
    await trio.create(1)
    await trio.add(1, range(50), *ENSEMBLE)
    await trio.close_ledger(1, 49)
    await trio.stop(VICTIM)
    harm(tmp_path / VICTIM / "ledgers" / "current" / "0.log")
    server = await trio.start(VICTIM, is_read_only=True)
    assert server.view.online_rebuild is not None
    report = await server.view.online_rebuild.run(StepProgress())
    assert report.directories[0].limbo_count == 1
    peer, progress = trio.peers[VICTIM], server.view.integrity_progress
    await until(lambda: progress.rounds and not progress.is_due)
    assert progress.entries_fetched > 0
    for entry_id in range(50):
        assert await peer.read(1, entry_id) == peer.body(1, entry_id)
    with pytest.raises(NoSuchEntryError):
        await peer.read(1, 50)
    assert await peer.add(1, 50, high_priority=True) is last_word


async def test_who_holds_the_repair_has_it_begin_anew_afterwards(trio: Trio) -> None:
    server = await trio.start(VICTIM)
    assert server.view.repair is not None
    async with server.view.repair.held():
        server.view.repair.request()
        await asyncio.sleep(0.1)
        assert server.view.integrity_progress.rounds == 0
    await until(lambda: server.view.integrity_progress.rounds)
