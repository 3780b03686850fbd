"""Settings of the journals under their Java keys. Source: storage section 3.8.

A key that Java has and that can change nothing here is accepted and named once; one that would cost acknowledged
entries is refused.
"""

from __future__ import annotations

from typing import Any, Final

from bkctl.java_conf import JavaConf
from bkctl.settings import put, put_all
from runtime.errors import ConfigurationError
from storage.config import QUEUE_BYTES_MIN
from storage.journal_format import EXPLICIT_LAC_VERSION_MIN

_WHOLE_NUMBERS: Final = {
    "format_version": "journalFormatVersionToWrite",
    "alignment_bytes": "journalAlignmentSize",
    "backup_count_max": "journalMaxBackups",
    "group_bytes_max": "journalBufferedWritesThreshold",
    "group_record_count_max": "journalBufferedEntriesThreshold",
    "queue_record_count_max": "journalQueueSize",
}
_SIZES: Final = {"size_bytes_max": "journalMaxSizeMB", "preallocation_bytes": "journalPreAllocSizeMB"}
_TRUTHS: Final = {
    "is_data_written": "journalWriteData",
    "is_data_synced": "journalSyncData",
    "is_flushed_when_queue_empty": "journalFlushWhenQueueEmpty",
    "is_dropped_from_page_cache": "journalRemoveFromPageCache",
}
_DURATIONS: Final = {
    "group_wait_s": "journalMaxGroupWaitMSec",
    "sync_interval_s": "journalPageCacheFlushIntervalMSec",
}


def journal_values(conf: JavaConf) -> dict[str, Any]:
    """Fields of ``JournalConfig`` that a bk_server.conf sets; ConfigurationError."""
    if conf.truth("skipReplayJournalInvalidRecord"):
        raise ConfigurationError(
            f"{conf.origin}: skipReplayJournalInvalidRecord=true would drop what stands behind a damaged record, "
            "acknowledged entries and fences with it, and then deny them: set it to false; a journal that does not "
            "replay is a case for bkctl decommission, which copies the ledgers of this bookie from the others"
        )
    values: dict[str, Any] = {}
    put_all(values, conf.whole_number, _WHOLE_NUMBERS)
    put_all(values, conf.size_bytes, _SIZES)
    put_all(values, conf.truth, _TRUTHS)
    put_all(values, conf.seconds, _DURATIONS)
    # Java's is the sum over all journals.
    count = max(1, len(conf.texts("journalDirectories")))
    put(values, "queue_bytes_max", conf.share_bytes("journalMaxMemorySizeMb", count, QUEUE_BYTES_MIN))
    return values


def journal_warnings(conf: JavaConf) -> list[str]:
    """What a user of these keys has to know, a line each."""
    warnings = []
    version = conf.whole_number("journalFormatVersionToWrite")
    if version is not None and version < EXPLICIT_LAC_VERSION_MIN:
        warnings.append(
            f"{conf.origin}: journalFormatVersionToWrite={version} has no record for explicit LACs: "
            "requests to keep one are refused, instead of being acknowledged and lost by a crash"
        )
    if conf.truth("journalWriteData") is False:
        warnings.append(
            f"{conf.origin}: journalWriteData=false: a crash loses the adds since the last flush on this bookie; "
            "the next start fetches them from others, and until then says neither yes nor no to them"
        )
    elif conf.truth("journalSyncData") is False:
        warnings.append(
            f"{conf.origin}: journalSyncData=false: a power cut loses adds that were acknowledged on this bookie; "
            "the next start fetches them from others, and until then says neither yes nor no to them"
        )
    return warnings
