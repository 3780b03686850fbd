"""What is wrong with a cluster, and the one command that helps now. Pure.

What several screens say is here, so that all say the same: the status, the explanation of a ledger, audits, and the
ends of commands. The order of the steps is always the same: start bookies that have the only copies, then recover the
bookies that will not come back, and accept a loss last, once it is proven.
"""

from __future__ import annotations

import datetime
import itertools
import math
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.maintenance import Maintenance
from bkctl.runtime.metadata.replication.recovery_notes import LostBookieNote
from bkctl.runtime.metadata.replication.switches import SwitchNote
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.judge.no_live_copy import LOSS_IDS_MAX, NoLiveCopy, start_words
from bkctl.runtime.replication.judge.verdict import ReplicationState
from bkctl.storage.severity import Severity
from bkctl.storage.words import SHOWN_MAX, counted, duration, enumerated, listed, percent

AUTORECOVERY_STATUS = "bkctl autorecovery status"
AUTORECOVERY_START = "bkctl autorecovery start"
MAINTENANCE_LIST = "bkctl autorecovery maintenance list"
STATUS_WATCH = "bkctl status --watch"
DISK_WARNING_FRACTION = 0.90
DISK_CRITICAL_FRACTION = 0.95
"""Java's defaults of diskUsageWarnThreshold and diskUsageThreshold; at the second a bookie becomes read-only."""
_FULL_DISK = "bkctl help full-disk"
_IDS_KEPT_MAX = 10


class Advice(msgspec.Struct, frozen=True):
    """What is wrong and what helps. ``part``: the stable name of the situation. ``command``: None if none helps."""

    severity: Severity
    part: str
    sentence: str
    command: str | None = None


def down_severity(
    down: int, *, is_awaited: bool = False, is_repaired: bool = True, has_live_copies: bool = True
) -> Severity:
    """How bad it is that bookies are down: the one rule of all screens.

    ``down``: how many of the cluster are. ``is_awaited``: all that this is about are in maintenance. ``is_repaired``:
    autorecovery is enabled, and an auditor is elected or a ledger is marked. ``has_live_copies``: no ledger has entries
    without a live copy.
    """
    if is_awaited:
        return Severity.INFORMATION
    return Severity.CRITICAL if down > 1 or not is_repaired or not has_live_copies else Severity.WARNING


def worst_first(advice: Iterable[Advice]) -> list[Advice]:
    """By severity; what came first stays first among equals."""
    return sorted(advice, key=lambda each: each.severity, reverse=True)


def start_first(found: NoLiveCopy, serving: Collection[str] = ()) -> Advice:
    """Ledgers have no live copy: a recovery leaves them, so the bookies that have one must be started before.

    ``serving``: see ``serves_unregistered``.
    """
    at_least = "" if found.is_exact else "at least "
    what = "entries without a live copy" if found.is_part else "no live copy"
    sentence = f"{at_least}{counted(found.ledgers, 'ledger has', 'ledgers have')} {what}"
    if not found.to_start:
        return Advice(Severity.CRITICAL, "no_live_copy", sentence, explain_command(found.first_ids))
    running = sorted(each for names in found.to_start for each in names if each in serving)
    to_start = [each for each in found.to_start if not set(each).intersection(running)]
    sentence += f"; {start_words(to_start)}" if to_start else ""
    sentence += f"; {enumerated(running, shown_max=SHOWN_MAX)} must register again" if running else ""
    command = show_command(itertools.chain.from_iterable(to_start)) if to_start else f"bkctl bookie state {running[0]}"
    return Advice(Severity.CRITICAL, "no_live_copy", sentence, command)


