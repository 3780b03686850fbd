"""What a bookie must store of a ledger, by its metadata. Pure rules. Source: storage sections 9.2 and 9.3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from bkctl.runtime.errors import AuthenticationRequiredError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import QuorumCoverage, is_in_write_set, write_set
from bkctl.storage.errors import BkctlError
from bkctl.storage.words import counted


class Miss(NamedTuple):
    """Why an entry, or a ledger, was not restored. ``is_refused``: another bookie refuses the login or the certificate
    of this one, which only an operator can change. ``entry_id`` None: it is about the whole ledger."""

    reason: str
    is_refused: bool = False
    entry_id: int | None = None

    def __str__(self) -> str:
        return self.reason if self.entry_id is None else f"entry {self.entry_id}: {self.reason}"


def miss_of(errors: Iterable[BkctlError]) -> Miss:
    """Why no bookie gave an entry: refusals first, then in the order of the sentences, so that equal reasons count
    together."""
    ordered = sorted((not isinstance(each, AuthenticationRequiredError), str(each)) for each in errors)
    return Miss("; ".join(text for _, text in ordered), is_refused=any(not each for each, _ in ordered))


def misses_text(misses: Mapping[int, Miss]) -> str:
    """How many ledgers were not restored, and why: a refusal first, then the most frequent reason."""
    counts = Counter(each.reason for each in misses.values())
    first = min(misses, key=lambda each: (not misses[each].is_refused, -counts[misses[each].reason], each))
    number = counts[misses[first].reason]
    alike = "" if number == len(misses) else f" {number:,} of them for this reason,"
    miss = counted(len(misses), "ledger still misses", "ledgers still miss")
    return f"{miss} entries,{alike} first ledger {first}: {misses[first]}"


class LedgerNeeds(msgspec.Struct, frozen=True):
    """What to record for a ledger before the bookie may serve again after a loss.

    ``needs_row``: the bookie must know the ledger. ``needs_limbo``: its end is open and may have been stored here, so a
    lost entry must not be denied and a lost fence must not let a writer in.
    """

    needs_row: bool
    needs_limbo: bool


class OwnStripe(msgspec.Struct, frozen=True):
    """The part of a segment that one bookie stores: the entries whose write set contains its index."""

    first_entry_id: int
    last_entry_id: int
    index: int
    ensemble: tuple[str, ...]
    ensemble_size: int
    write_quorum_size: int

    def entry_ids(self, first_entry_id: int, last_entry_id: int) -> Iterator[int]:
        """Entries of the stripe within these bounds, ascending."""
        for entry_id in range(max(first_entry_id, self.first_entry_id), min(last_entry_id, self.last_entry_id) + 1):
            if is_in_write_set(entry_id, self.index, self.ensemble_size, self.write_quorum_size):
                yield entry_id

    def peers(self, entry_id: int) -> list[str]:
        """The other bookies that must have an entry of the stripe."""
        indexes = write_set(entry_id, self.ensemble_size, self.write_quorum_size)
        return [self.ensemble[index] for index in indexes if index != self.index]


def needs_of(metadata: LedgerMetadata, bookie_id: str) -> LedgerNeeds:
    """What the pre-boot check records. Only the last segment is at risk, because a recovery reads no other."""
    is_at_risk = not metadata.is_closed and bookie_id in metadata.last_segment.ensemble
    return LedgerNeeds(bookie_id in metadata.bookies(), is_at_risk)


def needs_recovery(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether a ledger must be recovered before this bookie can know which entries it misses.

    If the writer has replaced this bookie in the last segment in the meantime, the ledger is left alone.
    """
    return needs_of(metadata, bookie_id).needs_limbo


def is_end_in_doubt(metadata: LedgerMetadata, doubting: Collection[str]) -> bool:
    """Whether the end of a ledger cannot be found while these bookies doubt their copies, even if all others answer.

    Waiting does not help: each of them keeps doubting until the ledger is closed.
    """
    coverage = QuorumCoverage(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    for index, bookie_id in enumerate(metadata.last_segment.ensemble):
        if bookie_id not in doubting:
            coverage.note_known(index)
    return not coverage.is_covered


def last_known_entry_id(metadata: LedgerMetadata) -> int:
    """Last entry known from the metadata: in a ledger that is not closed, the one before the last segment."""
    return metadata.last_entry_id if metadata.is_closed else metadata.last_segment.first_entry_id - 1


def own_stripes(metadata: LedgerMetadata, bookie_id: str) -> list[OwnStripe]:
    """What the bookie must store of a ledger, up to the last entry known from the metadata."""
    end = last_known_entry_id(metadata)
    starts = [segment.first_entry_id for segment in metadata.segments]
    stripes = []
    for segment, next_start in zip(metadata.segments, [*starts[1:], end + 1], strict=True):
        last_entry_id = min(next_start - 1, end)
        if bookie_id in segment.ensemble and last_entry_id >= segment.first_entry_id:
            stripes.append(
                OwnStripe(
                    segment.first_entry_id,
                    last_entry_id,
                    segment.ensemble.index(bookie_id),
                    segment.ensemble,
                    metadata.ensemble_size,
                    metadata.write_quorum_size,
                )
            )
    return stripes
