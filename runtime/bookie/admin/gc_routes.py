"""Garbage collection of a bookie: Java's paths, and the stop of deletion after older metadata was found."""

from __future__ import annotations

import asyncio
import contextlib

from bkctl.runtime.admin.api import CollectionDetails, ConfirmedMetadata, ForcedCollection, SuspendedCompaction
from bkctl.runtime.admin.calls import BKCTL_API
from bkctl.runtime.admin.messages import (
    AdminAnswer,
    AdminError,
    AdminRequest,
    Problem,
    Route,
    fields_of,
    json_answer,
    truth,
)
from bkctl.runtime.bookie.admin.mode_routes import require_running
from bkctl.runtime.bookie.collection.collector import GarbageCollector
from bkctl.runtime.bookie.collection.long_work import CompactionKind
from bkctl.runtime.bookie.view import BookieView
from bkctl.storage.advice import with_path
from bkctl.storage.errors import BkctlError

_KINDS = {"Major": CompactionKind.MAJOR, "Minor": CompactionKind.MINOR}


class GarbageCollectionRoutes:
    """Starts, suspends and shows the garbage collection of one bookie."""

    def __init__(self, view: BookieView) -> None:
        self._view = view
        self._forced: asyncio.Task[None] | None = None

    def routes(self) -> list[Route]:
        """All of them."""
        gc = "/api/v1/bookie/gc"
        return [
            Route("GET", gc, self._is_forced),
            Route("PUT", gc, self._force, changes=True),
            Route("GET", "/api/v1/bookie/gc_details", self._details),
            Route("GET", f"{gc}/suspend_compaction", self._suspended),
            Route("PUT", f"{gc}/suspend_compaction", self._suspend, changes=True),
            Route("PUT", f"{gc}/resume_compaction", self._resume, changes=True),
            Route("PUT", f"{BKCTL_API}/gc/confirm", self._confirm, changes=True),
        ]

    @property
    def _collector(self) -> GarbageCollector:
        require_running(self._view)
        assert self._view.collector is not None
        return self._view.collector

    async def _is_forced(self, _: AdminRequest) -> AdminAnswer:
        return json_answer(ForcedCollection(_word(self._collector.is_forced)))

    async def _force(self, request: AdminRequest) -> AdminAnswer:
        """Start a round and answer; compactions may run for days. One at a time, as in Java."""
        fields = fields_of(request, "forceMajor", "forceMinor")
        kinds = frozenset(kind for name, kind in _KINDS.items() if truth(fields, f"force{name}") or not fields)
        collector = self._collector
        if not collector.is_forced:
            self._forced = asyncio.get_running_loop().create_task(_force(collector, kinds))
        return json_answer(f"Triggered GC on BookieServer: {self._view.bookie_id}")

    async def _details(self, _: AdminRequest) -> AdminAnswer:
        collector, clock = self._collector, self._view.ports.clock
        now_ms, now_s = clock.now_ms(), clock.monotonic_ns() / 1e9
        return json_answer(
            [
                CollectionDetails(
                    force_compacting=collector.is_forced and status.running is not None,
                    major_compacting=status.running is CompactionKind.MAJOR,
                    minor_compacting=status.running is CompactionKind.MINOR,
                    last_major_compaction_time=now_ms - round((now_s - status.last_major_s) * 1000),
                    last_minor_compaction_time=now_ms - round((now_s - status.last_minor_s) * 1000),
                    major_compaction_counter=logs.major_compactions_count,
                    minor_compaction_counter=logs.minor_compactions_count,
                )
                for status, logs in zip(collector.compactions, collector.log_metrics, strict=True)
            ]
        )

    async def _confirm(self, request: AdminRequest) -> AdminAnswer:
        """Accept the present metadata; the answer has what had stopped the deletion."""
        if truth(fields_of(request, "confirm"), "confirm") is not True:
            raise AdminError(Problem.INVALID, 'confirm in the body: {"confirm": true}')
        try:
            stopped = await self._collector.proof.confirm()
            return json_answer(ConfirmedMetadata(None if stopped is None else stopped.reason))
        except (BkctlError, OSError) as error:
            raise AdminError(Problem.UNAVAILABLE, f"not confirmed, run it again: {with_path(error)}") from error

    async def _suspended(self, _: AdminRequest) -> AdminAnswer:
        suspended = self._collector.compactions[0].suspended
        minor, major = (_word(kind in suspended) for kind in (CompactionKind.MINOR, CompactionKind.MAJOR))
        return json_answer(SuspendedCompaction(minor, major))

    async def _suspend(self, request: AdminRequest) -> AdminAnswer:
        return self._change(request, "suspend", is_suspended=True)

    async def _resume(self, request: AdminRequest) -> AdminAnswer:
        return self._change(request, "resume", is_suspended=False)

    def _change(self, request: AdminRequest, verb: str, *, is_suspended: bool) -> AdminAnswer:
        names = {f"{verb}{name}": kind for name, kind in _KINDS.items()}
        fields, collector = fields_of(request, *names), self._collector
        if not fields:
            raise AdminError(
                Problem.INVALID, f'give the kinds in the body: {{"{verb}Major": true, "{verb}Minor": true}}'
            )
        chosen = [(name, kind) for name, kind in names.items() if truth(fields, name)]
        for _, kind in chosen:
            collector.suspend(kind, is_suspended=is_suspended)
        server = f"Bookie Server listening on port {self._view.port} with id {self._view.bookie_id}"
        return json_answer(", ".join(f"{verb.capitalize()} {kind}GC on BookieServer: {server}" for _, kind in chosen))


async def _force(collector: GarbageCollector, kinds: frozenset[CompactionKind]) -> None:
    with contextlib.suppress(asyncio.CancelledError):  # the bookie stops
        await collector.force(kinds)


def _word(value: bool) -> str:
    return "true" if value else "false"
