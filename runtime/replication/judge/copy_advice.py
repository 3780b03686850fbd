"""What only an audit or its inventory finds, and the one command that helps now. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from bkctl.runtime.replication.judge.advice import Advice, causes_text, show_command, these_bookies
from bkctl.storage.severity import Severity
from bkctl.storage.words import counted, listed

_IDS_MAX = 10
_VERIFIABLE = "bkctl audit --inventory --read --all-entries"


def no_good_copy(entries: int, ledger_ids: Sequence[int], ledgers: int) -> Advice:
    """Entries of which every bookie of the write set answered, and none has a good copy."""
    which = counted(entries, "entry", "entries")
    names = f" {listed(ledger_ids, total=ledgers)}"
    sentence = f"{counted(ledgers, 'ledger has', 'ledgers have')} {which} without a good copy on any bookie:{names}"
    command = f"bkctl ledger verify {' '.join(map(str, ledger_ids[:_IDS_MAX]))}" if ledger_ids else None
    return Advice(Severity.CRITICAL, "entries_without_copy", f"{sentence}; see bkctl help lost-entries", command)


def bad_copies(
    copies: Mapping[str, int], ledger_ids: Sequence[int], ledgers: int, file: str | None, *, is_sample: bool
) -> Advice:
    """Copies that bookies do not hold, or not as they should. ``copies``: how many, by what is wrong with them.

    ``file``: what ``recover ledger`` can read. ``is_sample``: of most copies it is unknown whether they can be read, so
    the whole ledgers are to be recovered.
    """
    what = ", ".join(f"{number:,} {name}" for name, number in copies.items() if number)
    total = counted(sum(copies.values()), "bad copy", "bad copies")
    sentence = f"{counted(ledgers, 'ledger has', 'ledgers have')} {total}: {what}"
    if is_sample:
        sentence += "; this was a sample, so others may be bad, too"
    if file is not None and not is_sample:
        command = f"bkctl recover ledger --from-file {shlex.quote(file)}"
    elif ledgers <= _IDS_MAX and ledger_ids:
        command = f"bkctl recover ledger {' '.join(map(str, ledger_ids))}"
    else:
        command = f"{_VERIFIABLE} --out DIR"
    return Advice(Severity.WARNING, "bad_copies", sentence, command)


def bad_open_copies(ledger_ids: Sequence[int], closable: Sequence[int], first: str | None) -> Advice:
    """Bad copies in the last segments of ledgers that are not closed, which ``recover ledger`` leaves alone.

    ``closable``: those whose end is known. ``first``: the sentence about all bad copies, if there are no others.
    """
    ledgers, ids = counted(len(ledger_ids), "ledger"), " ".join(map(str, closable[:_IDS_MAX]))
    sentence = first or f"bad copies are in the open last segment of {ledgers}"
    if not closable:
        return Advice(Severity.WARNING, "bad_open_copies", sentence, f"bkctl ledger explain {ledger_ids[0]}")
    sentence += f"; close {'it' if len(ledger_ids) == 1 else 'them'} first, then bkctl recover ledger"
    return Advice(Severity.WARNING, "bad_open_copies", sentence, f"bkctl ledger close {ids}")


def without_lists(copies: int, bookie_ids: Sequence[str]) -> Advice:
    """Bookies that list nothing, so that nothing is known about their copies."""
    sentence = (
        f"{counted(copies, 'copy is', 'copies are')} unknown: {these_bookies(bookie_ids, 'gives', 'give')} no list of "
        "entries, as Java's DbLedgerStorage never does; read them"
    )
    return Advice(Severity.WARNING, "no_lists", sentence, "bkctl audit --inventory --read")


def unread_copies(copies: int, causes: Mapping[str, str]) -> Advice:
    """Copies on bookies that are down, refuse this client or do not answer: to read again helps only later.

    ``causes``: by bookie.
    """
    bookies = these_bookies(list(causes), "cannot be read", "cannot be read")
    sentence = f"{counted(copies, 'copy is', 'copies are')} unknown: {bookies}: {causes_text(causes)}"
    return Advice(Severity.WARNING, "unread_copies", sentence, show_command(sorted(causes)))


def unknown_copies(copies: int, expected: int) -> Advice:
    """Copies that were neither read nor listed, on bookies of which others were read."""
    verb = "is" if copies == 1 else "are"
    sentence = f"{copies:,} of {counted(expected, 'copy', 'copies')} {verb} unknown: neither read nor listed"
    return Advice(Severity.INFORMATION, "unknown_copies", sentence, _VERIFIABLE)


def unknown_ends(ledgers: int, ledger_ids: Sequence[int]) -> Advice:
    """Ledgers that are not closed, and of which too few bookies answered to say which entries they have: those that
    lost a log cannot, so copies of acknowledged entries may be gone."""
    which = f"the end of {counted(ledgers, 'open ledger')} is unknown, and was left out"
    sentence = f"{which}: too few bookies say which entries are confirmed: {listed(ledger_ids, total=ledgers)}"
    command = f"bkctl ledger explain {ledger_ids[0]}" if ledger_ids else None
    return Advice(Severity.WARNING, "unknown_ends", sentence, command)


def copies_elsewhere(ledgers: int, bookie_ids: Sequence[str]) -> Advice:
    """Copies on bookies that should not have them. No command: a bookie deletes what a repair moved away itself."""
    bookies = these_bookies(bookie_ids, "lists", "list")
    sentence = (
        f"{bookies} entries of {counted(ledgers, 'ledger')} that the metadata places elsewhere, as after a repair"
    )
    return Advice(Severity.INFORMATION, "copies_elsewhere", sentence)


def copies_after_end(ledgers: int, ledger_ids: Sequence[int], bookie_ids: Sequence[str]) -> Advice:
    """Bookies that disagree with the metadata about the last entry: a writer left it, or the ledger ends too early."""
    bookies = these_bookies(bookie_ids, "lists", "list")
    sentence = f"{bookies} entries after the end of {counted(ledgers, 'closed ledger')}, as when a writer was stopped"
    command = f"bkctl ledger explain {ledger_ids[0]}" if ledger_ids else None
    return Advice(Severity.INFORMATION, "copies_after_end", sentence, command)


def older_snapshot(skipped: int, read: str) -> Advice:
    """An audit of a directory of ZooKeeper could not read its newest snapshots: a server may still write them."""
    sentence = f"{counted(skipped, 'newer snapshot')} could not be read, so this is of {read}: audit again"
    return Advice(Severity.WARNING, "skipped_snapshots", sentence)


def small_quorum(part: str, total: int, what: str) -> Advice:
    """Ledgers that were created so that one bookie may have the only copy. Nothing is to be repaired."""
    sentence = f"{counted(total, 'ledger was', 'ledgers were')} created with {what}"
    return Advice(Severity.INFORMATION, part, sentence)


def breaks_placement(part: str, total: int, ledger_ids: Sequence[int], what: str) -> Advice:
    """Ledgers with copies in too few racks or regions, or outside of their groups; no command moves them."""
    sentence = (
        f"{counted(total, 'ledger has', 'ledgers have')} copies {what}: the auditor marks such ledgers for repair if "
        "autorecovery.is_misplaced_marked is set"
    )
    command = f"bkctl ledger explain {ledger_ids[0]}" if ledger_ids else "bkctl autorecovery status"
    return Advice(Severity.WARNING, part, sentence, command)


def too_few_writable(part: str, total: int, what: str) -> Advice:
    """Open ledgers whose writers find too few writable bookies."""
    sentence = f"{counted(total, 'open ledger')} {what}: start bookies, or add some"
    return Advice(Severity.WARNING, part, sentence, "bkctl bookie list")
