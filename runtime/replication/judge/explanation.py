"""Why a ledger is not fully replicated, or cannot be closed or recovered, and what would happen next. Pure.

``LedgerFacts`` is what was found out about the ledger, ``LedgerExplanation`` what follows from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from bkctl.runtime.client.recovery import blocking_members
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.metadata.replication.given_up_note import bookies_given_up
from bkctl.runtime.metadata.replication.maintenance import Maintenance
from bkctl.runtime.placement.choice import PlacementNeed, Refusal, refusals
from bkctl.runtime.placement.isolation import isolation_demand
from bkctl.runtime.placement.rules import BrokenRule, judge_ensemble
from bkctl.runtime.replication.judge.advice import (
    accepted_on,
    down_severity,
    in_maintenance,
    is_back,
    ledgers_moving,
    may_give_back,
    no_auditor,
    save_command,
    serves_unregistered,
    waits_for_auditor,
)
from bkctl.runtime.replication.judge.closability import (
    accepted_last,
    how_it_ends,
    last_resort,
    needed_refusing,
    removal,
    what_helps,
)
from bkctl.runtime.replication.judge.fragments import Fragment, accepted_entries, format_ranges, repeated_members
from bkctl.runtime.replication.judge.ledger_facts import LedgerFacts, SegmentFacts, is_bad, segments_text
from bkctl.runtime.replication.judge.needed_bookies import members_with_source
from bkctl.runtime.replication.judge.no_live_copy import bookies_to_start, start_words
from bkctl.runtime.replication.judge.targets import CandidateVerdict, stripe_bytes, why_refused
from bkctl.runtime.replication.judge.verdict import ReplicationState
from bkctl.storage.severity import Severity, worst
from bkctl.storage.words import SHOWN_MAX, counted, enumerated, listed


class LedgerExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one ledger. ``is_closable`` None: it is closed. ``missing_answers``: why, by bookie.

    ``severity``: of the worst problem; None: there is none. ``unknown_on``: registered bookies whose copies are
    unknown, because they give no valid answer.
    """

    replication: ReplicationState
    is_closable: bool | None
    missing_answers: Mapping[str, str]
    candidates: tuple[CandidateVerdict, ...]
    problems: tuple[str, ...]
    next_steps: tuple[str, ...]
    severity: Severity | None
    unknown_on: tuple[str, ...] = ()


def explain(facts: LedgerFacts) -> LedgerExplanation:
    """The verdict that follows from the facts."""
    missing_answers = _missing_answers(facts)
    candidates = tuple(_candidates(facts))
    found = tuple(_problems(facts, missing_answers))
    problems = tuple(sentence for _, sentence in found)
    return LedgerExplanation(
        replication=facts.verdict.replication,
        is_closable=None if facts.metadata.is_closed else not missing_answers,
        missing_answers=missing_answers,
        candidates=candidates,
        problems=problems,
        next_steps=tuple(_next_steps(facts, missing_answers, candidates)) or (_nothing(facts, problems),),
        severity=worst(severity for severity, _ in found),
        unknown_on=facts.unknown_on,
    )


def _nothing(facts: LedgerFacts, problems: tuple[str, ...]) -> str:
    unknown = facts.unknown_on
    if unknown:
        who = f"{unknown[0]} gives" if len(unknown) == 1 else "they give"
        reasons = dict.fromkeys(facts.answers[each].problem or "" for each in unknown)
        return f"nothing before {who} a valid answer: {'; '.join(reasons)}; bkctl bookie show {unknown[0]}"
    seen = f"nothing is known to be wrong: {facts.seen}"
    return "nothing: no command is known that removes these problems" if problems else seen


