"""Asking an ensemble how far a ledger is confirmed. Protocol sections 2.3 and 7.2."""

from __future__ import annotations

import asyncio

import pytest

from bkctl.runtime.client.last_entry import read_last_add_confirmed, try_read_last_add_confirmed
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import BookieUnavailableError, DigestMismatchError
from bkctl.runtime.protocol.status import Status
from tests.runtime.client.fakes import Fakes, answers_so_far, credentials
from tests.until import until

PRESENT, NO_LEDGER, DOWN = "present", "no ledger", "down"


@pytest.mark.parametrize(
    ("answers", "ack_quorum", "expected"),
    [
        ((PRESENT, NO_LEDGER, DOWN), 2, 5),
        ((PRESENT, DOWN, DOWN), 2, None),
        ((PRESENT, DOWN), 2, 5),
        ((NO_LEDGER, PRESENT), 2, None),  # either answer covers: -1 or 5
        ((NO_LEDGER, DOWN), 2, -1),
        ((DOWN, DOWN), 2, None),
    ],
)
@pytest.mark.parametrize("is_fencing", [True, False])
async def test_t3_coverage_decides(
    fakes: Fakes, answers: tuple[str, ...], ack_quorum: int, expected: int | None, is_fencing: bool
) -> None:
    names = tuple(f"b{number}" for number in range(1, len(answers) + 1))
    bookies = await fakes.bookies(*names)
    ledger_id, metadata = await fakes.create(names, len(names), ack_quorum)
    for bookie, answer in zip(bookies, answers, strict=True):
        if answer == PRESENT:
            fakes.put(bookie, ledger_id, 6, lac=5)
        if answer == DOWN:
            await bookie.stop()
    client = await fakes.client()
    asking = read_last_add_confirmed(client.ports, credentials(ledger_id), metadata, is_fencing=is_fencing)
    if answers == (NO_LEDGER, PRESENT):
        assert await asking in {-1, 5}
    elif expected is None:
        with pytest.raises(BookieUnavailableError):
            await asking
    else:
        assert await asking == expected
    fenced_count = sum(ledger_id in bookie.ledgers and bookie.ledgers[ledger_id].is_fenced for bookie in bookies)
    if not is_fencing:
        assert fenced_count == 0
    elif expected is not None:
        assert fenced_count >= len(names) - ack_quorum + 1  # the others' fences may still be on their way


async def test_the_highest_of_the_covering_answers_counts(fakes: Fakes) -> None:
    bookies = await fakes.bookies("b1", "b2", "b3")
    ledger_id, metadata = await fakes.create(("b1", "b2", "b3"), 3, 1)
    for bookie, lac in zip(bookies, (3, 8, 5), strict=True):
        fakes.put(bookie, ledger_id, lac + 1, lac=lac)
    client = await fakes.client()
    keys = credentials(ledger_id)
    assert await read_last_add_confirmed(client.ports, keys, metadata, is_fencing=False) == 8


async def test_a_damaged_answer_covers_and_completes_nothing(fakes: Fakes) -> None:
    b1, b2, b3 = await fakes.bookies("b1", "b2", "b3")
    ledger_id, metadata = await fakes.create(("b1", "b2", "b3"), 3, 2)
    for bookie in (b1, b2):
        fakes.put(bookie, ledger_id, 4, lac=3)
        bookie.damage(ledger_id, 4)
    b3.refuse("read_lac", Status.UNKNOWN_LEDGER_STATE)
    held = [b1.hold("read_lac"), b2.hold("read_lac")]
    client = await fakes.client()
    keys = credentials(ledger_id)
    asking = asyncio.create_task(read_last_add_confirmed(client.ports, keys, metadata, is_fencing=False))
    await until(lambda: [bookie.count("read_lac") for bookie in (b1, b2, b3)] == [1, 1, 1])
    await answers_so_far(client, "b3")  # the damaged answers come last
    for one in held:
        one.release()
    with pytest.raises(DigestMismatchError):
        await asking


async def test_a_quick_look_stops_at_the_first_news(fakes: Fakes) -> None:
    b1, b2, _ = await fakes.bookies("b1", "b2", "b3")
    ledger_id, metadata = await fakes.create(("b1", "b2", "b3"), 3, 2)
    fakes.put(b1, ledger_id, 4, lac=3)
    client = await fakes.client(ClientConfig(read_timeout_s=3600))
    keys = credentials(ledger_id)
    assert await try_read_last_add_confirmed(client.ports, keys, metadata, above=3) == 3
    b2.hold("read_lac")
    async with asyncio.timeout(60):
        assert await try_read_last_add_confirmed(client.ports, keys, metadata, above=2) == 3
