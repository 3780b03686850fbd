"""``bkctl cookie migrate``: change the id of a bookie; its cookies move in steps that can be interrupted anywhere."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext, Effect, load_config
from bkctl.commands.cookie.access import require_not_registered, require_unnamed, scan_references
from bkctl.commands.cookie.own_directories import OwnBookie, open_own_bookie
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.parse import parse_bookie_id
from bkctl.commands.safety.gate import Change
from bkctl.commands.safety.operation import make_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.shared_options import takes_bookie_options
from bkctl.runtime.bookie.cookies.directories import version_path
from bkctl.runtime.bookie.cookies.repair import MigrationState, examine_migration
from bkctl.runtime.bookie.cookies.repair import migrate as migrate_cookies
from bkctl.runtime.errors import RefusedError
from bkctl.storage.filenames import MIGRATION, current_directory
from bkctl.storage.words import counted


@command(
    "migrate",
    example="cookie migrate --from 10.0.0.7:3181 --to b7.example.com:3181 --dry-run",
    effect=Effect.DESTROYS,
    is_configured_by_files=True,
)
@takes_bookie_options
async def migrate(
    context: CommandContext,
    flags: BookieFlags,
    old_id: Annotated[str, typer.Option("--from", metavar="ID", help="Old bookie ID, as in the directories")],
    new_id: Annotated[str, typer.Option("--to", metavar="ID", help="New bookie ID")],
    ledgers_follow: Annotated[
        bool,
        typer.Option("--ledgers-follow", help="Continue if ledgers reference the old ID; they must be rewritten next"),
    ] = False,
) -> None:
    """Change the ID of a stopped bookie, for example from an address to a host name.

    Run it on the bookie's machine. All its directories must have the old ID. Refused while a bookie with either ID is
    registered or ledgers reference them. With --ledgers-follow ledgers may reference the old ID; then run bkctl ledger
    rewrite-bookie next. If interrupted, the bookie does not start until the same command is run again. Type the old ID,
    or use --confirm.
    """
    if parse_bookie_id(old_id) == parse_bookie_id(new_id):
        raise InvalidArgumentError("--from and --to are the same id")
    config = load_config(context, flags, new_id)
    async with open_own_bookie(context, config) as own:
        cookies = own.session.cookies

        async def examine() -> tuple[Plan, tuple[MigrationState, int]]:
            await require_not_registered(own.session, old_id, new_id)
            evidence, _ = await own.gather()
            state = await examine_migration(evidence, old_id, cookies)
            if state.is_done:
                sentence = f"bookie {old_id} already has the id {new_id}: nothing to do"
                return _plan(own, state, 0).emptied(sentence), (state, 0)
            naming_old = await _count_ledgers(context, own, state, old_id, ledgers_follow=ledgers_follow)
            await require_not_registered(own.session, old_id, new_id)
            return _plan(own, state, naming_old), (state, naming_old)

        async def apply(change: Change, found: tuple[MigrationState, int]) -> None:
            state, _ = found
            if state.old_stored is not None:
                change.trash.keep("delete", cookies.path(old_id), await cookies.read_node(old_id))
            await migrate_cookies(state, own.file_system, cookies, change.require_lock)

        (state, naming_old), _ = await make_change(context, examine, apply, own.session.store, turn=own.locked)
    body = {
        "from": state.old_id,
        "to": own.expected.bookie_id,
        "folders": 0 if state.is_done else len(state.directories),
        "resumed": state.is_begun,
    }
    context.console.record("CookieMigrated", body, name="to")
    if naming_old:
        context.console.warn(
            f"entries of {counted(naming_old, 'ledger')} cannot be read from this bookie until the ledgers are "
            f"rewritten: start it as {new_id}, then run bkctl ledger rewrite-bookie --from {old_id} --to {new_id}"
        )


async def _count_ledgers(
    context: CommandContext, own: OwnBookie, state: MigrationState, old_id: str, *, ledgers_follow: bool
) -> int:
    """Number of ledgers that refer to the old id; RefusedError when references to either id forbid the change."""
    new_id = own.expected.bookie_id
    references = await scan_references(context, own.session, [old_id, new_id])
    if not state.is_begun:
        require_unnamed(references, new_id, "they belong to another bookie with that id: choose an unused id")
        if not ledgers_follow:
            advice = (
                f"keep the id (bkctl bookie start --bookie-id {old_id}), or use --ledgers-follow and run "
                f"bkctl ledger rewrite-bookie --from {old_id} --to {new_id} next"
            )
            require_unnamed(references, old_id, advice)
        _require_filled_directories(state, references.counts[old_id])
    return references.counts[old_id]


def _require_filled_directories(state: MigrationState, naming_old: int) -> None:
    """No ledger references the new id yet, so an emptied disk could not be distinguished from a new one."""
    empty = next((directory.path for directory in state.directories if not directory.has_files), None)
    if naming_old and empty is not None:
        raise RefusedError(f"nothing was changed: {empty} is empty, but ledgers reference bookie {state.old_id}")


def _plan(own: OwnBookie, state: MigrationState, naming_old: int) -> Plan:
    session, new_id = own.session, own.expected.bookie_id
    items: list[dict[str, object]] = []
    if not state.has_new_stored:
        items.append({"action": "create", "path": session.cookies.path(new_id), "expected_version": None})
    items += [
        {"action": "write", "path": version_path(directory.path), "expected_version": None}
        for directory in state.directories
        if state.lacks_new(directory)
    ]
    if state.old_stored is not None:
        path, version = session.cookies.path(state.old_id), state.old_stored.version
        items.append({"action": "delete", "path": path, "expected_version": version})
    items += [
        {
            "action": "delete",
            "path": os.path.join(current_directory(directory.path), MIGRATION),
            "expected_version": None,
        }
        for directory in state.directories
        if directory.migration is not None
    ]
    return session.plan(
        subject=state.old_id,
        summary=(
            f"bookie {state.old_id} will become {new_id}; "
            f"{counted(naming_old, 'ledger references', 'ledgers reference')} the old ID",
            f"afterwards start it with --bookie-id {new_id}, or with settings that give it this ID",
        ),
        items=tuple(items),
        arguments={"from": state.old_id, "to": new_id, "ledgers_naming_old": naming_old, "resumed": state.is_begun},
    )
