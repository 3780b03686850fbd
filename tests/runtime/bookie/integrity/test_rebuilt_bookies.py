"""Three bookies whose indexes were all rebuilt from their logs: none lost an entry, and none can say so by itself."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.config import BookieConfig, ClientConfig, IntegrityConfig
from bkctl.runtime.errors import LedgerRecoveryError
from bkctl.storage.filenames import LOCATIONS_DATABASE
from tests.processes import BkctlResult, run_bkctl
from tests.until import until

pytestmark = pytest.mark.cluster

BOOKIES = ("rebuilt-0", "rebuilt-1", "rebuilt-2")
ENTRY_COUNT = 100
PASSWORD = b"secret"
REPAIRED = "integrity check complete: restored"


class Rebuilt:
    """The three, in directories of their own."""

    def __init__(self, config: BookieConfig, directory: Path) -> None:
        self._config = config
        self._directory = directory

    @contextlib.asynccontextmanager
    async def running(self, *bookie_ids: str) -> AsyncIterator[None]:
        """Some of them, or all."""
        async with contextlib.AsyncExitStack() as stack:
            for bookie_id in bookie_ids or BOOKIES:
                storage = msgspec.structs.replace(
                    self._config.storage,
                    journal_directories=(str(self._directory / bookie_id / "journal"),),
                    ledger_directories=(str(self._directory / bookie_id / "ledgers"),),
                )
                integrity = IntegrityConfig(retry_delay_s=0.2)
                await stack.enter_async_context(
                    running_bookie(
                        msgspec.structs.replace(self._config, bookie_id=bookie_id, storage=storage, integrity=integrity)
                    )
                )
            yield

    async def bkctl(self, bookie_id: str, *words: str) -> BkctlResult:
        """``bkctl storage WORDS`` on the directories of a stopped one."""
        directory = self._directory / bookie_id
        directories = ("--journal-dir", str(directory / "journal"), "--ledger-dir", str(directory / "ledgers"))
        result = await asyncio.to_thread(
            run_bkctl, "storage", *words, *directories, "-o", "json", BKCTL_STATE_DIR=str(self._directory / "state")
        )
        assert result.exit_code == 0, result.stderr
        return result

    def current(self, bookie_id: str) -> Path:
        return self._directory / bookie_id / "ledgers" / "current"

    async def rebuild(self, *bookie_ids: str) -> None:
        """Their locations are lost, and rebuilt from the logs that are there."""
        for bookie_id in bookie_ids:
            shutil.rmtree(self.current(bookie_id) / LOCATIONS_DATABASE)
            result = await self.bkctl(bookie_id, "index", "rebuild", "--yes")
            assert result.json()["is_complete"]
            assert "one bookie at a time" in result.stderr


@pytest.fixture
def rebuilt(bookie_config: BookieConfig, tmp_path: Path) -> Rebuilt:
    return Rebuilt(bookie_config, tmp_path)


async def connected(metadata_uri: str) -> LedgerClient:
    return await LedgerClient.connect(metadata_uri, config=ClientConfig(read_timeout_s=2.0, add_timeout_s=15.0))


async def written(metadata_uri: str, ack_quorum_size: int) -> list[int]:
    """Three ledgers, all of whose entries are acknowledged; their writers are gone."""
    ledger_ids = []
    async with await connected(metadata_uri) as client:
        for _ in range(3):
            writer = await client.create(
                ensemble_size=3, write_quorum_size=3, ack_quorum_size=ack_quorum_size, password=PASSWORD
            )
            await asyncio.gather(*[writer.append(b"payload %d" % number) for number in range(ENTRY_COUNT)])
            ledger_ids.append(writer.ledger_id)
    return ledger_ids


async def require_stuck(metadata_uri: str, ledger_ids: list[int]) -> None:
    async with await connected(metadata_uri) as client:
        for ledger_id in ledger_ids:
            with pytest.raises(LedgerRecoveryError, match="recovery stopped"):
                await client.open(ledger_id, password=PASSWORD, recover=True)


async def require_whole(metadata_uri: str, ledger_ids: list[int]) -> None:
    async with await connected(metadata_uri) as client:
        for ledger_id in ledger_ids:
            reader = await client.open(ledger_id, password=PASSWORD, recover=True)
            payloads = [entry.payload async for entry in reader]
            assert payloads == [b"payload %d" % number for number in range(ENTRY_COUNT)]


async def wait_for(caplog: pytest.LogCaptureFixture, sentence: str, count: int) -> None:
    await until(lambda: caplog.text.count(sentence) >= count)


@pytest.mark.parametrize(("ack_quorum_size", "needed"), [(3, 1), (2, 2)])
async def test_the_word_of_an_operator_ends_what_no_comparison_can(
    rebuilt: Rebuilt, metadata_uri: str, caplog: pytest.LogCaptureFixture, ack_quorum_size: int, needed: int
) -> None:
    """Write less ack quorum and one more is how many bookies must vouch; the others compare themselves with them."""
    caplog.set_level("INFO")
    async with rebuilt.running():
        ledger_ids = await written(metadata_uri, ack_quorum_size)
    await rebuilt.rebuild(*BOOKIES)
    for ended_count in range(needed):
        caplog.clear()
        async with rebuilt.running():
            await require_stuck(metadata_uri, ledger_ids)
            stuck = BOOKIES[ended_count:]
            await wait_for(caplog, f"may have lost its copies: {', '.join(stuck)}; if you are", len(stuck))
            await wait_for(caplog, REPAIRED, ended_count)
        bookie_id = BOOKIES[ended_count]
        listed = (await rebuilt.bkctl(bookie_id, "limbo", "list")).json()["items"]
        assert [int(each["ledger_id"]) for each in listed] == sorted(ledger_ids)
        assert {(each["is_fenced"], each["first_entry"], each["last_entry"]) for each in listed} == {(True, "0", "99")}
        ended = (await rebuilt.bkctl(bookie_id, "limbo", "end", "--yes")).json()
        assert (ended["ledgers"], ended["ledgers_left"]) == (3, 0)
    caplog.clear()
    async with rebuilt.running():
        await wait_for(caplog, REPAIRED, len(BOOKIES) - (needed - 1))
        await require_whole(metadata_uri, ledger_ids)
    for bookie_id in BOOKIES:
        assert (await rebuilt.bkctl(bookie_id, "limbo", "list")).json()["items"] == []


async def test_a_closed_ledger_is_filled_even_if_the_word_was_wrong(
    rebuilt: Rebuilt, metadata_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The logs are lost, which nothing on the disk tells any more; the repair stays due, and finds it by comparison."""
    caplog.set_level("INFO")
    async with rebuilt.running():
        ledger_ids = await written(metadata_uri, ack_quorum_size=3)
        await require_whole(metadata_uri, ledger_ids)  # recovers, that is, closes
    wrong = BOOKIES[0]
    for log in rebuilt.current(wrong).glob("*.log"):
        log.unlink()
    await rebuilt.rebuild(wrong)
    async with rebuilt.running(wrong):
        await wait_for(caplog, "3 ledgers still miss entries", 1)
        assert "limbo end" not in caplog.text, "the others are only down"
    plan = (await rebuilt.bkctl(wrong, "limbo", "end", "--dry-run")).json()
    assert "3 of them have no entries on this bookie" in " ".join(plan["summary"])
    assert (await rebuilt.bkctl(wrong, "limbo", "end", "--yes")).json()["ledgers"] == 3
    async with rebuilt.running():
        await wait_for(caplog, f"{REPAIRED} {3 * ENTRY_COUNT} entries", 1)
    async with rebuilt.running(wrong):
        await require_whole(metadata_uri, ledger_ids)
