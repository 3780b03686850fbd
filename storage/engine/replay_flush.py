"""Making durable what a replay applies; or keeping it in the write caches, where a disk has no room for it.

A checkpoint that is not made is nothing new: the caches keep what it would have written, the journals keep it too, and
the marks stay where they are, as after one that failed while the bookie runs. So a bookie can serve what its journals
hold from memory, and the next checkpoint that finds room catches up. The bound is the write cache: what is more than
its two halves take can be neither stored nor served, and stops the boot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from storage.config import EngineConfig
from storage.disk_room import DiskRoom, is_out_of_room
from storage.engine.engine import LedgerDirectoryEngine
from storage.engine.memtable import ENTRY_OVERHEAD_BYTES
from storage.engine.replay import checkpoint_now
from storage.errors import IndexFailedError, NoRoomToStartError, StorageError
from storage.setting import MEBIBYTE

_CACHE_KEY: Final = "dbStorage_writeCacheMaxSizeMb"


class ReplayFlush:
    """The flushes of one replay. ``room`` None: they are always tried, and what fails is raised."""

    def __init__(self, engines: Sequence[LedgerDirectoryEngine], config: EngineConfig, room: DiskRoom | None) -> None:
        self._engines = engines
        self._config = config
        self._room = room
        self._left_out_bytes: dict[LedgerDirectoryEngine, int] = {}
        self.failure: StorageError | OSError | None = None
        """Why what was applied is not flushed; None when it is, or before ``finish``."""

    def make_room(self, engine: LedgerDirectoryEngine, body: bytes) -> bool:
        """The write cache of a directory has refused an entry: whether it takes it now. If not, ``finish`` raises."""
        if engine not in self._left_out_bytes:
            is_last_half = engine.is_checkpoint_pending
            if self._flush([engine]):
                return True
            if not engine.is_checkpoint_pending:
                engine.postpone_checkpoint()
            if not is_last_half:
                return True
        # The boot goes on to the end of the journals all the same: only then it can say how much is missing.
        left_out_bytes = self._left_out_bytes.get(engine, 0)
        self._left_out_bytes[engine] = left_out_bytes + len(body) + ENTRY_OVERHEAD_BYTES
        return False

    def finish(self) -> bool:
        """Whether all of it is flushed. NoRoomToStartError when something was left out."""
        if self._left_out_bytes:
            raise self._refusal()
        return self._flush(self._engines)

    def _flush(self, engines: Sequence[LedgerDirectoryEngine]) -> bool:
        try:
            if self._room is not None:
                # An attempt would cost the room that is left.
                self._room.require_for_boot(sum(engine.checkpoint_bytes for engine in engines))
            for engine in engines:
                if engine.is_checkpoint_pending:  # nothing newer is in that one
                    checkpoint_now(engine)
                checkpoint_now(engine)
        except IndexFailedError:
            raise
        except (StorageError, OSError) as error:
            if self._room is None or not is_out_of_room(error):
                raise
            self.failure = error
            return False
        self.failure = None
        return True

    def _refusal(self) -> NoRoomToStartError:
        needed_bytes = {
            engine: engine.checkpoint_bytes + self._left_out_bytes.get(engine, 0) for engine in self._engines
        }
        reason = self.failure
        try:
            if self._room is not None:
                self._room.require_for_boot(sum(needed_bytes.values()))
        except OSError as error:
            reason = error
        # The first half of a cache may end with a gap that the next entry did not fit into. The key is a sum over all.
        cache_bytes = (max(needed_bytes.values()) + self._config.entry_log.entry_bytes_max) * len(self._engines)
        detail = f"{reason.filename}: {reason.strerror}" if isinstance(reason, OSError) else str(reason)
        return NoRoomToStartError(
            f"{detail}: the journals have more entries than the write cache can hold until space is freed; free "
            f"disk space, or start with --set {_CACHE_KEY}={-(-cache_bytes // MEBIBYTE)}"
        )