def serves_unregistered(
    bookie_ids: Collection[str],
    down: int = 1,
    *,
    is_repaired: bool = True,
    has_live_copies: bool = True,
    stops_writers: bool = False,
) -> Iterator[Advice]:
    """Bookies that are not registered, though they serve: a start would not help, nor copies of what they have.

    It is only known that a bookie answers at the address in the id. ``down`` and the others: see ``down_severity``.
    ``stops_writers``: they are missing among the writable bookies. What else is wrong follows from this, so it is said
    first, unless other bookies are down.
    """
    if not bookie_ids:
        return
    ids = sorted(bookie_ids)
    them, its = ("it", "its address") if len(ids) == 1 else ("them", "each address")
    sentence = f"{these_bookies(ids, 'is', 'are')} not registered, but a bookie answers at {its}: "
    sentence += f"do not recover {them}; its state, which is shown on its machine, says why"
    severity = down_severity(down, is_repaired=is_repaired, has_live_copies=has_live_copies and not stops_writers)
    yield Advice(severity, "bookies_unregistered", sentence, f"bkctl bookie state {ids[0]}")


def ledgers_moving(bookie_ids: Sequence[str]) -> Advice:
    """Bookies that are down, and whose ledgers a command moves now: the next step shows once it has ended."""
    sentence = f"{these_bookies(bookie_ids, 'is', 'are')} not registered; a command is moving the ledgers of "
    return Advice(Severity.WARNING, "bookies_down", sentence + listed(bookie_ids), STATUS_WATCH)


def works_on(holder: object, bookie_id: str) -> str:
    """An operation that moves the ledgers of a bookie, or waits for its stop. ``holder``: what it is, and whose."""
    return f"{holder}, works on bookie {bookie_id}: {STATUS_WATCH} shows it"


def recover_command(bookie_ids: Sequence[str]) -> str:
    """The command that copies the ledgers of bookies that will not come back; of the first, if there are many."""
    return f"bkctl recover failed-bookie {' '.join(bookie_ids[:SHOWN_MAX])}"


def accept_loss_command(bookie_ids: Sequence[str], ledgers: str = "lost-ledgers") -> str:
    """What removes bookies whose disks are lost, and accepts the loss of what only they had of ledgers in a file."""
    accepted = " ".join(f"--accept-loss {each}" for each in bookie_ids)
    return f"bkctl decommission {' '.join(bookie_ids)} {accepted} --from-file {shlex.quote(ledgers)}"


def accept_loss_commands(bookie_ids: Sequence[str], ledger_ids: Sequence[int] = ()) -> str:
    """The same for these ledgers, if bookies that are live should have their entries, or for all that only they had
    entries of: others would be refused."""
    named = " ".join(f"--bookie {each}" for each in bookie_ids)
    ledgers = f"bkctl ledger list {named} --state lost -o name"
    if 0 < len(ledger_ids) <= LOSS_IDS_MAX:
        ledgers = f"printf '%s\\n' {' '.join(map(str, ledger_ids))}"
    return f"{ledgers} > lost-ledgers && {accept_loss_command(bookie_ids)}"


def accept_loss_step(bookie_ids: Sequence[str], ledger_ids: Sequence[int] = ()) -> str:
    """The last step, as a sentence; ``ledger_ids``: see ``accept_loss_commands``."""
    return f"{_if_lost(bookie_ids)}this accepts the loss: {accept_loss_commands(bookie_ids, ledger_ids)}"


def close_lost_step(bookie_ids: Sequence[str], open_ids: Sequence[int]) -> str:
    """The step before it, if some ledgers are not closed."""
    return f"{_if_lost(bookie_ids)}{close_lost_command(open_ids, bookie_ids)} closes those that are not closed"


def _if_lost(bookie_ids: Sequence[str]) -> str:
    return f"if the disks of {enumerated(bookie_ids, shown_max=SHOWN_MAX)} are lost, "


