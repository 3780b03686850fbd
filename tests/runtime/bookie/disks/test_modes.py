from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator

import pytest

from bkctl.runtime.bookie.disks.mode_files import latest_order
from bkctl.runtime.bookie.disks.modes import BookieModes, ReadOnlyReason
from bkctl.runtime.bookie.disks.rules import DiskSample, DiskState, DiskVerdict
from bkctl.runtime.errors import MetadataUnavailableError, RegistrationError
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.net.loop import LoopClock
from bkctl.storage.bookie_status import BookieStatus
from bkctl.storage.errors import NoWritableDiskError
from bkctl.storage.operator_mode import OperatorMode

NO_SPACE = OSError(errno.ENOSPC, "No space left on device", "/ledgers")


def verdict(
    *, read_only: bool, refused: frozenset[int] = frozenset(), high: frozenset[int] = frozenset({0, 1})
) -> DiskVerdict:
    full = (DiskSample("/ledgers", 100, 1),) if read_only or refused else ()
    return DiskVerdict(
        states=(),
        changes=(),
        is_read_only=read_only,
        refused_positions=frozenset({0, 1}) if read_only else refused,
        high_priority_positions=high,
        level=DiskState.FULL if full else DiskState.WRITABLE,
        full=full,
    )


def new_modes(*, forced: bool = False, enabled: bool = True) -> BookieModes:
    return BookieModes(is_forced_read_only=forced, is_read_only_mode_enabled=enabled, position_count=2, retry_delay_s=0)


def takes(modes: BookieModes, *, high: bool) -> list[bool]:
    """Whether adds to ledgers of position 0 and of position 1 are taken."""
    return [modes.allows_add(ledger_id, is_high_priority=high) for ledger_id in (4, 5)]


def test_every_reason_counts_until_it_is_gone() -> None:
    modes = new_modes()
    modes.note_disks(verdict(read_only=True))
    modes.note_disk_full(NO_SPACE)
    seen = [modes.reasons]
    modes.note_disks(verdict(read_only=False))
    seen.append(modes.reasons)
    modes.note_room()
    seen.append(modes.reasons)
    assert seen == [(ReadOnlyReason.DISK_FULL, ReadOnlyReason.NO_ROOM), (ReadOnlyReason.NO_ROOM,), ()]
    assert modes.mode is BookieMode.WRITABLE


def test_which_adds_are_taken() -> None:
    modes = new_modes()
    assert takes(modes, high=False) == takes(modes, high=True) == [True, True]
    modes.note_disks(verdict(read_only=True, high=frozenset({1})))
    assert takes(modes, high=False) == [False, False]
    assert takes(modes, high=True) == [False, True]
    modes.note_disk_full(NO_SPACE)
    assert takes(modes, high=True) == [False, False], "what cannot be flushed is not taken"
    modes.note_room()
    modes.note_disks(verdict(read_only=False, refused=frozenset({0})))
    assert takes(modes, high=False) == [False, True]
    assert takes(modes, high=True) == [True, True]
    assert takes(new_modes(forced=True), high=False) == [False, False]
    assert takes(new_modes(forced=True), high=True) == [True, True]


def test_adds_that_wait_are_refused_once_nothing_can_be_flushed() -> None:
    modes = new_modes()
    called: list[int] = []
    modes.on_no_room(lambda: called.append(1))
    modes.note_disks(verdict(read_only=True))
    assert not called
    modes.note_disk_full(NO_SPACE)
    modes.note_disk_full(NO_SPACE)
    assert called == [1]


def test_where_read_only_is_switched_off_a_full_disk_is_the_end() -> None:
    sentence = r"/ledgers.*readOnlyModeEnabled=false"
    with pytest.raises(NoWritableDiskError, match=sentence):
        new_modes(enabled=False).note_disks(verdict(read_only=True))
    with pytest.raises(NoWritableDiskError, match=sentence):
        new_modes(enabled=False).note_disk_full(NO_SPACE)


def order(*, read_only: bool, at_ms: int, reason: str = "maintenance") -> OperatorMode:
    return OperatorMode(is_read_only=read_only, since_ms=at_ms, written_ms=at_ms, reason=reason)


