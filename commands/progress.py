"""Progress bars of long jobs, on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType


class Progress(Protocol):
    """Receives the progress of a long job."""

    @property
    def is_shown(self) -> bool:
        """Whether the bar is shown. If not, the total need not be requested."""

    def update(
        self, done: float, total: float | None = None, note: str | None = None, count: str | None = None
    ) -> None:
        """Units done of ``total`` so far (None: unknown); ``note`` describes the current work.

        ``count`` is shown instead of the units.
        """


@contextmanager
def progress_bar(stream: TextIO, description: str, *, is_colored: bool) -> Iterator[Progress]:
    """A bar on a terminal, wiped away at the end."""
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    class BarAboveNote(RichProgress):
        """The note has its own line, so that a narrow terminal still shows the time left."""

        def get_renderables(self) -> Iterator[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            yield from (Text(task.fields["note"], style="dim") for task in self.tasks if task.fields["note"])

    bar = BarAboveNote(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}", style="progress.download"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=RichConsole(file=stream, no_color=not is_colored),
        transient=True,
    )
    with bar:
        task = bar.add_task(description, total=None, count="", note="")
        yield _RichBar(partial(bar.update, task))


class Silence:
    """Progress that is not shown."""

    is_shown = False

    def update(
        self, done: float, total: float | None = None, note: str | None = None, count: str | None = None
    ) -> None:
        """Not shown."""


class _RichBar:
    is_shown = True

    def __init__(self, update: Callable[..., None]) -> None:
        self._update = update
        self._note = ""

    def update(
        self, done: float, total: float | None = None, note: str | None = None, count: str | None = None
    ) -> None:
        self._note = self._note if note is None else note
        if count is None:
            count = f"{done:.0f}" if total is None else f"{done:.0f}/{total:.0f}"
        self._update(completed=done, total=total, count=count, note=self._note)
