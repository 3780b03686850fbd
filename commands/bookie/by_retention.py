"""``bkctl decommission --by-retention``: bookies that stay read-only until retention has deleted their ledgers."""

from __future__ import annotations

import msgspec

from bkctl.commands.bookie.leaving import LeavingRequest, refusal_of, require_accepted, risks_of
from bkctl.commands.bookie.read_only import BookieSwitch
from bkctl.commands.context import CommandContext
from bkctl.commands.rendering import Column, Table, time_text
from bkctl.commands.safety.gate import nothing_to_change, open_change
from bkctl.commands.safety.mode_turn import mode_turn
from bkctl.commands.session import Session, open_session
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.metadata.outage import OutageWait
from bkctl.runtime.replication.judge.stop_verdict import StopReason, StopVerdict
from bkctl.runtime.replication.run.drain import ModeWatch
from bkctl.runtime.replication.survey.given_up import find_removed, require_none_named
from bkctl.runtime.replication.survey.stop_scan import RetentionTally, scan_for_retention, scan_for_stop
from bkctl.storage.words import counted, size

_OWNER_TABLE = Table(
    "Owners",
    Column("owner", "OWNER"),
    Column("ledgers", "LEDGERS", is_right=True),
    Column("bytes", "BYTES", size, is_right=True),
    Column("oldest", "OLDEST", priority=1),
)


async def wait_for_retention(context: CommandContext, request: LeavingRequest) -> bool:
    """Make the bookies read-only, and print what is left on them; True once nothing is left.

    RefusedError if a bookie is down with ledgers on it, or would forget its mode at a restart; errors of the gate.
    """
    ids = sorted(set(request.bookie_ids))
    async with open_session(context) as session:
        ports = (await session.client()).ports
        outage = OutageWait(session.registrations.snapshot, ports.clock, request.wait_s, lambda _: None)
        watch = ModeWatch(session.registrations, ports.clock, outage)
        switch = BookieSwitch(context, session, watch, request.credentials)
        removed = await outage.outlast(lambda: find_removed(ports, session.store, ids))
        if not request.is_absence_fine:
            require_none_named(removed)
        elif removed.keys() >= set(ids):
            return True
        left = await scan_for_retention(ports, ids)
        found = await watch.read(ids)
        if found.down and not left.is_empty:
            raise RefusedError(
                f"nothing was changed: bookie {found.down[0]} is down, so its ledgers have one copy less until "
                "they are deleted: start it, or run the command without --by-retention"
            )
        todo = [each for each in found.serving if not await switch.keeps_read_only(each)]
        if left.is_empty and not todo:
            return True
        items = [{"action": "set-mode", "path": each, "mode": "read-only", "expected_version": None} for each in todo]
        verdict = await _verdict_for_writers(session, request) if todo else None
        summary = _summary(ids, todo, left)
        plan = session.plan(
            subject=", ".join(ids),
            summary=summary,
            findings=[] if verdict is None else risks_of(verdict),
            items=items,
            refusal=None if verdict is None else refusal_of(verdict, request),
        )
        if todo:
            async with (
                open_change(context, plan, session.store, bookie_ids=ids) as change,
                mode_turn(context, session.store, session.root, change) as lock,
            ):
                require_accepted(context, await _verdict_for_writers(session, request), request)
                lock.require_held()
                await switch.make_read_only(todo, request.wait_s, "leaves the cluster by retention")
            left = await scan_for_retention(ports, ids)
        else:
            nothing_to_change(context, plan)
    if not left.is_empty:
        _print_left(context, session, ids, left)
    return left.is_empty


async def _verdict_for_writers(session: Session, request: LeavingRequest) -> StopVerdict:
    """Whether writers need the bookies; nothing is copied, so space and targets do not matter."""
    ports = (await session.client()).ports
    parts = (ports, session.store, request.bookie_ids)
    verdict = await scan_for_stop(*parts, foreign=session.foreign, is_removal=True)
    of_writers = {StopReason.NO_SUCCESSOR, StopReason.NEW_LEDGERS, StopReason.PLACEMENT, StopReason.SILENT}
    objections = tuple(each for each in verdict.objections if each.reason in of_writers)
    return msgspec.structs.replace(verdict, objections=objections)


def _summary(ids: list[str], todo: list[str], left: RetentionTally) -> list[str]:
    names = ", ".join(ids)
    summary = []
    if todo:
        summary.append(f"will make bookie {', '.join(todo)} read-only, also after a restart, and copy nothing")
    share = left.total
    verb, they = ("is", "it is") if share.ledgers == 1 else ("are", "they are")
    number = counted(share.ledgers, "ledger")
    sentence = f"{number} ({size(share.bytes_on_them)}) {verb} on bookie {names} until {they} deleted"
    if left.open_ledgers:
        sentence += f"; the size of {counted(left.open_ledgers, 'open ledger')} is unknown"
    return [*summary, sentence]


def _print_left(context: CommandContext, session: Session, ids: list[str], left: RetentionTally) -> None:
    shares = sorted(left.by_owner.items(), key=lambda each: (-each[1].bytes_on_them, each[0]))
    rows = [
        {
            "owner": owner,
            "ledgers": share.ledgers,
            "bytes": share.bytes_on_them,
            "oldest": time_text(share.oldest_ms),
        }
        for owner, share in shares
    ]
    body = {
        "bookie_ids": ids,
        "ledgers": left.total.ledgers,
        "open_ledgers": left.open_ledgers,
        "unreadable_ledgers": [str(each) for each in left.unreadable],
        "bytes": left.total.bytes_on_them,
        "oldest": time_text(left.total.oldest_ms),
        "oldest_age_s": None if left.total.oldest_ms is None else session.age_s(left.total.oldest_ms),
    }
    context.console.record("RetentionReport", body, show={"bytes": size}, details={"owners": rows})
    context.console.table(_OWNER_TABLE, rows)
    context.console.say("not yet: run the same command again when retention has deleted these ledgers")
