"""Changes many ledgers at once, independently of their writers: read, decide, save the old node, compare-and-set.

Each change is written only to the version it was decided on; if another process wrote first, it is decided again.
Everything that is replaced or deleted is passed to ``keep`` first, batch by batch. So a run that is killed has changed
nothing that was not saved, and can be run again.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence

import msgspec

from bkctl.runtime.errors import BadVersionError, LedgerNotFoundError, NodeExistsError, NoNodeError, NotEmptyError
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger, read_stored
from bkctl.runtime.metadata.request_budget import RequestBudget
from bkctl.runtime.metadata.store import MetadataStore, Node

BATCH = 64
ATTEMPTS_MAX = 5
"""How often a ledger is decided again after another process changed it first."""


class Action(enum.Enum):
    """What is done to a ledger's node."""

    CREATE = "create"
    SET = "set"
    DELETE = "delete"
    NONE = "none"
    FAIL = "fail"


class Step(msgspec.Struct, frozen=True):
    """A decision; ``data`` for CREATE and SET, ``reason`` always for FAIL and optionally for the others."""

    action: Action
    data: bytes = b""
    reason: str = ""


class LedgerFate(msgspec.Struct, frozen=True):
    """Outcome for a ledger: the step that was carried out, or FAIL with the reason."""

    ledger_id: int
    action: Action
    reason: str = ""

    @property
    def is_change(self) -> bool:
        """Whether a write happened."""
        return self.action in {Action.CREATE, Action.SET, Action.DELETE}


Decide = Callable[[int, StoredLedger | None], Step]
"""Decides about a ledger in its current state (None: it does not exist). Called again after a lost compare-and-set."""
Keep = Callable[[str, Sequence[tuple[str, Node]]], None]
"""Saves nodes before the given action changes them; raises when they cannot be saved."""


async def nothing_to_check() -> None:
    """A ``before_batch`` that checks nothing."""


class LedgerChanges:
    """One run of changes. ``before_batch`` and ``before_each`` may raise to stop it; ``budget`` spaces the writes."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerStore,
        decide: Decide,
        *,
        keep: Keep,
        before_each: Callable[[], None],
        before_batch: Callable[[], Awaitable[None]] = nothing_to_check,
        budget: RequestBudget,
    ) -> None:
        self._store = store
        self._ledgers = ledgers
        self._decide = decide
        self._keep = keep
        self._before_each = before_each
        self._before_batch = before_batch
        self._budget = budget

    async def run(
        self, ledger_ids: AsyncIterable[int], *, changes_max: int | None = None
    ) -> AsyncGenerator[LedgerFate, None]:
        """Change the ledgers and yield the outcome of each; ends early once ``changes_max`` were changed.

        Errors of ``keep``, ``before_batch`` or ``before_each``, and of a store that does not answer, end it.
        """
        changed = 0
        async for batch in _batches(ledger_ids, BATCH):
            todo: Sequence[int] = batch
            for attempt in range(1, ATTEMPTS_MAX + 1):
                room = None if changes_max is None else changes_max - changed
                fates, todo, error = await self._attempt(todo, room, is_last=attempt == ATTEMPTS_MAX)
                changed += sum(fate.is_change for fate in fates)
                for fate in fates:
                    yield fate
                if error is not None:
                    raise error
                if changes_max is not None and changed >= changes_max:
                    return
                if not todo:
                    break

    async def _attempt(
        self, ledger_ids: Sequence[int], room: int | None, *, is_last: bool
    ) -> tuple[list[LedgerFate], list[int], BaseException | None]:
        """Outcomes, ledgers to decide again, and the error that stopped the batch. No request is left running."""
        await self._ledgers.migration.require_none()
        await self._before_batch()
        found = await asyncio.gather(*map(self._find, ledger_ids))
        steps = [(ledger_id, stored, self._decide(ledger_id, stored)) for ledger_id, stored in found]
        fates = [
            LedgerFate(ledger_id, step.action, step.reason)
            for ledger_id, _, step in steps
            if step.action in {Action.NONE, Action.FAIL}
        ]
        changes = [each for each in steps if each[2].action not in {Action.NONE, Action.FAIL}][:room]
        for action in (Action.SET, Action.DELETE):
            nodes = [(stored.path, stored.node) for _, stored, step in changes if stored and step.action is action]
            readable = [(path, node) for path, node in nodes if node is not None]
            if readable:
                self._keep(action.value, readable)
        results = await asyncio.gather(*(self._carry_out(*each) for each in changes), return_exceptions=True)
        again = []
        error = None
        for (ledger_id, _, step), result in zip(changes, results, strict=True):
            if isinstance(result, NotEmptyError):  # an error of this node only: still report the others
                fates.append(LedgerFate(ledger_id, Action.FAIL, f"{result}: bkctl metadata doctor lists them"))
            elif isinstance(result, BaseException):
                error = error or result
            elif result:
                fates.append(LedgerFate(ledger_id, step.action, step.reason))
            elif is_last:
                fates.append(LedgerFate(ledger_id, Action.FAIL, "other processes keep changing it"))
            else:
                again.append(ledger_id)
        return fates, again, error

    async def _find(self, ledger_id: int) -> tuple[int, StoredLedger | None]:
        try:
            return ledger_id, await read_stored(self._store, self._ledgers, ledger_id)
        except LedgerNotFoundError:
            return ledger_id, None

    async def _carry_out(self, ledger_id: int, stored: StoredLedger | None, step: Step) -> bool:
        """Whether it was done; False when another process changed the ledger first."""

        async def write() -> None:
            self._before_each()
            if step.action is Action.CREATE:
                await self._store.create(self._ledgers.path(ledger_id), step.data, make_parents=True)
                return
            assert stored is not None
            assert stored.node is not None, "an unreadable node cannot be backed up, so it was not changed"
            if step.action is Action.SET:
                await self._store.set(stored.path, step.data, stored.node.stat.version)
            else:
                await self._ledgers.delete(ledger_id, stored.node.stat.version)

        try:
            await self._budget.run(write)
        except (BadVersionError, NoNodeError, NodeExistsError):
            return False
        return True


async def _batches(ledger_ids: AsyncIterable[int], size: int) -> AsyncIterator[list[int]]:
    batch: list[int] = []
    async for ledger_id in ledger_ids:
        batch.append(ledger_id)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
