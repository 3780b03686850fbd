"""A directory of a bookie that was emptied: refused, unless the settings say that other bookies are to fill it
again."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.bookie.cookies.check import CookieDecision, decide
from bkctl.runtime.bookie.cookies.directories import DirectoryState
from bkctl.runtime.bookie.cookies.evidence import Evidence
from bkctl.runtime.errors import CookieError, NoSuchEntryError
from bkctl.runtime.metadata.bookies.cookies import Cookie
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.protocol.status import Status
from tests.runtime.bookie.bookie_process import BookieUnderTest
from tests.runtime.bookie.integrity.test_repair import ENSEMBLE, REPAIRED, MakeTrio, Trio, make_trio
from tests.until import until

pytestmark = pytest.mark.cluster

SERVER_EXCEPTION_EXIT_CODE = 2
STAMPING = ("dataIntegrityChecking=true", "dataIntegrityStampMissingCookies=true")

__all__ = ["make_trio"]


def settings(*keys: str) -> tuple[str, ...]:
    return tuple(word for key in keys for word in ("--set", key))


async def fill(trio: Trio) -> None:
    """A closed and an open ledger; all of it is flushed by the orderly stop."""
    async with trio.victim.running() as (process, _):
        await trio.create(1)
        await trio.add(1, range(30), *ENSEMBLE)
        await trio.close_ledger(1, 29)
        await trio.create(2)
        await trio.add(2, range(10), *ENSEMBLE)
        process.terminate()
        assert await asyncio.to_thread(process.wait, 60) == 0


@pytest.mark.parametrize("lost", [("ledgers",), ("journal",), ("journal", "ledgers")], ids=" and ".join)
async def test_an_emptied_directory_is_filled_from_other_bookies(
    lost: tuple[str, ...], make_trio: MakeTrio, metadata_uri: str, store: ZooKeeperStore, tmp_path: Path
) -> None:
    async with make_trio("") as trio:
        await fill(trio)
        for name in lost:
            shutil.rmtree(tmp_path / name / "current")
        assert await trio.victim.refused(()) == SERVER_EXCEPTION_EXIT_CODE
        assert "empty directory" in trio.victim.said()
        for name in lost:
            assert not list((tmp_path / name).rglob("VERSION")), "refused: nothing is changed"

        replaced = BookieUnderTest(tmp_path, metadata_uri, store, *settings(*STAMPING, "flushInterval=3600000"))
        async with replaced.running() as (process, peer):
            assert "integrity check: of 2 ledgers, 2 have data on this bookie (1 open)" in replaced.said()
            assert await peer.add(2, 10) is Status.FENCED
            await until(lambda: REPAIRED in replaced.said())
            for ledger_id, entry_count in ((1, 30), (2, 10)):
                for entry_id in range(entry_count):
                    assert await peer.read(ledger_id, entry_id) == peer.body(ledger_id, entry_id)
            with pytest.raises(NoSuchEntryError):
                await peer.read(2, 10)
            process.terminate()
            assert await asyncio.to_thread(process.wait, 60) == 0
        async with trio.victim.running() as (_, peer):
            assert "integrity check" not in trio.victim.said(), "the old settings do again"
            assert await peer.read(1, 0) == peer.body(1, 0)


COOKIE = Cookie(
    bookie_id="b:1",
    journal_directories=("/j",),
    ledger_directories=("/l0", "/l1"),
    index_directories=("/i0", "/i1"),
    instance_id="x",
)


def directories(*empty: str, bare: tuple[str, ...] = ()) -> tuple[DirectoryState, ...]:
    paths = (*COOKIE.journal_directories, *COOKIE.ledger_directories, *(COOKIE.index_directories or ()))
    return tuple(
        DirectoryState(
            path=path,
            cookie=None if path in empty else COOKIE,
            has_files=path not in empty and path not in bare,
            has_ledgers=path not in empty,
        )
        for path in paths
    )


def evidence(*empty: str, bare: tuple[str, ...] = (), ledgers: int = 0) -> Evidence:
    naming = {COOKIE.bookie_id: ledgers}
    return Evidence(expected=COOKIE, stored=COOKIE, directories=directories(*empty, bare=bare), ledgers_naming=naming)


def test_only_an_emptied_directory_is_accepted() -> None:
    assert decide(evidence(), is_loss_accepted=True) is CookieDecision.BOOT
    for empty in (("/j",), ("/l1", "/i1"), ("/j", "/l1", "/i1"), ("/j", "/l0", "/i0", "/l1", "/i1")):
        with pytest.raises(CookieError, match="empty directory"):
            decide(evidence(*empty))
        assert decide(evidence(*empty), is_loss_accepted=True) is CookieDecision.REFILL
    put_back = evidence(bare=("/l1", "/i1"), ledgers=3)
    with pytest.raises(CookieError, match="only its VERSION file"):
        decide(put_back)
    assert decide(put_back, is_loss_accepted=True) is CookieDecision.REFILL


@pytest.mark.parametrize("empty", [("/i0",), ("/i0", "/i1"), ("/j", "/i0"), ("/l1", "/i1", "/i0")])
def test_an_emptied_index_is_made_from_its_logs_and_not_filled_from_other_bookies(empty: tuple[str, ...]) -> None:
    """The storage would refuse only after the directory was stamped, and a loss noted that is none."""
    with pytest.raises(CookieError, match=r"/i0 is empty.*`bkctl storage index rebuild`"):
        decide(evidence(*empty), is_loss_accepted=True)


def test_an_index_whose_logs_are_gone_must_go_with_them() -> None:
    with pytest.raises(
        CookieError, match="/l1 is empty, but /i1 still references the entry logs that were in it: empty the index"
    ):
        decide(evidence("/l1"), is_loss_accepted=True)


def test_what_is_wrong_besides_is_not_covered_up() -> None:
    lost = evidence("/j")
    other = msgspec.structs.replace(COOKIE, ledger_directories=("/l1", "/l0"), index_directories=("/i1", "/i0"))
    for worse in (
        msgspec.structs.replace(lost, stored=None),
        msgspec.structs.replace(lost, stored=other),
        msgspec.structs.replace(
            lost, directories=tuple(msgspec.structs.replace(f, cookie=f.cookie and other) for f in lost.directories)
        ),
        msgspec.structs.replace(
            lost, directories=tuple(msgspec.structs.replace(f, is_present=f.path != "/j") for f in lost.directories)
        ),
    ):
        with pytest.raises(CookieError):
            decide(worse, is_loss_accepted=True)
