"""What ``ledger close`` waits for, what it leaves when it is interrupted, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bkctl.commands.console import Console
from bkctl.commands.errors import Outcome
from bkctl.commands.ledger.accepted_loss import LOSS_TABLE, loss_row
from bkctl.commands.progress import Progress
from bkctl.commands.rendering import Column, Lines, Table, time_of_day
from bkctl.commands.work_end import Verdict, print_end
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger
from bkctl.runtime.replication.close.ledger_closer import CloseOutcome, CloseResult, LedgerCloser
from bkctl.runtime.replication.judge.fragments import EntryRange, format_ranges, merge_ranges
from bkctl.runtime.replication.judge.ledger_result import FailureReason
from bkctl.storage.severity import Severity
from bkctl.storage.words import counted, listed, size

_RESULT_TABLE = Table(
    "Ledgers",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("outcome", "OUTCOME"),
    Column("last_entry_id", "LAST ENTRY", is_right=True),
    Column("length_bytes", "BYTES", size, is_right=True),
    Column("owner", "OWNER", priority=1),
    name="ledger_id",
)
_FAILURE_TABLE = Table(
    "Not closed",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("reason", "REASON"),
    Column("next_step", "WHAT HELPS"),
)
_LEFT_TABLE = Table(
    "Corrupt copies left as they are",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("bookie_id", "BOOKIE"),
    Column("entries", "ENTRIES"),
    Column("reason", "REASON"),
)


class CloseReport:
    """What became of all ledgers of the command."""

    def __init__(self) -> None:
        self.closed_already: dict[int, int] = {}
        """Their last entries."""
        self.gone: list[int] = []
        self.rows: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self._left: list[dict[str, Any]] = []
        self._losses: list[dict[str, Any]] = []
        self._refused = 0

    def add(self, result: CloseResult, owner: str | None) -> None:
        """One ledger that was open at first."""
        for bookie_id, entry_ids in sorted(result.corrupt_left.items()):
            entries = format_ranges(merge_ranges(EntryRange(each, each) for each in entry_ids))
            place = {"ledger_id": str(result.ledger_id), "bookie_id": bookie_id, "entries": entries}
            self._left.append(place | {"reason": FailureReason.BAD_RECORD.value})
        if result.loss is not None:
            self._losses.append(loss_row(result.ledger_id, result.loss))
        if result.outcome is CloseOutcome.DELETED:
            self.gone.append(result.ledger_id)
        elif result.failure is not None:
            failure = result.failure
            self.fail(
                result.ledger_id,
                failure.reason,
                failure.missing,
                failure.fenced,
                failure.advice,
                is_refused=failure.is_refused,
            )
        else:
            metadata = result.metadata
            assert metadata is not None
            last = metadata.last_entry_id
            self.rows.append(
                {
                    "ledger_id": str(result.ledger_id),
                    "outcome": result.outcome.value,
                    "last_entry_id": str(last) if last >= 0 else None,
                    "length_bytes": metadata.length,
                    "owner": owner,
                }
            )

    def fail(
        self,
        ledger_id: int,
        reason: str,
        missing: Sequence[str] = (),
        fenced: Sequence[str] = (),
        next_step: str = "",
        *,
        is_refused: bool,
    ) -> None:
        """One ledger that is not closed; ``is_refused``: because this user has no permission."""
        self._refused += is_refused
        row = {"missing_bookies": list(missing), "fenced_bookies": list(fenced), "next_step": next_step or None}
        self.failures.append({"ledger_id": str(ledger_id), "reason": reason, **row})

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of ledgers."""
        closed = sum(row["outcome"] == CloseOutcome.CLOSED.value for row in self.rows)
        return {
            "closed": closed,
            "closed_by_others": len(self.rows) - closed,
            "closed_already": len(self.closed_already),
            "gone": len(self.gone),
            "failed": len(self.failures),
        }

    @property
    def outcome(self) -> Outcome:
        """All closed, some, or none; some too if corrupt copies are left."""
        if not self.failures:
            return Outcome.PARTIAL if self._left else Outcome.OK
        if self.rows or self.closed_already or self.gone:
            return Outcome.PARTIAL
        return Outcome.UNAUTHORIZED if self._refused == len(self.failures) else Outcome.FAILED

    def print(self, console: Console) -> None:
        """Print the result: one sentence, and tables if there is more to say."""
        counts = self.counts
        is_one = sum(counts.values()) == 1
        several = [] if is_one else [(_RESULT_TABLE, self.rows), (_FAILURE_TABLE, self.failures)]
        print_end(
            console,
            "LedgerClose",
            counts,
            self._verdict_on_one() if is_one else self._verdict(counts),
            details={"ledgers": self.rows, "failures": self.failures, "left": self._left, "losses": self._losses},
            tables=[*several, (_LEFT_TABLE, self._left), (LOSS_TABLE, self._losses)],
            wide_tables=[(_RESULT_TABLE, self.rows)] if is_one else [],
            name="closed",
            lines=Lines(_RESULT_TABLE, self.rows),
        )

    @property
    def _severity(self) -> Severity | None:
        return Severity.WARNING if self.failures or self._left or self._losses else None

    def _verdict(self, counts: dict[str, int]) -> Verdict:
        words = {
            "closed_by_others": CloseOutcome.CLOSED_BY_OTHERS.value,
            "closed_already": "closed already",
            "gone": "gone",
            "failed": "not closed",
        }
        total = counted(sum(counts.values()), "ledger")
        others = [f", {counts[key]:,} {what}" for key, what in words.items() if counts[key]]
        return Verdict(self._severity, f"{counts['closed']:,} of {total} closed{''.join(others)}")

    def _verdict_on_one(self) -> Verdict:
        notes: tuple[str, ...] = ()
        if self.failures:
            failure = self.failures[0]
            sentence = f"ledger {failure['ledger_id']} is not closed: {failure['reason']}"
            notes = tuple(filter(None, [failure["next_step"]]))
        elif self.gone:
            sentence = f"ledger {self.gone[0]} does not exist"
        elif self.closed_already:
            [(ledger_id, last)] = self.closed_already.items()
            sentence = f"ledger {ledger_id} was closed already{_end_words(last)}"
        else:
            row = self.rows[0]
            last = -1 if row["last_entry_id"] is None else int(row["last_entry_id"])
            sentence = f"ledger {row['ledger_id']} {row['outcome']}"
            if self._losses:
                loss = self._losses[0]
                found = counted(loss["entries"], "entry")
                sentence += f" at entry {last} without what only {listed(loss['bookies'])} had; {found} found"
            else:
                sentence += _end_words(last)
        return Verdict(self._severity, sentence, notes)


