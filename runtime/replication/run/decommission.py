"""Permanently removes bookies: drains them, proves that no ledger references them, then deletes their cookies.

Source: replication sections 6 (RULE on cookies), 10 and 15.2. Deletes a cookie only if a fresh scan of all ledgers
finds no reference and the bookie is not registered, and only if it is the one that was read before. Then it scans
again, because other processes may have copied to the bookie meanwhile: a write that names it fails once its cookie is
deleted, so this scan sees all of them. If it finds one, the cookies come back. At last it reads the registrations
again, because the bookie may have returned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import msgspec

from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import (
    SILENCE,
    BadVersionError,
    LedgerNotFoundError,
    MetadataFormatError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    RefusedError,
)
from bkctl.runtime.metadata.bookies.cookies import Cookie, CookieStore
from bkctl.runtime.metadata.ledgers.stored_ledgers import IDS_KEPT_MAX, unreadable_advice
from bkctl.runtime.metadata.replication.recovery_status import note_back
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.judge.advice import accept_loss_command
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerFailure
from bkctl.runtime.replication.judge.left_ledgers import Shortage
from bkctl.runtime.replication.plan.recovery_plan import LedgerPlan, RecoveryPlan
from bkctl.runtime.replication.run.drain import Drain, DrainHooks, DrainResult, ModeWatch, OpenLedger
from bkctl.runtime.replication.run.recovery import BookieRecovery, RecoveryReport
from bkctl.runtime.replication.survey.loss_proof import listed_reasons
from bkctl.storage.words import counted, named

_REFERENCED_MEANWHILE = ", because of a write while its cookie was deleted"
_RESTORED = ": the cookie was written again; repeat the command"
_REGISTERED_AGAIN = (
    "bookie {0} registered again while its cookie was deleted, so new ledgers may be on it: make sure that it is "
    "stopped, then run bkctl decommission {0} again"
)


class DecommissionPlan(msgspec.Struct, frozen=True):
    """Plan of a decommission. ``cookies``: None for a bookie without a cookie that ledgers reference.

    ``live``: bookies that serve, which are drained before they are stopped. ``accepted``: ledgers with lost entries
    that stay unchanged and still reference a bookie; not in ``recovery``.
    """

    bookie_ids: tuple[str, ...]
    cookies: Mapping[str, Versioned[Cookie] | None]
    recovery: RecoveryPlan
    live: frozenset[str] = frozenset()
    accepted: tuple[LedgerPlan, ...] = ()

    @property
    def names(self) -> str:
        """The bookies in a sentence."""
        return named("bookie", self.bookie_ids)

    @property
    def cookie_remark(self) -> str:
        """End of a sentence that says why no cookie was deleted."""
        if not any(self.cookies.values()):
            return ""
        return ": its cookie was not deleted" if len(self.bookie_ids) == 1 else ": no cookie was deleted"


class DecommissionReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a decommission. ``refusal`` None: done; with ``is_drained_only`` the bookies are not stopped yet.

    Otherwise ``refusal`` is a sentence with the reason. ``remaining``: ledgers that reference a bookie, or may
    (unreadable metadata). ``registered_again``: bookies that returned while their cookies were deleted. ``accepted``:
    ledgers that still reference one because their loss was accepted.
    """

    bookie_ids: tuple[str, ...]
    recoveries: tuple[RecoveryReport, ...]
    ledgers_scanned: int
    remaining: tuple[int, ...]
    refusal: str | None = None
    open_ledgers: tuple[OpenLedger, ...] = ()
    cookies_deleted: tuple[str, ...] = ()
    accepted: tuple[int, ...] = ()
    registered_again: tuple[str, ...] = ()
    is_drained_only: bool = False
    read_only: tuple[str, ...] = ()
    """Bookies that still serve, read-only."""
    down: tuple[str, ...] = ()
    """Bookies that were made read-only, and do not serve now."""
    shortage: Shortage = Shortage()
    """If ledgers are left."""

    @property
    def is_complete(self) -> bool:
        """Whether everything that was asked for is done."""
        return self.refusal is None

    @property
    def is_cookie_deleted(self) -> bool:
        """Whether a cookie was deleted."""
        return bool(self.cookies_deleted)

    @property
    def has_progress(self) -> bool:
        """Whether anything was changed."""
        return self.is_cookie_deleted or any(recovery.has_progress for recovery in self.recoveries)


