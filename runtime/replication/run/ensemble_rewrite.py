"""Renames a bookie in the ensembles of all ledgers, after proof that the new id is the same bookie.

The proof: the destination has entries that only the source should have. They are sampled over all ledgers and verified
by their digests. If there are such entries, equal cookies are not sufficient, because most bookies of a cluster have
similar settings. Different cookies prove the opposite. Source: cli-parity card 28.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import random
from collections.abc import Callable

import msgspec

from bkctl.runtime.client.ports import ClientPorts, credentials_of
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.ledger.metadata import LedgerMetadata, Segment, is_valid_bookie_id
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.bookies.cookies import CookieStore
from bkctl.runtime.metadata.ledgers.changes import Action, Step
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger, scan_stored
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.reader import CopyReader
from bkctl.runtime.replication.judge.copies import CopyState
from bkctl.runtime.replication.judge.fragments import EntryRange, first_stored, last_stored, segment_entries
from bkctl.storage.ids import INVALID_ENTRY_ID

PROBES_MAX = 64
"""Maximum entries that the destination must prove to have; each of a different ledger."""

_OBSTACLES_SHOWN_MAX = 5
_PROGRESS_EVERY_LEDGERS = 256
_ATTEMPTS_MAX = 3


class Probe(msgspec.Struct, frozen=True):
    """An entry that the source should have, so the destination must have it.

    ``is_certain`` False: the first entry of an open segment, which may not exist yet. Its absence proves nothing.
    """

    ledger_id: int
    entry_id: int
    metadata: LedgerMetadata
    is_certain: bool


class RewriteSurvey(msgspec.Struct):
    """Result of a scan of all ledgers.

    ``ledgers``: number of ledgers to rewrite, with ``segments`` changed segments. ``ends_left``: ledgers whose open
    last segment references the source and stays unchanged. ``obstacles``: sentences about the first ledgers that block
    the rewrite. ``unreadable``: ledgers that may reference the source. ``digest``: SHA-256 of ids and versions.
    """

    scanned: int = 0
    ledgers: int = 0
    segments: int = 0
    ends_left: int = 0
    unreadable: int = 0
    obstacles: list[str] = []
    obstacles_count: int = 0
    digest: str = ""
    probes: tuple[Probe, ...] = ()


@dataclasses.dataclass(eq=False)
class EnsembleRewrite:
    """One rewrite from ``source`` to ``destination``; RefusedError for invalid ids."""

    ports: ClientPorts
    store: MetadataStore
    source: str
    destination: str
    _: dataclasses.KW_ONLY
    config: ReplicationConfig
    has_open_ends: bool = False

    def __post_init__(self) -> None:
        for bookie_id in (self.source, self.destination):
            if not is_valid_bookie_id(bookie_id):
                raise RefusedError(f"nothing was changed: {bookie_id!r} is not a bookie id")
        if self.source == self.destination:
            raise RefusedError(f"nothing was changed: both ids are {self.source}")
        self._cookies = CookieStore(self.store, self.ports.ledgers.root)

    async def require_roles(self) -> None:
        """RefusedError unless the destination is registered and the source is not."""
        live = (await self.ports.registrations.snapshot()).live
        if self.source in live:
            raise RefusedError(
                f"nothing was changed: bookie {self.source} is registered, so the ids are two bookies; stop it first"
            )
        if self.destination not in live:
            raise RefusedError(
                f"nothing was changed: bookie {self.destination} is not registered, so its entries cannot be "
                "checked: start it first"
            )

    async def survey(self, on_progress: Callable[[int], None] | None = None) -> RewriteSurvey:
        """Read all ledgers. Memory use does not depend on their number."""
        found = RewriteSurvey()
        certain, uncertain = (_Sample(self.ports.clock.random) for _ in range(2))
        digest = hashlib.sha256()
        ledgers = scan_stored(self.store, self.ports.ledgers)
        async with contextlib.aclosing(ledgers):
            async for ledger in ledgers:
                found.scanned += 1
                if on_progress is not None and found.scanned % _PROGRESS_EVERY_LEDGERS == 0:
                    on_progress(found.scanned)
                if ledger.metadata is None or ledger.node is None:
                    found.unreadable += 1
                    continue
                rewrite = self._rewrite(ledger.metadata)
                found.ends_left += rewrite.is_end_left
                if rewrite.obstacle is not None:
                    found.obstacles_count += 1
                    if len(found.obstacles) < _OBSTACLES_SHOWN_MAX:
                        found.obstacles.append(f"ledger {ledger.ledger_id}: {rewrite.obstacle}")
                if not rewrite.segments:
                    continue
                found.ledgers += 1
                found.segments += len(rewrite.segments)
                digest.update(b"%d %d\n" % (ledger.ledger_id, ledger.node.stat.version))
                probe = self._choose_probe(ledger.ledger_id, ledger.metadata, rewrite)
                if probe is not None:
                    (certain if probe.is_certain else uncertain).add(probe)
        found.digest, found.probes = digest.hexdigest(), (*certain.probes, *uncertain.probes)
        return found

    async def verify_identity(self, survey: RewriteSurvey) -> str:
        """A sentence that says how the destination proved to be the source; RefusedError if it did not."""
        source, destination = await self._cookies.find(self.source), await self._cookies.find(self.destination)
        has_equal_cookies = source is not None and destination is not None
        if source is not None and destination is not None:
            renamed = msgspec.structs.replace(source.value, bookie_id=self.destination)
            difference = ", ".join(each.field for each in destination.value.differences(renamed))
            if difference:
                raise RefusedError(
                    f"nothing was changed: {self.destination} is not {self.source}: their cookies differ in "
                    f"{difference}"
                )
        if (present_count := await self._probe(survey.probes)) > 0:
            return f"{self.destination} has all of {present_count} sampled entries of {self.source}"
        if not survey.probes:
            return f"no entry is affected: {self.source} has none of these ledgers"
        if not has_equal_cookies:
            raise RefusedError(
                f"nothing was changed: nothing proves that {self.destination} is {self.source}: it has none of "
                "the sampled entries, which may not exist, and there are no two cookies to compare"
            )
        return f"the cookies of {self.source} and {self.destination} have the same directories of the same instance"

    def decide(self, _: int, stored: StoredLedger | None) -> Step:
        """Decide what to do with a ledger in its current state."""
        if stored is None or stored.metadata is None:
            return Step(Action.NONE)
        rewrite = self._rewrite(stored.metadata)
        if rewrite.obstacle is not None:
            return Step(Action.FAIL, reason=rewrite.obstacle)
        if rewrite.metadata is None:
            return Step(Action.NONE)
        return Step(Action.SET, encode_ledger_metadata(rewrite.metadata))

    def _rewrite(self, metadata: LedgerMetadata) -> Rewrite:
        return rewrite_bookie(metadata, self.source, self.destination, has_open_ends=self.has_open_ends)

    def _choose_probe(self, ledger_id: int, metadata: LedgerMetadata, rewrite: Rewrite) -> Probe | None:
        """An entry of the ledger that proves that a bookie is the source; None if the source should have no entry."""
        randomness = self.ports.clock.random
        segments = list(rewrite.segments)
        randomness.shuffle(segments)
        uncertain = None
        for segment_index in segments:
            segment = metadata.segments[segment_index]
            index = segment.ensemble.index(self.source)
            if segment_index == len(metadata.segments) - 1 and not metadata.is_closed:
                first_round = EntryRange(segment.first_entry_id, segment.first_entry_id + metadata.ensemble_size - 1)
                uncertain = Probe(
                    ledger_id, first_stored(first_round, index, *metadata.sizes), metadata, is_certain=False
                )
                continue
            entries = segment_entries(metadata, segment_index)
            ends = first_stored(entries, index, *metadata.sizes), last_stored(entries, index, *metadata.sizes)
            if ends[0] != INVALID_ENTRY_ID:
                return Probe(ledger_id, randomness.choice(ends), metadata, is_certain=True)
        return uncertain

    async def _probe(self, probes: tuple[Probe, ...]) -> int:
        """Number of entries that the destination has; RefusedError if a required one is missing."""
        reader = CopyReader(self.ports, self.config, lambda _: True)
        present_count = 0
        for probe in probes:
            credentials = credentials_of(probe.ledger_id, probe.metadata)
            copy = await reader.read(self.destination, credentials, probe.entry_id, attempts_max=_ATTEMPTS_MAX)
            if copy.state is CopyState.PRESENT:
                present_count += 1
            elif probe.is_certain or copy.state is not CopyState.MISSING:
                raise RefusedError(
                    f"nothing was changed: {self.source} should have entry {probe.entry_id} of ledger "
                    f"{probe.ledger_id}, but {self.destination} does not have it ({copy.state.value}: "
                    f"{copy.reason})"
                )
        return present_count


class _Sample:
    """A uniform random sample of probes (reservoir sampling)."""

    def __init__(self, randomness: random.Random) -> None:
        self._random = randomness
        self._offered = 0
        self.probes: list[Probe] = []

    def add(self, probe: Probe) -> None:
        """Add a candidate."""
        self._offered += 1
        if len(self.probes) < PROBES_MAX:
            self.probes.append(probe)
            return
        slot = self._random.randrange(self._offered)
        if slot < PROBES_MAX:
            self.probes[slot] = probe


class Rewrite(msgspec.Struct, frozen=True):
    """The rewrite of one ledger.

    ``segments``: indexes of changed segments, empty if ``metadata`` is None. ``is_end_left``: the last segment
    references the old id and stays, because the ledger is not closed. ``obstacle``: why the ledger must not be changed.
    """

    metadata: LedgerMetadata | None = None
    segments: tuple[int, ...] = ()
    is_end_left: bool = False
    obstacle: str | None = None


def rewrite_bookie(metadata: LedgerMetadata, source: str, destination: str, *, has_open_ends: bool) -> Rewrite:
    """Replace ``source`` by ``destination`` in all ensembles; moves no entries.

    The last segment of a ledger that is not closed belongs to its writer or recovery, whose next compare-and-set would
    fail. So it is changed only with ``has_open_ends``, which states that no client writes any longer.
    """
    segments = list(metadata.segments)
    changed: list[int] = []
    is_end_left = False
    for index, segment in enumerate(metadata.segments):
        ensemble = segment.ensemble
        if source not in ensemble:
            continue
        if destination in ensemble or ensemble.count(source) > 1:
            return Rewrite(obstacle=f"the segment at entry {segment.first_entry_id} would have {destination} twice")
        is_open_end = index == len(segments) - 1 and not metadata.is_closed
        if is_open_end and not has_open_ends:
            is_end_left = True
            continue
        renamed = tuple(destination if bookie_id == source else bookie_id for bookie_id in ensemble)
        segments[index] = Segment(segment.first_entry_id, renamed)
        changed.append(index)
    if not changed:
        return Rewrite(is_end_left=is_end_left)
    # The creator's token is only needed at creation; every rewrite sets it to 0 (metadata section 6.6).
    renamed_metadata = msgspec.structs.replace(metadata, segments=tuple(segments), creator_token=0)
    return Rewrite(renamed_metadata, tuple(changed), is_end_left)