def _missing_answers(facts: LedgerFacts) -> dict[str, str]:
    """The bookies without whose valid answers the ledger cannot be closed, with the reason; none if it can, or is."""
    if facts.metadata.is_closed:
        return {}
    valid = {each for each, answer in facts.answers.items() if answer.is_valid}
    reasons = {each: answer.problem or "" for each, answer in facts.answers.items()}
    reasons |= dict.fromkeys(facts.ignored, "counts as gone")
    missing = blocking_members(facts.metadata, valid).union(needed_refusing(facts.metadata, valid, facts.refusing))
    return {each: reasons.get(each, "not registered") for each in sorted(missing)}


def _first_segments(facts: LedgerFacts) -> dict[tuple[str, ...], SegmentFacts]:
    """The first segment of each ensemble."""
    found: dict[tuple[str, ...], SegmentFacts] = {}
    for segment in facts.needed_segments:
        found.setdefault(segment.ensemble, segment)
    return found


def _candidates(facts: LedgerFacts) -> Iterator[CandidateVerdict]:
    metadata, lost_of = facts.metadata, facts.lost_positions
    for segment in _first_segments(facts).values():
        lost = lost_of[segment.segment_index]
        view = facts.survey.view((*segment.ensemble, *facts.registrations.read_only))
        rules = msgspec.structs.replace(facts.rules, is_strict=True)
        for index in lost:
            fragment = Fragment(segment.segment_index, segment.entries, segment.ensemble, (index,), segment.is_open)
            need = PlacementNeed(
                write_quorum_size=metadata.write_quorum_size,
                isolation=isolation_demand(metadata.custom_metadata),
                bytes_needed=stripe_bytes(metadata, fragment, index),
            )
            members = [None if each in lost else bookie_id for each, bookie_id in enumerate(segment.ensemble)]
            for bookie_id, reasons in refusals(view, rules, need, members, index).items():
                if bookie_id in segment.ensemble and reasons != (Refusal.IN_ENSEMBLE,):
                    continue  # a lost member
                known = view.bookies[bookie_id]
                yield CandidateVerdict(
                    first_entry_id=segment.entries.first_entry_id,
                    replaces=segment.ensemble[index],
                    bookie_id=bookie_id,
                    rack=known.rack if facts.survey.tables else None,
                    free_bytes=facts.free_bytes.get(bookie_id, known.free_bytes),
                    refused_by=_refusal(facts, bookie_id, reasons),
                    is_refused_by_rule=any(isinstance(reason, BrokenRule) for reason in reasons),
                )


def _refusal(facts: LedgerFacts, bookie_id: str, reasons: tuple[Refusal | BrokenRule, ...]) -> str | None:
    found = [each.value if isinstance(each, Refusal) else str(each) for each in reasons]
    if not found and bookie_id in facts.silent:
        found = [facts.silent[bookie_id]]
    return "; ".join(found) or None


def _bad_copies(facts: LedgerFacts) -> dict[str, list[SegmentFacts]]:
    """Complete segments of which a bookie that answers does not have the first or the last entry, by bookie."""
    found: dict[str, list[SegmentFacts]] = {}
    for segment in facts.needed_segments:
        for copy in segment.copies:
            if not segment.is_open and is_bad(copy):
                found.setdefault(copy.bookie_id, []).append(segment)
    return dict(sorted(found.items()))


