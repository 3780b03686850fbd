"""``bkctl cookie expand``: add ledger directories to a bookie that has no ledgers yet."""

from __future__ import annotations

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext, Effect, load_config
from bkctl.commands.cookie.access import (
    DIFFERENCE_TABLE,
    FieldRows,
    difference_rows,
    difference_sentences,
    read_cookie_node,
    require_not_registered,
    require_unused,
)
from bkctl.commands.cookie.own_directories import OwnBookie, open_own_bookie
from bkctl.commands.safety.gate import Change
from bkctl.commands.safety.operation import make_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.shared_options import takes_bookie_options
from bkctl.runtime.bookie.cookies.directories import record_places
from bkctl.runtime.bookie.cookies.doctor import diagnose
from bkctl.runtime.bookie.cookies.evidence import is_expansion
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.metadata.bookies.cookies import decode_cookie
from bkctl.runtime.metadata.store import Node, decode_node


@command(
    "expand",
    example="cookie expand --conf conf/bk_server.conf --dry-run",
    effect=Effect.HARMFUL,
    is_configured_by_files=True,
)
@takes_bookie_options
async def expand(
    context: CommandContext,
    flags: BookieFlags,
) -> None:
    """Update the cookie of a stopped, empty bookie to its current ledger directories.

    Refused if the bookie has ledgers or ledgers reference it: the directory of a ledger follows from its ID and the
    number of directories, so entries would be looked up on the wrong disk. To give such a bookie other disks, run bkctl
    decommission and start it with empty directories, or add another bookie.
    """
    config = load_config(context, flags)
    async with open_own_bookie(context, config) as own:
        session, own_id = own.session, own.expected.bookie_id

        async def examine() -> tuple[Plan, tuple[Node, FieldRows]]:
            node = await read_cookie_node(session, own_id)
            await require_not_registered(session, own_id)
            if not await _require_expansion(own):
                sentence = f"the cookies of bookie {own_id} match its settings: nothing to do"
                return session.plan(subject=own_id, summary=(sentence,)), (node, [])
            own.require_directories()
            await require_unused(context, session, own_id, _advice(own_id))
            rows = difference_rows(decode_node(session.cookies.path(own_id), node, decode_cookie), own.expected)
            path, version = session.cookies.path(own_id), node.stat.version
            item = {"action": "set", "path": path, "expected_version": version, "fields": rows}
            return session.plan(subject=own_id, summary=difference_sentences(rows), items=[item]), (node, rows)

        async def apply(change: Change, found: tuple[Node, FieldRows]) -> int:
            node, _ = found
            change.require_lock()
            change.trash.keep("set", session.cookies.path(own_id), node)
            await own.service.stamp(own.expected, node.stat.version)
            record_places(own.file_system, own.config.storage)
            return node.stat.version + 1

        (node, rows), version = await make_change(context, examine, apply, session.store, turn=own.locked)
    body = {
        "bookie_id": own_id,
        "version": node.stat.version if version is None else version,
        "fields_changed": len(rows),
    }
    context.console.record("CookieExpanded", body, name="bookie_id", details={"fields": rows})
    context.console.table(DIFFERENCE_TABLE, rows)


async def _require_expansion(own: OwnBookie) -> bool:
    """Whether there is something to expand; RefusedError when it must not be expanded."""
    evidence, _ = await own.gather()
    if is_expansion(evidence) and not any(
        directory.trouble or directory.migration for directory in evidence.directories
    ):
        return True
    finding = diagnose(evidence)
    if finding is None:
        return False
    reason = f"bookie {own.expected.bookie_id} has ledgers: " if evidence.has_ledgers else ""
    raise RefusedError(f"nothing was changed: {reason}{finding.sentence}; {_advice(own.expected.bookie_id)}")


def _advice(bookie_id: str) -> str:
    return (
        f"to use other disks, bkctl decommission {bookie_id} and start it with empty directories, or add another bookie"
    )
