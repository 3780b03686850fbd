"""What a status could not read, and what helps: never a command that would be refused, too. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from bkctl.runtime.replication.judge.advice import AUTORECOVERY_STATUS, Advice
from bkctl.storage.severity import Severity

_PERMISSION = "bkctl help exit-codes"
_UNKNOWN = {
    "root": ("a part of the state is", "bkctl cluster info"),
    "ledgers": ("the ledgers of bookies that are down are", "bkctl ledger list"),
    "bookies": ("the bookies are", "bkctl bookie list"),
    "marks": ("the marks of ledgers are", "bkctl autorecovery pending --count"),
    "locks": ("running repairs are", "bkctl autorecovery running"),
    "auditor": ("the notes of autorecovery are", AUTORECOVERY_STATUS),
    "autorecovery": ("the switches of autorecovery are", AUTORECOVERY_STATUS),
}
"""What is unknown if a part did not answer, and the command that asks for it."""


def unknown_findings(unknown: Mapping[str, str]) -> Iterator[Advice]:
    """One for each part, with the reason."""
    for part, reason in unknown.items():
        subject, command = _UNKNOWN.get(part, ("a part of the state is", "bkctl cluster info"))
        yield Advice(Severity.WARNING, part, f"{subject} unknown: {reason}", command)


def readable(advice: Advice, refused: Collection[str]) -> Advice:
    """With a command that does not read what ZooKeeper refuses. ``refused``: parts that this user may not read."""
    if advice.part in refused:
        sentence = f"{advice.sentence}, or let this user in (zkCli: getAcl, setAcl)"
        return msgspec.structs.replace(advice, sentence=sentence, command=_PERMISSION)
    needed = {"ledgers"} if (advice.command or "").startswith("bkctl recover ") else set[str]()
    if advice.command == AUTORECOVERY_STATUS:
        needed = _UNKNOWN.keys() - {"ledgers"}
    return advice if needed.isdisjoint(refused) else msgspec.structs.replace(advice, command=_PERMISSION)