def _problems(facts: LedgerFacts, missing_answers: Mapping[str, str]) -> Iterator[tuple[Severity, str]]:
    """What is wrong, with how bad it is: by the rules of the status, as far as they are about one ledger."""
    metadata, given_up = facts.metadata, facts.given_up_segments
    note = facts.autorecovery.given_up
    if note is not None and given_up:
        segments = segments_text([each for each in facts.segments if each.segment_index in given_up])
        yield Severity.INFORMATION, f"{accepted_on(note.written_ms, note.user)}: entries of {segments} have no copy"
    if note is not None and (accepted := accepted_entries(note, metadata)):
        yield (
            Severity.INFORMATION,
            f"{accepted_on(note.written_ms, note.user)}: no bookie had entries {format_ranges(accepted)}",
        )
    for bookie_id in facts.autorecovery.returned:
        yield Severity.WARNING, is_back(bookie_id, [facts.ledger_id]).sentence
    if metadata.state is LedgerState.IN_RECOVERY:
        yield Severity.WARNING, "it is in recovery: a recovery is running, or was started and not finished"
    if missing_answers:
        missing = enumerated([f"{bookie_id} ({reason})" for bookie_id, reason in missing_answers.items()])
        needs = f"entries may exist that only {missing} can have"
        needs = f"this client needs {missing} to close it" if missing_answers.keys() <= facts.refusing else needs
        yield Severity.WARNING, f"it cannot be closed now: {needs}"
    yield from _down(facts)
    for bookie_id, answer in facts.answers.items():
        if answer.problem is not None:
            sentence = f"bookie {bookie_id} is registered but gives no valid answer: {answer.problem}"
            yield Severity.WARNING, sentence
    yield from _damages(facts)
    for row in facts.verdict.rows:
        if row.replication is ReplicationState.UNAVAILABLE:
            start = row.write_set.segment_first_entry_id
            yield (
                Severity.CRITICAL,
                f"no live bookie of the ensemble has the entries of {enumerated(row.missing_bookies)} in the segment "
                f"from entry {start}",
            )
    for sentence in _placement_problems(facts):
        yield Severity.WARNING, sentence
    mark = facts.autorecovery.mark
    if mark is not None and mark.problem is not None:
        yield Severity.WARNING, f"its mark of under-replication cannot be read: {mark.problem}"


def _damages(facts: LedgerFacts) -> Iterator[tuple[Severity, str]]:
    for bookie_id, segments_of in _bad_copies(facts).items():
        segments = segments_text(segments_of)
        yield Severity.WARNING, f"bookie {bookie_id} has no good copy of the first or last entry of {segments}"
    for bookie_id in sorted(repeated_members(facts.metadata)):
        sentence = f"bookie {bookie_id} has two places in an ensemble: their entries have a copy less than they should"
        yield Severity.WARNING, sentence
    if lost := _lost_entries(facts):
        yield Severity.CRITICAL, f"no bookie has a good copy of {lost}, and others may be lost, too"


def _down(facts: LedgerFacts) -> Iterator[tuple[Severity, str]]:
    """Bookies that are down, and that the ledger needs."""
    lost, state = facts.lost_bookies, facts.autorecovery
    awaited = {each.bookie_id for each in _away(facts)}
    is_unavailable = facts.verdict.replication is ReplicationState.UNAVAILABLE
    has_auditor_or_mark = state.auditor is not None or state.mark is not None
    for bookie_id in sorted(lost):
        severity = down_severity(
            len(lost),
            is_awaited=bookie_id in awaited,
            is_repaired=bookie_id in state.moving or (state.is_enabled and has_auditor_or_mark),
            has_live_copies=not is_unavailable,
        )
        gone = "counts as gone" if bookie_id in facts.ignored else "is not registered"
        sentence = f"bookie {bookie_id} {gone}; it is in {lost[bookie_id]} of {counted(len(facts.segments), 'segment')}"
        yield severity, sentence


def _placement_problems(facts: LedgerFacts) -> Iterator[str]:
    isolation, quorum = isolation_demand(facts.metadata.custom_metadata), facts.metadata.write_quorum_size
    if not facts.rules.has_racks and not facts.survey.groups:
        return
    for segment in facts.segments:
        view = facts.survey.view(segment.ensemble)
        for broken in judge_ensemble(view, facts.rules, segment.ensemble, quorum, isolation):
            yield f"the segment from entry {segment.entries.first_entry_id} breaks a placement rule: {broken}"


