"""``bkctl audit orphans``: ledgers that Pulsar wrote and that none of its metadata names."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.config import OutputForm
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.parse import parse_duration_s, read_ledger_ids
from bkctl.commands.progress import Progress
from bkctl.commands.rendering import Column, Lines, Table, time_text
from bkctl.commands.session import Session, open_session
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.metadata.pulsar.references import TOPICS_PATH, PulsarStore
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.new_file import whole_file
from bkctl.runtime.replication.judge.orphans import AGE_S_MIN, OrphanTerms, PulsarLedger
from bkctl.runtime.replication.survey.orphan_search import SETTLE_S_MIN, OrphanFinder, OrphanSearch, SearchView
from bkctl.storage.words import SHOWN_MAX, counted, duration, size

_CLOCKS_DIFFER_MS = 60_000
"""Less is usual between machines, and nothing compared with a day."""


_COLUMNS = (
    Column("ledger_id", "LEDGER", is_right=True),
    Column("owner", "OWNER"),
    Column("kind", "KIND"),
    Column("age_s", "AGE", duration, is_right=True),
    Column("length_bytes", "BYTES", size, is_right=True),
    Column("reason", "REASON", priority=1),
)
_TABLE = Table("OrphanReport", *_COLUMNS, name="ledger_id")
_KEPT_TABLE = Table("Not called orphans", Column("reason", "REASON"), Column("ledgers", "LEDGERS", is_right=True))
_PLACE = typer.Option(
    "--pulsar-metadata",
    metavar="URI",
    help="Metadata of a Pulsar cluster, like zk:HOST:2181/PATH; repeatable",
)


@command("orphans", example="audit orphans --out orphans.txt", is_cut=True)
async def orphans(
    context: CommandContext,
    pulsar_metadata: Annotated[list[str] | None, _PLACE] = None,
    all_clusters_given: Annotated[
        bool, typer.Option("--all-clusters-given", help="No other cluster uses these bookies")
    ] = False,
    older_than: Annotated[str, typer.Option("--older-than", metavar="TIME", help="Minimum age, not below 24h")] = "24h",
    settle: Annotated[
        str, typer.Option("--settle", metavar="TIME", help="Time between the readings of references, not below 1s")
    ] = "10m",
    compacted: Annotated[bool, typer.Option("--compacted", help="Also compacted ledgers of existing topics")] = False,
    only: Annotated[
        str | None, typer.Option("--from-file", metavar="FILE", help="Judge only the ledger IDs in this file")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Write IDs to this new file, for ledger delete")
    ] = None,
) -> Outcome:
    """List ledgers of Pulsar that its metadata no longer names.

    Specify every Pulsar cluster that uses these bookies, because their ledgers look alike; one with its metadata next
    to that of the bookies is always read. Lists closed, old ledgers without any doubt; counts the others by reason. No
    topic is loaded. Exits with 10 if there are orphans.
    """
    age_s, settle_s = _durations(older_than, settle)
    judged = None if only is None else frozenset(read_ledger_ids(only))
    now_ms = int(time.time() * 1000)
    async with AsyncExitStack() as at_end:
        write = None if out is None else at_end.enter_context(whole_file(out, is_new=True))
        session = await at_end.enter_async_context(open_session(context))
        places = await _pulsar_stores(context, session, at_end, pulsar_metadata)
        client = await session.client()
        with context.console.progress("looking for orphans") as progress:
            found = await OrphanFinder(
                client.ports,
                session.store,
                places,
                OrphanTerms(now_ms=now_ms, age_ms=int(age_s * 1000), compacted=compacted),
                settle_s=settle_s,
                only=judged,
                view=SearchView(partial(_show_step, context, progress), progress.update),
            ).find()
        if found.foreign_writes:
            raise _other_writer(found)
        if found.strays and not all_clusters_given:
            raise _other_cluster(found)
        rows = [_row(each.ledger, now_ms) | {"reason": each.reason.value} for each in found.orphans]
        if write is not None:
            write("".join(f"{row['ledger_id']}  # {row['owner']}\n" for row in rows).encode())
    for text in clock_warnings(found, now_ms, int(time.time() * 1000)):
        context.console.warn(text)
    _print(context, found, rows, [_row(each, now_ms) for each in found.foreign], out)
    return Outcome.FINDINGS if rows else Outcome.OK


def _durations(older_than: str, settle: str) -> tuple[float, float]:
    age_s, settle_s = parse_duration_s(older_than), parse_duration_s(settle)
    if age_s < AGE_S_MIN:
        raise InvalidArgumentError(
            f"--older-than {older_than} is too short: Pulsar may still be using the ledgers; use 24h or more"
        )
    if settle_s < SETTLE_S_MIN:
        raise InvalidArgumentError(
            f"--settle {settle} is too short: Pulsar may be replacing a reference during both readings; use 1s or more"
        )
    return age_s, settle_s


async def _pulsar_stores(
    context: CommandContext, session: Session, at_end: AsyncExitStack, texts: list[str] | None
) -> list[PulsarStore]:
    """The given clusters, and the one next to the ledgers: with more references, fewer ledgers are orphans."""
    places = [PulsarStore(session.store, *_chroot_and_name(session.uri.servers, session.uri.root))]
    if texts and await session.store.exists(places[0].chroot + TOPICS_PATH) is None:
        places.clear()
    for text in texts or ():
        is_whole = text.startswith(("metadata-store:", "zk+"))
        uri = parse_metadata_uri(text if is_whole else f"metadata-store:{text}")
        store = session.store
        if uri.servers != session.uri.servers:
            opening = open_session(context, metadata_uri=str(uri), must_exist=False, warns_of_restore=False)
            store = (await at_end.enter_async_context(opening)).store
        places.append(PulsarStore(store, *_chroot_and_name(uri.servers, uri.root)))
    return places


def _show_step(context: CommandContext, progress: Progress, step: str) -> None:
    if progress.is_shown:
        progress.update(0, note=step)
    else:
        context.console.say(step)


def _chroot_and_name(servers: str, root: str) -> tuple[str, str]:
    """Pulsar's nodes are next to the ledgers root, in the same directory."""
    chroot = root.rpartition("/")[0]
    return chroot, f"{servers}{chroot or '/'}"


