"""Replacement of failed bookies in an ensemble, and its publication. Source: protocol sections 4.2 and 4.3."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from bkctl.runtime.client.metadata_update import LedgerRecord, LocalCopy, update_record
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import NotEnoughBookiesError
from bkctl.runtime.ledger.changes import replace_bookies
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.placement.choice import Choice, NoChoice, PlacementNeed, choose_replacements
from bkctl.runtime.placement.isolation import isolation_demand
from bkctl.runtime.placement.survey import BookieSurvey

logger = logging.getLogger(__name__)


class Replacements:
    """Chooses successors for the bookies of one ledger, from one survey of the writable bookies."""

    def __init__(self, ports: ClientPorts, ledger_id: int, metadata: LedgerMetadata, survey: BookieSurvey) -> None:
        self._ledger_id = ledger_id
        self._write_quorum_size = metadata.write_quorum_size
        self._isolation = isolation_demand(metadata.custom_metadata)
        self._random = ports.clock.random
        self._survey = survey
        self._suspects = ports.suspects.current()

    @classmethod
    async def fetch(cls, ports: ClientPorts, ledger_id: int, metadata: LedgerMetadata) -> Replacements:
        """Create an instance with the currently writable bookies."""
        return cls(ports, ledger_id, metadata, await ports.placement.survey(await ports.registrations.writable()))

    def choose(
        self, ensemble: tuple[str, ...], failed: Mapping[int, str], unsuitable: Collection[str] = ()
    ) -> dict[int, str]:
        """Successors for the failed (index, bookie) pairs that are still in ``ensemble``, as far as candidates suffice.

        Excludes all failed and ``unsuitable`` bookies and the new ensemble. Uses suspects if the rules leave no other.
        If candidates are short, replaces failed bookies that are not registered as writable first. Raises
        NotEnoughBookiesError if no failed bookie can be replaced.
        """
        need = PlacementNeed(
            write_quorum_size=self._write_quorum_size,
            isolation=self._isolation,
            excluded=frozenset({*failed.values(), *unsuitable}),
            last_resort=self._suspects,
        )
        view = self._survey.view(ensemble)
        chosen: Choice | None = None
        indexes: list[int] = []
        refusal: NoChoice | None = None
        for index, bookie_id in sorted(failed.items(), key=lambda item: (item[1] in self._survey.writable, item[0])):
            if ensemble[index] != bookie_id:
                continue
            found = choose_replacements(view, self._survey.rules, need, ensemble, [*indexes, index], self._random)
            if isinstance(found, Choice):
                chosen, indexes = found, [*indexes, index]
            else:
                refusal = found
        if chosen is None:
            raise NotEnoughBookiesError(self._ledger_id, self._why_none(failed.values(), refusal))
        warn_of_broken_rules(self._ledger_id, chosen)
        return dict(zip(indexes, chosen.bookies, strict=True))

    def _why_none(self, failed: Collection[str], refusal: NoChoice | None) -> str:
        names = ", ".join(sorted(set(failed)))
        if refusal is not None and refusal.is_by_rules:
            return f"no bookie can replace {names}: {refusal.sentence}"
        return (
            f"no writable bookie is left to replace {names} ({len(self._survey.writable)} are registered as "
            "writable; a failed one stays registered until its session expires)"
        )


def warn_of_broken_rules(ledger_id: int, chosen: Choice) -> None:
    """Log the rules that a choice breaks: they are never broken without notice."""
    if chosen.broken:
        logger.warning("ledger %d breaks placement rules: %s", ledger_id, "; ".join(map(str, chosen.broken)))


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
    replacements = await Replacements.fetch(ports, ledger_id, copy.value)

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