class Decommission:
    """Plans and runs decommissions, of live and of dead bookies."""

    def __init__(self, recovery: BookieRecovery, cookies: CookieStore, ports: ClientPorts) -> None:
        self._recovery = recovery
        self._cookies = cookies
        return_wait_s = recovery.policy.config.registration_wait_s
        self.watch = ModeWatch(ports.registrations, ports.clock, recovery.outage, return_wait_s)
        self._ports = ports
        self._own_deletes: dict[str, bytes] = {}
        """Cookies that were deleted here, or whose delete was sent but not answered."""

    async def plan(
        self,
        bookie_ids: Sequence[str],
        on_wait: Callable[[str], None] | None = None,
        accepted_losses: Collection[int] = (),
        accepted_from: str = "",
        *,
        noted_losses: Collection[int] = (),
        is_rehearsal: bool = False,
    ) -> DecommissionPlan:
        """Find the references to the bookies; writes nothing.

        Waits for the end of the sessions of killed bookies, unless ``is_rehearsal``; for ``on_wait`` see
        ``BookieRecovery.require_down``. BookieNotFoundError if one is not registered, has no cookie, and no ledger
        references it. RefusedError if one of the ``accepted_losses``, which are in the file ``accepted_from``,
        references a bookie and is not proven lost; ignores those that reference none. ``noted_losses`` were accepted
        before: they are again, as far as they are still proven and no bookie is up or can come back with its cookie.
        """
        if is_rehearsal:
            live = frozenset((await self.watch.read(bookie_ids)).serving)
        else:
            live = frozenset([each for each in bookie_ids if not await self._is_down(each, on_wait)])
        if live and accepted_losses:
            raise RefusedError(
                f"nothing was changed: bookie {min(live)} serves, so what it has is not lost: bkctl decommission "
                f"{min(live)} moves its ledgers without a loss"
            )
        ids = tuple(sorted(set(bookie_ids)))
        cookies = {each: await self._recovery.outage.outlast(partial(self._cookies.find, each)) for each in ids}
        plan = await self._recovery.plan(ids, unreachable=frozenset(ids) - live)
        plan = msgspec.structs.replace(plan, is_drain=bool(live))
        may_return = any(cookies.values())
        noted = () if live or may_return else noted_losses
        named = [each for each in plan.ledgers if each.ledger_id in accepted_losses or each.ledger_id in noted]
        unreadable = [(each.ledger_id, each.detail) for each in plan.unreadable if each.ledger_id in accepted_losses]
        unproven = dict(await self._unproven(ids, [ledger.ledger_id for ledger in named]))
        refused = unreadable + [each for each in unproven.items() if each[0] in accepted_losses]
        if refused:
            more = await self._name_all(ids, [ledger_id for ledger_id, _ in refused], accepted_from)
            raise RefusedError(f"nothing was changed: these losses are not proven: {listed_reasons(refused)}{more}")
        accepted = tuple(ledger for ledger in named if ledger.ledger_id not in unproven)
        rest = plan.without({ledger.ledger_id for ledger in accepted})
        return DecommissionPlan(ids, cookies, rest, live, accepted)

    async def _name_all(self, bookie_ids: Sequence[str], ledger_ids: Sequence[int], file: str) -> str:
        """Which other bookies must be named, because they are down and may have entries of the first ledger."""
        try:
            members = (await self._ports.ledgers.read(ledger_ids[0])).value.bookies()
        except (LedgerNotFoundError, MetadataFormatError):
            return ""
        others = sorted(members - (await self._ports.registrations.snapshot()).live - set(bookie_ids))
        if not others:
            return ""
        are, disks = ("is", "its disks are") if len(others) == 1 else ("are", "their disks are")
        command = accept_loss_command(sorted({*bookie_ids, *others}), file)
        return f"; {named('bookie', others)} {are} down too: if {disks} lost as well, name all: {command}"

    async def _is_down(self, bookie_id: str, on_wait: Callable[[str], None] | None) -> bool:
        """False for a bookie that answers; waits for the session of one that does not."""
        try:
            await self._recovery.require_down([bookie_id], on_wait)
        except RefusedError:
            if await self._recovery.error_of(bookie_id) is None:
                return False
            raise
        return True

    async def _unproven(self, bookie_ids: Sequence[str], ledger_ids: Collection[int]) -> list[tuple[int, str]]:
        """The given ledgers that are not proven lost, with the reason."""
        unproven = []
        for ledger_id in ledger_ids:
            try:
                reason = await self._recovery.outage.outlast(
                    partial(self._recovery.loss_proof.why_not_lost, ledger_id, bookie_ids)
                )
            except LedgerNotFoundError:
                continue  # deleted meanwhile
            except MetadataFormatError as error:
                reason = str(error)
            if reason is not None:
                unproven.append((ledger_id, reason))
        return unproven

    def _drain(self, plan: DecommissionPlan, hooks: DrainHooks, live: frozenset[str]) -> Drain:
        accepted = frozenset(ledger.ledger_id for ledger in plan.accepted)
        return Drain(
            recovery=self._recovery, watch=self.watch, ports=self._ports, hooks=hooks, live=live, accepted=accepted
        )

    async def move(self, plan: DecommissionPlan, wait_s: float, hooks: DrainHooks) -> DrainResult:
        """Move all ledgers away, without stopping anything. Ledgers that cannot be moved do not stop the others.

        For ``wait_s`` see ``Drain.run``. ConflictError when a live bookie is writable again. Waits during an outage of
        the metadata store; MetadataOutageError.
        """
        return await self._drain(plan, hooks, plan.live).run(plan.recovery, wait_s)

    async def report(self, plan: DecommissionPlan, moved: DrainResult, *, is_drain_only: bool) -> DecommissionReport:
        """The report of a drain after which nothing more is done; only a decommission would delete cookies."""
        report = _report(plan, moved, moved.last_scan)
        cookie_remark = "" if is_drain_only else plan.cookie_remark
        live = sorted(plan.live)
        down = [each for each in live if isinstance(await self._recovery.error_of(each), SILENCE)]
        return msgspec.structs.replace(
            report,
            refusal=None if report.refusal is None else report.refusal + cookie_remark,
            is_drained_only=True,
            read_only=tuple(each for each in live if each not in down),
            down=tuple(down),
        )

    async def finish(self, plan: DecommissionPlan, moved: DrainResult, hooks: DrainHooks) -> DecommissionReport:
        """Delete the cookies, if nothing references the stopped bookies. Live bookies must be stopped before.

        A scan from before a bookie was stopped, or before an outage, proves nothing: it is repeated.
        """
        fresh = None if plan.live else moved.last_scan
        drain = self._drain(plan, hooks, frozenset())

        async def attempt() -> DecommissionReport:
            nonlocal fresh
            found, fresh = fresh or await drain.scan(plan.bookie_ids), None
            report = _report(plan, moved, found)
            refusal = report.refusal
            deleted: list[str] = []
            if refusal is not None and self._own_deletes:  # the restoration was cut off
                refusal = await self._restore_cookies(refusal + _REFERENCED_MEANWHILE, hooks)
            elif refusal is not None:
                refusal += plan.cookie_remark
            elif (refusal := await self._delete_cookies(plan, hooks, report.accepted, deleted)) is None and deleted:
                report = _report(plan, moved, await drain.scan(plan.bookie_ids))
                if report.refusal is not None:
                    refusal = await self._restore_cookies(report.refusal + _REFERENCED_MEANWHILE, hooks)
                    deleted.clear()
            # A bookie checks its cookie after it registers, so either it or this code detects the conflict.
            again = tuple(await self._recovery.registered(plan.bookie_ids)) if refusal is None else ()
            return msgspec.structs.replace(
                report,
                refusal=_REGISTERED_AGAIN.format(again[0]) if again else refusal,
                cookies_deleted=tuple(deleted),
                registered_again=again,
            )

        return await self._recovery.outage.outlast(attempt)

    async def _delete_cookies(
        self, plan: DecommissionPlan, hooks: DrainHooks, accepted: Sequence[int], deleted: list[str]
    ) -> str | None:
        """Delete the cookies of the plan; a sentence if one stays.

        Notes the accepted losses only now: as long as it has its cookie, a bookie can come back with its entries.
        """
        await self._ports.ledgers.migration.require_none()
        try:
            await self._recovery.require_down(plan.bookie_ids)
        except RefusedError as error:
            if self._own_deletes:  # the answer to a deletion was lost
                return await self._restore_cookies(f"{error}; it came back while its cookie was deleted", hooks)
            return f"{error}{plan.cookie_remark}"
        if (refusal := await self._accept_losses(plan, hooks, accepted)) is not None:
            return refusal + plan.cookie_remark
        if hooks.clear_marks is not None:
            await hooks.clear_marks()
        for bookie_id, cookie in plan.cookies.items():
            if cookie is None:
                if await self._cookies.find(bookie_id) is not None:
                    return f"bookie {bookie_id} got a cookie in the meantime: repeat the command"
                continue
            if (refusal := await self._delete_cookie(plan, bookie_id, cookie, hooks)) is not None:
                return refusal
            if bookie_id in self._own_deletes:
                deleted.append(bookie_id)
        return None

    async def _accept_losses(self, plan: DecommissionPlan, hooks: DrainHooks, accepted: Sequence[int]) -> str | None:
        """Prove and note them under their replication locks: another process may be copying what is to be proven lost.
        A sentence if one is not proven."""
        async with contextlib.AsyncExitStack() as held:
            locks = []
            for ledger_id in accepted:
                lock = await self._recovery.locks.acquire(ledger_id)
                if lock is None:
                    return f"ledger {ledger_id}: another process holds its replication lock: repeat the command later"
                locks.append(await held.enter_async_context(lock))
            if unproven := await self._unproven(plan.bookie_ids, accepted):
                return f"no longer proven lost: {listed_reasons(unproven)}"
            named: dict[int, frozenset[str]] = {}
            for ledger_id in accepted:
                with contextlib.suppress(LedgerNotFoundError):
                    members = (await self._ports.ledgers.read(ledger_id)).value.bookies()
                    named[ledger_id] = members.intersection(plan.bookie_ids)
            if not all(lock.is_held for lock in locks):
                return "a replication lock was lost: repeat the command"
            if named and hooks.losses is not None:
                await hooks.losses().note_all(named)
        return None

    async def _restore_cookies(self, refusal: str, hooks: DrainHooks) -> str:
        """Bookies are in use again: without their cookies they could not start with their data, and what an operator
        accepted to lose with them would be excused for ever."""
        for bookie_id, data in self._own_deletes.items():
            with contextlib.suppress(NodeExistsError):
                await self._cookies.create_node(bookie_id, data)
            if hooks.losses is not None:
                await note_back(hooks.losses().notes, bookie_id)
        self._own_deletes.clear()
        return refusal + _RESTORED

    async def _delete_cookie(
        self, plan: DecommissionPlan, bookie_id: str, cookie: Versioned[Cookie], hooks: DrainHooks
    ) -> str | None:
        try:
            node = await self._cookies.read_node(bookie_id)
            if node.stat.version == cookie.version:
                hooks.keep_cookie(bookie_id, node)
            try:
                await self._cookies.delete(bookie_id, cookie)
            except MetadataUnavailableError:
                self._own_deletes[bookie_id] = node.data
                raise
        except RefusedError as error:
            return f"{error}{plan.cookie_remark}"
        except BadVersionError:
            return f"the cookie of bookie {bookie_id} changed in the meantime: it was not deleted"
        except NoNodeError:
            return None
        self._own_deletes[bookie_id] = node.data
        return None