def accept_loss(bookie_ids: Sequence[str], open_ids: Sequence[int] = ()) -> Advice:
    """Bookies that are down and have the only copies, by the metadata, of all ledgers that still need them.

    ``open_ids``: the first of these ledgers that are not closed. They are closed first; the rest is the next step."""
    them = "it" if len(bookie_ids) == 1 else "them"
    sentence = f"{these_bookies(bookie_ids, 'is', 'are')} not registered, and no ledger that references {them} has a "
    sentence += f"live copy to recover from: if {disks_of(bookie_ids)} are lost, accept the loss"
    sentence += "" if open_ids else "; that is refused for ledgers whose entries bookies outside of the ensembles have"
    command = close_lost_command(open_ids, bookie_ids) if open_ids else accept_loss_commands(bookie_ids)
    return Advice(Severity.CRITICAL, "bookies_down", sentence, command)


def disks_of(bookie_ids: Collection[str]) -> str:
    """Whose they are, in words."""
    return "its disks" if len(bookie_ids) == 1 else "their disks"


def close_lost_command(ledger_ids: Sequence[int], bookie_ids: Iterable[str]) -> str:
    """What ends ledgers that are not closed, without bookies whose disks are lost; the first, if there are many."""
    accepted = " ".join(f"--accept-loss {each}" for each in bookie_ids)
    return f"bkctl ledger close {' '.join(map(str, ledger_ids[:LOSS_IDS_MAX]))} {accepted}"


def show_command(bookie_ids: Iterable[str]) -> str:
    """The command that shows what is known about bookies; about the first, if there are many."""
    return f"bkctl bookie show {' '.join([*bookie_ids][:SHOWN_MAX])}"


def explain_command(ledger_ids: Sequence[int | str], otherwise: str | None = None) -> str | None:
    """The command that shows what is known about the first of these ledgers; ``otherwise`` if none is known here."""
    return f"bkctl ledger explain {ledger_ids[0]}" if ledger_ids else otherwise


def in_maintenance(away: Sequence[Maintenance], now_ms: int) -> Advice:
    """Bookies that are expected to be away: nothing is to be done before their time is over."""
    sentences = []
    for each in away[:SHOWN_MAX]:
        assert each.note is not None  # otherwise its time would be over
        sentences.append(f"bookie {each.bookie_id} is in maintenance until {clock_time(each.note.end_ms, now_ms)}")
        sentences[-1] += f" (by {each.note.user})" if each.note.user else ""
    more = f" and {len(away) - SHOWN_MAX} more" if len(away) > SHOWN_MAX else ""
    return Advice(Severity.INFORMATION, "bookies_in_maintenance", "; ".join(sentences) + more, MAINTENANCE_LIST)


def not_referenced(
    bookie_ids: Sequence[str], ledgers: int, given_up: Mapping[str, Sequence[int | str]] = MappingProxyType({})
) -> Advice:
    """Bookies that are down, and that no ledger references, for example after a recovery.

    ``given_up``: those of them that have entries of ledgers whose loss was accepted, if their disks exist.
    """
    them = "it" if len(bookie_ids) == 1 else "them"
    sentence = (
        f"{these_bookies(bookie_ids, 'is', 'are')} not registered, and none of the {counted(ledgers, 'ledger')} "
        f"references {them}"
    )
    has_entries = {each: given_up[each] for each in bookie_ids if each in given_up}
    sentence += f"; {may_give_back(has_entries)};" if has_entries else ":"
    sentence += " what will not come back can leave the cluster"
    command = f"bkctl decommission {' '.join(bookie_ids[:SHOWN_MAX])}"
    return Advice(Severity.INFORMATION, "bookies_unreferenced", sentence, command)


def may_give_back(given_up: Mapping[str, Sequence[int | str]]) -> str:
    """What to do before bookies leave that are down and were given up with what they have of these ledgers."""
    ids = sorted({int(each) for ledger_ids in given_up.values() for each in ledger_ids})
    it, leaves = ("it", "it leaves") if len(given_up) == 1 else ("them", "they leave")
    sentence = f"{counted(len(ids), 'ledger')} whose loss was accepted ({listed(ids)}) could get entries back from "
    sentence += f"{enumerated(list(given_up), shown_max=SHOWN_MAX)}: if {disks_of(given_up)} exist, "
    return f"{sentence}start {it} before {leaves} the cluster ({show_command(list(given_up))})"


