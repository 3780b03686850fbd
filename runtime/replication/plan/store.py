"""The ledgers of a plan, in the order of work. They are in a database, so a plan of millions takes little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias, overload

import msgspec

from bkctl.runtime.replication.plan.recovery_plan import LedgerPlan, PlanTotals


class Database(Protocol):
    """An SQLite database; the adapter is ``SqliteDatabase`` in ``bkctl.storage.adapters.sqlite``. Errors are OSError.

    Outside of a transaction (BEGIN), each statement is durable when it returns. Threads may use it one after another.
    """

    @property
    def path(self) -> str:
        """Its file, for messages."""

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Run a statement of SQL. Its rows are read when the caller takes them."""

    def close(self) -> None:
        """Close; safe to repeat. What is not committed is lost."""


OpenDatabase: TypeAlias = Callable[[], Database]
"""A new private database, which is gone when it is closed, and may be larger than the memory."""

LEDGER_TABLE: Final = (
    "CREATE TABLE ledger (surviving_copies INTEGER, ledger_id INTEGER, plan BLOB, "
    "PRIMARY KEY (surviving_copies DESC, ledger_id)) WITHOUT ROWID"
)
"""A scan adds ledgers by ascending id; this key keeps them in the order of work, which is its reverse."""
ORDER_OF_WORK: Final = "ORDER BY surviving_copies, ledger_id DESC"
"""Fewest surviving copies first, then the newest."""
_PLANS: Final = f"SELECT plan FROM ledger {ORDER_OF_WORK}"  # noqa: S608  constants


class PlanStore(Sequence[LedgerPlan]):
    """Ledgers in the order of work, whatever the order in which they are added."""

    def __init__(self, database: Database) -> None:
        self.totals = PlanTotals()
        self._database = database
        self._encoder = msgspec.json.Encoder()  # MessagePack has no numbers of more than 64 bits
        self._decoder = msgspec.json.Decoder(LedgerPlan)
        database.execute(LEDGER_TABLE)
        database.execute("BEGIN")

    def add(self, ledger: LedgerPlan) -> None:
        """Add a ledger."""
        self.totals.add(ledger)
        values = (ledger.surviving_copies, ledger.ledger_id, self._encoder.encode(ledger))
        self._database.execute("INSERT INTO ledger VALUES (?, ?, ?)", values)

    def __len__(self) -> int:
        return self.totals.ledgers

    def __iter__(self) -> Iterator[LedgerPlan]:
        return (self._decoder.decode(plan) for (plan,) in self._database.execute(_PLANS))

    @overload
    def __getitem__(self, index: int) -> LedgerPlan: ...
    @overload
    def __getitem__(self, index: slice) -> list[LedgerPlan]: ...
    def __getitem__(self, index: int | slice) -> LedgerPlan | list[LedgerPlan]:
        if isinstance(index, slice):
            return list(islice(self, *index.indices(len(self))))
        position = range(len(self))[index]
        return next(islice(self, position, None))
