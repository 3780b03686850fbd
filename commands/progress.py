"""Progress of long work: how far it is, how fast, since when, for how long, and what it waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from bkctl.commands.rendering import clean
from bkctl.commands.table_layout import wrapped

RATE_WINDOW_S = 30.0
"""Rates are those of the last half minute."""
_SAMPLE_PAUSE_S = 1.0
_BAR_WIDTH_MIN, _BAR_WIDTH_MAX = 8, 40
_STALL_S = 10.0
"""After so long without a finished unit, this is shown."""


class Progress(Protocol):
    """Receives the progress of a long job."""

    @property
    def is_shown(self) -> bool:
        """Whether it is shown. If not, the total need not be requested."""

    def update(
        self,
        done: float,
        total: float | None = None,
        note: str | None = None,
        count: str | None = None,
        *,
        rate: str | None = None,
        left_s: float | None = None,
    ) -> None:
        """Units done of ``total`` so far (None: unknown); ``note`` describes the current work.

        ``count`` is shown instead of the units, ``rate`` instead of units per second, ``left_s`` instead of the time
        that follows from these.
        """


class Silence:
    """Progress that is not shown."""

    is_shown = False

    def update(
        self,
        done: float,
        total: float | None = None,
        note: str | None = None,
        count: str | None = None,
        *,
        rate: str | None = None,
        left_s: float | None = None,
    ) -> None:
        """Not shown."""


class WorkPace:
    """How fast something grows: its increase per second over the last half minute."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._samples: deque[tuple[float, float]] = deque([(now_s(), 0.0)])

    def note(self, done: float) -> None:
        """This much is done now. Less than before: other work has begun."""
        now_s = self._now_s()
        if done < self._samples[-1][1]:
            self._samples = deque([(now_s, done)])
        elif now_s - self._samples[-1][0] >= _SAMPLE_PAUSE_S:
            self._samples.append((now_s, done))
            while now_s - self._samples[0][0] > RATE_WINDOW_S and len(self._samples) > 1:
                self._samples.popleft()

    def per_second(self, done: float) -> float:
        """The rate if this much is done now; 0 in the first second, which says little."""
        first_s, first_done = self._samples[0]
        seconds = self._now_s() - first_s
        return max(0.0, done - first_done) / seconds if seconds >= _SAMPLE_PAUSE_S else 0.0


class _Shown(NamedTuple):
    done: float = 0.0
    total: float | None = None
    counted: str = ""
    rate: str | None = None
    left_s: float | None = None


class ProgressBar:
    """Progress as lines for a terminal: the job, a bar and the count; below it the times, the rate and the note."""

    is_shown = True

    def __init__(self, description: str, now_s: Callable[[], float]) -> None:
        self._description = description
        self._now_s = now_s
        self._began_s = self._changed_s = now_s()
        self._pace = WorkPace(now_s)
        self._shown = _Shown()
        self._note = ""

    def update(
        self,
        done: float,
        total: float | None = None,
        note: str | None = None,
        count: str | None = None,
        *,
        rate: str | None = None,
        left_s: float | None = None,
    ) -> None:
        """Note what was reported; it is shown when the terminal is drawn next."""
        if done != self._shown.done:
            self._changed_s = self._now_s()
        self._pace.note(done)
        self._note = self._note if note is None else note
        if count is None:
            count = f"{done:,.0f}" if total is None else f"{done:,.0f}/{total:,.0f}"
        self._shown = _Shown(done, total, count, rate, left_s)

    def lines(self, width: int) -> list[str]:
        """At most ``width`` characters each, unless a word is longer."""
        shown = self._shown
        room = width - len(self._description) - len(shown.counted) - 2
        if shown.total and room >= _BAR_WIDTH_MIN:
            bar_width = min(room, _BAR_WIDTH_MAX)
            filled = "━" * int(bar_width * min(1.0, shown.done / shown.total))
            first = [f"{self._description} {filled:<{bar_width}} {shown.counted}"]
        else:
            first = wrapped(f"{self._description} {shown.counted}".rstrip(), width)
        return [*first, *wrapped(self._state(shown), width)]

    def _state(self, shown: _Shown) -> str:
        rate = self._pace.per_second(shown.done)
        parts = [f"elapsed {clock(self._now_s() - self._began_s)}"]
        left_s = shown.left_s
        if left_s is None and shown.total and rate > 0 and shown.total >= shown.done:
            left_s = (shown.total - shown.done) / rate
        if left_s is not None:
            parts.append(f"about {clock(left_s)} left")
        if shown.rate is not None:
            parts += filter(None, [shown.rate])
        elif rate > 0:
            parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s")
        idle_s = self._now_s() - self._changed_s
        if shown.counted and idle_s >= _STALL_S:
            parts.append(f"nothing finished for {clock(idle_s)}")
        text = ", ".join(parts)
        return f"{text}; {clean(self._note)}" if self._note else text


def clock(seconds: float) -> str:
    """``0:12``, ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
