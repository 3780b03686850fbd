"""Makes bookies read-only before they leave, and writable again; Java's too, where their HTTP server is open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bkctl.commands.bookie.admin_access import admin_of
from bkctl.commands.bookie.admin_state import read_state_of
from bkctl.commands.bookie.mode import Mode, is_mode_set, reasons_text, set_operator_mode
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import WaitTimeoutError
from bkctl.commands.session import Session
from bkctl.runtime.admin.api import StateAnswer
from bkctl.runtime.admin.calls import AdminCredentials
from bkctl.runtime.admin.client import AdminClient
from bkctl.runtime.errors import AdminAccessError, AuthenticationError, BookieError, RefusedError
from bkctl.runtime.replication.judge.drained_bookies import LEAVES_AT_RISK, is_drain_order
from bkctl.runtime.replication.run.drain import ModeWatch
from bkctl.storage.errors import BkctlError

PERSIST_SETTING = "persistBookieStatusEnabled"
_SERVER_CONFIG = "/api/v1/config/server_config"


class BookieSwitch:
    """Sets the mode of bookies of one cluster through their admin interfaces, and waits for their registrations."""

    def __init__(
        self, context: CommandContext, session: Session, watch: ModeWatch, credentials: AdminCredentials
    ) -> None:
        self._context = context
        self._session = session
        self._watch = watch
        self._credentials = credentials

    async def make_read_only(
        self,
        bookie_ids: Sequence[str],
        wait_s: float,
        reason: str,
        note: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        """Return once none of the bookies is writable; WaitTimeoutError, RefusedError, AuthenticationError.

        For a bookie that bkctl cannot ask, warns how to make it read-only, and waits for that. ``note`` gets those that
        may be read-only from then on.
        """
        console = self._context.console
        for index, bookie_id in enumerate(bookie_ids):
            note(bookie_ids[: index + 1])
            try:
                await self._set(bookie_id, Mode.READ_ONLY, reason)
            except AuthenticationError:
                note(bookie_ids[:index])
                raise
            except (BookieError, AdminAccessError) as error:
                if (await self._watch.read([bookie_id])).writable:
                    console.warn(f"make bookie {bookie_id} read-only yourself, bkctl cannot: {error}")
                else:
                    console.warn(f"bookie {bookie_id} is read-only, but bkctl cannot ask it to stay so: {error}")

        def say_waiting(left: Sequence[str]) -> None:
            console.say(f"waiting up to {wait_s:g} s until bookie {', '.join(left)} is registered as read-only")

        left = await self._watch.wait_until_none(lambda found: found.writable, bookie_ids, wait_s, say_waiting)
        if left:
            note([each for each in bookie_ids if each not in left])
            raise WaitTimeoutError(
                f"bookie {', '.join(left)} is not read-only after {wait_s:g} s (--wait): nothing was copied"
            )

    async def require_answers(self, bookie_ids: Sequence[str]) -> None:
        """Return if each of the bookies can be asked about its mode; errors of the admin interface, RefusedError."""
        for bookie_id in bookie_ids:
            async with admin_of(self._context, self._session, bookie_id, self._credentials) as client:
                await self._state(client)

    async def make_writable(self, bookie_ids: Sequence[str], wait_s: float) -> None:
        """Return once all bookies are writable; errors as ``_set``, WaitTimeoutError."""
        for bookie_id in bookie_ids:
            state = await self._set(bookie_id, Mode.WRITABLE, None)
            if state.mode != Mode.WRITABLE.value:
                self._context.console.warn(
                    f"bookie {bookie_id} is still {state.mode}: {reasons_text(state)}; waiting up to {wait_s:g} s "
                    "until that is over"
                )
        left = await self._watch.wait_until_none(lambda found: found.not_writable, bookie_ids, wait_s)
        if left:
            name = ", ".join(left)
            raise WaitTimeoutError(
                f"bookie {name} is still read-only after {wait_s:g} s (--wait): bkctl bookie state {name} shows why"
            )

    async def keeps_read_only(self, bookie_id: str) -> bool:
        """Whether an operator has made it read-only; errors of the admin interface.

        RefusedError for a bookie that would forget that at a restart.
        """
        async with admin_of(self._context, self._session, bookie_id, self._credentials) as client:
            state = await self._state(client)
            if state.is_java and not await _is_persistent(client):
                raise RefusedError(
                    f"nothing was changed: bookie {bookie_id} is a Java bookie that becomes writable at a restart: set "
                    f"{PERSIST_SETTING}=true in its configuration and restart it"
                )
            return is_mode_set(state, Mode.READ_ONLY, None)

    async def _set(self, bookie_id: str, mode: Mode, reason: str | None) -> StateAnswer:
        async with admin_of(self._context, self._session, bookie_id, self._credentials) as client:
            state = await self._state(client)
            order = "" if state.operator is None else state.operator.reason
            is_risk_new = reason == LEAVES_AT_RISK and is_drain_order(order) and not order.startswith(LEAVES_AT_RISK)
            if is_mode_set(state, mode, None) and not is_risk_new:
                return state
            try:
                after = await set_operator_mode(client, state, mode, reason)
            except (BookieError, AdminAccessError, AuthenticationError):
                raise
            except BkctlError as error:
                raise RefusedError(f"bookie {bookie_id} cannot be made {mode.value}: {error}") from error
            if mode is Mode.READ_ONLY and state.is_java and not await _is_persistent(client):
                self._context.console.warn(
                    f"bookie {bookie_id} becomes writable if it restarts: {PERSIST_SETTING} is not true"
                )
            return after

    async def _state(self, client: AdminClient) -> StateAnswer:
        """The state; RefusedError for a bookie of another cluster with the same id on this machine."""
        state = await read_state_of(client, client.name)
        other = state.instance_id
        if other is not None and self._session.instance_id not in {None, other}:
            raise RefusedError(
                f"bookie {client.name} at {client.address} belongs to another cluster ({other}): "
                "run bkctl on a machine without it"
            )
        return state


async def _is_persistent(client: AdminClient) -> bool:
    """Whether a Java bookie keeps its mode over a restart; False if it does not say so."""
    try:
        config = await client.get(_SERVER_CONFIG, dict[str, Any])
    except BkctlError:
        return False
    return str(config.get(PERSIST_SETTING, "")).strip().lower() == "true"
