"""Which ledgers inventories have examined, and when: so that one with limited time begins with the others. Pure.

The file of ``bkctl audit --checked-file`` has it as JSON (docs/formats/bkctl-files.md).
"""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from bkctl.runtime.replication.cluster_audit.inventory_tables import CheckedRange
from bkctl.storage.ids import LEDGER_ID_MAX
from bkctl.storage.json_text import JsonTextError, decode_json

FORMAT = 1


class CheckedRun(msgspec.Struct, frozen=True):
    """One inventory: when it was taken, and the ranges of the ids of ledgers that no later one has examined.

    ``tried``: of those of which it could read nothing, and no later one was begun for them. They are not examined, but
    would take the time of all others if they came first each time. Ranges are pairs of the first and the last id,
    ascending.
    """

    checked_ms: int
    ranges: tuple[tuple[int, int], ...]
    tried: tuple[tuple[int, int], ...] = ()


class CheckedLedgers(msgspec.Struct, frozen=True, kw_only=True):
    """The inventories of one cluster that were taken in the same way, the oldest first.

    ``way``: the value of an ``InventoryWay``; ``root`` and ``instance_id``: the cluster.
    """

    root: str
    instance_id: str | None
    way: str
    runs: tuple[CheckedRun, ...] = ()

    def with_run(
        self, checked_ms: int, checked: Iterable[CheckedRange], tried: Iterable[CheckedRange] = ()
    ) -> CheckedLedgers:
        """Also with this inventory."""
        new, unread = (sorted((each.ledger_id, each.last_ledger_id) for each in rows) for rows in (checked, tried))
        begun = sorted((*new, *unread))
        runs = [
            CheckedRun(run.checked_ms, tuple(_without(run.ranges, new)), tuple(_without(run.tried, begun)))
            for run in self.runs
        ]
        kept = [run for run in (*runs, CheckedRun(checked_ms, tuple(new), tuple(unread))) if run.ranges or run.tried]
        return msgspec.structs.replace(self, runs=tuple(kept))


def _without(ranges: Iterable[tuple[int, int]], others: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The ids of ``ranges`` that are not in ``others``, which are ascending and do not overlap."""
    for start, last in ranges:
        first = start
        position = max(0, bisect.bisect_right(others, (first, LEDGER_ID_MAX)) - 1)
        while first <= last and position < len(others) and others[position][0] <= last:
            other_first, other_last = others[position]
            if other_last >= first:
                if first < other_first:
                    yield first, other_first - 1
                first = other_last + 1
            position += 1
        if first <= last:
            yield first, last


class LongestUnchecked:
    """Sorts ids of ledgers by when they were examined or tried last: first those that never were, then the oldest."""

    def __init__(self, runs: Sequence[CheckedRun]) -> None:
        """``runs``: the oldest first; a clock may have been wrong."""
        tried = sorted(each for run in runs for each in run.tried)  # later than they were examined
        self._ranges = sorted(
            (*each, number) for number, run in enumerate(runs, 1) for each in (*_without(run.ranges, tried), *run.tried)
        )
        self._by_age = [array("q") for _ in range(len(runs) + 1)]

    def add(self, ledger_id: int) -> None:
        """Take a ledger."""
        position = bisect.bisect_right(self._ranges, (ledger_id, LEDGER_ID_MAX, 0)) - 1
        age = 0
        if position >= 0 and self._ranges[position][1] >= ledger_id:
            age = self._ranges[position][2]
        self._by_age[age].append(ledger_id)

    def __iter__(self) -> Iterator[int]:
        """The ids; among those of one age, in the order in which they were added."""
        for ledger_ids in self._by_age:
            yield from ledger_ids


def ranges_of(ledger_ids: Iterable[int]) -> list[CheckedRange]:
    """Ids, each at most once, as ascending ranges."""
    found: list[CheckedRange] = []
    for ledger_id in sorted(ledger_ids):
        if found and found[-1].last_ledger_id == ledger_id - 1:
            found[-1] = CheckedRange(found[-1].ledger_id, ledger_id)
        else:
            found.append(CheckedRange(ledger_id, ledger_id))
    return found


class CheckedLedgersFormatError(ValueError):
    """The bytes are not such a file; the text says why."""


class _CheckedFile(CheckedLedgers, frozen=True, kw_only=True):
    apiVersion: Literal["bkctl/v1"] = "bkctl/v1"  # noqa: N815  spelling of the structured output contract
    kind: Literal["CheckedLedgers"]
    format: int
    ledgers: int


def encode_checked(checked: CheckedLedgers) -> bytes:
    """The file."""
    runs = [
        {"checked_ms": run.checked_ms, "ranges": _as_text(run.ranges)}
        | ({"tried": _as_text(run.tried)} if run.tried else {})
        for run in checked.runs
    ]
    head: dict[str, Any] = {"apiVersion": "bkctl/v1", "kind": "CheckedLedgers", "format": FORMAT}
    fields = {name: getattr(checked, name) for name in ("root", "instance_id", "way")}
    return msgspec.json.encode(head | fields | {"runs": runs, "ledgers": _count(checked)}) + b"\n"


def _as_text(ranges: Iterable[tuple[int, int]]) -> list[list[str]]:
    return [[str(first), str(last)] for first, last in ranges]


def decode_checked(data: bytes) -> CheckedLedgers:
    """The ledgers in a file; CheckedLedgersFormatError."""
    try:
        head = decode_json(data, dict[str, Any])
    except JsonTextError as error:
        reason = f"it is damaged, or was not written by bkctl audit --checked-file: {error}"
        raise CheckedLedgersFormatError(reason) from error
    try:
        if head.get("kind") != "CheckedLedgers":
            raise CheckedLedgersFormatError("it was not written by bkctl audit --checked-file")
        if head.get("format") != FORMAT:
            reason = (
                f"it has format {head.get('format')}, and this bkctl reads format {FORMAT}: use the bkctl that wrote it"
            )
            raise CheckedLedgersFormatError(reason)
        found = msgspec.convert(head, _CheckedFile, strict=False)
    except msgspec.ValidationError as error:
        raise CheckedLedgersFormatError(f"it is damaged: {error}") from error
    for ranges in ([run.ranges for run in found.runs], [run.tried for run in found.runs]):
        ordered = sorted(itertools.chain.from_iterable(ranges))
        is_valid = all(0 <= first <= last <= LEDGER_ID_MAX for first, last in ordered)
        if not is_valid or any(later[0] <= earlier[1] for earlier, later in itertools.pairwise(ordered)):
            raise CheckedLedgersFormatError("it is damaged: its ranges are invalid or overlap")
    if _count(found) != found.ledgers:
        raise CheckedLedgersFormatError(f"it is damaged: it has other ranges than those of {found.ledgers} ledgers")
    return CheckedLedgers(root=found.root, instance_id=found.instance_id, way=found.way, runs=found.runs)


def _count(checked: CheckedLedgers) -> int:
    return sum(last - first + 1 for run in checked.runs for first, last in run.ranges)
