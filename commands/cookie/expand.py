"""``bkctl cookie expand``: add ledger directories to a bookie that has no ledgers yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext, load_config
from bkctl.commands.cookie.access import (
    DIFFERENCE_TABLE,
    difference_rows,
    difference_sentences,
    read_cookie_node,
    require_not_registered,
    require_unnamed,
    scan_references,
)
from bkctl.commands.cookie.own_directories import OwnBookie, open_own_bookie
from bkctl.commands.effect import Effect
from bkctl.commands.safety.gate import nothing_to_change, open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import Session
from bkctl.commands.shared_options import takes_bookie_options
from bkctl.runtime.bookie.cookies.directories import record_places
from bkctl.runtime.bookie.cookies.doctor import diagnose
from bkctl.runtime.bookie.cookies.evidence import is_expansion
from bkctl.runtime.errors import RefusedError


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
        node = await read_cookie_node(session, own_id)
        await require_not_registered(session, own_id)
        stored = await session.cookies.read(own_id)
        if not await _require_expansion(own):
            plan = _plan(session, own_id, [f"the cookies of bookie {own_id} match its settings: nothing to do"])
            nothing_to_change(context, plan)
            _print(context, own_id, stored.version, [])
            return
        references = await scan_references(context, session, [own_id])
        require_unnamed(references, own_id, _advice(own_id))
        rows = difference_rows(stored.value, own.expected)
        path = session.cookies.path(own_id)
        item = {"action": "set", "path": path, "expected_version": stored.version, "fields": rows}
        plan = _plan(session, own_id, difference_sentences(rows), item)
        async with open_change(context, plan, session.store) as change:
            with own.locked():
                await _require_expansion(own)
                await require_not_registered(session, own_id)
                change.require_lock()
                change.trash.keep("set", path, node)
                await own.service.stamp(own.expected, stored.version)
                record_places(own.file_system, own.config.storage)
        _print(context, own_id, stored.version + 1, rows)


def _plan(session: Session, bookie_id: str, summary: Sequence[str], *items: dict[str, Any]) -> Plan:

    return session.plan(
        subject=bookie_id,
        summary=tuple(summary),
        items=items,
    )


def _print(context: CommandContext, bookie_id: str, version: int, rows: Sequence[dict[str, object]]) -> None:
    body = {"bookie_id": bookie_id, "version": version, "fields_changed": len(rows)}
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
