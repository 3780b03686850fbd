"""What an audit knows about the bookies of a cluster, and the losses that its caller asks about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from bkctl.commands.audit.earlier import EarlierReports
from bkctl.commands.bookie.read_only_reasons import find_leaving, with_reasons
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.session import Session
from bkctl.runtime.errors import BookieNotFoundError, ConfigurationError
from bkctl.runtime.metadata.cluster.operation_lock import moved_bookies
from bkctl.runtime.metadata.cluster.root import read_instance_id
from bkctl.runtime.metadata.replication.recovery_status import is_repaired, read_recovery_status
from bkctl.runtime.metadata.replication.switches import SwitchNote, decode_note
from bkctl.runtime.replication.cluster_audit.comparison import require_comparable
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts, KnownBookies, Loss, parse_loss
from bkctl.runtime.replication.judge.cluster_facts import BookieFacts
from bkctl.runtime.replication.judge.drained_bookies import LeavingBookie
from bkctl.runtime.replication.judge.needed_bookies import Idle
from bkctl.runtime.replication.survey.bookie_facts import ask_bookies
from bkctl.spark_reports.audit_files import ReportExtras

_ANSWER_TIMEOUT_S = 5.0
"""Longest wait for the answer of a bookie: longer than that of the status, because a report is kept."""


def parse_losses(texts: Iterable[str]) -> tuple[Loss, ...]:
    """The values of ``--what-if``; InvalidArgumentError. The same value twice counts once."""
    try:
        return tuple(parse_loss(text) for text in dict.fromkeys(texts))
    except ValueError as error:
        raise InvalidArgumentError(f"--what-if {error}") from None


class AuditQuestions(NamedTuple):
    """What the caller asks about, besides the ledgers: losses, and earlier reports to compare with."""

    losses: tuple[Loss, ...] = ()
    earlier: EarlierReports = EarlierReports()

    def extras(self, context: CommandContext) -> ReportExtras:
        """What the files of the report have besides it."""
        return ReportExtras(self.earlier.before, self.earlier.runs, context.console.complete)


async def read_facts(context: CommandContext, session: Session, *, is_live: bool = True) -> AuditFacts:
    """The bookies now; ConfigurationError if a source of racks that the settings name cannot be read.

    ``is_live``: registered bookies are asked whether they answer; those in a file are not.
    """
    registrations = await session.registrations.snapshot()
    with_cookie = frozenset(await session.registrations.with_cookie())
    asked: tuple[BookieFacts, ...] = ()
    moving, leaving = frozenset[str](), tuple[LeavingBookie, ...]()
    if is_live:
        pool = session.bookies(timeout_max_s=_ANSWER_TIMEOUT_S)
        troubles = await session.registrations.troubles(registrations)
        asked = await ask_bookies(pool, registrations, with_cookie, troubles, _ANSWER_TIMEOUT_S)
        asked = await with_reasons(context, session, asked, _ANSWER_TIMEOUT_S)
        moving, removed = await moved_bookies(session.store, session.root)
        leaving = await find_leaving(session, asked, moving, removed)
    idle = {each.bookie_id: each.why_idle(moving) for each in asked}
    problems = {each.bookie_id: (each.problem, each.is_refusing) for each in asked if each.problem is not None}
    survey = None
    try:
        survey = await (await session.client()).ports.placement.survey(registrations.writable)
    except ConfigurationError as error:
        if context.settings.client.placement.has_rack_source:
            raise
        context.console.warn(f"racks are unknown: {error}")
    recovery = await read_recovery_status(session.store, session.root, session.foreign, session.ledgers)
    off = await session.switches.switched_off()
    return AuditFacts(
        registrations=registrations,
        now_ms=session.now_ms,
        metadata_uri=context.settings.metadata_uri,
        instance_id=await read_instance_id(session.store, session.root),
        with_cookie=with_cookie,
        maintenance=recovery.maintenance,
        deadlines=recovery.deadlines,
        auditor=None if recovery.auditor is None else recovery.auditor.bookie_id,
        is_repaired=await is_repaired(session.store, session.root, session.foreign, recovery),
        off_since_ms=None if off is None else off.since_ms,
        off_note=SwitchNote() if off is None else decode_note(off.note),
        is_auditor_elected=recovery.auditor is not None,
        no_answer={bookie_id: problem for bookie_id, (problem, is_refusing) in problems.items() if not is_refusing},
        refusals={bookie_id: problem for bookie_id, (problem, is_refusing) in problems.items() if is_refusing},
        disks={each.bookie_id: (each.total_bytes, each.free_bytes) for each in asked if each.total_bytes is not None},
        out_of_space={each.bookie_id: each.out_of_space for each in asked if each.out_of_space is not None},
        troubles={each.bookie_id: each.trouble for each in asked if each.trouble},
        serving=frozenset(each.bookie_id for each in asked if each.serves_unregistered),
        moving=moving,
        leaving=(*leaving, *(LeavingBookie.given_up(*each) for each in recovery.away)),
        read_only_by={each: why.value for each, why in idle.items() if why in {Idle.DRAIN, Idle.OPERATOR}},
        given_up=recovery.given_up,
        returned=recovery.returned,
        survey=survey,
    )


def with_request(facts: AuditFacts, request: AuditQuestions) -> AuditFacts:
    """The facts with the losses; BookieNotFoundError, or InvalidArgumentError for a rack, if the cluster has none.

    ConflictError if the earlier report is of another cluster.
    """
    losses = request.losses
    if request.earlier.before is not None:
        require_comparable(request.earlier.before, facts.instance_id, request.earlier.path)
    known = KnownBookies(facts)
    members = known.live.union(facts.with_cookie or ())
    racks = {known.rack_of(each) for each in members} - {None}
    for loss in losses:
        for bookie_id in sorted(loss.bookies - members):
            sentence = f"bookie {bookie_id} is unknown: it is not registered and has no cookie"
            raise BookieNotFoundError(sentence, bookie_id)
        for rack in sorted(loss.racks - racks):
            named = ", ".join(sorted(each for each in racks if each))
            reason = f"the racks are {named}" if named else "no source of racks is set, or racks do not matter"
            raise InvalidArgumentError(f"--what-if {loss.name}: no bookie is in rack {rack}: {reason}")
    return msgspec.structs.replace(facts, what_if=losses)