def _next_steps(
    facts: LedgerFacts, missing_answers: Mapping[str, str], candidates: tuple[CandidateVerdict, ...]
) -> Iterator[str]:
    metadata, ledger_id = facts.metadata, facts.ledger_id
    last = facts.segments[-1]
    lost_at_end = [] if metadata.is_closed else facts.lost_positions.get(last.segment_index, [])
    last_lost = [last.ensemble[index] for index in lost_at_end]
    silent_sets = _silent_sets(facts)
    silent = frozenset[str]().union(*silent_sets)
    note = facts.autorecovery.given_up
    is_end_given_up = set(missing_answers) <= bookies_given_up(note)
    yield from (f"{each.sentence}: {each.command}" for each in serves_unregistered(facts.serving))
    if to_start := {each: number for each, number in silent_sets.items() if each and each.isdisjoint(facts.serving)}:
        disks = "its disks" if len(frozenset[str]().union(*to_start)) == 1 else "their disks"
        which = start_words(bookies_to_start(to_start))
        yield f"{which} if {disks} still exist: entries without a live copy may be there"
    if missing_answers and not is_end_given_up:
        valid = {each for each, answer in facts.answers.items() if answer.is_valid}
        yield what_helps(ledger_id, metadata, list(missing_answers), valid, "able to give a valid answer")
    elif last_lost and not missing_answers:
        can_close = all(any(not each.refused_by for each in candidates if each.replaces == lost) for lost in last_lost)
        closes, them = f"bkctl ledger close {ledger_id} closes it now", enumerated(last_lost, shown_max=SHOWN_MAX)
        if can_close:
            sentence = f"a live writer replaces {them} at its next add; if there is none, a recovery closes the ledger"
            yield f"{sentence} after a while and copies its last segment; {closes}"
        else:
            yield f"no bookie can take the place of {them}, so a live writer stops: once another is writable, {closes}"
    elif not metadata.is_closed and not missing_answers:
        yield how_it_ends(ledger_id, metadata, facts.autorecovery.now_ms)
    away, awaited = _away(facts), _awaited(facts).union(_moving(facts))
    if away:
        yield in_maintenance(away, facts.autorecovery.now_ms).sentence
    yield from _recoveries(facts, candidates)
    if lost := _lost_entries(facts):
        yield f"find the disks or logs that had {lost}, as in bkctl help lost-entries"
    yield from _repairs(facts)
    yield from _outside(facts)
    yield from _autorecovery(facts)
    may_be_outside = any(each.problem is not None for each in facts.outside)
    may_be_outside = may_be_outside or all(facts.is_outside(each) for each in _without_copy(facts))
    if missing_answers and not set(missing_answers) <= facts.registrations.live:
        if awaited.isdisjoint(metadata.last_segment.ensemble):
            yield last_resort(ledger_id, metadata, facts.registrations.live, facts.registrations.writable)
    elif silent and metadata.is_closed and silent.isdisjoint(facts.registrations.live | awaited) and not may_be_outside:
        has_others = any(each.found for each in facts.outside)
        yield accepted_last(ledger_id, sorted(silent), facts.verdict, has_others=has_others)
    yield from _accepted(facts, missing_answers)


def _repairs(facts: LedgerFacts) -> Iterator[str]:
    """What is done about bad copies, and copies that only the metadata names."""
    command = f"bkctl recover ledger {facts.ledger_id}"
    if _bad_copies(facts) and facts.metadata.write_quorum_size > 1:
        limit = " where another bookie of the ensemble has a good one" if _without_copy(facts) else ""
        yield f"{command} writes missing and damaged copies again{limit}"
    if repeated := sorted(repeated_members(facts.metadata)):
        yield f"{command} moves the second place of {enumerated(repeated)} to another bookie"


