"""The log record of a completed start: what an operator looks for first, on one line."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from bkctl.runtime.bookie.disks.monitor import DISKS_LANE
from bkctl.runtime.bookie.view import BookieView
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.storage.ports import FileSystem
from bkctl.storage.words import size

logger = logging.getLogger(__name__)


async def log_start(view: BookieView) -> None:
    """Log version, ports, metadata, mode and directories. A JSON log has them as attributes, too."""
    storage, uri = view.config.storage, parse_metadata_uri(view.config.metadata_uri)
    free = await view.ports.workers.run(DISKS_LANE, _free_bytes, view.ports.file_system, tuple(storage.all_directories))
    directories = {
        "journal": storage.journal_directories,
        "ledger": storage.ledger_directories,
        "index": tuple(each for each in storage.index_directories if each not in storage.ledger_directories),
    }
    attributes: dict[str, Any] = {
        "bookie_id": view.bookie_id,
        "port": view.port,
        "version": view.ports.release,
        "mode": view.modes.mode.value,
        "read_only_reasons": [reason.value for reason in view.modes.reasons],
        "metadata": str(uri),  # without options, which may be secret
        "admin": _admin_address(view),
        "directories": [
            {"kind": kind, "path": path, "free_bytes": free[path]}
            for kind, paths in directories.items()
            for path in paths
        ],
    }
    logger.info(
        "bookie %s listening on port %d: %s, %s; ZooKeeper %s; admin interface on %s; %s",
        view.bookie_id,
        view.port,
        view.ports.release,
        view.modes.text,
        attributes["metadata"],
        attributes["admin"],
        "; ".join(_directory_text(kind, paths, free) for kind, paths in directories.items() if paths),
        extra={"attributes": attributes},
    )


def _admin_address(view: BookieView) -> str:
    """Where the admin interface listens in addition to its socket."""
    return "its socket only" if view.http_port is None else f"{view.config.admin.http_host}:{view.http_port}"


def _free_bytes(file_system: FileSystem, paths: Sequence[str]) -> dict[str, int | None]:
    """Usable bytes of each directory's disk; None if the disk does not say."""
    free: dict[str, int | None] = {}
    for path in paths:
        try:
            free[path] = file_system.space(path).usable_bytes
        except OSError:
            free[path] = None
    return free


def _directory_text(kind: str, paths: Sequence[str], free: Mapping[str, int | None]) -> str:
    def text(path: str) -> str:
        usable_bytes = free[path]
        return f"{path} ({'unknown' if usable_bytes is None else size(usable_bytes)} free)"

    return f"{kind} {', '.join(map(text, paths))}"
