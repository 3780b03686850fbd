"""Permanently removes a stopped bookie: recovers it, proves that no ledger references it, then deletes its cookie.

Source: replication sections 6 (RULE on cookies) and 10. Deletes the cookie only if a fresh scan of all ledgers finds no
reference and the bookie is not registered, and only at the version that was read before. Then reads the registrations
again, because the bookie may have returned.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection, Iterable

import msgspec

from runtime.errors import (
    BadVersionError,
    LedgerNotFoundError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoNodeError,
    RefusedError,
)
from runtime.metadata.bookies.cookies import CookieStore
from runtime.metadata.store import Node
from runtime.replication.bookie_recovery import BookieRecovery, RecoveryProgress
from runtime.replication.loss_proof import named_reasons
from runtime.replication.recovery_plan import LedgerPlan, RecoveryPlan
from runtime.replication.recovery_report import RecoveryReport

PASSES_MAX = 3
"""Maximum recoveries: a ledger created during the first one may reference the bookie too."""

_REGISTERED_AGAIN = (
    "bookie {0} registered again while its cookie was deleted, so new ledgers may be on it: make sure that it is "
    "stopped, then run bkctl decommission {0} again"
)


class DecommissionPlan(msgspec.Struct, frozen=True):
    """Plan of a decommission. ``cookie_version`` None: the bookie has no cookie, but ledgers reference it.

    ``accepted``: ledgers with lost entries that stay unchanged and still reference the bookie; not in ``recovery``.
    """

    bookie_id: str
    cookie_version: int | None
    recovery: RecoveryPlan
    accepted: tuple[LedgerPlan, ...] = ()

    @property
    def kept(self) -> str:
        """End of a sentence that says why the cookie was not deleted."""
        return "" if self.cookie_version is None else ": its cookie was not deleted"


class DecommissionReport(msgspec.Struct, frozen=True):
    """Result of a decommission. ``refusal`` None: the bookie was removed from the cluster, including its cookie.

    Otherwise ``refusal`` is a sentence with the reason. ``remaining``: ledgers that reference the bookie, or may
    (unreadable metadata). ``is_registered_again``: it returned while its cookie was deleted. ``accepted``: ledgers that
    still reference it because their loss was accepted.
    """

    bookie_id: str
    recoveries: tuple[RecoveryReport, ...]
    ledgers_scanned: int
    remaining: tuple[int, ...]
    is_cookie_deleted: bool
    refusal: str | None
    accepted: tuple[int, ...] = ()
    is_registered_again: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether the bookie was removed completely."""
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
        self._is_delete_in_doubt = False
        """Whether a delete of the cookie was sent but not answered."""

    async def plan(
        self,
        bookie_id: str,
        on_wait: Callable[[str], None] | None = None,
        accepted_losses: Collection[int] = (),
    ) -> DecommissionPlan:
        """Like ``preview``, but RefusedError while the bookie is registered.

        For ``on_wait`` see ``BookieRecovery.require_down``.
        """
        await self._recovery.require_down([bookie_id], on_wait)
        return await self.preview(bookie_id, accepted_losses)

    async def preview(self, bookie_id: str, accepted_losses: Collection[int] = ()) -> DecommissionPlan:
        """Find the references to the bookie, whether it is down or not; writes nothing.

        BookieNotFoundError if it is not registered, has no cookie, and no ledger references it. RefusedError if one of
        the ``accepted_losses`` references the bookie and is not proven lost; ignores those that do not reference it.
        """
        cookie = await self._recovery.outage.outlast(lambda: self._cookies.find(bookie_id))
        plan = await self._recovery.plan([bookie_id])
        accepted = tuple(ledger for ledger in plan.ledgers if ledger.ledger_id in accepted_losses)
        unreadable = [(each.ledger_id, each.detail) for each in plan.unreadable if each.ledger_id in accepted_losses]
        unproven = unreadable + await self._unproven(bookie_id, [ledger.ledger_id for ledger in accepted])
        if unproven:
            raise RefusedError(f"nothing was changed: these losses are not proven: {named_reasons(unproven)}")
        version = None if cookie is None else cookie.version
        return DecommissionPlan(bookie_id, version, plan.without(accepted_losses), accepted)

    async def _unproven(self, bookie_id: str, ledger_ids: Iterable[int]) -> list[tuple[int, str]]:
        """The given ledgers that are not proven lost, with the reason."""
        unproven = []
        for ledger_id in ledger_ids:
            proof = functools.partial(self._recovery.loss_proof.why_not_lost, ledger_id, bookie_id)
            try:
                reason = await self._recovery.outage.outlast(proof)
            except LedgerNotFoundError:
                continue  # deleted meanwhile
            except MetadataFormatError as error:
                reason = str(error)
            if reason is not None:
                unproven.append((ledger_id, reason))
        return unproven

    async def run(
        self,
        plan: DecommissionPlan,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
        *,
        before_scan: Callable[[], Awaitable[None]] | None = None,
        keep_cookie: Callable[[Node], None] | None = None,
    ) -> DecommissionReport:
        """Carry out a plan. Ledgers that cannot be moved do not stop the others, but prevent deletion of the cookie.

        ``before_scan`` is awaited before each scan that may prove that no ledger references the bookie.
        ``keep_cookie`` is called with the cookie before it is deleted; if it raises RefusedError, the cookie stays.
        Waits during an outage of the metadata store. Raises RefusedError if the bookie is registered again,
        MetadataOutageError.
        """
        bookie_id = plan.bookie_id
        recoveries: list[RecoveryReport] = []
        accepted = {ledger.ledger_id for ledger in plan.accepted}
        todo = plan.recovery
        scanned = todo if todo.ledgers else await self._scan(bookie_id, before_scan)
        todo = scanned.without(accepted)
        while todo.ledgers:
            recoveries.append(await self._recovery.run(todo, on_progress))
            scanned = await self._scan(bookie_id, before_scan)
            todo = scanned.without(accepted)
            if len(recoveries) >= PASSES_MAX or not recoveries[-1].is_complete:
                break
        fresh: RecoveryPlan | None = scanned

        async def finish() -> DecommissionReport:
            nonlocal fresh
            # After an outage an earlier scan is outdated and no longer proves that the cookie may be deleted.
            found, fresh = fresh or await self._scan(bookie_id, before_scan), None
            named = {ledger.ledger_id for ledger in found.ledgers}
            unreadable = {failure.ledger_id for failure in found.unreadable}
            remaining = tuple(sorted(named - accepted | unreadable))
            still_accepted = tuple(sorted(named & accepted))
            refusal, is_deleted = await self._why_kept(plan, remaining, still_accepted), False
            if refusal is None:
                refusal, is_deleted = await self._delete_cookie(plan, keep_cookie)
            # A bookie checks its cookie after it registers, so either it or this code detects the conflict.
            is_registered_again = refusal is None and bool(await self._recovery.registered([bookie_id]))
            return DecommissionReport(
                bookie_id,
                tuple(recoveries),
                found.ledgers_scanned,
                remaining,
                is_deleted,
                _REGISTERED_AGAIN.format(bookie_id) if is_registered_again else refusal,
                still_accepted,
                is_registered_again,
            )

        return await self._recovery.outage.outlast(finish)

    async def _scan(self, bookie_id: str, before_scan: Callable[[], Awaitable[None]] | None) -> RecoveryPlan:
        """Find current references to the bookie, with ``before_scan`` repeated after each outage."""

        async def scan() -> RecoveryPlan:
            if before_scan is not None:
                await before_scan()
            return await self._recovery.scan([bookie_id])

        return await self._recovery.outage.outlast(scan)

    async def _why_kept(
        self, plan: DecommissionPlan, remaining: tuple[int, ...], accepted: tuple[int, ...]
    ) -> str | None:
        """A sentence with the ledgers that prevent deletion of the cookie, or None."""
        if remaining:
            count = len(remaining)
            ledgers = "1 ledger still references" if count == 1 else f"{count} ledgers still reference"
            return f"{ledgers} bookie {plan.bookie_id} (or could not be checked){plan.kept}"
        unproven = await self._unproven(plan.bookie_id, accepted)
        return f"no longer proven lost: {named_reasons(unproven)}{plan.kept}" if unproven else None

    async def _delete_cookie(
        self, plan: DecommissionPlan, keep_cookie: Callable[[Node], None] | None
    ) -> tuple[str | None, bool]:
        try:
            await self._recovery.require_down([plan.bookie_id])
            if plan.cookie_version is None:
                return None, False
            node = await self._cookies.read_node(plan.bookie_id)
            if keep_cookie is not None and node.stat.version == plan.cookie_version:
                keep_cookie(node)
            try:
                await self._cookies.delete(plan.bookie_id, plan.cookie_version)
            except MetadataUnavailableError:
                self._is_delete_in_doubt = True
                raise
        except RefusedError as error:
            return f"{error}{plan.kept}", False
        except BadVersionError:
            return f"the cookie of bookie {plan.bookie_id} changed in the meantime: it was not deleted", False
        except NoNodeError:
            return None, self._is_delete_in_doubt  # deleted by us if the answer was lost, otherwise by another process
        return None, True