def _accepted(facts: LedgerFacts, missing_answers: Mapping[str, str]) -> Iterator[str]:
    """What is left to do about losses that were accepted."""
    note, ledger_id = facts.autorecovery.given_up, facts.ledger_id
    returned, away = facts.autorecovery.returned, facts.autorecovery.away
    for bookie_id in returned:
        yield f"{is_back(bookie_id, [ledger_id]).command} saves what {bookie_id} has"
    is_lost = bool(facts.given_up_segments or accepted_entries(note, facts.metadata))
    if note is not None and is_lost and not missing_answers and not _bad_copies(facts):
        accepted = accepted_on(note.written_ms, note.user)
        if away:
            yield may_give_back(dict.fromkeys(away, (ledger_id,)))
        nothing = f"{'otherwise, nothing' if away else 'nothing'}{' else' if returned else ''} is left to do"
        yield f"{nothing}: {accepted}; {removal(ledger_id, facts.verdict.rows)}"


def _away(facts: LedgerFacts) -> list[Maintenance]:
    """Bookies of the ledger that are down as an operator expects."""
    state = facts.autorecovery
    lost = facts.lost_bookies.keys() - facts.ignored
    return [each for each in state.maintenance if each.bookie_id in lost and not each.is_overdue(state.now_ms)]


def _awaited(facts: LedgerFacts) -> set[str]:
    """Bookies of the ledger that are down and will be back, as far as is known."""
    return {each.bookie_id for each in _away(facts)} | facts.serving


def _moving(facts: LedgerFacts) -> list[str]:
    """Lost bookies of the ledger, whose ledgers a command moves."""
    return sorted(facts.autorecovery.moving.intersection(facts.lost_bookies) - facts.ignored)


def _silent_sets(facts: LedgerFacts) -> Counter[frozenset[str]]:
    """Bookies that do not answer and may have an entry of which no live copy is known: those that were not given up,
    with the number of entries that have the same."""
    given_up = frozenset(bookies_given_up(facts.autorecovery.given_up))
    return Counter(each - given_up for segment in _without_copy(facts) for each in facts.silent_holders(segment))


def _recoveries(facts: LedgerFacts, candidates: tuple[CandidateVerdict, ...]) -> Iterator[str]:
    """What the recovery of each lost bookie would do, but for those that will be back, or that one moves now."""
    if moving := _moving(facts):
        advice = ledgers_moving(moving)
        yield f"{advice.sentence}: {advice.command}"
    verdicts: dict[tuple[int, str], list[CandidateVerdict]] = {}
    for each in candidates:
        verdicts.setdefault((each.first_entry_id, each.replaces), []).append(each)
    first_of = _first_segments(facts)
    lost_of = facts.lost_positions
    for bookie_id in sorted(facts.lost_bookies.keys() - _awaited(facts).union(_moving(facts))):
        command = f"bkctl recover failed-bookie {bookie_id} --ledger {facts.ledger_id}"
        movable: list[SegmentFacts] = []
        stuck: list[SegmentFacts] = []
        without_copy: list[SegmentFacts] = []
        targets: set[str] = set()
        refused: list[CandidateVerdict] = []
        for segment in facts.needed_segments:
            lost = {segment.ensemble[index] for index in lost_of[segment.segment_index]}
            if bookie_id not in lost or segment.is_open:
                continue
            if any(bookie_id in each for each in facts.holders(segment)) and not facts.is_outside(segment):
                without_copy.append(segment)
                continue
            found = verdicts.get((first_of[segment.ensemble].entries.first_entry_id, bookie_id), [])
            possible = {each.bookie_id for each in found if not each.refused_by}
            targets |= possible
            (movable if possible else stuck).append(segment)
            refused += [] if possible else found
        if movable:
            them = enumerated(sorted(targets), "or", SHOWN_MAX)
            yield f"{command} would copy its entries of {segments_text(movable)} to {them}"
        if without_copy:
            yield f"{command} would leave {segments_text(without_copy)}: no live copy is known of some of the entries"
        if stuck:
            cure = "" if movable or bookie_id in facts.ignored else f"start {bookie_id}, or add a bookie: "
            stays = f"{command} would leave {segments_text(stuck)}"
            yield f"{cure}{stays}: no bookie can take the copies{why_refused(refused)}"


def _without_copy(facts: LedgerFacts) -> list[SegmentFacts]:
    return [each for each in facts.needed_segments if each.without_copy]


