"""Notices what is wrong with a bookie that goes on, shows it, and says it in the log until it is over.

A restart cures none of this, so it does not keep messages from systemd's watchdog. A job that hangs in the kernel could
not even be killed. Only for a hanging journal that is decided otherwise: see ``service_reports``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from bkctl.runtime.bookie.collection.compaction_survivors import COMPACTION_LANE
from bkctl.runtime.bookie.disks.monitor import DISKS_LANE
from bkctl.runtime.bookie.serving.checkpoints import CHECKPOINT_LANE
from bkctl.runtime.bookie.serving.reads import LISTS_LANE, READS_LANE, URGENT_READS_LANE
from bkctl.runtime.bookie.troubles import Trouble, TroubleState
from bkctl.runtime.bookie.view import BookieView
from bkctl.runtime.metadata.bookies.registration import BookieRegistration
from bkctl.runtime.ports import Workers
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0
HANG_S: Final = 30.0
"""How long work on a disk may make no progress until it counts as hanging."""
LOG_AFTER_S: Final = 30.0
LOG_INTERVAL_S: Final = 60.0

_LEDGER_LANES: Final = {
    CHECKPOINT_LANE: "checkpoint",
    COMPACTION_LANE: "compaction",
    READS_LANE: "reads",
    URGENT_READS_LANE: "recovery reads",
    LISTS_LANE: "lists of entries",
    DISKS_LANE: "check of the disks",
}
_PUBLISHED_MAX: Final = 500
"""Characters: each client reads the registrations of all bookies."""
JOURNAL_HANGS: Final = "a write or sync of a journal hangs"


def _no_steps() -> int:
    return 0


class LaneWatch:
    """Whether one lane still ends jobs; if its jobs are long, ``step_count`` shows that one goes on."""

    def __init__(self, workers: Workers, lane: str, step_count: Callable[[], int] = _no_steps) -> None:
        self._workers = workers
        self._lane = lane
        self._step_count = step_count
        self._is_waiting = False
        self._steps_then = 0
        self._since_ns = 0

    @property
    def is_waiting(self) -> bool:
        """Whether the job of the last call of ``stalled_since_ns`` has not ended."""
        return self._is_waiting

    def stalled_since_ns(self, now_ns: int) -> int:
        """When it last showed progress; now if it has nothing to do. Call it again and again."""
        steps_now = self._step_count()
        if not self._is_waiting or steps_now != self._steps_then:
            self._steps_then, self._since_ns = steps_now, now_ns
        if not self._is_waiting:
            self._is_waiting = True
            asyncio.ensure_future(self._workers.run(self._lane, _nothing)).add_done_callback(self._note_end)
        return self._since_ns

    def _note_end(self, _: object) -> None:
        self._is_waiting = False


class TroubleWatch:
    """Keeps ``BookieView.troubles`` up to date."""

    def __init__(self, view: BookieView) -> None:
        self._view = view
        self._lanes: dict[Trouble, dict[str, LaneWatch]] = {}
        self._since_ns: dict[Trouble, int] = {}
        self._logged_ns: dict[Trouble, int] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.check()
            await self._view.ports.clock.sleep(CHECK_INTERVAL_S)

    def check(self) -> None:
        """Note what is wrong now."""
        view, clock = self._view, self._view.ports.clock
        now_ns, now_ms, before = clock.monotonic_ns(), clock.now_ms(), view.troubles
        view.troubles = {}
        for trouble, (text, began_ns) in self._found(now_ns).items():
            since_ns = self._since_ns.setdefault(trouble, began_ns)
            former = before.get(trouble)
            since_ms = now_ms - (now_ns - since_ns) // 1_000_000 if former is None else former.since_ms
            view.troubles[trouble] = TroubleState(trouble=trouble, text=text, since_ms=since_ms)
            self._log(trouble, text, now_ns)
        for trouble, former in before.items():
            if trouble not in view.troubles:
                lasted_s = (now_ns - self._since_ns.pop(trouble)) / 1e9
                if self._logged_ns.pop(trouble, None) is not None:
                    logger.warning("over after %.0f s: %s", lasted_s, former.text)

    def _log(self, trouble: Trouble, text: str, now_ns: int) -> None:
        lasted_ns, logged_ns = now_ns - self._since_ns[trouble], self._logged_ns.get(trouble)
        is_due = lasted_ns >= LOG_AFTER_S * 1e9 if logged_ns is None else now_ns - logged_ns >= LOG_INTERVAL_S * 1e9
        if is_due:
            self._logged_ns[trouble] = now_ns
            logger.error("%s (for %.0f s)", text, lasted_ns / 1e9)

    def _found(self, now_ns: int) -> dict[Trouble, tuple[str, int]]:
        """Each trouble with its text, and since when it lasts if it is new."""
        found: dict[Trouble, tuple[str, int]] = {}
        if text := self._zookeeper_trouble():
            found[Trouble.ZOOKEEPER] = text, now_ns
        if refusal := self._view.modes.refusal:
            found[Trouble.REGISTRATION] = f"not registered as {self._view.modes.text}: {refusal}", now_ns
        if problem := self._view.integrity_progress.problem:
            found[Trouble.RESTORE] = f"entries are not restored from other bookies yet: {problem}", now_ns
        for trouble, lanes in self._watched_lanes().items():
            stalls = {name: watch.stalled_since_ns(now_ns) for name, watch in lanes.items()}
            hanging = {name: since_ns for name, since_ns in stalls.items() if now_ns - since_ns >= HANG_S * 1e9}
            if hanging:
                text = f"a ledger disk hangs: no progress in {', '.join(hanging)}"
                found[trouble] = JOURNAL_HANGS if trouble is Trouble.JOURNAL_DISK else text, min(hanging.values())
        return found

    def _zookeeper_trouble(self) -> str:
        view = self._view
        if view.store is None or view.is_stopping:
            return ""
        if not view.store.measures.is_connected:
            return "no connection to ZooKeeper, so clients may not find this bookie"
        if view.is_running and view.registration is not None and not view.registration.is_registered:
            refusal = f": {view.registration.refusal}" if view.registration.refusal else ""
            return f"not registered in ZooKeeper, so clients cannot find this bookie{refusal}"
        return ""

    def _watched_lanes(self) -> dict[Trouble, dict[str, LaneWatch]]:
        """None before the journals run: a start does long work in its lane, and shows its stages."""
        path, workers = self._view.path, self._view.ports.workers
        if path is not None and not self._lanes:
            steps = {CHECKPOINT_LANE: path.checkpoints.step_count}
            self._lanes = {
                Trouble.JOURNAL_DISK: {lane: LaneWatch(workers, lane) for lane in path.journal_lanes},
                Trouble.LEDGER_DISK: {
                    name: LaneWatch(workers, lane, steps.get(lane, _no_steps)) for lane, name in _LEDGER_LANES.items()
                },
            }
        return self._lanes


async def publish_troubles(view: BookieView, registration: BookieRegistration) -> None:
    """Keep what is wrong in the registration, until cancelled. A trouble with ZooKeeper itself cannot be there."""
    while True:
        texts = [each.text for each in view.troubles.values() if each.trouble is not Trouble.ZOOKEEPER]
        wait_s = CHECK_INTERVAL_S
        try:
            await registration.publish("; ".join(texts)[:_PUBLISHED_MAX])
        except BkctlError as error:
            logger.warning("cannot publish what is wrong (%s) for bkctl status: %s", "; ".join(texts), error)
            wait_s = LOG_INTERVAL_S
        await view.ports.clock.sleep(wait_s)


def _nothing() -> None:
    """A job that ends when all earlier jobs of its lane have ended."""
