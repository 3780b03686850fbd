"""Checks for free disk space before writes. Source: storage section 8.

A failed checkpoint leaves the space it used occupied, and a failed LevelDB write ends the process. So no operation may
start that would use the reserve: the last 5 % of a disk (diskUsageThreshold is 0.95), at most 256 MiB unless
configured. LevelDB's compactions, the marks and the next boot need this space.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import Final

from bkctl.storage.errors import IndexFullError, NoRoomToStartError
from bkctl.storage.ports import FileSystem
from bkctl.storage.setting import MEBIBYTE
from bkctl.storage.words import size

RESERVE_BYTES_MAX: Final = 256 * MEBIBYTE
RESERVE_PERCENT: Final = 5

OUT_OF_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Disk full, quota exceeded, or file size limit reached. All of these end once an operator frees space or raises a
limit, so the bookie keeps running: stopping it would only make its reads and fences unavailable."""

_FAILING = frozenset({errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.EUCLEAN})
"""The disk failed, disappeared, or was remounted read-only after an error: no write to it is safe."""


class DiskRoom:
    """Disks of directories. ``reserve_bytes`` None: ``RESERVE_PERCENT`` of a disk, at most ``RESERVE_BYTES_MAX``."""

    def __init__(self, filesystem: FileSystem, directories: Sequence[str], reserve_bytes: int | None = None) -> None:
        self._filesystem = filesystem
        self._directories = tuple(dict.fromkeys(directories))
        self._reserve_bytes = reserve_bytes

    def require(self, needed_bytes: int) -> None:
        """Raise OSError (ENOSPC) with the directory if a disk has less than this free in addition to its reserve."""
        self._require(needed_bytes, 1)

    def require_for_boot(self, needed_bytes: int) -> None:
        """Like ``require``, for a boot: keeps only half of the reserve."""
        self._require(needed_bytes, 2)

    def require_still(self) -> None:
        """Raise OSError (ENOSPC) unless half of the reserve is free; for use during a long operation.

        Other processes may fill the disk meanwhile, and a full disk in LevelDB would end this process.
        """
        self._require(0, 2)

    def _require(self, needed_bytes: int, reserve_divisor: int) -> None:
        for directory in self._directories:
            space = self._filesystem.space(directory)
            reserve_bytes = self._reserve_bytes
            if reserve_bytes is None:
                reserve_bytes = min(space.total_bytes * RESERVE_PERCENT // 100, RESERVE_BYTES_MAX)
            reserve_bytes //= reserve_divisor
            missing_bytes = needed_bytes + reserve_bytes - space.usable_bytes
            # A file system that does not know its size reports 0.
            if missing_bytes > 0 and space.total_bytes > 0:
                room = f"{size(space.usable_bytes)} are free, {size(missing_bytes)} more are needed"
                raise OSError(errno.ENOSPC, room, directory)


def is_out_of_room(error: BaseException) -> bool:
    """Whether an error or one of its causes means that there is currently no space for a write."""
    return _is_caused_by(error, OUT_OF_ROOM)


def lacks_room(error: BaseException) -> bool:
    """Whether an error or one of its causes is a lack of disk space, so that nothing is damaged.

    Unlike ``is_out_of_room``, includes errors after which a retry is impossible, such as a failed LevelDB write.
    """
    is_of_index = any(isinstance(each, (IndexFullError, NoRoomToStartError)) for each in _causes(error))
    return is_of_index or is_out_of_room(error)


def file_limit_advice(error: BaseException) -> str:
    """Advice to append to an error for which ``lacks_room`` is true, if the disk is not full; otherwise empty."""
    is_of_index = any(isinstance(each, IndexFullError) and each.number == errno.EFBIG for each in _causes(error))
    if not is_of_index and not _is_caused_by(error, frozenset({errno.EFBIG})):
        return ""
    return (
        "; the disk is not full, but the file size limit is reached: raise it (`ulimit -f`), or use smaller "
        "files (`journalMaxSizeMB`, `logSizeLimit`)"
    )


def is_disk_failing(error: BaseException) -> bool:
    """Whether an error or one of its causes means that a disk failed or disappeared."""
    return _is_caused_by(error, _FAILING)


def _is_caused_by(error: BaseException, numbers: frozenset[int]) -> bool:
    return any(isinstance(each, OSError) and each.errno in numbers for each in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
