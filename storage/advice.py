"""Advice for error messages: how to fix a bookie whose files cannot be used as they are."""

from __future__ import annotations

from typing import Final

REBUILD_ADVICE: Final = "run `bkctl storage index rebuild` with the settings of this bookie"
"""For a lost or damaged index. The entry logs still have everything that was checkpointed."""

ADOPTION_ADVICE: Final = "run `bkctl storage adopt` with the settings of this bookie"
"""For directories of a Java bookie, which has a different index format."""

JAVA_INDEX_ADVICE: Final = (
    "use Java's shell to check and rebuild its own index; to run this bookie with bkctl, run `bkctl storage "
    "adopt` with its settings"
)
"""For commands on our index, when the directories belong to a Java bookie or were handed back to one."""

LOST_DATA_ADVICE: Final = (
    "run `bkctl decommission`, which copies its ledgers from the other bookies, then start it with empty directories"
)
"""For a lost or damaged journal. Acknowledged entries may be lost, so this bookie must not report any as absent."""

UNCLEAN_ADVICE: Final = "so the bookie did not shut down cleanly: start it again, and stop it"
"""For commands that need everything flushed, when there is a file DIRTY."""

REORDERED_ADVICE: Final = "the number or order of the ledger directories changed; restore the old list"
"""For a ledger in a directory other than the one that its id selects."""

FULL_DISK_RUNBOOK: Final = "bkctl help full-disk"
"""How to free disk space."""


def without_advice(error: Exception) -> str:
    """The error message without its advice, for callers that give other advice."""
    return str(error).partition("; ")[0]


def with_path(error: Exception) -> str:
    """The error message with the path of the file, if one is known."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def without_path(error: Exception) -> str:
    """The error message without the path, for messages that already contain it."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
