"""``bkctl decommission``: permanently remove bookies from the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from bkctl.commands.bookie.admin_access import read_credentials
from bkctl.commands.bookie.leaving import (
    WAIT_DEFAULT,
    LeavingIds,
    LeavingRequest,
    LeavingTokenOption,
    OpenLedgersOption,
    RiskOption,
    WaitOption,
    drain_or_decommission,
    refusal_of,
    require_accepted,
    risks_of,
)
from bkctl.commands.bookie.read_only import BookieSwitch
from bkctl.commands.bookie.stop_command import parse_stop_command
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, CopyFlags, Effect
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.ledger.accepted_loss import LostBookies, parse_lost
from bkctl.commands.parse import parse_bookie_id, parse_duration_s, read_ledger_ids
from bkctl.commands.rendering import Column, Table, time_text
from bkctl.commands.safety.gate import mode_turn, nothing_to_change, open_change
from bkctl.commands.session import Session, open_session
from bkctl.commands.shared_options import takes_copy_options
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.metadata.outage import OutageWait
from bkctl.runtime.replication.judge.stop_verdict import StopReason, StopVerdict
from bkctl.runtime.replication.run.drain import ModeWatch
from bkctl.runtime.replication.survey.given_up import find_removed, require_none_named
from bkctl.runtime.replication.survey.stop_scan import RetentionTally, scan_for_retention, scan_for_stop
from bkctl.storage.words import counted, size


@command("decommission", example="decommission b1.example.com:3181 --dry-run", effect=Effect.HARMFUL)
@takes_copy_options
async def decommission(
    context: CommandContext,
    bookie_ids: LeavingIds,
    drain_only: Annotated[bool, typer.Option("--drain-only", help="Move the ledgers away and stop nothing")] = False,
    by_retention: Annotated[bool, typer.Option("--by-retention", help="Copy nothing, wait for deletions")] = False,
    stop_command: Annotated[
        str | None, typer.Option("--stop-command", metavar="CMD", help="Stops it; {} is its ID, {host} its host")
    ] = None,
    open_ledgers: OpenLedgersOption = None,
    wait: WaitOption = WAIT_DEFAULT,
    accept_loss: LostBookies = None,
    from_file: Annotated[
        str | None,
        typer.Option("--from-file", metavar="FILE", help="Ledgers whose loss is accepted"),
    ] = None,
    accept_risk: RiskOption = False,
    token_file: LeavingTokenOption = None,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Exit with 0 if it is already removed")] = False,
    *,
    flags: CopyFlags,
) -> Outcome:
    """Move the ledgers of bookies away, then delete their cookies."""
    is_loss_accepted = accept_loss is not None or from_file is not None
    if drain_only and (stop_command is not None or is_loss_accepted):
        raise InvalidArgumentError("--drain-only stops no bookie: use it without --stop-command and --accept-loss")
    if by_retention and (drain_only or is_loss_accepted or open_ledgers is not None):
        raise InvalidArgumentError(
            "--by-retention copies nothing: use it without --drain-only, --open-ledgers and --accept-loss"
        )
    if by_retention and msgspec.structs.replace(flags, outage_max=None) != CopyFlags():
        raise InvalidArgumentError(
            "--by-retention copies nothing: use it without --copy-rate, --copy-rate-per-bookie, --resume, "
            "--verify and --placement"
        )
    leaving = tuple(parse_bookie_id(each) for each in bookie_ids)
    request = LeavingRequest(
        bookie_ids=leaving,
        wait_s=parse_duration_s(wait),
        is_drain_only=drain_only,
        is_absence_fine=if_exists,
        open_ledgers=open_ledgers,
        stop_words=parse_stop_command(stop_command),
        accepted=_accepted(leaving, accept_loss, from_file),
        accepted_from=from_file or "",
        is_risk_accepted=accept_risk,
        copying=flags,
        credentials=read_credentials(context, token_file),
    )
    if by_retention and not await wait_for_retention(context, request):
        return Outcome.PARTIAL
    return await drain_or_decommission(context, request)


def _accepted(leaving: Sequence[str], lost: list[str] | None, path: str | None) -> frozenset[int]:
    """The ledgers that may lose what only these bookies had; InvalidArgumentError unless both options say the same,
    RefusedError if there are none: the bookies may be back since someone looked."""
    if lost is None and path is None:
        return frozenset()
    others = parse_lost(lost) ^ set(leaving)
    if others:
        raise InvalidArgumentError(
            f"--accept-loss names the bookies that leave, for the ledgers of --from-file: {', '.join(sorted(others))}"
        )
    if path is None:
        raise InvalidArgumentError("--accept-loss needs --from-file FILE with the ledgers whose loss is accepted")
    if path == "-":
        raise InvalidArgumentError("--accept-loss needs a file, not stdin: the command that continues reads it again")
    ledger_ids = frozenset(read_ledger_ids(path))
    if not ledger_ids:
        raise RefusedError(f"nothing was changed: {path} names no ledger, so there is no loss to accept: bkctl status")
    return ledger_ids


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
