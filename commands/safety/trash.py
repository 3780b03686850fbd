"""The trash: the previous state of overwritten and deleted nodes, one JSON line per node.

    <state directory>/trash/<UTC time>-<operation id>.jsonl
    {"time", "command", "action", "path", "version", "ctime_ms", "data": base64}

A line is durable before its node is changed. Starting a new file deletes those older than the retention.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
from collections.abc import Iterable
from typing import Self

import msgspec

from bkctl.commands.config import Settings
from bkctl.commands.safety.state_directory import append_synced, state_directory
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.metadata.store import Node
from bkctl.storage.adapters.filesystem import open_to_append

_DIRECTORY = "trash"
_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"(\d{8}T\d{6}Z)-[0-9a-f]+\.jsonl")


class TrashLine(msgspec.Struct, frozen=True):
    """The previous state of one node: ``version`` as read, ``data`` base64 in JSON."""

    time: str
    command: str
    action: str
    path: str
    version: int
    ctime_ms: int
    data: bytes


class Trash:
    """The trash file of one operation; it appears with the first line."""

    def __init__(self, settings: Settings, command: str, operation_id: str) -> None:
        self._settings = settings
        self._command = command
        self._operation_id = operation_id
        self._descriptor: int | None = None
        self.path: str | None = None
        """Path of the file once it has a line, otherwise None."""

    def keep(self, action: str, path: str, node: Node) -> None:
        """Save a node that is about to be changed; RefusedError when that fails: the caller must then not change it."""
        self.keep_all(action, [(path, node)])

    def keep_all(self, action: str, nodes: Iterable[tuple[str, Node]]) -> None:
        """Save several nodes with one sync."""
        now = datetime.datetime.now(datetime.UTC)
        lines = b"".join(
            msgspec.json.encode(
                TrashLine(
                    time=now.isoformat(timespec="milliseconds"),
                    command=self._command,
                    action=action,
                    path=path,
                    version=node.stat.version,
                    ctime_ms=node.stat.ctime_ms,
                    data=node.data,
                )
            )
            + b"\n"
            for path, node in nodes
        )
        try:
            append_synced(self._open(now), lines)
        except OSError as error:
            raise RefusedError(f"cannot save the former data in {self.path}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self, now: datetime.datetime) -> int:
        if self._descriptor is None:
            directory = state_directory(self._settings, _DIRECTORY)
            _remove_expired(directory, now, self._settings.trash_retention_days)
            self.path = os.path.join(directory, f"{now.strftime(_TIME_FORMAT)}-{self._operation_id}.jsonl")
            self._descriptor = open_to_append(self.path)
        return self._descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _remove_expired(directory: str, now: datetime.datetime, retention_days: int) -> None:
    oldest = (now - datetime.timedelta(days=retention_days)).strftime(_TIME_FORMAT)
    for name in os.listdir(directory):
        found = _NAME.fullmatch(name)
        if found is not None and found[1] < oldest:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, name))
