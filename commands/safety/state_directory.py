"""The directory with everything needed to undo a mistake: backups, trash, the audit trail.

``$BKCTL_STATE_DIR``, else ``$XDG_STATE_HOME/bkctl``, else ``~/.local/state/bkctl``. Directories are 0700, files 0600:
ledger metadata has passwords in clear text.
"""

from __future__ import annotations

import contextlib
import datetime
import getpass
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import msgspec

from bkctl.commands.config import Settings
from bkctl.commands.safety.plan import Plan
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.metadata.store import Node
from bkctl.storage.adapters.filesystem import OsFileSystem, open_to_append


def state_directory(settings: Settings, name: str = "") -> str:
    """Path of a directory below the state directory, created if necessary; RefusedError when that fails."""
    if not settings.state_directory:
        raise RefusedError("nothing was changed: no directory for undo data: set BKCTL_STATE_DIR to a persistent one")
    path = os.path.join(settings.state_directory, name) if name else settings.state_directory
    try:
        OsFileSystem().make_directories(path)
    except OSError as error:
        raise RefusedError(
            f"nothing was changed: cannot create the directory {path} for undo data ({error.strerror}); "
            "set BKCTL_STATE_DIR to another directory"
        ) from error
    return path


def append_synced(descriptor: int, data: bytes) -> None:
    """Append all of it and make it durable; OSError."""
    write_all(descriptor, data)
    os.fsync(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it; OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


_FILE = "audit.jsonl"
_SECRET = re.compile(r"(?i)((?:password|passwd|secret|token|credential)[\w.-]*=).+")


class AuditTrail:
    """Who changed which cluster, when, with which command line and plan, and how it ended.

        <state directory>/audit.jsonl, two lines per operation: "event": "begin", then "end" with the result

    An operation without an "end" was killed. Values of options that look like secrets are masked.
    """

    def __init__(self, settings: Settings, plan: Plan, operation_id: str) -> None:
        self._path = os.path.join(state_directory(settings), _FILE)
        self._fields: dict[str, Any] = {
            "operation_id": operation_id,
            "user": user_name(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "context": settings.context_name,
            "metadata_uri": settings.metadata_uri,
            "root": plan.root,
            "instance_id": plan.instance_id,
            "command": plan.command,
            "command_line": mask_secrets(settings.command_line),
            "tier": plan.tier,
            "plan_hash": plan.plan_hash,
        }

    def begin(self) -> None:
        """Record that the operation starts; RefusedError when that fails."""
        try:
            self._append("begin", {})
        except OSError as error:
            raise RefusedError(
                f"nothing was changed: cannot write the audit trail {self._path} ({error.strerror})"
            ) from error

    def end(self, result: str, details: Mapping[str, Any]) -> None:
        """Record the result; OSError."""
        self._append("end", {"result": result, "details": details})

    def _append(self, event: str, more: Mapping[str, Any]) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = msgspec.json.encode({"time": now, "event": event, **self._fields, **more}) + b"\n"
        descriptor = open_to_append(self._path)
        try:
            append_synced(descriptor, line)
        finally:
            os.close(descriptor)


def read_trail(state_directory: str) -> Iterator[dict[str, Any]]:
    """The lines of the trail, the oldest first; without incomplete ones, and none if it cannot be read."""
    with contextlib.suppress(OSError), open(os.path.join(state_directory, _FILE), "rb") as file:
        for line in file:
            with contextlib.suppress(msgspec.DecodeError):
                yield msgspec.json.decode(line, type=dict[str, Any])


def user_name() -> str:
    """The user who runs this: the login name, otherwise the user id."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for the user; the error depends on Python's version
        return str(os.getuid())


def mask_secrets(command_line: Sequence[str]) -> list[str]:
    """The words of a command line, with the values of ``password=...`` and the like masked."""
    return [_SECRET.sub(r"\1***", word) for word in command_line]


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
    """The previous state of the nodes that one operation overwrites and deletes; the file appears with the first line.

        <state directory>/trash/<UTC time>-<operation id>.jsonl
        {"time", "command", "action", "path", "version", "ctime_ms", "data": base64}

    A line is durable before its node is changed. Starting a new file deletes those older than the retention, by the
    clocks of this machine and of ZooKeeper: one of them may be wrong.
    """

    def __init__(self, settings: Settings, command: str, operation_id: str) -> None:
        self._settings = settings
        self._command = command
        self._operation_id = operation_id
        self._descriptor: int | None = None
        self.path: str | None = None
        """Path of the file once it has a line, otherwise None."""
        self.server_time: datetime.datetime | None = None
        """ZooKeeper's; None: not known, so no file is deleted."""

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
            server_time = self.server_time or now
            if self.server_time is not None:
                _remove_expired(directory, min(now, server_time), self._settings.trash_retention_days)
            time = max(now, server_time).strftime(_TIME_FORMAT)
            self.path = os.path.join(directory, f"{time}-{self._operation_id}.jsonl")
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
