"""The state of a bookie in more detail than Java's path has it: why it is read-only, and how its start proceeds."""

from __future__ import annotations

import msgspec

from bkctl.runtime.admin.api import ModeAnswer, ModeReason, Order, RepairProgress, StateAnswer, TroubleAnswer
from bkctl.runtime.admin.calls import BKCTL_API
from bkctl.runtime.admin.messages import AdminAnswer, AdminRequest, Route, json_answer
from bkctl.runtime.bookie.view import BookieView
from bkctl.runtime.metadata.uri import parse_metadata_uri


def mode_answer(view: BookieView) -> ModeAnswer:
    """The mode, why, whether it is registered, as far as is known, and since when and why an operator set it."""
    modes, registration, order = view.modes, view.registration, view.modes.order
    is_connected = view.store is not None and view.store.measures.is_connected
    return ModeAnswer(
        mode=modes.mode.value,
        reasons=tuple(ModeReason(reason=each.name.lower(), text=each.value) for each in modes.reasons),
        registered=registration is not None and is_connected and registration.is_registered and modes.is_registered,
        operator=None if order is None else Order(order.since_ms, order.reason),
    )


class StateRoute:
    """Answers for one bookie."""

    def __init__(self, view: BookieView) -> None:
        self._view = view

    def routes(self) -> list[Route]:
        """All of them."""
        return [Route("GET", f"{BKCTL_API}/state", self._state)]

    async def _state(self, _: AdminRequest) -> AdminAnswer:
        view, progress = self._view, self._view.integrity_progress
        stopped = None if view.collector is None else view.collector.proof.stopped
        state = StateAnswer(
            bookie_id=view.bookie_id,
            metadata_uri=view.config.metadata_uri,
            metadata_root=parse_metadata_uri(view.config.metadata_uri).root,
            instance_id=view.instance_id,
            version=view.ports.release,
            running=view.is_running,
            stopping=view.is_stopping,
            stage=view.stage,
            **msgspec.structs.asdict(mode_answer(view)),
            troubles=tuple(
                TroubleAnswer(trouble=each.trouble.value, text=each.text, since_ms=each.since_ms)
                for each in view.troubles.values()
            ),
            accepts_recovery_writes=view.modes.allows_recovery_adds,
            started_ms=view.started_ms,
            uptime_s=(view.ports.clock.now_ms() - view.started_ms) / 1000,
            port=view.port,
            http_port=view.http_port,
            ledger_directories=tuple(view.config.storage.ledger_directories),
            repair=RepairProgress(
                is_due=progress.is_due,
                ledgers_in_limbo=progress.ledgers_in_limbo,
                ledgers_checked=progress.ledgers_checked,
                entries_fetched=progress.entries_fetched,
            ),
            deletion_stopped=None if stopped is None else Order(stopped.since_ms, stopped.reason),
            jobs=tuple(view.jobs.all),
        )
        return json_answer(state)
