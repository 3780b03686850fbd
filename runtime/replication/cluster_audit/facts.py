"""What an audit knows about the bookies when it judges ledgers: one snapshot, the same on all Spark executors. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import msgspec

from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.maintenance import Maintenance
from bkctl.runtime.metadata.replication.recovery_notes import LostBookieNote
from bkctl.runtime.metadata.replication.switches import SwitchNote
from bkctl.runtime.placement.isolation import IsolationDemand, admitted_bookies
from bkctl.runtime.placement.rack_sources import normal_rack
from bkctl.runtime.placement.rules import PlacementRule, PlacementRules, spreads
from bkctl.runtime.placement.survey import BookieSurvey, rules_that_apply
from bkctl.runtime.placement.view import ClusterView, KnownBookie
from bkctl.runtime.replication.judge.drained_bookies import LeavingBookie

RACK_PREFIX = "rack:"
"""Before the path of a rack, in the text of a loss."""


ZOOKEEPER = "zookeeper"
"""``ledgers_from`` and ``bookies_from`` of an audit that reads no file."""


class Loss(msgspec.Struct, frozen=True):
    """Bookies and racks that are supposed to be lost together. ``name`` is as given, such as ``b1:3181,rack:/r2``."""

    name: str
    bookies: frozenset[str] = frozenset()
    racks: frozenset[str] = frozenset()


class AuditFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The bookies at one moment.

    ``with_cookie``: the bookies that have a cookie, so they belong to the cluster even if they are down; None: unknown.
    ``survey``: racks, isolation groups and rules of placement; None: they are unknown. ``what_if``: losses that the
    caller asks about. ``ledgers_from`` and ``bookies_from``: where these were read, for the report.
    ``skipped_snapshots``: newer snapshots that are not whole. ``file_written_ms``: the time of the ledgers in the file,
    from what is in it: of the newest change in a snapshot, or when the backup was made; None: no file, or not known.
    ``metadata_uri`` and ``instance_id`` name the cluster, as far as they are known. ``maintenance``: bookies that are
    expected to be away. ``deadlines``: until when ``auditor`` waits for lost bookies. ``is_repaired``: whether
    autorecovery is enabled, and an auditor is elected or a ledger is marked; None: unknown. ``off_since_ms`` and
    ``off_note``: since when it is disabled (None: it is enabled), and who did it; ``is_auditor_elected`` None: unknown.
    ``no_answer``: registered bookies that did not answer, with the reason; ``refusals``: those that answered with
    an error. ``given_up``: by ledger, the bookies whose loss an operator accepted; ``returned``: those of them that
    are back, with the ledgers. ``disks``: total and free bytes of the others; ``out_of_space``: why bookies without
    space are read-only; ``troubles``: what bookies publish that is wrong with them; ``serving``: bookies that are
    not registered, but answer; ``moving``: those whose ledgers a command moves; ``leaving``: those that a drain made
    read-only, and those that are down and were given up; ``read_only_by``: ``drain`` or
    ``operator`` for those that one of these made so. All of these are empty if none was asked.
    """

    registrations: Registrations
    now_ms: int
    metadata_uri: str | None = None
    instance_id: str | None = None
    with_cookie: frozenset[str] | None = None
    maintenance: tuple[Maintenance, ...] = ()
    deadlines: tuple[tuple[str, LostBookieNote], ...] = ()
    auditor: str | None = None
    is_repaired: bool | None = None
    off_since_ms: int | None = None
    off_note: SwitchNote = SwitchNote()
    is_auditor_elected: bool | None = None
    no_answer: Mapping[str, str] = {}
    refusals: Mapping[str, str] = {}
    given_up: Mapping[int, GivenUpNote] = {}
    returned: tuple[tuple[str, tuple[int, ...]], ...] = ()
    disks: Mapping[str, tuple[int, int | None]] = {}
    out_of_space: Mapping[str, str] = {}
    troubles: Mapping[str, str] = {}
    serving: frozenset[str] = frozenset()
    moving: frozenset[str] = frozenset()
    leaving: tuple[LeavingBookie, ...] = ()
    read_only_by: Mapping[str, str] = {}
    survey: BookieSurvey | None = None
    what_if: tuple[Loss, ...] = ()
    ledgers_from: str = ZOOKEEPER
    bookies_from: str = ZOOKEEPER
    skipped_snapshots: int = 0
    file_written_ms: int | None = None


