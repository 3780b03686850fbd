"""Which numbers the keys of a bk_server.conf may have, each in its own unit: a refusal names what the user wrote.

A key without a row may be whatever a Java long can. An upper limit has its reason beside it; a duration has none, for
"never" is written as the largest int or long. What is in range here is in the range of the field that the key sets, so
that nothing is refused under another name. Source: storage sections 3.8, 4.5, 5.3, 7.3 and 8.
"""

from __future__ import annotations

from typing import Final

import msgspec

from storage.config import (
    ENTRY_LOG_SIZE_BYTES_MAX,
    GROUP_WAIT_S_MAX,
    JOURNAL_ALIGNMENT_BYTES_MAX,
    JOURNAL_BLOCK_BYTES,
    JOURNAL_PREALLOCATION_BYTES_MAX,
    JOURNAL_VERSION_MAX,
    JOURNAL_VERSION_MIN,
    MEBIBYTE,
    WHOLE_NUMBER_MAX,
)

_INT_MAX: Final = 2**31 - 1
_MEBIBYTE_COUNT_MAX: Final = WHOLE_NUMBER_MAX // MEBIBYTE


class Range(msgspec.Struct, frozen=True):
    """Numbers from ``low`` to ``high``, or between the two; ``step``: multiples of it."""

    low: int = -WHOLE_NUMBER_MAX
    high: int = WHOLE_NUMBER_MAX
    step: int = 1
    is_open: bool = False

    def refusal(self, value: float) -> str | None:
        """What the value must be; None when it is."""
        if self.is_open:
            return None if self.low < value < self.high else f"must be above {self.low} and below {self.high}"
        if self.low <= value <= self.high and (self.step == 1 or value % self.step == 0):
            return None
        if self.step != 1:
            return f"must be a multiple of {self.step} from {self.low} to {self.high}"
        if self.high == WHOLE_NUMBER_MAX or self.low == -WHOLE_NUMBER_MAX:
            return f"must be at least {self.low}" if value < self.low else f"must be at most {self.high}"
        return f"must be from {self.low} to {self.high}"


_ANY: Final = Range()
_NOT_NEGATIVE: Final = Range(0)
_POSITIVE: Final = Range(1)
_FRACTION: Final = Range(0, 1, is_open=True)
# Whole numbers up to here are the same as doubles.
_RATE: Final = Range(0, 10**15)
_DECIMAL: Final = Range(-(10**15), 10**15)
_SIZE_MIB: Final = Range(1, _MEBIBYTE_COUNT_MAX)

RANGES: Final = {
    "bookiePort": Range(0, 65535),
    # The length of a frame is a Java int; an entry of less than 1 KiB is no limit that anything could be stored with.
    "nettyMaxFrameSizeBytes": Range(1024, _INT_MAX),
    "flushInterval": _POSITIVE,
    "dbStorage_maxThrottleTimeMs": _POSITIVE,
    "addEntryTimeoutSec": _POSITIVE,
    "readEntryTimeoutSec": _POSITIVE,
    "clientConnectTimeoutMillis": _POSITIVE,
    # An int of ZooKeeper's protocol.
    "zkTimeout": Range(1, _INT_MAX),
    "zkRequestRateLimit": _RATE,
    "journalFormatVersionToWrite": Range(JOURNAL_VERSION_MIN, JOURNAL_VERSION_MAX),
    # Offsets in a journal are Java longs.
    "journalMaxSizeMB": _SIZE_MIB,
    "journalPreAllocSizeMB": Range(1, JOURNAL_PREALLOCATION_BYTES_MAX // MEBIBYTE),
    "journalAlignmentSize": Range(JOURNAL_BLOCK_BYTES, JOURNAL_ALIGNMENT_BYTES_MAX, step=JOURNAL_BLOCK_BYTES),
    "journalMaxBackups": _NOT_NEGATIVE,
    "journalMaxGroupWaitMSec": Range(0, round(GROUP_WAIT_S_MAX * 1000)),
    "journalPageCacheFlushIntervalMSec": _POSITIVE,
    "journalBufferedWritesThreshold": _NOT_NEGATIVE,
    "journalBufferedEntriesThreshold": _NOT_NEGATIVE,
    "journalQueueSize": _POSITIVE,
    "journalMaxMemorySizeMb": _SIZE_MIB,
    "logSizeLimit": Range(4096, ENTRY_LOG_SIZE_BYTES_MAX),
    "flushEntrylogBytes": _NOT_NEGATIVE,
    "dbStorage_writeCacheMaxSizeMb": _SIZE_MIB,
    "dbStorage_readAheadCacheMaxSizeMb": Range(0, _MEBIBYTE_COUNT_MAX),
    "dbStorage_readAheadCacheBatchSize": _NOT_NEGATIVE,
    "dbStorage_readAheadCacheBatchBytesSize": _ANY,
    "diskCheckInterval": _POSITIVE,
    "diskUsageThreshold": _FRACTION,
    "diskUsageWarnThreshold": _FRACTION,
    "diskUsageLwmThreshold": _FRACTION,
    "minUsableSizeForEntryLogCreation": _NOT_NEGATIVE,
    "minUsableSizeForHighPriorityWrites": _NOT_NEGATIVE,
    "gcWaitTime": _POSITIVE,
    "gcOverreplicatedLedgerWaitTime": _ANY,
    "gcOverreplicatedLedgerMaxConcurrentRequests": _POSITIVE,
    "gcMetadataOpRateLimit": _RATE,
    "compactionRate": _POSITIVE,
    "compactionRateByEntries": _POSITIVE,
    "compactionRateByBytes": _POSITIVE,
    "compactionMaxOutstandingRequests": _POSITIVE,
    "minorCompactionThreshold": _DECIMAL,
    "majorCompactionThreshold": _DECIMAL,
    "minorCompactionInterval": _ANY,
    "majorCompactionInterval": _ANY,
    "minorCompactionMaxTimeMillis": _ANY,
    "majorCompactionMaxTimeMillis": _ANY,
}


def refusal_of(key: str, value: float) -> str | None:
    """What the number of a key must be; None when it is."""
    return RANGES.get(key, _ANY).refusal(value)
