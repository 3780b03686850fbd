"""``bkctl bookie sanity``: write, read back and delete a small ledger on one bookie."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Annotated, TypeVar

import typer

from bkctl.commands.bookie.state import BookieArguments, BookieState, named_bookie, state_of
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import Outcome
from bkctl.commands.parse import parse_duration_s
from bkctl.commands.safety.gate import open_change
from bkctl.commands.session import Session, open_session
from bkctl.commands.several import each_in_turn
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.sanity import SanityResult, run_sanity_test
from bkctl.runtime.errors import (
    BookieError,
    BookieNotFoundError,
    BookieReadOnlyError,
    BookieUnavailableError,
    ClusterNotFoundError,
    LedgerError,
    MetadataUnavailableError,
)
from bkctl.storage.words import counted

T = TypeVar("T")

_PASSING = (BookieError, BookieNotFoundError, LedgerError, MetadataUnavailableError, ClusterNotFoundError)
"""Errors that may pass while a bookie starts."""
_RETRY_S = 0.5


@command("sanity", example="bookie sanity b1.example.com:3181 --wait 60s", effect=Effect.REVERSIBLE)
async def sanity(
    context: CommandContext,
    bookies: BookieArguments = None,
    entries: Annotated[int, typer.Option("--entries", min=1, max=10_000, metavar="N", help="Entries to write")] = 10,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="DURATION", help="Repeat the test until it passes, for so long")
    ] = None,
) -> Outcome:
    """Write, read back and delete a small ledger on each bookie.

    The ledger is deleted after a failure too. Exits with 0 if the bookie stored and returned every entry; with 9 if it
    is read-only and answers, because then only that is tested; with 4 or 7 if it does not run or did not store them.
    """
    patience = _Patience(context, None if wait is None else parse_duration_s(wait))
    named = [named_bookie(context, each) for each in bookies or (None,)]
    tests = {each.bookie_id: _Test(context, each.bookie_id, entries) for each in named}
    async with AsyncExitStack() as at_end:
        session = await patience.run(
            lambda: at_end.enter_async_context(open_session(context, metadata_uri=named[0].metadata_uri))
        )
        plan = session.plan(
            subject=", ".join(tests),
            summary=[
                f"will write {counted(entries, 'entry', 'entries')} to a new ledger on bookie {bookie_id}, read "
                "them back and delete the ledger"
                for bookie_id in tests
            ],
            items=[
                {"action": "create ledger", "path": session.root, "bookie_id": bookie_id, "entries": entries}
                for bookie_id in tests
            ],
        )

        async def run(bookie_id: str | None) -> Outcome:
            test = tests[bookie_id or ""]
            return await test.report(lambda: patience.run(lambda: test.run(session, client)))

        async with open_change(context, plan):
            client = await session.client()
            return await each_in_turn(context, list(tests), run)


class _Patience:
    """Repeats what fails until it succeeds or the time is over; without ``wait_s``, tries once."""

    def __init__(self, context: CommandContext, wait_s: float | None) -> None:
        self._context = context
        self._wait_s = wait_s
        self._ends_at: float | None = None
        self._reason = ""

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result; the last error when the time is over."""
        loop = asyncio.get_running_loop()
        if self._ends_at is None:
            self._ends_at = loop.time() + (self._wait_s or 0.0)
        while True:
            try:
                return await attempt()
            except _PASSING as error:
                if loop.time() >= self._ends_at:
                    raise
                if str(error) != self._reason:
                    self._reason = str(error)
                    self._context.console.say(f"waiting: {error}")
            await asyncio.sleep(_RETRY_S)


class _Test:
    def __init__(self, context: CommandContext, bookie_id: str, entries: int) -> None:
        self.bookie_id = bookie_id
        self._context = context
        self._entries = entries
        self._is_deleted = True

    async def run(self, session: Session, client: LedgerClient) -> SanityResult:
        """Test it once; BookieReadOnlyError if it is read-only and answers."""
        state = state_of(self.bookie_id, await session.registrations.snapshot())
        if state is BookieState.DOWN:
            if self.bookie_id not in await session.registrations.with_cookie():
                raise BookieNotFoundError(f"no bookie {self.bookie_id} in this cluster", self.bookie_id)
            raise BookieUnavailableError(self.bookie_id, "not registered")
        if state is BookieState.READ_ONLY:
            await client.ports.bookies.info(self.bookie_id)
            raise BookieReadOnlyError(self.bookie_id, "the bookie is read-only")
        return await run_sanity_test(client.ports, self.bookie_id, self._entries, self._note_leftover)

    async def report(self, run: Callable[[], Awaitable[SanityResult]]) -> Outcome:
        """Run the test and print its result; the error of a test that failed."""
        console = self._context.console
        body: dict[str, object] = {"bookie_id": self.bookie_id, "state": BookieState.READ_ONLY, "passed": None}
        body |= dict.fromkeys(("ledger_id", "entries", "write_ms", "read_ms"))
        try:
            result = await run()
        except BookieReadOnlyError:
            console.warn(f"bookie {self.bookie_id} is read-only: it answers; writing and reading were not tested")
            console.record("BookieSanity", body, name="bookie_id")
            return Outcome.PARTIAL
        body |= {
            "state": BookieState.WRITABLE,
            "passed": True,
            "ledger_id": str(result.ledger_id),
            "entries": result.entries,
            "write_ms": round(result.write_s * 1000, 3),
            "read_ms": round(result.read_s * 1000, 3),
        }
        console.record("BookieSanity", body, name="bookie_id")
        return Outcome.OK if self._is_deleted else Outcome.PARTIAL

    def _note_leftover(self, ledger_id: int, error: BaseException) -> None:
        self._is_deleted = False
        reason = str(error) or "interrupted"
        self._context.console.warn(
            f"test ledger {ledger_id} could not be deleted ({reason}): delete it with bkctl ledger delete {ledger_id}"
        )
