"""What to do about a bookie whose files cannot be used as they are: the ends of error messages."""

from __future__ import annotations

from typing import Final

REBUILD_ADVICE: Final = "run `bkctl storage index rebuild` with the settings of this bookie"
"""An index is lost or damaged, and the entry logs are there: they hold all that was ever checkpointed."""

ADOPTION_ADVICE: Final = "run `bkctl storage adopt` with the settings of this bookie"
"""A Java bookie has written here, and its index is not ours."""

JAVA_INDEX_ADVICE: Final = (
    "use Java's shell to check and rebuild its own index; to run this bookie with bkctl, run `bkctl storage "
    "adopt` with its settings"
)
"""The folders are a Java bookie's, or were handed back to be one's: whoever looks at our index there finds none."""

LOST_DATA_ADVICE: Final = (
    "run `bkctl decommission`, which copies its ledgers from the other bookies, then start it with empty directories"
)
"""A journal is lost or damaged: what was acknowledged may be nowhere on this bookie, so it may not deny an entry."""


FULL_DISK_RUNBOOK: Final = "docs/runbooks/full-disk.md"
"""How to make room."""


def without_advice(error: Exception) -> str:
    """What is wrong, without the way out that such a sentence ends with: for whoever gives another."""
    return str(error).partition("; ")[0]


def without_path(error: Exception) -> str:
    """What is wrong, for a sentence that names the file already."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
