"""Paths that only bkctl has: jobs, the online index rebuild, the log level, stop."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from bkctl.runtime.admin.api import (
    JobsAnswer,
    LogLevelAnswer,
    LogsOfDirectory,
    OnlineRebuildReport,
    RebuildSize,
    StopAnswer,
)
from bkctl.runtime.admin.calls import BKCTL_API, REBUILD_JOB
from bkctl.runtime.admin.messages import AdminAnswer, AdminError, AdminRequest, Problem, Route, json_answer
from bkctl.runtime.bookie.admin.mode_routes import not_running
from bkctl.runtime.bookie.disks.monitor import DISKS_LANE
from bkctl.runtime.bookie.online_rebuild import log_files
from bkctl.runtime.bookie.view import BookieView
from bkctl.runtime.log_level import LogLevel, change_log_level, log_level
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.storage.filenames import LOCATIONS_DATABASE

CANCEL_WAIT_S: Final = 5.0
"""How long a cancel waits for the end of the job; the answer shows whether it has ended."""


class _LogLevelBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    level: LogLevel


class JobRoutes:
    """Answers for one bookie."""

    def __init__(self, view: BookieView) -> None:
        self._view = view

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("POST", f"{BKCTL_API}/stop", self._stop, changes=True),
            Route("GET", f"{BKCTL_API}/jobs", self._jobs),
            Route("GET", f"{BKCTL_API}/jobs/{{id}}", self._job),
            Route("DELETE", f"{BKCTL_API}/jobs/{{id}}", self._cancel, changes=True),
            Route("GET", f"{BKCTL_API}/log-level", self._log_level),
            Route("PUT", f"{BKCTL_API}/log-level", self._set_log_level, changes=True),
            Route("GET", f"{BKCTL_API}/index/rebuild", self._size_up),
            Route("POST", f"{BKCTL_API}/index/rebuild", self._rebuild, changes=True),
        ]

    async def _stop(self, _: AdminRequest) -> AdminAnswer:
        """The admin interface closes late in the stop, so this answer arrives."""
        if self._view.request_stop is None:
            raise AdminError(Problem.UNAVAILABLE, f"{not_running(self._view)}; SIGTERM stops it at once")
        self._view.request_stop()
        return json_answer(StopAnswer(self._view.bookie_id, is_stopping=True), 202)

    async def _jobs(self, _: AdminRequest) -> AdminAnswer:
        return json_answer(JobsAnswer(tuple(self._view.jobs.all)))

    async def _job(self, request: AdminRequest) -> AdminAnswer:
        return json_answer(self._view.jobs.find(_id_in(request)))

    async def _cancel(self, request: AdminRequest) -> AdminAnswer:
        return json_answer(await self._view.jobs.cancel(_id_in(request), CANCEL_WAIT_S))

    async def _log_level(self, _: AdminRequest) -> AdminAnswer:
        return json_answer(LogLevelAnswer(log_level()))

    async def _set_log_level(self, request: AdminRequest) -> AdminAnswer:
        """The level stays until its setting changes, or until a restart."""
        try:
            level = msgspec.convert(request.json(), _LogLevelBody).level
        except msgspec.ValidationError as error:
            levels = ", ".join(LogLevel)
            raise AdminError(Problem.INVALID, f'send {{"level": LEVEL}} with one of {levels}') from error
        change_log_level(level, "admin interface")
        return json_answer(LogLevelAnswer(level))

    async def _size_up(self, _: AdminRequest) -> AdminAnswer:
        """What a rebuild would read, for a plan."""
        view = self._view
        if view.storage is None:
            raise not_running(view)
        config = view.config.storage
        directories: list[LogsOfDirectory] = []
        for (ledgers, indexes), engine in zip(config.engine_directories, view.storage.engines, strict=True):
            sizes = await view.ports.workers.run(DISKS_LANE, log_files, view.ports.file_system, ledgers)
            directories.append(
                LogsOfDirectory(
                    path=os.path.join(indexes, LOCATIONS_DATABASE),
                    log_count=len(sizes),
                    log_bytes=sum(sizes.values()),
                    ledger_count=engine.ledger_count,
                    entry_count=engine.stored_entry_count + engine.memtable_entry_count,
                )
            )
        return json_answer(
            RebuildSize(
                bookie_id=view.bookie_id,
                metadata_root=parse_metadata_uri(view.config.metadata_uri).root,
                instance_id=view.instance_id,
                directories=tuple(directories),
            )
        )

    async def _rebuild(self, _: AdminRequest) -> AdminAnswer:
        view = self._view
        if view.online_rebuild is None or not view.is_running:
            raise not_running(view)
        rebuild = view.online_rebuild
        rebuild.require_room()

        def reached() -> OnlineRebuildReport | None:
            return rebuild.report if rebuild.report.directories else None

        return json_answer(view.jobs.begin(REBUILD_JOB, rebuild.run, reached), 202)


def _id_in(request: AdminRequest) -> int:
    text = request.places["id"]
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise AdminError(Problem.NOT_FOUND, "there is no such job: an id is a number")
    return int(text)