def not_answering(silent: Sequence[str], refusals: Mapping[str, str], down: int) -> Iterator[Advice]:
    """Registered bookies that do not answer, and those that answered with an error, by bookie; ``down``: others."""
    severity = down_severity(len(silent) + len(refusals) + down)
    if refusals:
        sentence = f"{these_bookies(list(refusals), 'is', 'are')} registered, but answered: {causes_text(refusals)}"
        yield Advice(severity, "bookies_refusing", sentence, show_command(sorted(refusals)))
    if silent:
        sentence = f"{these_bookies(silent, 'is', 'are')} registered, but did not answer"
        yield Advice(severity, "bookies_silent", sentence, show_command(silent))


def troubled(troubles: Mapping[str, str], down: int) -> Iterator[Advice]:
    """Registered bookies that publish what is wrong with them, like entries that they cannot restore from others."""
    if troubles:
        sentence = f"{these_bookies(list(troubles), 'reports', 'report')}: {causes_text(troubles)}"
        severity = down_severity(len(troubles) + down)
        yield Advice(severity, "bookies_troubled", sentence, f"bkctl bookie state {next(iter(troubles))}")


def without_cookie(bookie_ids: Sequence[str]) -> Iterator[Advice]:
    """Registered bookies whose cookie is missing."""
    if bookie_ids:
        sentence = f"{these_bookies(bookie_ids, 'is', 'are')} registered without a cookie, and cannot start again"
        yield Advice(Severity.WARNING, "bookies_without_cookie", sentence, "bkctl metadata doctor")


def used_fraction(total_bytes: int | None, free_bytes: int | None) -> float | None:
    """Used part of the disks of a bookie; None if unknown."""
    return None if not total_bytes or free_bytes is None else 1 - free_bytes / total_bytes


def disk_findings(used: Mapping[str, float | None], out_of_space: Mapping[str, str]) -> Iterator[Advice]:
    """``used``: part of the disks of each bookie that is used. ``out_of_space``: why bookies are read-only.

    A single bookie with full disks is no emergency: writers use the others, and no copy is lost.
    """
    if out_of_space:
        ids = list(out_of_space)
        sentence = f"{these_bookies(ids, 'is', 'are')} read-only: {out_of_space[ids[0]]}"
        yield Advice(Severity.WARNING, "bookies_out_of_space", sentence, _FULL_DISK)
    for severity, limit, end in (
        (Severity.CRITICAL, DISK_CRITICAL_FRACTION, math.inf),
        (Severity.WARNING, DISK_WARNING_FRACTION, DISK_CRITICAL_FRACTION),
    ):
        full = [bookie_id for bookie_id, fraction in used.items() if fraction is not None and limit <= fraction < end]
        if full:
            sentence = f"disks of {these_bookies(full, 'are', 'are')} at least {percent(limit)} full"
            yield Advice(severity if len(full) > 1 else Severity.WARNING, "disks", sentence, _FULL_DISK)


def proven_loss(ledger_ids: Sequence[int | str], total: int = 0, search: str | None = None) -> Advice:
    """Ledgers whose entries no bookie has that is registered or can be started: the last step.

    ``search``: the command that names ledgers, if none is known here.
    """
    number = max(total, len(ledger_ids))
    names = f": {listed(ledger_ids, total=number)}" if ledger_ids else ""
    sentence = f"{counted(number, 'ledger has', 'ledgers have')} entries that no registered bookie has{names}"
    return Advice(Severity.CRITICAL, "lost_entries", sentence, explain_command(ledger_ids, search))