def _other_cluster(found: OrphanSearch) -> RefusedError:
    """Ledgers are in use whose topics are in no given cluster: another one may have references of its own."""
    first = found.strays[0]
    return RefusedError(
        f"{counted(len(found.strays), 'ledger')} in use or young, such as {first.ledger_id} of {first.owner_text}, "
        "belong to topics that no given cluster has: if another Pulsar cluster uses these bookies, add it with "
        "--pulsar-metadata; if none does, use --all-clusters-given"
    )


def _other_writer(found: OrphanSearch) -> RefusedError:
    """A process wrote ledgers that no given cluster names; --all-clusters-given cannot be right."""
    first = found.foreign_writes[0]
    return RefusedError(
        f"another Pulsar cluster uses these bookies: {counted(len(found.foreign_writes), 'ledger')} that no given "
        f"cluster names, such as {first.ledger_id} of {first.owner_text}, changed or appeared during the search: add "
        "that cluster with --pulsar-metadata"
    )


def clock_warnings(found: OrphanSearch, began_ms: int, ended_ms: int) -> list[str]:
    """What is doubtful about ages; both times are by the clock of this machine."""
    newest = time_text(found.zookeeper_ms)
    warnings = []
    if found.zookeeper_ms > ended_ms + _CLOCKS_DIFFER_MS:
        later = duration((found.zookeeper_ms - ended_ms) // 1000)
        warnings.append(
            f"the clock of this machine is slow: ZooKeeper has a node of {newest}, {later} later; ledgers are older "
            "than shown, and some may count as too young: set the clock and run the command again"
        )
    if found.young_in_zookeeper:
        ahead = duration((began_ms - found.zookeeper_ms) // 1000)
        warnings.append(
            f"too young by ZooKeeper's time: {counted(found.young_in_zookeeper, 'ledger')}; its newest node is of "
            f"{newest}, {ahead} before the time of this machine, whose clock may be ahead: if it is right, run the "
            "command again after Pulsar has changed its metadata"
        )
    return warnings


def _row(ledger: PulsarLedger, now_ms: int) -> dict[str, object]:
    return {
        "ledger_id": str(ledger.ledger_id),
        "owner": ledger.owner_text,
        "kind": ledger.owner.use.value,
        "created": time_text(ledger.created_ms),
        "age_s": (now_ms - ledger.created_ms) // 1000,
        "length_bytes": ledger.length_bytes,
    }


def _print(
    context: CommandContext,
    found: OrphanSearch,
    rows: list[dict[str, object]],
    foreign: list[dict[str, object]],
    out: str | None,
) -> None:
    console = context.console
    for problem in found.problems[:SHOWN_MAX]:
        console.warn(f"{problem}: ledgers of this owner are not called orphans")
    if len(found.problems) > SHOWN_MAX:
        console.warn(f"{counted(len(found.problems) - SHOWN_MAX, 'more node')} cannot be decoded")
    if foreign:
        console.warn(
            f"the namespaces of {counted(len(foreign), 'ledger')} exist in no given cluster: if another Pulsar cluster "
            "uses these bookies, add it with --pulsar-metadata, because it may have ledgers in the others too"
        )
    if console.form is OutputForm.NAME:
        console.rows(_TABLE, rows)
        return
    kept = [{"reason": reason.value, "ledgers": count} for reason, count in sorted(found.kept.items())]
    body = {
        "ledgers": found.ledgers,
        "orphans": len(rows),
        "orphan_bytes": sum(each.ledger.length_bytes for each in found.orphans),
        "nodes_read": found.nodes_read,
        "out": out,
    }
    lists = {"orphan_ledgers": rows, "other_cluster_ledgers": foreign}
    details = {**console.cut(lists), "kept": kept, "problems": found.problems}
    console.record("OrphanReport", body, show={"orphan_bytes": size}, details=details, lines=Lines(_TABLE, rows))
    console.table(_TABLE.titled("Orphans"), rows)
    console.table(_KEPT_TABLE, kept, is_cut=False)
    console.table(_TABLE.titled("Of another cluster?"), foreign)
