"""``bkctl ledger import``: import ledger metadata from a file, by compare-and-set and never backwards."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, NamedTuple

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import InvalidArgumentError, NotFoundError, Outcome
from bkctl.commands.ledger.changing import FAILURE_TABLE, Tally, change_ledgers, outcome_of
from bkctl.commands.parse import parse_ledger_id, read_named_file
from bkctl.commands.rendering import Column, Table
from bkctl.commands.safety.gate import nothing_to_change, open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import Session, open_session
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.errors import ConflictError, LedgerNotFoundError, MetadataFormatError, RefusedError
from bkctl.runtime.metadata.ledgers.changes import Action, Decide, Step
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger, read_stored
from bkctl.runtime.metadata.ledgers.transfer import (
    IncomingLedger,
    TransferFile,
    field_changes,
    find_import_obstacle,
    parse_transfer,
)
from bkctl.runtime.metadata.pipeline import each_of
from bkctl.storage.adapters.given_files import DATA_BYTES_MAX
from bkctl.storage.words import counted, listed

PLAN_TABLE = Table(
    "Changes",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("action", "ACTION"),
    Column("expected_version", "VERSION", is_right=True, priority=1),
    Column("field", "FIELD"),
    Column("before", "BEFORE"),
    Column("after", "AFTER"),
)
RECORDED, NEXT = "recorded", "next"
_VERSION = re.compile(r"[0-9]{1,10}")
_AT_VERSION = "it is at version "


class _Expectation(NamedTuple):
    """``--create-only`` (``is_create``), or the version that each ledger must have."""

    is_create: bool
    text: str = ""

    def version(self, incoming: IncomingLedger) -> int:
        """Version that a ledger of the file must have in the cluster."""
        if _VERSION.fullmatch(self.text):
            return int(self.text)
        if incoming.recorded_version is None:
            raise InvalidArgumentError(f"the file contains no version: use --if-version N instead of {self.text}")
        return incoming.recorded_version + (self.text == NEXT)


@command(
    "import",
    example="ledger import ledgers.jsonl --create-only",
    effect=Effect.DESTROYS,
    milder_effect=Effect.HARMFUL,
)
async def import_ledgers(
    context: CommandContext,
    file: Annotated[str, typer.Argument(metavar="FILE", help="An export, a dump of one ledger, or a trash file")],
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", metavar="LEDGER", help="The ledger of a dump, or the only one to import"),
    ] = None,
    create_only: Annotated[
        bool, typer.Option("--create-only", help="Create missing ledgers; do not change existing ones")
    ] = False,
    if_version: Annotated[
        str | None,
        typer.Option("--if-version", metavar="N", help="Replace ledgers of this version, or: recorded, next"),
    ] = None,
    changes_rate: Annotated[
        float | None, typer.Option("--max-per-second", metavar="N", min=0, help="At most so many writes")
    ] = None,
) -> Outcome:
    """Restore ledger metadata, after showing what changes field by field.

    --if-version is the expected version of the znode: a number (for one ledger), "recorded" (the version in the file)
    or "next" (one higher: to undo a change from its trash file). A state never moves back, a last entry is never
    lowered, the end of a closed ledger never changes. All ledgers must pass these checks before one is written. To
    replace ledgers, type the ID or use --confirm; for several ledgers, type their number.
    """
    expectation = _expectation(if_version, is_create=create_only)
    async with open_session(context) as session:
        client = await session.client()
        transfer = _read(
            context, session, client.ports.ledgers, file, None if ledger is None else parse_ledger_id(ledger)
        )
        if len(transfer.ledgers) > 1 and expectation.text.isdecimal():
            raise InvalidArgumentError("--if-version N is for one ledger: choose it with --ledger")
        prepared = await _prepare(client, transfer, expectation)
        plan = await _plan(session, prepared, expectation)
        if not prepared.items:
            if not prepared.left:
                nothing_to_change(context, plan, table=PLAN_TABLE)
            return _report(context, Tally(), prepared, None)
        if context.console.is_for_people and not context.settings.is_rehearsal:
            context.console.table(PLAN_TABLE, _diff_rows(prepared.items))
        async with open_change(context, plan, client.store, table=PLAN_TABLE) as change:
            tally = await change_ledgers(
                context,
                client,
                change,
                _decision(transfer, expectation),
                each_of(int(item["ledger_id"]) for item in prepared.items),
                description="importing",
                total=len(prepared.items),
                rate=changes_rate,
            )
        return _report(context, tally, prepared, change.trash.path)


def _expectation(if_version: str | None, *, is_create: bool) -> _Expectation:
    if is_create == (if_version is not None):
        raise InvalidArgumentError(
            "specify --create-only for missing ledgers, or --if-version N for existing ones (see bkctl ledger show)"
        )
    text = if_version or ""
    if not is_create and text not in {RECORDED, NEXT} and not _VERSION.fullmatch(text):
        raise InvalidArgumentError(f"'{text}' is not a version: use a number, {RECORDED} or {NEXT}")
    return _Expectation(is_create, text)


def _read(
    context: CommandContext, session: Session, ledgers: LedgerStore, path: str, ledger_id: int | None
) -> TransferFile:
    transfer = parse_transfer(
        read_named_file(path, bytes_max=DATA_BYTES_MAX),
        root=ledgers.root,
        tree=ledgers.tree,
        instance_id=session.instance_id,
        ledger_id=ledger_id,
    )
    if transfer.is_torn:
        context.console.warn(f"the last line of {path} is incomplete and is skipped")
    if not transfer.ledgers and transfer.damaged:
        damaged_id, reason = transfer.damaged[0]
        raise MetadataFormatError(f"nothing was changed: ledger {damaged_id} of {path}: {reason}")
    if not transfer.ledgers:
        raise NotFoundError(f"{path} contains no ledger" + ("" if ledger_id is None else f" {ledger_id}"))
    return transfer


class _Prepared(NamedTuple):
    """What to write, what exists already, and what is skipped: the id is taken, or the data in the file is damaged."""

    items: tuple[dict[str, Any], ...]
    same: int
    left: list[dict[str, Any]]
    bookies: frozenset[str]


async def _prepare(client: LedgerClient, transfer: TransferFile, expectation: _Expectation) -> _Prepared:
    decide = _decision(transfer, expectation)
    items: list[dict[str, Any]] = []
    left = [{"ledger_id": str(damaged_id), "reason": reason} for damaged_id, reason in transfer.damaged]
    bookies: set[str] = set()
    same = 0
    for incoming in transfer.ledgers:
        stored: StoredLedger | None
        try:
            stored = await read_stored(client.store, client.ports.ledgers, incoming.ledger_id)
        except LedgerNotFoundError:
            stored = None
        step = decide(incoming.ledger_id, stored)
        if step.action is Action.NONE:
            same += 1
        elif step.action is Action.FAIL and expectation.is_create:
            left.append({"ledger_id": str(incoming.ledger_id), "reason": step.reason})
        elif step.action is Action.FAIL:
            raise _error(incoming.ledger_id, stored, step.reason)
        else:
            bookies |= incoming.metadata.bookies()
            before = None if stored is None else stored.metadata
            changes = field_changes(before, incoming.metadata)
            items.append(
                {
                    "action": step.action.value,
                    "path": client.ports.ledgers.path(incoming.ledger_id),
                    "expected_version": None if stored is None or stored.node is None else stored.node.stat.version,
                    "ledger_id": str(incoming.ledger_id),
                    "sha256": hashlib.sha256(incoming.data).hexdigest(),
                    "changes": [{"field": each.field, "before": each.before, "after": each.after} for each in changes],
                    "problem": None if stored is None else stored.problem or None,
                }
            )
    return _Prepared(tuple(items), same, left, frozenset(bookies))


def _error(ledger_id: int, stored: StoredLedger | None, reason: str) -> Exception:
    if stored is None:
        return LedgerNotFoundError(ledger_id, f"nothing was changed: {reason}")
    sentence = f"nothing was changed: ledger {ledger_id}: {reason}"
    return ConflictError(sentence) if reason.startswith(_AT_VERSION) else RefusedError(sentence)


def _decision(transfer: TransferFile, expectation: _Expectation) -> Decide:
    by_id = {incoming.ledger_id: incoming for incoming in transfer.ledgers}

    def decide(ledger_id: int, stored: StoredLedger | None) -> Step:
        incoming = by_id[ledger_id]
        if stored is None and expectation.is_create:
            return Step(Action.CREATE, incoming.data)
        if stored is not None and stored.node is not None and stored.node.data == incoming.data:
            return Step(Action.NONE, reason="exists already")
        obstacle = _find_obstacle(stored, incoming, expectation)
        return Step(Action.SET, incoming.data) if obstacle is None else Step(Action.FAIL, reason=obstacle)

    return decide


def _find_obstacle(stored: StoredLedger | None, incoming: IncomingLedger, expectation: _Expectation) -> str | None:
    if stored is None:
        return "it does not exist: use --create-only to create it"
    if stored.node is None:
        return stored.problem
    if expectation.is_create:
        return "it exists, and differs"
    version = expectation.version(incoming)
    if stored.node.stat.version != version:
        return f"{_AT_VERSION}{stored.node.stat.version}, not {version}"
    return find_import_obstacle(stored, incoming)


async def _plan(session: Session, prepared: _Prepared, expectation: _Expectation) -> Plan:
    number = counted(len(prepared.items), "ledger")
    known = {*await session.registrations.with_cookie(), *(await session.registrations.snapshot()).live}
    summary = [f"will create {number}" if expectation.is_create else f"will replace {number}"]
    if not prepared.items:
        summary = ["the cluster already has every ledger of the file: nothing to do"]
    elif expectation.is_create:
        summary.append(
            "bookies may already have deleted the entries of these ledgers: check with bkctl ledger verify afterwards"
        )
    if unknown := sorted(prepared.bookies - known):
        summary.append(f"the file references bookies that are unknown to this cluster: {listed(unknown)}")
    if unreadable := sum(item["problem"] is not None for item in prepared.items):
        summary.append(f"existing metadata is unreadable and was not compared: {counted(unreadable, 'ledger')}")
    return session.plan(
        tier=(Effect.HARMFUL if expectation.is_create else Effect.DESTROYS).tier,
        subject=str(prepared.items[0]["ledger_id"]) if len(prepared.items) == 1 else str(len(prepared.items)),
        summary=summary,
        items=prepared.items,
    )


def _diff_rows(items: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    rows = []
    for item in items:
        rows += [item | change for change in item["changes"]]
    return rows


def _report(context: CommandContext, tally: Tally, prepared: _Prepared, trash: str | None) -> Outcome:
    for row in prepared.left:
        tally.failed += 1
        tally.failures.append(row)
    tally.unchanged += prepared.same
    body = {
        "imported": tally.changed,
        "there_already": tally.unchanged,
        "failed": tally.failed,
        "trash": trash,
    }
    context.console.record("LedgerImport", body, name="imported", details={"failures": tally.failures})
    context.console.table(FAILURE_TABLE.titled("Not imported"), tally.failures)
    return outcome_of(tally, "imported")