def no_auditor() -> Advice:
    """No process notices lost bookies."""
    sentence = "no auditor is elected, so lost bookies are not noticed"
    return Advice(Severity.WARNING, "no_auditor", sentence, AUTORECOVERY_START)


def not_repairing(
    off_since_ms: int | None, note: SwitchNote, is_auditor_elected: bool | None, now_ms: int
) -> Iterator[Advice]:
    """Why autorecovery repairs nothing. ``off_since_ms`` None: it is enabled, or unknown, as ``is_auditor_elected``."""
    if off_since_ms is not None:
        overdue = f"; it was to be enabled by {note.until}" if note.is_overdue(now_ms) else ""
        by = f" by {note.by}" if note.by else ""
        why = f" ({note.reason})" if note.reason else ""
        sentence = f"autorecovery has been disabled{by} for {age(now_ms, off_since_ms)}{why}{overdue}"
        yield Advice(Severity.WARNING, "autorecovery_disabled", sentence, "bkctl autorecovery enable")
    if is_auditor_elected is False:
        yield no_auditor()


def waits_for_auditor(
    pending: Iterable[tuple[str, LostBookieNote]],
    auditor: str | None,
    now_ms: int,
    excused: Collection[str] = (),
    *,
    is_kept: bool = False,
) -> Advice | None:
    """Bookies whose ledgers the auditor will mark, when and by whom; None if there are none.

    ``is_kept``: the sentence is read later as well, so it says the day, and not how long it takes from now.
    """
    due = {bookie_id: note.due_ms for bookie_id, note in pending if note.due_ms > now_ms and bookie_id not in excused}
    if not due:
        return None
    first_ms = min(due.values())
    who = "the auditor" if auditor is None else f"the auditor {auditor}"
    when = f"{clock_time(first_ms, now_ms)}, in {duration((first_ms - now_ms) / 1000)}"
    when = clock_time(first_ms, 0) if is_kept else when
    sentence = f"{these_bookies(list(due), 'is', 'are')} gone; {who} marks the ledgers at {when}"
    return Advice(Severity.INFORMATION, "deadlines", sentence, AUTORECOVERY_STATUS)


def age(now_ms: int, since_ms: int) -> str:
    """Time since then; 0 when the clocks disagree."""
    return duration(max(0, now_ms - since_ms) / 1000)


def clock_time(time_ms: int, now_ms: int) -> str:
    """A time of day, like "14:20 UTC"; with the date if it is not that of ``now_ms``."""
    moment, now = (datetime.datetime.fromtimestamp(each / 1000, datetime.UTC) for each in (time_ms, now_ms))
    return moment.strftime("%H:%M UTC" if moment.date() == now.date() else "%Y-%m-%d %H:%M UTC")


def causes_text(causes: Mapping[str, str]) -> str:
    """What is wrong with bookies, in one sentence without their names. ``causes``: of each, perhaps with its name."""
    return "; ".join(dict.fromkeys(text.partition(f"{each}: ")[2] or text for each, text in causes.items()))


def these_bookies(bookie_ids: Sequence[str], singular: str, plural: str) -> str:
    """Bookies with their verb, like "bookie b1:3181 is"."""
    if len(bookie_ids) == 1:
        return f"bookie {bookie_ids[0]} {singular}"
    return f"{counted(len(bookie_ids), 'bookie')} ({listed(bookie_ids)}) {plural}"


# --- losses that an operator accepted --------------------------------------------------------------------------------
# They are information everywhere, and no advice says to start the bookies that were given up, but before they leave the
# cluster. If one is back, that is a warning: the garbage collection of a Java bookie will delete what it has.


class AcceptedLosses(msgspec.Struct, frozen=True, kw_only=True):
    """Ledgers of which an operator gave up the bookies with the only copies. ``written_ms``, ``user``: of the last."""

    ledgers: int = 0
    first_ids: tuple[int, ...] = ()
    written_ms: int | None = None
    user: str = ""