def _report(plan: DecommissionPlan, moved: DrainResult, found: RecoveryPlan) -> DecommissionReport:
    """What a scan shows. ``refusal``: a sentence about the ledgers that reference the bookies, or may."""
    accepted = {ledger.ledger_id for ledger in plan.accepted}
    referencing = {ledger.ledger_id for ledger in found.ledgers}
    remaining = tuple(sorted((referencing - accepted).union(failure.ledger_id for failure in found.unreadable)))
    count, refusal = len(remaining), None
    if remaining:
        ledgers = counted(count, "ledger still references", "ledgers still reference")
        still_open = len({each.ledger_id for each in moved.open_ledgers}.intersection(remaining))
        of_them = "it waits for its writer" if count == 1 else f"{still_open} of them wait for their writers"
        waits = f"; {of_them}" if still_open else ""
        advice = _unreadable_advice(found.unreadable)
        refusal = f"{ledgers} {plan.names} (or could not be checked){waits}{advice and f'; {advice}'}"
    return DecommissionReport(
        bookie_ids=plan.bookie_ids,
        recoveries=moved.recoveries,
        ledgers_scanned=found.ledgers_scanned,
        remaining=remaining,
        refusal=refusal,
        open_ledgers=moved.open_ledgers,
        accepted=tuple(sorted(referencing & accepted)),
    )


def _unreadable_advice(failures: Sequence[LedgerFailure]) -> str:
    """How to fix ledgers with unreadable metadata; of those that this user may not read, it may be in order."""
    damaged = [each.ledger_id for each in failures if not each.is_refused]
    newer = [each.ledger_id for each in failures if each.reason is FailureReason.METADATA_NEWER]
    refused = [each.detail for each in failures if each.is_refused][:1]
    return "; ".join(filter(None, (unreadable_advice(damaged[:IDS_KEPT_MAX], newer[:IDS_KEPT_MAX]), *refused)))