def _lost_entries(facts: LedgerFacts) -> str:
    """Entries without a good copy on any bookie, though all that should have one answer; empty if there is none."""
    lost: list[int] = []
    for segment in [each for each in _without_copy(facts) if not facts.is_outside(each)]:
        of_entries = zip(segment.without_copy, facts.silent_holders(segment), strict=True)
        lost += [entry_id for entry_id, silent in of_entries if not silent]
    return f"{'entry' if len(lost) == 1 else 'entries'} {listed(lost)}" if lost else ""


def _outside(facts: LedgerFacts) -> Iterator[str]:
    """What the bookies outside of the ensemble have of the entries without a live copy."""
    segments = _without_copy(facts)
    if not segments:
        return
    asked = {entry_id for each in facts.outside for entry_id in each.asked}
    answered = [each for each in facts.outside if each.problem is None]
    finders = [each for each in facts.outside if each.found]
    for each in finders:
        yield (
            f"bookie {each.bookie_id}, outside of the ensemble, has {len(each.found)} of the {len(each.asked)} entries "
            f"that it was asked for (from {each.found[0]} to {each.found[-1]}): a recovery of a lost bookie copies "
            "them if no entry of its stripe is missing everywhere; "
            f"{save_command(facts.ledger_id, each.bookie_id)} saves them, before it is deleted"
        )
    if answered and not finders:
        which = "the one live bookie" if len(answered) == 1 else f"each of the {len(answered)} live bookies"
        yield f"{which} outside of the ensemble that answered has none of them"
    if not asked:
        yield "there is no live bookie outside of the ensemble that could have them"
    for each in [each for each in facts.outside if each.problem is not None][:SHOWN_MAX]:
        yield f"bookie {each.bookie_id}, outside of the ensemble, did not answer: {each.problem}"
    unasked = [each for each in segments if not asked.intersection(each.without_copy)]
    if asked and unasked:
        yield f"no bookie outside of the ensemble was asked for {segments_text(unasked)}"


def _autorecovery(facts: LedgerFacts) -> Iterator[str]:
    state, rows = facts.autorecovery, facts.verdict.rows
    lost, awaited = facts.lost_bookies.keys(), {each.bookie_id for each in _away(facts)}
    has_bad_copies = bool(_bad_copies(facts) or repeated_members(facts.metadata))
    is_incomplete = bool(lost) or has_bad_copies
    if state.lock is not None:
        yield f"{state.lock.holder or 'an unknown host'} holds its replication lock: it may be copying the ledger now"
        if not state.lock.session_id:
            yield f"no session owns the lock {state.lock.path}, so it never expires: run bkctl metadata doctor"
    if not state.is_enabled and (is_incomplete or state.mark is not None):
        yield "autorecovery is disabled: no worker repairs it until bkctl autorecovery enable"
    elif state.mark is not None and not is_incomplete:
        yield (
            "it is marked as under-replicated, but no missing copy was found: a replication worker, or bkctl "
            "autorecovery repair-marks --deep, clears the mark if the copies are good"
        )
    elif state.mark is not None and state.lock is None:
        what = "what has a live copy" if _without_copy(facts) else "it"
        yield f"it is marked as under-replicated: a replication worker, if one runs, repairs {what}"
    elif is_incomplete and state.mark is None and state.auditor is None:
        yield f"{no_auditor().sentence}: {no_auditor().command}"
    elif state.mark is None and lost - awaited and state.alarm is not None:
        yield state.alarm
    elif state.mark is None and (has_bad_copies or members_with_source(facts.metadata, lost - awaited, rows)):
        # The auditor leaves out what is awaited, and what has no live copy.
        waits = waits_for_auditor(state.deadlines, state.auditor, state.now_ms, awaited)
        why = f"the auditor {state.auditor} has not marked it yet" if waits is None else waits.sentence
        yield f"{why}; bkctl autorecovery trigger starts a check now"