class GivenUpLedger(msgspec.Struct, frozen=True):
    """A ledger of which an operator gave up the bookies ``gone``, which are not registered."""

    metadata: LedgerMetadata
    gone: frozenset[str]
    replication: ReplicationState

    @property
    def is_whole(self) -> bool:
        """Whether all entries without a live copy are accepted as lost."""
        return self.replication is not ReplicationState.UNAVAILABLE

    def covers(self, entries: Iterable[EntryRange]) -> bool:
        """Whether no other bookie should have any of these entries."""
        size = self.metadata.ensemble_size  # the write sets repeat after as many entries
        return all(
            self._is_lost(entry_id)
            for each in entries
            for entry_id in range(each.first_entry_id, min(each.last_entry_id + 1, each.first_entry_id + size))
        )

    def _is_lost(self, entry_id: int) -> bool:
        ensemble = self.metadata.segment_of(entry_id).ensemble
        members = write_set(entry_id, *self.metadata.sizes)
        return self.gone.issuperset(ensemble[each] for each in members)


def accepted_losses(notes: Mapping[int, GivenUpNote]) -> AcceptedLosses:
    """What these notes say."""
    if not notes:
        return AcceptedLosses()
    last = max(notes.values(), key=lambda note: note.written_ms)
    ids = tuple(sorted(notes)[:_IDS_KEPT_MAX])
    return AcceptedLosses(ledgers=len(notes), first_ids=ids, written_ms=last.written_ms, user=last.user)


def accepted_on(written_ms: int, user: str) -> str:
    """When a loss was accepted, and by whom, like "loss accepted on 2026-05-01 by ops"."""
    day = datetime.datetime.fromtimestamp(written_ms / 1000, datetime.UTC).strftime("%Y-%m-%d")
    return f"loss accepted on {day}" + (f" by {user}" if user else "")


def loss_accepted(found: AcceptedLosses) -> Advice:
    """Nothing is to be done: the ledgers are kept for what is left of them, or can be deleted."""
    names = listed(found.first_ids, total=found.ledgers)
    its = "its" if found.ledgers == 1 else "their"
    sentence = f"{counted(found.ledgers, 'ledger has', 'ledgers have')} entries that none of {its} bookies has"
    if found.written_ms is not None:
        last = "" if found.ledgers == 1 else "the last "
        sentence += f", {last}{accepted_on(found.written_ms, found.user)}"
    command = explain_command(found.first_ids, "bkctl audit")
    return Advice(Severity.INFORMATION, "loss_accepted", f"{sentence}: {names}" if names else sentence, command)


def save_command(ledger_id: int | str, bookie_id: str | None = None) -> str:
    """The command that saves what is left of a ledger, or what one bookie has of it, in a file of its own: whole, which
    entries are not in text for people."""
    options, name = ("--keep-going", "") if bookie_id is None else (f"--from-bookie {bookie_id}", f"-{bookie_id}")
    return f"bkctl ledger read {ledger_id} {options} -o jsonl > ledger-{ledger_id}{name}.jsonl"


def is_back(bookie_id: str, ledger_ids: Sequence[int | str], total: int = 0) -> Advice:
    """A bookie that was given up serves again: until it deletes its entries, or it or a ledger is removed, they can be
    saved. ``total``: of ledgers, if not all are named here."""
    number = max(total, len(ledger_ids))
    which = f"{counted(number, 'ledger')}: {listed(ledger_ids, total=number)}"
    sentence = f"bookie {bookie_id} is back, which was given up for {which}; it may have entries that the others do not"
    sentence += " have, and the garbage collection of a Java bookie will delete them: save them now, then "
    sentence += f"bkctl ledger delete {' '.join(map(str, ledger_ids[:SHOWN_MAX]))} or bkctl decommission {bookie_id} "
    sentence += "ends this"
    command = save_command(ledger_ids[0], bookie_id)
    return Advice(Severity.WARNING, "given_up_bookie", sentence, command)
