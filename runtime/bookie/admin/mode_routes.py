"""State and mode of a bookie: Java's paths, why it is read-only and how its start proceeds, what an operator sets."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from bkctl.runtime.admin.api import (
    JavaMode,
    JavaState,
    ModeAnswer,
    ModeReason,
    Order,
    RepairProgress,
    StateAnswer,
    TroubleAnswer,
)
from bkctl.runtime.admin.calls import BKCTL_API
from bkctl.runtime.admin.messages import (
    AdminAnswer,
    AdminError,
    AdminRequest,
    Problem,
    Route,
    fields_of,
    json_answer,
    text_answer,
    truth,
)
from bkctl.runtime.bookie.view import BookieView
from bkctl.runtime.errors import MetadataAuthError
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.storage.advice import with_path
from bkctl.storage.operator_mode import OperatorMode

REGISTRATION_S_MAX: Final = 5.0
"""How long a change of the mode waits for ZooKeeper before it answers that the registration is pending."""
REASON_LENGTH_MAX: Final = 500
_PENDING_STATUS: Final = 202


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


class ModeRoutes:
    """State and mode of one bookie."""

    def __init__(self, view: BookieView) -> None:
        self._view = view
        self._one_change_at_a_time = asyncio.Lock()

    def routes(self) -> list[Route]:
        """All of them."""
        bookie = "/api/v1/bookie"
        return [
            Route("GET", f"{bookie}/state", self._state),
            Route("GET", f"{bookie}/is_ready", self._is_ready),
            Route("GET", f"{bookie}/state/readonly", self._read_only),
            Route("PUT", f"{bookie}/state/readonly", self._set_read_only, changes=True),
            Route("GET", f"{BKCTL_API}/state", self._details),
            Route("PUT", f"{BKCTL_API}/mode", self._set_mode, changes=True),
        ]

    async def _state(self, _: AdminRequest) -> AdminAnswer:
        view = self._view
        return json_answer(
            JavaState(
                running=view.is_running,
                read_only=view.modes.mode is BookieMode.READ_ONLY,
                shutting_down=view.is_stopping,
                available_for_high_priority_writes=view.modes.allows_recovery_adds,
            )
        )

    async def _details(self, _: AdminRequest) -> AdminAnswer:
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

    async def _is_ready(self, _: AdminRequest) -> AdminAnswer:
        require_running(self._view)
        return text_answer("OK")

    async def _read_only(self, _: AdminRequest) -> AdminAnswer:
        return json_answer(JavaMode(self._view.modes.mode is BookieMode.READ_ONLY))

    async def _set_read_only(self, request: AdminRequest) -> AdminAnswer:
        fields = fields_of(request, "readOnly", "reason")
        is_read_only = truth(fields, "readOnly")
        if is_read_only is None:
            raise AdminError(Problem.INVALID, 'give the mode in the body: {"readOnly": true}')
        await self._set(is_read_only, fields.get("reason"))
        status = 200 if mode_answer(self._view).registered else _PENDING_STATUS
        return json_answer(JavaMode(self._view.modes.mode is BookieMode.READ_ONLY), status)

    async def _set_mode(self, request: AdminRequest) -> AdminAnswer:
        fields = fields_of(request, "mode", "reason")
        words = {mode.value: mode is BookieMode.READ_ONLY for mode in BookieMode}
        mode = fields.get("mode")
        if not isinstance(mode, str) or mode not in words:
            raise AdminError(Problem.INVALID, 'give the mode in the body: {"mode": "read-only"} or "writable"')
        await self._set(words[mode], fields.get("reason"))
        answer = mode_answer(self._view)
        return json_answer(answer, 200 if answer.registered else _PENDING_STATUS)

    async def _set(self, is_read_only: bool, reason: object) -> None:
        view = self._view
        require_running(view)
        if reason is not None and (not isinstance(reason, str) or len(reason) > REASON_LENGTH_MAX):
            raise AdminError(Problem.INVALID, f"the reason is not a text of at most {REASON_LENGTH_MAX} characters")
        if reason is not None and not reason.isprintable():
            raise AdminError(Problem.INVALID, "the reason has a line break or another character that cannot be shown")
        if is_read_only and not view.modes.is_read_only_mode_enabled:
            raise AdminError(Problem.INVALID, "read-only mode is disabled (readOnlyModeEnabled=false)")
        async with self._one_change_at_a_time:
            before, now_ms = view.modes.order, view.ports.clock.now_ms()
            order = OperatorMode(is_read_only=is_read_only, since_ms=now_ms, written_ms=now_ms, reason=reason or "")
            if is_read_only and before is not None:
                kept = before.reason if reason is None else reason
                order = msgspec.structs.replace(order, since_ms=before.since_ms, reason=kept)
            await self._store(order)
            try:
                async with asyncio.timeout(REGISTRATION_S_MAX):
                    await view.modes.registered()
            except TimeoutError:
                pass  # the answer says so
            except MetadataAuthError as error:
                back = before or OperatorMode(is_read_only=False, since_ms=now_ms, written_ms=now_ms)
                await self._store(msgspec.structs.replace(back, written_ms=view.ports.clock.now_ms()))
                raise AdminError(Problem.NOT_PERMITTED, _unchanged(error)) from error

    async def _store(self, order: OperatorMode) -> None:
        """Keep the order in the ledger directories, then follow it."""
        view = self._view
        assert view.mode_files is not None
        try:
            await view.mode_files.store_order(order)
        except OSError as error:
            text = f"the mode is unchanged, because no ledger directory can keep it: {with_path(error)}"
            raise AdminError(Problem.INTERNAL, text) from error
        view.modes.follow_order(order)


def _unchanged(error: MetadataAuthError) -> str:
    return (
        f"the mode is unchanged: {error}, in the settings of this bookie, or let its user create and delete nodes there"
    )


def require_running(view: BookieView) -> None:
    """AdminError while the bookie starts or stops."""
    if view.is_stopping or not view.is_running:
        raise not_running(view)


def not_running(view: BookieView) -> AdminError:
    """The error for a bookie that starts or stops."""
    word = "stopping" if view.is_stopping else f"starting: {view.stage}"
    return AdminError(Problem.UNAVAILABLE, f"the bookie is {word}")
