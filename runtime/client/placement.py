"""Placement of one client: reads racks, groups and free space from their sources, and chooses by the rules.

Decisions are in ``runtime.placement``. Without a source, placement is random and nothing is read.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from runtime.config import PlacementConfig, PlacementPolicy
from runtime.errors import BookieError, ConfigurationError, NoNodeError
from runtime.ledger.metadata import LedgerMetadata, parse_host_and_port
from runtime.metadata.bookies.registration import RegistrationClient
from runtime.metadata.store import MetadataStore
from runtime.placement.isolation import isolation_demand
from runtime.placement.rack_sources import (
    SCRIPT_ARGUMENTS_MAX,
    PulsarBookies,
    RackTable,
    decode_pulsar_bookies,
    decode_rack_table,
    decode_script_answer,
)
from runtime.placement.rules import BrokenRule, PlacementRules, judge_ensemble
from runtime.placement.view import BookieSpace, BookieSurvey
from runtime.ports import Bookies, Clock
from storage.errors import BkctlError

logger = logging.getLogger(__name__)

SURVEY_AGE_S_MAX = 30.0
"""Racks, groups and free space are read again after this time."""


class RackFiles(Protocol):
    """Files and programs of the operator that know racks."""

    async def read_table(self, path: str) -> str:
        """Text of a rack table; ConfigurationError."""

    async def run_script(self, path: str, hosts: Sequence[str]) -> str:
        """What a rack script prints for these hosts; ConfigurationError."""


@dataclasses.dataclass(frozen=True)
class PlacementSources:
    """Where racks, groups and free space are read."""

    store: MetadataStore
    registrations: RegistrationClient
    bookies: Bookies
    clock: Clock
    files: RackFiles


def rules_of(config: PlacementConfig) -> PlacementRules:
    """The rules that the settings describe."""
    is_rack_aware = config.policy is PlacementPolicy.RACK_AWARE
    regions = config.min_regions_per_write_quorum
    return PlacementRules(
        min_racks_per_write_quorum=config.min_racks_per_write_quorum if is_rack_aware else 0,
        min_regions_per_write_quorum=regions if is_rack_aware and regions > 1 else 0,
        needs_known_rack=is_rack_aware and config.is_enforced,
        is_strict=config.is_enforced,
        is_weighted_by_free_space=config.is_weighted_by_free_space,
        reserve_fraction=config.free_space_reserve_fraction,
    )


def placement_on(config: PlacementConfig, sources: PlacementSources) -> Placement:
    """Placement with the sources that the settings name; without any, random placement that reads nothing."""
    needs_space = config.is_weighted_by_free_space or config.free_space_reserve_fraction > 0
    needs_source = needs_space or rules_of(config).has_racks or config.pulsar_bookies_path is not None
    return Placement(config, sources if needs_source else None)


class Placement:
    """The rules, and surveys of the bookies, which are at most ``SURVEY_AGE_S_MAX`` old."""

    def __init__(self, config: PlacementConfig, sources: PlacementSources | None = None) -> None:
        """``sources`` None: none is configured."""
        self.rules = rules_of(config)
        self._config = config
        self._sources = sources
        self._survey = BookieSurvey(writable=frozenset())
        self._read_at_ns: int | None = None
        self._reading = asyncio.Lock()

    async def survey(self, writable: Collection[str]) -> BookieSurvey:
        """What the sources know about the bookies that are writable now; ConfigurationError, MetadataError."""
        now = frozenset(writable)
        if self._sources is None:
            return BookieSurvey(writable=now)
        async with self._reading:
            if not now <= self._survey.writable or self._is_old(self._sources.clock):
                self._survey = await self._read(self._sources, now)
                self._read_at_ns = self._sources.clock.monotonic_ns()
            return msgspec.structs.replace(self._survey, writable=now)

    @property
    def has_sources(self) -> bool:
        """Whether the settings name a source; without one there are no rules."""
        return self._sources is not None

    async def broken_rules(
        self, metadata: LedgerMetadata, writable: Collection[str]
    ) -> dict[int, tuple[BrokenRule, ...]]:
        """The rules that the segments of a ledger break, by first entry."""
        survey = await self.survey(writable)
        isolation = isolation_demand(metadata.custom_metadata)
        broken = {}
        for segment in metadata.segments:
            view = survey.view(segment.ensemble)
            found = judge_ensemble(view, self.rules, segment.ensemble, metadata.write_quorum_size, isolation)
            if found:
                broken[segment.first_entry_id] = found
        return broken

    def _is_old(self, clock: Clock) -> bool:
        return self._read_at_ns is None or clock.monotonic_ns() - self._read_at_ns > SURVEY_AGE_S_MAX * 1e9

    async def _read(self, sources: PlacementSources, writable: frozenset[str]) -> BookieSurvey:
        config = self._config
        tables: list[RackTable] = []
        groups: Mapping[str, frozenset[str]] = {}
        hosts = await self._hosts(sources, writable) if self.rules.has_racks else {}
        if config.pulsar_bookies_path is not None:
            pulsar = await _read_pulsar_bookies(sources.store, config.pulsar_bookies_path)
            tables.append(pulsar.racks)
            groups = pulsar.groups
        if config.rack_table_file is not None and self.rules.has_racks:
            tables.append(decode_rack_table(await sources.files.read_table(config.rack_table_file)))
        if config.rack_script is not None and self.rules.has_racks:
            tables.append(await _ask_script(sources.files, config.rack_script, sorted(set(hosts.values()))))
        space: Mapping[str, BookieSpace] = {}
        if config.is_weighted_by_free_space or config.free_space_reserve_fraction:
            space = await _ask_for_space(sources.bookies, sorted(writable))
        return BookieSurvey(writable=writable, tables=tuple(tables), hosts=hosts, space=space, groups=groups)

    async def _hosts(self, sources: PlacementSources, writable: frozenset[str]) -> dict[str, str]:
        """The host of each writable bookie: the one in its id, or else in its registration."""
        hosts = {}
        for bookie_id in sorted(writable):
            address = parse_host_and_port(bookie_id)
            if address is None:
                try:
                    address = await sources.registrations.address(bookie_id)
                except BkctlError:
                    continue  # it has just gone
            hosts[bookie_id] = address[0]
        return hosts


async def _read_pulsar_bookies(store: MetadataStore, path: str) -> PulsarBookies:
    try:
        node = await store.get(path)
    except NoNodeError:
        raise ConfigurationError(
            f"there is no node {path} with Pulsar's racks and isolation groups: set pulsar_bookies_path to its path "
            "below Pulsar's ZooKeeper directory"
        ) from None
    return decode_pulsar_bookies(node.data)


async def _ask_script(files: RackFiles, path: str, hosts: Sequence[str]) -> RackTable:
    racks: dict[str, str] = {}
    for first in range(0, len(hosts), SCRIPT_ARGUMENTS_MAX):
        some = hosts[first : first + SCRIPT_ARGUMENTS_MAX]
        racks.update(decode_script_answer(some, await files.run_script(path, some)).racks)
    return RackTable(racks)


async def _ask_for_space(bookies: Bookies, bookie_ids: Sequence[str]) -> dict[str, BookieSpace]:
    answers = await asyncio.gather(*map(bookies.info, bookie_ids), return_exceptions=True)
    space = {}
    for bookie_id, answer in zip(bookie_ids, answers, strict=True):
        if isinstance(answer, BookieError):
            logger.warning("bookie %s does not report its free space: %s", bookie_id, answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            space[bookie_id] = BookieSpace(answer.total_bytes, answer.free_bytes)
    return space
