"""Replacement of failed bookies in an ensemble, and its publication. Source: protocol sections 4.2 and 4.3."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from runtime.client.metadata_update import LedgerRecord, LocalCopy, update_record
from runtime.client.ports import ClientPorts
from runtime.errors import NotEnoughBookiesError
from runtime.ledger.changes import replace_bookies
from runtime.ledger.metadata import LedgerMetadata, LedgerState
from runtime.ledger.write_set import choose_replacement


class Replacements:
    """Chooses successors from one snapshot of the writable bookies."""

    def __init__(self, ports: ClientPorts, ledger_id: int, writable: Sequence[str]) -> None:
        self._ledger_id = ledger_id
        self._random = ports.clock.random
        self._writable = writable
        suspects = ports.suspects.current()
        self._preferred = [bookie_id for bookie_id in writable if bookie_id not in suspects]

    @classmethod
    async def fetch(cls, ports: ClientPorts, ledger_id: int) -> Replacements:
        """Create an instance with the currently writable bookies."""
        return cls(ports, ledger_id, await ports.registrations.writable())

    def choose(
        self, ensemble: tuple[str, ...], failed: Mapping[int, str], unsuitable: Collection[str] = ()
    ) -> dict[int, str]:
        """Successors for the failed (index, bookie) pairs that are still in ``ensemble``, as far as candidates suffice.

        Excludes all failed and ``unsuitable`` bookies and the new ensemble. Uses suspects if no other bookie is left.
        If candidates are short, replaces failed bookies that are not registered as writable first. Raises
        NotEnoughBookiesError if no failed bookie can be replaced.
        """
        chosen: dict[int, str] = {}
        excluded = [*failed.values(), *unsuitable]
        for index, bookie_id in sorted(failed.items(), key=lambda item: (item[1] in self._writable, item[0])):
            if ensemble[index] != bookie_id:
                continue
            taken = [*ensemble, *chosen.values()]
            successor = choose_replacement(self._preferred, taken, excluded, self._random)
            successor = successor or choose_replacement(self._writable, taken, excluded, self._random)
            if successor is not None:
                chosen[index] = successor
        if not chosen:
            names = ", ".join(sorted(set(failed.values())))
            raise NotEnoughBookiesError(
                self._ledger_id,
                f"no writable bookie is left to replace {names} ({len(self._writable)} are registered as "
                "writable; a failed one stays registered until its session expires)",
            )
        return chosen


async def publish_replacements(
    ports: ClientPorts,
    record: LedgerRecord,
    copy: LocalCopy[LedgerMetadata],
    failed: Mapping[int, str],
    *,
    ledger_id: int,
    next_entry_id: Callable[[], int],
    is_wanted: Callable[[], bool],
) -> LedgerMetadata:
    """Replace failed bookies of the last segment in the stored metadata, from the first unconfirmed entry on.

    Returns the newest metadata. It may be unchanged (if the failed bookies are no longer in it), or no longer OPEN.
    Changes only an OPEN ledger (rule 6). Keeps earlier segments as stored, because re-replication may change them
    concurrently.

    Calls ``next_entry_id`` (LAC + 1) right before each write, with no suspension point in between (rule 3).
    Raises NotEnoughBookiesError, ConflictError, MetadataError, LedgerNotFoundError.
    """
    replacements = await Replacements.fetch(ports, ledger_id)

    def is_needed(metadata: LedgerMetadata) -> bool:
        ensemble = metadata.last_segment.ensemble
        is_named = any(ensemble[index] == bookie_id for index, bookie_id in failed.items())
        return is_wanted() and metadata.state is LedgerState.OPEN and is_named

    def transform(metadata: LedgerMetadata) -> LedgerMetadata:
        return replace_bookies(metadata, next_entry_id(), replacements.choose(metadata.last_segment.ensemble, failed))

    return await update_record(
        record,
        copy,
        is_needed=is_needed,
        transform=transform,
        clock=ports.clock,
        attempts_max=ports.config.metadata_attempts_max,
    )
