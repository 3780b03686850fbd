"""Commands for several bookies or ledgers: each in its turn, in one result, with the worst exit code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from bkctl.commands.context import CommandContext
from bkctl.commands.errors import (
    InvalidArgumentError,
    Outcome,
    PlanShown,
    ReaderGoneError,
    SeveralFailedError,
    StoppedBySignalError,
)
from bkctl.runtime.errors import ConfigurationError, MetadataUnavailableError
from bkctl.storage.errors import BkctlError

_OF_ALL = (
    *(PlanShown, ReaderGoneError, StoppedBySignalError),
    *(InvalidArgumentError, ConfigurationError, MetadataUnavailableError),
)
"""Errors that do not concern one of several alone: they end the command."""


class Turns:
    """The ids of a command, each once; ``with turn():`` is around the work for one. Of several, one may fail."""

    def __init__(self, context: CommandContext, ids: Sequence[str]) -> None:
        self.ids = tuple(dict.fromkeys(ids))
        self.outcomes = [Outcome.OK]
        self.errors: list[BkctlError] = []
        self._context = context

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Reports an error of one of several and goes on."""
        try:
            yield
        except _OF_ALL:
            raise
        except BkctlError as error:
            if len(self.ids) == 1:
                raise
            self._context.console.error(str(error))
            self.errors.append(error)


@contextmanager
def in_turn(context: CommandContext, ids: Sequence[str]) -> Iterator[Turns]:
    """Turns for these ids. Records that are printed inside become one result; SeveralFailedError at the end."""
    turns = Turns(context, ids)
    if len(turns.ids) == 1:
        yield turns
        return
    with context.console.gathering():
        yield turns
    if turns.errors:
        raise SeveralFailedError(turns.errors, len(turns.ids), worst_of(turns.outcomes))


async def each_in_turn(
    context: CommandContext, ids: Sequence[str] | None, work: Callable[[str | None], Awaitable[Outcome | None]]
) -> Outcome:
    """The worst outcome of the work for each id; without ids, that of the work for the default one (None)."""
    if not ids:
        return await work(None) or Outcome.OK
    with in_turn(context, ids) as turns:
        for each in turns.ids:
            with turns.turn():
                turns.outcomes.append(await work(each) or Outcome.OK)
    return worst_of(turns.outcomes)


def worst_of(outcomes: Sequence[Outcome]) -> Outcome:
    """The one that is the last in the order of the outcomes."""
    order = list(Outcome)
    return max(outcomes, key=order.index, default=Outcome.OK)
