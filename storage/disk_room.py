"""Whether there is room left for what must be written. Source: storage section 8.

A checkpoint that fails half way costs the room it took, and a LevelDB write that fails ends the process. So nothing is
begun that would take the last 5 % of a disk (diskUsageThreshold is 0.95), of which 256 MiB are enough unless the
settings say otherwise: LevelDB moves its own rows about with them, the marks and the next boot need some, too.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import Final

from storage.errors import IndexFullError, NoRoomToStartError
from storage.ports import FileSystem
from storage.setting import MEBIBYTE

RESERVE_BYTES_MAX: Final = 256 * MEBIBYTE
RESERVE_PERCENT: Final = 5

OUT_OF_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Disk full, quota used up, a limit on file sizes: each goes away when somebody tidies up or raises the limit, and
below that the next file has room again. To end the bookie would take its reads and fences away and mend nothing."""

_FAILING = frozenset({errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.EUCLEAN})
"""The disk is broken, gone, or was mounted read-only because of an error: nothing that is written to it is safe."""


class DiskRoom:
    """The disks under some folders. ``reserve_bytes`` None: ``RESERVE_PERCENT`` of a disk, ``RESERVE_BYTES_MAX``."""

    def __init__(self, filesystem: FileSystem, directories: Sequence[str], reserve_bytes: int | None = None) -> None:
        self._filesystem = filesystem
        self._directories = tuple(dict.fromkeys(directories))
        self._reserve_bytes = reserve_bytes

    def require(self, needed_bytes: int) -> None:
        """Raise OSError (ENOSPC), naming the folder, where a disk cannot take that much beside its reserve."""
        self._require(needed_bytes, 1)

    def require_for_boot(self, needed_bytes: int) -> None:
        """The same for a boot, for which half of the reserve is kept."""
        self._require(needed_bytes, 2)

    def require_still(self) -> None:
        """The same in the middle of something for which there was room: half of the reserve must be left.

        Somebody else fills the disk, and what goes on would meet that in LevelDB, where it ends the process.
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
            # A file system that cannot tell its size says 0.
            if missing_bytes > 0 and space.total_bytes > 0:
                free, needed = (mebibytes(size) for size in (space.usable_bytes, space.usable_bytes + missing_bytes))
                raise OSError(errno.ENOSPC, f"{free} MiB are free, {needed} MiB are needed", directory)


def is_out_of_room(error: BaseException) -> bool:
    """Whether an error, or what it was raised from, says that there is no room for a write now."""
    return _is_caused_by(error, OUT_OF_ROOM)


def lacks_room(error: BaseException) -> bool:
    """Whether an error, or what it was raised from, is for want of room, so that nothing is damaged.

    Wider than ``is_out_of_room``: also where the process cannot just try the same again, as after a write of LevelDB.
    """
    is_of_index = any(isinstance(each, (IndexFullError, NoRoomToStartError)) for each in _causes(error))
    return is_of_index or is_out_of_room(error)


def file_limit_advice(error: BaseException) -> str:
    """What to add to an error that ``lacks_room`` where it is no full disk; empty where it is one."""
    is_of_index = any(isinstance(each, IndexFullError) and each.number == errno.EFBIG for each in _causes(error))
    if not is_of_index and not _is_caused_by(error, frozenset({errno.EFBIG})):
        return ""
    return (
        "; the disk is not full, but the file size limit is reached: raise it (`ulimit -f`), or use smaller "
        "files (`journalMaxSizeMB`, `logSizeLimit`)"
    )


def is_disk_failing(error: BaseException) -> bool:
    """Whether an error, or what it was raised from, says that a disk is broken or gone."""
    return _is_caused_by(error, _FAILING)


def _is_caused_by(error: BaseException, numbers: frozenset[int]) -> bool:
    return any(isinstance(each, OSError) and each.errno in numbers for each in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def mebibytes(size_bytes: int) -> str:
    """A size as sentences tell it, without its unit."""
    return f"{size_bytes / MEBIBYTE:.1f}"
