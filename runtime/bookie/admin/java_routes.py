"""The paths that a Java bookie has, with its answers."""

from __future__ import annotations

from runtime.admin.messages import AdminAnswer, AdminError, AdminRequest, Problem, Route, json_answer, text_answer
from runtime.bookie.serving.request_path import disk_space
from runtime.bookie.view import BookieView
from runtime.metadata.bookies.registration import BookieMode


class JavaRoutes:
    """Answers for one bookie."""

    def __init__(self, view: BookieView) -> None:
        self._view = view

    def routes(self) -> list[Route]:
        """All of them."""
        bookie = "/api/v1/bookie"
        return [
            *(Route(method, "/heartbeat", self._heartbeat) for method in ("GET", "PUT", "POST", "DELETE")),
            Route("GET", f"{bookie}/state", self._state),
            Route("GET", f"{bookie}/is_ready", self._is_ready),
            Route("GET", f"{bookie}/info", self._info),
        ]

    async def _heartbeat(self, _: AdminRequest) -> AdminAnswer:
        return text_answer("OK\n")

    async def _state(self, _: AdminRequest) -> AdminAnswer:
        view = self._view
        return json_answer(
            {
                "running": view.is_running,
                "readOnly": view.modes.mode is BookieMode.READ_ONLY,
                "shuttingDown": view.is_stopping,
                "availableForHighPriorityWrites": view.modes.allows_recovery_adds,
            }
        )

    async def _is_ready(self, _: AdminRequest) -> AdminAnswer:
        if self._view.is_stopping:
            raise AdminError(Problem.UNAVAILABLE, "the bookie is stopping")
        if not self._view.is_running:
            raise AdminError(Problem.UNAVAILABLE, f"the bookie is starting: {self._view.stage}")
        return text_answer("OK")

    async def _info(self, _: AdminRequest) -> AdminAnswer:
        space = disk_space(self._view.ports.file_system, self._view.config.storage.ledger_directories)
        return json_answer({"freeSpace": space.free_bytes, "totalSpace": space.total_bytes})
