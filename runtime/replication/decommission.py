"""Removing a stopped bookie for good: recover, prove that nothing names it, then delete its cookie.

Source: replication sections 6 (RULE on cookies) and 10. The cookie goes only when a fresh scan over all ledgers finds
no reference and the bookie is not registered, and only at the version that was read before. After that the
registrations are read once more: a bookie that was only silent may have come back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from runtime.errors import BadVersionError, NoNodeError, RefusedError
from runtime.metadata.cookies import CookieStore
from runtime.metadata.store import Node
from runtime.replication.bookie_recovery import BookieRecovery, RecoveryProgress
from runtime.replication.recovery_plan import RecoveryPlan
from runtime.replication.recovery_report import RecoveryReport

PASSES_MAX = 3
"""Recoveries run at most: a ledger created during the first may name the bookie too."""


class DecommissionPlan(msgspec.Struct, frozen=True):
    """What a decommission would do. ``cookie_version`` None: the bookie has no cookie, only ledgers name it."""

    bookie_id: str
    cookie_version: int | None
    recovery: RecoveryPlan


class DecommissionReport(msgspec.Struct, frozen=True):
    """What a decommission did. ``refusal`` None: the bookie is gone from this cluster, cookie and all.

    Otherwise ``refusal`` is the sentence why not. ``remaining`` are the ledgers that still name the bookie, or may
    (metadata that cannot be read). ``is_registered_again``: it came back while its cookie was deleted.
    """

    bookie_id: str
    recoveries: tuple[RecoveryReport, ...]
    ledgers_scanned: int
    remaining: tuple[int, ...]
    is_cookie_deleted: bool
    refusal: str | None
    is_registered_again: bool = False

    @property
    def is_complete(self) -> bool:
        """Nothing is left of the bookie."""
        return self.refusal is None

    @property
    def has_progress(self) -> bool:
        """Whether anything was changed."""
        return self.is_cookie_deleted or any(recovery.has_progress for recovery in self.recoveries)


class Decommission:
    """Plans and runs decommissions of stopped bookies."""

    def __init__(self, recovery: BookieRecovery, cookies: CookieStore) -> None:
        self._recovery = recovery
        self._cookies = cookies

    async def plan(self, bookie_id: str, on_wait: Callable[[str], None] | None = None) -> DecommissionPlan:
        """``preview`` of a bookie that is down; RefusedError while it is registered.

        For ``on_wait`` see ``BookieRecovery.require_down``.
        """
        await self._recovery.require_down([bookie_id], on_wait)
        return await self.preview(bookie_id)

    async def preview(self, bookie_id: str) -> DecommissionPlan:
        """Find what references the bookie, whether it is down or not; writes nothing.

        BookieNotFoundError when it is not registered, has no cookie, and no ledger references it.
        """
        cookie = await self._cookies.find(bookie_id)
        plan = await self._recovery.plan([bookie_id])
        return DecommissionPlan(bookie_id, None if cookie is None else cookie.version, plan)

    async def run(
        self,
        plan: DecommissionPlan,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
        *,
        before_scan: Callable[[], Awaitable[None]] | None = None,
        keep_cookie: Callable[[Node], None] | None = None,
    ) -> DecommissionReport:
        """Carry out a plan. Ledgers that cannot be moved do not stop the others; they keep the cookie (T46).

        ``before_scan`` is awaited before each scan that may prove that no ledger references the bookie.
        ``keep_cookie`` is called with the cookie before it is deleted; if it raises RefusedError the cookie stays.
        Raises RefusedError when the bookie is registered again, MetadataUnavailableError.
        """
        bookie_id = plan.bookie_id
        recoveries: list[RecoveryReport] = []
        todo = plan.recovery
        while True:
            if todo.ledgers:
                recoveries.append(await self._recovery.run(todo, on_progress))
            if before_scan is not None:
                await before_scan()
            todo = await self._recovery.scan([bookie_id])
            is_stuck = bool(recoveries) and not recoveries[-1].is_complete
            if not todo.ledgers or is_stuck or len(recoveries) >= PASSES_MAX:
                break
        remaining = tuple(
            sorted({ledger.ledger_id for ledger in todo.ledgers} | {failure.ledger_id for failure in todo.unreadable})
        )
        refusal, is_cookie_deleted = await self._delete_cookie(plan, remaining, keep_cookie)
        # A bookie that registers looks at its cookie afterwards, so that one of the two always sees the other.
        is_registered_again = refusal is None and bool(await self._recovery.registered([bookie_id]))
        if is_registered_again:
            refusal = (
                f"bookie {bookie_id} registered again while its cookie was deleted, so new ledgers may be on it: make "
                f"sure that it is stopped, then run bkctl decommission {bookie_id} again"
            )
        return DecommissionReport(
            bookie_id,
            tuple(recoveries),
            todo.ledgers_scanned,
            remaining,
            is_cookie_deleted,
            refusal,
            is_registered_again,
        )

    async def _delete_cookie(
        self, plan: DecommissionPlan, remaining: tuple[int, ...], keep_cookie: Callable[[Node], None] | None
    ) -> tuple[str | None, bool]:
        if remaining:
            ledgers = "1 ledger still names" if len(remaining) == 1 else f"{len(remaining)} ledgers still name"
            return f"{ledgers} bookie {plan.bookie_id}, or may: its cookie is kept", False
        try:
            await self._recovery.require_down([plan.bookie_id])
            if plan.cookie_version is None:
                return None, False
            node = await self._cookies.read_node(plan.bookie_id)
            if keep_cookie is not None and node.stat.version == plan.cookie_version:
                keep_cookie(node)
            await self._cookies.delete(plan.bookie_id, plan.cookie_version)
        except RefusedError as error:
            return f"{error}: its cookie is kept", False
        except BadVersionError:
            return f"the cookie of bookie {plan.bookie_id} was written meanwhile: it is kept", False
        except NoNodeError:
            return None, False  # somebody else deleted it
        return None, True