def parse_loss(text: str) -> Loss:
    """The loss that ``ID[,ID...]`` describes; ``rack:/PATH`` is all bookies of a rack. ValueError if it is empty."""
    parts = [part.strip() for part in text.split(",")]
    racks = [normal_rack(part.removeprefix(RACK_PREFIX)) for part in parts if part.startswith(RACK_PREFIX)]
    if not all(parts) or None in racks:
        raise ValueError(f"{text!r} has an empty name: write bookie ids, or {RACK_PREFIX}/PATH, with commas between")
    bookies = (part for part in parts if not part.startswith(RACK_PREFIX))
    return Loss(text, frozenset(bookies), frozenset(rack for rack in racks if rack is not None))


class KnownBookies:
    """The facts, prepared for many questions. Racks of bookies that only ledgers name are added as they come."""

    def __init__(self, facts: AuditFacts) -> None:
        self.facts = facts
        self.live = facts.registrations.live
        self.writable = frozenset(facts.registrations.writable)
        self.groups: Mapping[str, frozenset[str]] = {} if facts.survey is None else facts.survey.groups
        """The members of Pulsar's isolation groups; empty if there are none, or they are unknown."""
        survey = facts.survey if facts.survey is not None and facts.survey.tables else None
        self.has_racks = survey is not None
        self.rules = PlacementRules() if survey is None else rules_that_apply(survey, self.live)
        bookies = {} if survey is None else dict(survey.view(self.live).bookies)

        @cache
        def rack_of(bookie_id: str) -> str | None:
            if survey is None:
                return None
            if bookie_id not in bookies:
                bookies[bookie_id] = KnownBookie(is_writable=False, rack=survey.rack_of(bookie_id))
            return bookies[bookie_id].rack

        self.rack_of: Callable[[str], str | None] = rack_of
        """The rack of a bookie; None if it is unknown."""
        self.view = ClusterView(bookies)
        """All bookies whose rack was asked for."""
        self.spreads = tuple(
            spread._replace(place_of=self.rack_of) if spread.rule is PlacementRule.RACKS else spread
            for spread in spreads(self.view, self.rules)
        )
        """What the racks of each write set should span."""
        self.writable_in_rack: dict[str | None, frozenset[str]] = {}
        for bookie_id in self.writable:
            rack = self.rack_of(bookie_id)
            self.writable_in_rack[rack] = self.writable_in_rack.get(rack, frozenset()) | {bookie_id}
        self.what_if = tuple(
            (loss, frozenset(each for each in self.writable if self.is_part_of(loss, each))) for loss in facts.what_if
        )
        """The losses that the caller asks about, with their writable bookies."""

    def is_part_of(self, loss: Loss, bookie_id: str) -> bool:
        """Whether a loss includes a bookie."""
        return bookie_id in loss.bookies or self.rack_of(bookie_id) in loss.racks

    def outside_groups(self, demand: IsolationDemand, members: frozenset[str], ensemble_size: int) -> frozenset[str]:
        """The bookies of a segment that are not in the groups of its ledger, as ``judge_ensemble`` finds them."""
        admitted = admitted_bookies(demand, self.groups, self.writable | members, ensemble_size)
        return frozenset() if admitted is None else members - admitted

    def may_return(self, bookie_id: str) -> bool:
        """Whether a bookie serves its copies, or may do so again: it is registered or has a cookie.

        Without cookies, every bookie may return: a loss is claimed only with proof.
        """
        with_cookie = self.facts.with_cookie
        return with_cookie is None or bookie_id in with_cookie or bookie_id in self.live

    def mode_of(self, bookie_id: str) -> str:
        """``writable``, ``read_only`` or ``unregistered``."""
        if bookie_id in self.writable:
            return "writable"
        return "read_only" if bookie_id in self.live else "unregistered"
