"""Placement of one client: reads racks, groups and free space from their sources, and chooses by the rules.

Decisions are in ``bkctl.runtime.placement``. See docs/reference/placement.md.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from bkctl.runtime.config import PlacementConfig, PlacementPolicy
from bkctl.runtime.errors import BookieError, ConfigurationError, MetadataAuthError, MetadataFormatError, NoNodeError
from bkctl.runtime.ledger.metadata import LedgerMetadata, parse_host_and_port
from bkctl.runtime.metadata.bookies.bookie_rows import usual_racks_path
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.store import MetadataStore, children_of
from bkctl.runtime.placement.isolation import isolation_demand
from bkctl.runtime.placement.rack_sources import (
    SCRIPT_ARGUMENTS_MAX,
    PulsarBookies,
    RackProblem,
    RackTable,
    decode_pulsar_bookies,
    decode_rack_table,
    decode_script_answer,
    rack_problems,
)
from bkctl.runtime.placement.rules import BrokenRule, PlacementRules, judge_ensemble
from bkctl.runtime.placement.survey import BookieSurvey, names_of
from bkctl.runtime.placement.view import DEFAULT_RACK, BookieSpace
from bkctl.runtime.ports import Bookies, Clock
from bkctl.storage.errors import BkctlError
from bkctl.storage.words import listed

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
    """Where racks, groups and free space are read. ``ledgers_root``: Pulsar's node is looked for next to it."""

    store: MetadataStore
    registrations: RegistrationClient
    bookies: Bookies
    clock: Clock
    files: RackFiles
    ledgers_root: str


def rules_of(config: PlacementConfig, *, is_rack_aware: bool) -> PlacementRules:
    """The rules that the settings describe."""
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
    """Placement with the sources that the settings name; random placement without any reads nothing."""
    is_random = config.policy is PlacementPolicy.RANDOM and config.pulsar_bookies_path is None
    needs_space = config.is_weighted_by_free_space or config.free_space_reserve_fraction > 0
    return Placement(config, None if is_random and not needs_space else sources)


class Placement:
    """Surveys of the bookies with the rules that follow from them, at most ``SURVEY_AGE_S_MAX`` old."""

    def __init__(self, config: PlacementConfig, sources: PlacementSources | None = None) -> None:
        """``sources`` None: placement is random."""
        self._config = config
        self._sources = sources
        self._survey = BookieSurvey(
            writable=frozenset(),
            rules=rules_of(config, is_rack_aware=False),
            are_rules_known=config.policy is PlacementPolicy.RANDOM,
        )
        self._last = self._survey
        """The last one that was asked for: the same, or with fewer bookies."""
        self._read_at_ns: int | None = None
        self._rack_problems: tuple[RackProblem, ...] = ()
        self._reading = asyncio.Lock()

    async def survey(self, writable: Collection[str]) -> BookieSurvey:
        """What the sources know about the bookies that are writable now; ConfigurationError, MetadataError."""
        now = frozenset(writable)
        if self._sources is not None and self._is_old(self._sources.clock, now):
            async with self._reading:
                if self._is_old(self._sources.clock, now):
                    self._survey = self._last = await self._read(self._sources, now)
                    self._read_at_ns = self._sources.clock.monotonic_ns()
        if self._last.writable != now:
            self._last = msgspec.structs.replace(self._survey, writable=now)
        return self._last

    async def broken_rules(
        self, metadata: LedgerMetadata, writable: Collection[str]
    ) -> dict[int, tuple[BrokenRule, ...]] | None:
        """The rules that the segments of a ledger break, by first entry; None if the cluster's rules are unknown."""
        survey = await self.survey(writable)
        if not survey.has_rules:
            return {} if survey.are_rules_known else None
        isolation = isolation_demand(metadata.custom_metadata)
        broken = {}
        for segment in metadata.segments:
            view = survey.view(segment.ensemble)
            found = judge_ensemble(view, survey.rules, segment.ensemble, metadata.write_quorum_size, isolation)
            if found:
                broken[segment.first_entry_id] = found
        return broken

    def _is_old(self, clock: Clock, writable: frozenset[str]) -> bool:
        """Whether the survey is to be read again, for these bookies."""
        if self._read_at_ns is None or not writable <= self._survey.writable:
            return True
        return clock.monotonic_ns() - self._read_at_ns > SURVEY_AGE_S_MAX * 1e9

    async def _read(self, sources: PlacementSources, writable: frozenset[str]) -> BookieSurvey:
        config = self._config
        pulsar = await _read_pulsar(sources, config)
        hosts: Mapping[str, str] = {}
        if config.policy is not PlacementPolicy.RANDOM and (pulsar is not None or config.has_rack_source):
            hosts = await self._hosts(sources, writable)
        members = await _members(sources, writable, hosts) if pulsar is not None or config.has_rack_source else {}
        rack_count = 0 if pulsar is None else _rack_count(pulsar.racks, members)
        rules = rules_of(config, is_rack_aware=_is_rack_aware(config, rack_count))
        tables: list[RackTable] = []
        if pulsar is not None and rules.has_racks:
            tables.append(pulsar.racks)
        if config.rack_table_file is not None and rules.has_racks:
            tables.append(decode_rack_table(await sources.files.read_table(config.rack_table_file)))
        if config.rack_script is not None and rules.has_racks:
            tables.append(await _ask_script(sources.files, config.rack_script, sorted(set(hosts.values()))))
        known = [pulsar.racks] if pulsar is not None and not rules.has_racks else tables
        problems = () if config.policy is PlacementPolicy.RANDOM else rack_problems(known, members)
        self._log_rack_problems(problems)
        space: Mapping[str, BookieSpace] = {}
        if config.is_weighted_by_free_space or config.free_space_reserve_fraction:
            space = await _ask_for_space(sources.bookies, sorted(writable))
        return BookieSurvey(
            writable=writable,
            tables=tuple(tables),
            hosts=hosts,
            space=space,
            groups={} if pulsar is None else pulsar.groups,
            rules=rules,
            are_rules_known=rules.has_racks or pulsar is not None or config.policy is PlacementPolicy.RANDOM,
            origin=_origin(config, pulsar, rack_count, pulsar_bookies_path(config, sources.ledgers_root), rules)
            + _named_problems(problems),
            rack_problems=problems,
        )

    def _log_rack_problems(self, problems: tuple[RackProblem, ...]) -> None:
        """Log each problem once, until it is gone."""
        for each in problems:
            if each not in self._rack_problems:
                logger.warning("%s", each)
        self._rack_problems = problems

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


