"""The audit trail: who changed which cluster, when, with which command line and plan, and how it ended.

    <state directory>/audit.jsonl, two lines per operation: "event": "begin", then "end" with the result

An operation without an "end" was killed. Values of options that look like secrets are masked.
"""

from __future__ import annotations

import contextlib
import datetime
import getpass
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bkctl.commands.config import Settings
from bkctl.commands.safety.plan import Plan
from bkctl.commands.safety.state_directory import append_synced, state_directory
from bkctl.runtime.errors import RefusedError
from bkctl.storage.adapters.filesystem import open_to_append

_FILE = "audit.jsonl"
_SECRET = re.compile(r"(?i)((?:password|passwd|secret|token|credential)[\w.-]*=).+")


class AuditTrail:
    """Writes the lines of one operation."""

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
