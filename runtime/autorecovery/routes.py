"""Paths of the admin interface of an autorecovery daemon: Java's, with Java's answers, and its state as JSON."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

import msgspec

from bkctl.runtime.admin.api import AutorecoveryEnabled, DaemonReady
from bkctl.runtime.admin.calls import BKCTL_API
from bkctl.runtime.admin.exposition import CONTENT_TYPE, MetricsText
from bkctl.runtime.admin.messages import (
    AdminAnswer,
    AdminError,
    AdminRequest,
    Problem,
    Route,
    fields_of,
    json_answer,
    text_answer,
)
from bkctl.runtime.autorecovery.daemon import AutorecoveryDaemon
from bkctl.runtime.autorecovery.metrics import catalogue_of
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.election import read_auditor
from bkctl.runtime.metadata.replication.marks import list_marks
from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote
from bkctl.runtime.metadata.replication.switches import DELAY_S_MAX, AuditRequest, ReplicationSwitches

_JAVA: Final = "/api/v1/autorecovery"
MARKS_MAX: Final = 100_000
"""Longest list of marks in one answer."""


class DaemonState(DaemonNote, frozen=True, kw_only=True):
    """The note that the daemon writes, and what fails in it now."""

    problems: tuple[str, ...]


class DaemonRoutes:
    """Answers for one daemon. What asks about the cluster reads it from ZooKeeper, whichever daemon is the auditor."""

    def __init__(self, daemon: AutorecoveryDaemon) -> None:
        self._daemon = daemon
        self._store, self._root = daemon.store, daemon.root
        self._switches = ReplicationSwitches(daemon.store, daemon.root)
        self._metrics = MetricsText(daemon, catalogue_of(daemon.clock.now_ms), daemon.clock.monotonic_ns)
        self._foreign = ForeignNames()

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            *self.probe_routes(),
            Route("GET", f"{BKCTL_API}/autorecovery", self._state),
            Route("GET", f"{_JAVA}/status", self._status),
            Route("PUT", f"{_JAVA}/status", self._set_status, changes=True),
            Route("GET", f"{_JAVA}/who_is_auditor", self._who_is_auditor),
            Route("GET", f"{_JAVA}/list_under_replicated_ledger", self._list_marks),
            Route("PUT", f"{_JAVA}/trigger_audit", self._trigger, changes=True),
            Route("GET", f"{_JAVA}/lost_bookie_recovery_delay", self._delay),
            Route("PUT", f"{_JAVA}/lost_bookie_recovery_delay", self._set_delay, changes=True),
        ]

    def probe_routes(self) -> list[Route]:
        """What a port for scrapes alone serves."""
        return [
            *(Route(method, "/heartbeat", self._heartbeat) for method in ("GET", "PUT", "POST", "DELETE")),
            Route("GET", "/metrics", self._show_metrics),
            Route("GET", f"{BKCTL_API}/autorecovery/ready", self._ready),
        ]

    async def _heartbeat(self, _: AdminRequest) -> AdminAnswer:
        return text_answer("OK\n")

    async def _show_metrics(self, _: AdminRequest) -> AdminAnswer:
        return AdminAnswer(self._metrics.text(), content_type=CONTENT_TYPE)

    async def _ready(self, _: AdminRequest) -> AdminAnswer:
        """Ready while it is connected to ZooKeeper; waiting for another auditor is its normal state."""
        if not self._store.measures.is_connected:
            raise AdminError(Problem.UNAVAILABLE, "ZooKeeper is not connected")
        return json_answer(DaemonReady(ready=True, problems=self._daemon.all_problems))

    async def _state(self, _: AdminRequest) -> AdminAnswer:
        note = msgspec.structs.asdict(self._daemon.status())
        return json_answer(DaemonState(**note, problems=self._daemon.all_problems))

    # -- Java's paths -----------------------------------------------------------------------------------------------

    async def _status(self, _: AdminRequest) -> AdminAnswer:
        return json_answer(AutorecoveryEnabled(await self._switches.is_enabled()))

    async def _set_status(self, request: AdminRequest) -> AdminAnswer:
        wanted = {"true": True, "false": False}.get(request.query.get("enabled", "").lower())
        if wanted is None:
            raise AdminError(Problem.INVALID, "give ?enabled=true or ?enabled=false")
        await (self._switches.enable() if wanted else self._switches.disable())
        return json_answer(AutorecoveryEnabled(wanted))

    async def _who_is_auditor(self, _: AdminRequest) -> AdminAnswer:
        auditor = await read_auditor(self._store, self._root, self._foreign)
        if auditor is None:
            raise AdminError(Problem.NOT_FOUND, "no auditor is elected")
        return text_answer(f"Auditor: {auditor.bookie_id or 'unknown'}")

    async def _list_marks(self, request: AdminRequest) -> AdminAnswer:
        """A list of ledger ids, or with ``printmissingreplica=true`` their missing bookies by ledger id."""
        query = request.query
        found: dict[str, list[str]] = {}
        marks = list_marks(
            self._store,
            self._root,
            self._foreign,
            missing=query.get("missingreplica"),
            not_missing=query.get("excludingmissingreplica"),
        )
        async with aclosing(marks):
            async for each in marks:
                if len(found) >= MARKS_MAX:
                    raise AdminError(
                        Problem.TOO_LARGE, f"more than {MARKS_MAX} ledgers are marked: bkctl autorecovery pending"
                    )
                found[str(each.ledger_id)] = [] if each.mark is None else list(each.mark.missing_bookies)
        if not found:
            raise AdminError(Problem.NOT_FOUND, "No under replicated ledgers found")
        if query.get("printmissingreplica", "").lower() == "true":
            return json_answer(found)
        return json_answer([int(ledger_id) for ledger_id in found])

    async def _trigger(self, _: AdminRequest) -> AdminAnswer:
        """Ask for an audit, whichever process is the auditor. Java's auditor is asked by its recovery delay."""
        if not await self._switches.is_enabled():
            raise AdminError(Problem.NOT_FOUND, "autorecovery is disabled, so no audit would run")
        if await self._switches.rewrite_recovery_delay() is None:
            request = AuditRequest(self._store, self._root)
            if not await request.is_understood():
                raise AdminError(Problem.NOT_FOUND, "no auditor can be asked: none is elected, or no delay is stored")
            await request.send()
        return text_answer("Success trigger audit.")

    async def _delay(self, _: AdminRequest) -> AdminAnswer:
        delay = await self._switches.recovery_delay()
        if delay is None:
            raise AdminError(Problem.NOT_FOUND, "no recovery delay is stored")
        return text_answer(f"lostBookieRecoveryDelay value: {delay.seconds}")

    async def _set_delay(self, request: AdminRequest) -> AdminAnswer:
        seconds = fields_of(request, "delay_seconds").get("delay_seconds")
        if not isinstance(seconds, int) or isinstance(seconds, bool) or not 0 <= seconds <= DELAY_S_MAX:
            raise AdminError(Problem.INVALID, f"delay_seconds is a whole number from 0 to {DELAY_S_MAX}")
        await self._switches.set_recovery_delay(seconds)
        return text_answer(f"Success set lostBookieRecoveryDelay to {seconds}")
