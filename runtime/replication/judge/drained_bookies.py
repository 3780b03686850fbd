"""What is left on bookies that a drain made read-only, and what helps. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.ledger.pulsar_owner import topic_of_broker
from bkctl.runtime.replication.judge.advice import explain_command
from bkctl.storage.words import SHOWN_MAX, counted, listed

_TOPICS_NAMED_MAX = 10


class DrainedBookie(msgspec.Struct, frozen=True):
    """One of them. ``waiting``: all ledgers that reference it, if each only waits for its writer, so that a drain moves
    none of them. ``topics``: the Pulsar topics whose brokers close some of these."""

    is_referenced: bool = False
    waiting: frozenset[int] = frozenset()
    topics: frozenset[str] = frozenset()


class DrainedTally:
    """Collects what ledgers say about drained bookies."""

    def __init__(self, bookie_ids: Collection[str]) -> None:
        self._movable: set[str] = set()
        self._waiting: dict[str, dict[int, str | None]] = {each: {} for each in bookie_ids}

    @property
    def is_done(self) -> bool:
        """Whether other ledgers would not change the result."""
        return self._movable == self._waiting.keys()

    def add(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """Note the metadata of one ledger. Of an open one, the last segment waits for the writer."""
        bookies = self._waiting.keys() & metadata.bookies() - self._movable
        if not bookies:
            return
        earlier = frozenset(chain.from_iterable(each.ensemble for each in metadata.segments[:-1]))
        for bookie_id in bookies:
            if metadata.state is LedgerState.OPEN and bookie_id not in earlier:
                self._waiting[bookie_id][ledger_id] = topic_of_broker(dict(metadata.custom_metadata))
            else:
                self._movable.add(bookie_id)

    def result(self, *, is_complete: bool) -> dict[str, DrainedBookie]:
        """Without the bookies of which it is unknown. ``is_complete``: whether all ledgers were read."""
        found: dict[str, DrainedBookie] = {}
        for bookie_id, waiting in self._waiting.items():
            if bookie_id in self._movable or (waiting and not is_complete):
                found[bookie_id] = DrainedBookie(is_referenced=True)
            elif is_complete:
                topics = frozenset(filter(None, waiting.values()))
                found[bookie_id] = DrainedBookie(bool(waiting), frozenset(waiting), topics)
        return found


def closing_step(ledger_ids: Sequence[int], topics: Collection[str]) -> tuple[str, str | None]:
    """What ends the wait for the writers of open ledgers, as a sentence, and the command that helps."""
    if topics:
        names = listed(sorted(topics), _TOPICS_NAMED_MAX)
        sentence = f"Pulsar keeps ledgers of {counted(len(topics), 'topic')} open: {names}: run pulsar-admin topics "
        return f"{sentence}unload TOPIC, which makes the broker close them", explain_command(ledger_ids)
    command = f"bkctl ledger close {' '.join(map(str, ledger_ids[:SHOWN_MAX]))}"
    return f"open ledgers that have no writer are closed by {command}", command