def pulsar_bookies_path(config: PlacementConfig, ledgers_root: str) -> str:
    """Path of Pulsar's node: the one that is set, or the usual place."""
    return config.pulsar_bookies_path or usual_racks_path(ledgers_root)


async def _read_pulsar(sources: PlacementSources, config: PlacementConfig) -> PulsarBookies | None:
    """Pulsar's node; None if there is none, or if the settings do not want it. ConfigurationError."""
    if config.pulsar_bookies_path is None and (config.policy is not PlacementPolicy.AUTO or config.has_rack_source):
        return None
    path = pulsar_bookies_path(config, sources.ledgers_root)
    try:
        return decode_pulsar_bookies((await sources.store.get(path)).data)
    except NoNodeError:
        if config.pulsar_bookies_path is None:
            return None
        raise ConfigurationError(
            f"there is no node {path} with Pulsar's racks and isolation groups: set pulsar_bookies_path to its path "
            "below Pulsar's ZooKeeper directory"
        ) from None
    except (MetadataFormatError, MetadataAuthError) as error:
        fix = 'set policy = "random" below [client.placement] to choose bookies without it'
        if config.pulsar_bookies_path is not None:
            fix = "set pulsar_bookies_path to the node with Pulsar's racks and isolation groups"
        raise ConfigurationError(f"cannot use the node {path}: {error}: {fix}") from error


def _is_rack_aware(config: PlacementConfig, rack_count: int) -> bool:
    """Whether racks matter. Without bookies in two of the racks in Pulsar's node no choice could keep a rule."""
    if config.policy is not PlacementPolicy.AUTO:
        return config.policy is PlacementPolicy.RACK_AWARE
    return config.rack_table_file is not None or config.rack_script is not None or rack_count > 1


async def _members(
    sources: PlacementSources, writable: Collection[str], hosts: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """The names of each bookie that is writable or has a cookie; others were removed from the cluster."""
    members = {*writable, *await children_of(sources.store, Paths(sources.ledgers_root).cookies)}
    return {bookie_id: tuple(names_of(bookie_id, hosts)) for bookie_id in members}


def _rack_count(table: RackTable, members: Mapping[str, Sequence[str]]) -> int:
    """Racks of the bookies in Pulsar's node. An entry without a usable rack means the default rack, as in Java."""
    racks = {table.rack_of(names) for names in members.values()}
    if any(table.rack_of(names) is None and not table.invalid.keys().isdisjoint(names) for names in members.values()):
        racks.add(DEFAULT_RACK)
    return len(racks - {None})


def _origin(
    config: PlacementConfig, pulsar: PulsarBookies | None, rack_count: int, pulsar_path: str, rules: PlacementRules
) -> str:
    """A sentence for the plan; see ``BookieSurvey.origin``."""
    files = [] if config.rack_table_file is None else [f"the table {config.rack_table_file}"]
    files += [] if config.rack_script is None else [f"the script {config.rack_script}"]
    if pulsar is None:
        if files and rules.has_racks:
            return f"racks come from {' and '.join(files)}"
        if config.policy is PlacementPolicy.AUTO:
            return f"bookies are chosen at random: no source of racks is set, and there is no node {pulsar_path}"
        return ""
    groups = sum(bool(members) for members in pulsar.groups.values())
    node = f"Pulsar's node {pulsar_path} (racks: {rack_count}, isolation groups: {groups})"
    if rules.has_racks:
        return f"racks and isolation groups come from {' and '.join([node, *files])}"
    why = 'policy is "random"' if config.policy is PlacementPolicy.RANDOM else "its bookies are not in two racks"
    return f"isolation groups come from {node}; racks do not matter: {why}"


def _named_problems(problems: Sequence[RackProblem]) -> str:
    if not problems:
        return ""
    return f"; {listed(problems, separator='; ', noun='bookie with such a rack')}"


async def _ask_script(files: RackFiles, path: str, hosts: Sequence[str]) -> RackTable:
    racks: dict[str, str] = {}
    invalid: dict[str, str] = {}
    for first in range(0, len(hosts), SCRIPT_ARGUMENTS_MAX):
        some = hosts[first : first + SCRIPT_ARGUMENTS_MAX]
        answer = decode_script_answer(some, await files.run_script(path, some))
        racks.update(answer.racks)
        invalid.update(answer.invalid)
    return RackTable(racks, invalid)


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