def _end_words(last_entry_id: int) -> str:
    return f" at entry {last_entry_id}; {counted(last_entry_id + 1, 'entry')}" if last_entry_id >= 0 else "; no entries"


class ClosingLedgers:
    """Ledgers that are being closed: the progress of that, and their state if it ends early."""

    file = None

    def __init__(self, ledgers: Sequence[StoredLedger]) -> None:
        self.is_begun = False
        self._left = {each.ledger_id: None for each in ledgers}
        self._total = len(ledgers)
        self._fenced: set[int] = set()
        self._waits_until = ""

    def finish(self, ledger_id: int) -> None:
        """One of them is finished."""
        del self._left[ledger_id]

    def show(self, console: Console, progress: Progress, closer: LedgerCloser, end_of_grace_ms: float) -> None:
        """Show what is waited for now; off a terminal, once that writers have time."""
        self._fenced = closer.begun
        note = ""
        if closer.awaited:
            until = time_of_day(end_of_grace_ms)
            note = f"waits until {until} for {self._name_writers(closer.awaited)}"
            if console.prints_progress_lines and not self._waits_until:
                console.say(note)
            self._waits_until = until
        elif fenced := self._fenced.intersection(self._left):
            note = f"waits for the bookies of {_ledgers(fenced)}, which are asked for the last entries"
        progress.update(self._total - len(self._left), self._total, note)

    def _name_writers(self, awaited: set[int]) -> str:
        waiting = awaited | (self._left.keys() - self._fenced)
        if len(waiting) == 1:
            return f"the writer of ledger {min(waiting)} to close it"
        return f"the writers of {counted(len(waiting), 'ledger')} to close them"

    @property
    def has_results(self) -> bool:
        """Whether any ledger may have been changed."""
        return len(self._left) < self._total or bool(self._fenced)

    def sentence(self) -> str:
        """How many of the ledgers are finished."""
        return f"stopped before the end: {self._total - len(self._left):,} of {counted(self._total, 'ledger')} finished"

    @property
    def state(self) -> tuple[str, ...]:
        """The state of the others."""
        fenced = self._fenced.intersection(self._left)
        untouched = self._left.keys() - fenced
        sentences = []
        if fenced:
            sentences.append(f"{_ledgers(fenced)} not closed, and may be fenced, which stops writers")
        if untouched:
            sentences.append(f"{_ledgers(untouched)} left as before: writers can go on")
        return tuple(sentences)


def _ledgers(ledger_ids: set[int]) -> str:
    return f"{'ledger' if len(ledger_ids) == 1 else 'ledgers'} {listed(sorted(ledger_ids))}"
