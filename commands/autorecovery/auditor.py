"""``bkctl autorecovery auditor``: who is elected, and who stands in line."""

from __future__ import annotations

import typer

from commands.autorecovery.access import open_view, warn_of_second_auditor
from commands.command import command
from commands.context import CommandContext
from commands.errors import NotFoundError
from commands.rendering import Column, time_text

_COLUMNS = (Column("bookie_id", "ID"), Column("vote", "VOTE"), Column("since", "SINCE"))


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl autorecovery``."""
    command(app, "auditor", is_cut=True)(show_auditor)


async def show_auditor(context: CommandContext) -> None:
    """Show the elected auditor and the candidates that take over after it; exit code 4 if no auditor is elected.

    An auditor whose process hangs or dies stays elected until its ZooKeeper session ends. The auditor of Pulsar's
    metadata driver is shown with the vote "leader"; it has no candidates.
    """
    from runtime.metadata.auditor_election import list_candidates, read_pulsar_auditor

    async with open_view(context) as view:
        candidates = await list_candidates(view.store, view.root, view.foreign)
        pulsar_auditor = await read_pulsar_auditor(view.store, view.root)
    if candidates:
        warn_of_second_auditor(context, pulsar_auditor)
    elif pulsar_auditor is not None:
        candidates = [pulsar_auditor]
    if not candidates:
        raise NotFoundError("no auditor is elected: no process with autorecovery runs in this cluster")
    if candidates[0].problem is not None:
        raise candidates[0].problem
    rows: list[dict[str, object]] = [
        {"bookie_id": candidate.bookie_id, "vote": candidate.vote, "since": time_text(candidate.since_ms)}
        for candidate in candidates
    ]
    context.console.record("Auditor", rows[0], name="bookie_id", details={"candidates": rows[1:]})
    context.console.table("In line", _COLUMNS, rows[1:])