@pytest.mark.parametrize(
    ("stored", "status", "is_read_only"),
    [
        (None, None, None),
        (None, BookieStatus(True, 5, False), None),
        (None, BookieStatus(False, 5, True), False),
        (None, BookieStatus(True, 5, True), True),
        (order(read_only=True, at_ms=5), None, True),
        (order(read_only=True, at_ms=5), BookieStatus(False, 9, False), True),
        (order(read_only=True, at_ms=5), BookieStatus(False, 4, True), True),
        (order(read_only=True, at_ms=5), BookieStatus(False, 9, True), False),
        (order(read_only=False, at_ms=5), BookieStatus(True, 4, True), False),
        (order(read_only=False, at_ms=5), BookieStatus(True, 9, True), True),
    ],
)
def test_the_operator_s_latest_order_counts(
    stored: OperatorMode | None, status: BookieStatus | None, is_read_only: bool | None
) -> None:
    """A mode that the disks required is not restored: the next process checks its disks."""
    latest = latest_order(stored, status)
    assert (None if latest is None else latest.is_read_only) is is_read_only
    if stored is not None and stored.is_read_only and is_read_only:
        assert latest == stored


def test_an_order_stays_whatever_the_disks_do() -> None:
    modes = new_modes()
    modes.follow_order(order(read_only=True, at_ms=5))
    modes.note_disks(verdict(read_only=True))
    modes.note_disks(verdict(read_only=False))
    assert modes.status(7) == BookieStatus(True, 7, True)
    assert modes.order == order(read_only=True, at_ms=5)
    modes.note_disks(verdict(read_only=True))
    modes.follow_order(order(read_only=False, at_ms=6))
    assert list(modes.reasons) == [ReadOnlyReason.DISK_FULL]
    assert modes.status(7) == BookieStatus(True, 7, False)


async def test_the_registration_is_awaited_until_it_has_the_mode() -> None:
    modes = new_modes()
    steps = Steps(modes)
    steps.errors.append(MetadataUnavailableError("no answer"))
    following = asyncio.create_task(modes.follow(BookieMode.WRITABLE, LoopClock(), steps.register, steps.keep_status))
    await modes.registered()
    modes.follow_order(order(read_only=True, at_ms=5))
    seen = [modes.is_registered]
    await modes.registered()
    seen.append(modes.is_registered)
    assert steps.done[-2:] == ["register read-only", "register read-only"]
    assert seen == [False, True]
    following.cancel()


class Steps:
    """What a follower of modes did, in order."""

    def __init__(self, modes: BookieModes) -> None:
        self.modes = modes
        self.done: list[str] = []
        self.errors: list[Exception] = []
        self.progress = asyncio.Event()

    async def register(self, mode: BookieMode) -> None:
        self.done.append(f"register {mode.value}")
        self.progress.set()
        if self.errors:
            raise self.errors.pop()

    async def keep_status(self) -> None:
        self.done.append(f"status read_only={self.modes.status(0).is_read_only}")

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.done) < count:
                await self.progress.wait()
                self.progress.clear()


@contextlib.asynccontextmanager
async def following(modes: BookieModes) -> AsyncIterator[Steps]:
    steps = Steps(modes)
    task = asyncio.create_task(modes.follow(BookieMode.WRITABLE, LoopClock(), steps.register, steps.keep_status))
    yield steps
    task.cancel()
    await asyncio.wait([task])


async def test_the_status_is_written_before_the_registration_changes() -> None:
    modes = new_modes()
    async with following(modes) as steps:
        modes.note_disks(verdict(read_only=True))
        await steps.wait(2)
        modes.note_disks(verdict(read_only=False))
        await steps.wait(4)
    assert steps.done == [
        "status read_only=True",
        "register read-only",
        "status read_only=False",
        "register writable",
    ]


async def test_also_where_the_mode_changes_while_the_status_is_being_written() -> None:
    modes = new_modes()
    modes.note_disks(verdict(read_only=True))
    modes.note_disks(verdict(read_only=False))
    steps = Steps(modes)

    async def keep_status_meanwhile_full() -> None:
        await steps.keep_status()
        modes.note_disks(verdict(read_only=True))

    task = asyncio.create_task(
        modes.follow(BookieMode.WRITABLE, LoopClock(), steps.register, keep_status_meanwhile_full)
    )
    await steps.wait(2)
    task.cancel()
    await asyncio.wait([task])
    assert steps.done == ["status read_only=False", "status read_only=True", "register read-only"]


async def test_the_registration_is_tried_until_zookeeper_answers() -> None:
    modes = new_modes()
    async with following(modes) as steps:
        steps.errors.append(MetadataUnavailableError("no answer"))
        modes.note_disks(verdict(read_only=True))
        await steps.wait(3)
    assert steps.done[1:] == ["register read-only", "register read-only"]


async def test_a_registration_that_somebody_else_has_ends_it() -> None:
    modes = new_modes()
    steps = Steps(modes)
    steps.errors.append(RegistrationError("another bookie"))
    modes.note_disks(verdict(read_only=True))
    with pytest.raises(RegistrationError):
        await modes.follow(BookieMode.WRITABLE, LoopClock(), steps.register, steps.keep_status)
