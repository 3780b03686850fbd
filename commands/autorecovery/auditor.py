"""``bkctl autorecovery auditor``: the elected auditor and the other candidates."""

from __future__ import annotations

from bkctl.commands.autorecovery.access import warn_of_second_auditor
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import NotFoundError
from bkctl.commands.rendering import Column, Table, time_text
from bkctl.commands.session import open_session
from bkctl.runtime.metadata.replication.election import list_candidates, read_pulsar_auditor

_TABLE = Table("Candidates", Column("bookie_id", "ID"), Column("vote", "VOTE"), Column("since", "SINCE"))


@command("auditor", example="autorecovery auditor", is_cut=True)
async def show_auditor(context: CommandContext) -> None:
    """Show the elected auditor and the candidates after it. Exits with 4 if no auditor is elected.

    An auditor whose process hangs or dies stays elected until its ZooKeeper session ends. The auditor of Pulsar's
    metadata driver is shown with the vote "leader"; it has no candidates.
    """
    async with open_session(context) as session:
        candidates = await list_candidates(session.store, session.root, session.foreign)
        pulsar_auditor = await read_pulsar_auditor(session.store, session.root)
    if candidates:
        warn_of_second_auditor(context, pulsar_auditor)
    elif pulsar_auditor is not None:
        candidates = [pulsar_auditor]
    if not candidates:
        raise NotFoundError("no auditor is elected: bkctl autorecovery start runs one")
    if candidates[0].problem is not None:
        raise candidates[0].problem
    rows: list[dict[str, object]] = [
        {"bookie_id": candidate.bookie_id, "vote": candidate.vote, "since": time_text(candidate.since_ms)}
        for candidate in candidates
    ]
    context.console.record("Auditor", rows[0], name="bookie_id", details={"candidates": rows[1:]})
    context.console.table(_TABLE, rows[1:])
