"""A checkpoint rests as long as it worked, unless somebody waits for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.runtime.bookie.serving.checkpoints import REST_S_MAX, REST_SHARE, CheckpointPace
from bkctl.storage.engine.replay import checkpoint_now
from bkctl.storage.step_sizes import StepSizes
from tests.storage.engines import KEY, entry, open_engine


class Thread:
    """The time, and how long a lane slept."""

    def __init__(self) -> None:
        self.now_s = 5.0
        self.slept: list[float] = []

    def pace(self) -> CheckpointPace:
        return CheckpointPace(lambda: self.now_s, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def test_rest_follows_work() -> None:
    thread = Thread()
    pace = thread.pace()
    pace.begin()
    for worked_s in (0.01, 0.0, 0.02, 7.0):
        thread.now_s += worked_s
        pace.pause()
    assert thread.slept == pytest.approx([0.01 * REST_SHARE, 0.02 * REST_SHARE, REST_S_MAX])


def test_nobody_is_kept_waiting() -> None:
    thread = Thread()
    pace = thread.pace()
    is_urgent = True
    pace.urge_when(lambda: is_urgent)
    pace.begin()
    thread.now_s += 0.01
    pace.pause()
    is_urgent = False
    pace.pause()
    assert thread.slept == [], "work done in a hurry is not paid for later"
    thread.now_s += 0.01
    pace.pause()
    assert len(thread.slept) == 1


def test_what_the_lane_did_before_counts_for_nothing() -> None:
    thread = Thread()
    pace = thread.pace()
    pace.begin()
    thread.now_s += 100
    pace.begin()
    pace.pause()
    assert thread.slept == []


def test_a_checkpoint_pauses_between_its_parts(tmp_path: Path) -> None:
    engine = open_engine(tmp_path, steps=StepSizes(slice_entry_count_max=10))
    engine.rows.set_master_key(5, KEY)
    for entry_id in range(35):
        engine.add(5, entry_id, entry(5, entry_id))
    pauses: list[Callable[[], None] | None] = []
    job = engine.begin_checkpoint()
    done = engine.write_checkpoint(job, lambda: pauses.append(None))
    engine.end_checkpoint(job, done)
    assert len(pauses) == 8, "four slices, each in the log and in the index"
    checkpoint_now(engine)
    engine.close()
