"""``bkctl ledger list``: all ledgers of the cluster, with their metadata."""

from __future__ import annotations

import enum
import time
from contextlib import aclosing
from typing import Annotated

import msgspec
import typer

from bkctl.commands.command import command
from bkctl.commands.config import OutputForm
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.ledger.rows import SUMMARY_TABLE, stored_row
from bkctl.commands.listing import Listing, require_no_listing_options
from bkctl.commands.parse import parse_bookie_id, parse_label, parse_moment_ms, parse_size_bytes, read_ledger_ids
from bkctl.commands.session import open_session
from bkctl.runtime.errors import BookieNotFoundError
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.ledgers.stored_ledgers import find_references, scan_stored
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.replication.judge.ledger_filter import LedgerFilter
from bkctl.storage.words import counted


class State(enum.StrEnum):
    """State of a ledger in its metadata."""

    OPEN = "open"
    IN_RECOVERY = "in-recovery"
    CLOSED = "closed"
    LOST = "lost"
    """Closed, and the bookies of ``--bookie``, which are down, alone have entries of each segment on them."""


_STATE_OPTION = typer.Option("--state", metavar="STATE", help="Only open, in-recovery, closed, lost with --bookie")


@command("list", example="ledger list --state open --created-before 7d", is_listing=True)
async def list_ledgers(
    context: CommandContext,
    bookie: Annotated[
        list[str] | None, typer.Option("--bookie", metavar="ID", help="Only ledgers with entries on it; repeatable")
    ] = None,
    state: Annotated[State | None, _STATE_OPTION] = None,
    created_before: Annotated[
        str | None,
        typer.Option("--created-before", metavar="TIME", help="Like 2026-01-31, 2026-01-31T12:00Z, or 7d (ago)"),
    ] = None,
    created_after: Annotated[
        str | None, typer.Option("--created-after", metavar="TIME", help="Only ledgers created since then")
    ] = None,
    size_gt: Annotated[
        str | None, typer.Option("--size-gt", metavar="SIZE", help="Only closed ledgers with more bytes, like 1g")
    ] = None,
    size_lt: Annotated[
        str | None, typer.Option("--size-lt", metavar="SIZE", help="Only closed ledgers with fewer bytes")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY[=VALUE]", help="Only ledgers with this custom metadata; repeatable"),
    ] = None,
    not_in: Annotated[
        str | None, typer.Option("--not-in", metavar="FILE", help="Exclude the ledger ids listed in this file")
    ] = None,
    count: Annotated[bool, typer.Option("--count", help="Show only the number of items")] = False,
) -> None:
    """List ledgers, in the order of the metadata tree unless --sort is given.

    A ledger whose metadata cannot be read is listed with the reason. A filter that needs the metadata omits it, and the
    number of omitted ledgers is shown. With -o name or --count, and without --sort and such filters, only ids are read,
    which is much faster. Exits with 4 if the cluster does not know a bookie of --bookie.
    """
    if count:
        require_no_listing_options(context.settings)
    now_ms = int(time.time() * 1000)
    wanted = LedgerFilter(
        excluded_ids=frozenset() if not_in is None else frozenset(read_ledger_ids(not_in)),
        bookie_ids=frozenset(map(parse_bookie_id, bookie or ())),
        state=None if state in {None, State.LOST} else LedgerState[state.name],
        created_before_ms=None if created_before is None else parse_moment_ms(created_before, now_ms),
        created_after_ms=None if created_after is None else parse_moment_ms(created_after, now_ms),
        bytes_above=None if size_gt is None else parse_size_bytes(size_gt),
        bytes_below=None if size_lt is None else parse_size_bytes(size_lt),
        labels=tuple(map(parse_label, label or ())),
    )
    async with open_session(context, must_exist=False) as session:
        store, ledgers = session.store, await session.ledgers()
        await _require_known(context, store, ledgers, wanted.bookie_ids)
        if state is State.LOST:
            wanted = await _only_lost(store, ledgers, wanted)
        if count:
            number = await _count(context, store, ledgers, wanted)
            context.console.record("LedgerCount", {"count": number}, name="count")
            return
        with context.console.listing(SUMMARY_TABLE) as listing:
            is_by_id = _needs_only_ids(context, wanted)
            await (_list_ids(ledgers, wanted, listing) if is_by_id else _list(context, store, ledgers, wanted, listing))


async def _only_lost(store: MetadataStore, ledgers: LedgerStore, wanted: LedgerFilter) -> LedgerFilter:
    if not wanted.bookie_ids:
        raise InvalidArgumentError("--state lost needs --bookie, with each bookie that is lost")
    live = (await RegistrationClient(store, ledgers.root).snapshot()).live
    return msgspec.structs.replace(wanted, state=LedgerState.CLOSED, live=frozenset(live))


def _needs_only_ids(context: CommandContext, wanted: LedgerFilter) -> bool:
    is_by_id = context.settings.sort is None or context.settings.sort.partition(":")[0] == "ledger_id"
    return context.console.form is OutputForm.NAME and is_by_id and not wanted.needs_metadata


async def _require_known(
    context: CommandContext, store: MetadataStore, ledgers: LedgerStore, bookie_ids: frozenset[str]
) -> None:
    """BookieNotFoundError for an id that is probably misspelt: no cookie, not registered, no ledger references it."""
    if not bookie_ids:
        return
    client = RegistrationClient(store, ledgers.root)
    doubtful = bookie_ids - (await client.snapshot()).live - set(await client.with_cookie())
    if not doubtful:
        return
    with context.console.progress("looking for the bookie in all ledgers") as progress:
        references = await find_references(store, ledgers, doubtful, progress.update)
    for bookie_id in sorted(each for each in doubtful if not references.counts[each]):
        number = references.unreadable_count
        unreadable = f" ({counted(number, 'ledger')} cannot be read)" if number else ""
        raise BookieNotFoundError(
            f"bookie {bookie_id} is unknown: it has no cookie, is not registered, and no ledger references it"
            f"{unreadable}; see bkctl bookie list",
            bookie_id,
        )


async def _count(context: CommandContext, store: MetadataStore, ledgers: LedgerStore, wanted: LedgerFilter) -> int:
    if not wanted.needs_metadata and not wanted.excluded_ids:
        return await ledgers.count()
    if not wanted.needs_metadata:
        async with aclosing(ledgers.list_ids()) as ids:
            return sum([1 async for ledger_id in ids if wanted.wants_id(ledger_id)])
    return await _list(context, store, ledgers, wanted, None)


async def _list_ids(ledgers: LedgerStore, wanted: LedgerFilter, listing: Listing) -> None:
    async with aclosing(ledgers.list_ids()) as ids:
        async for ledger_id in ids:
            if not wanted.wants_id(ledger_id):
                continue
            if listing.end_if_full():
                break
            listing.add({"ledger_id": str(ledger_id)})


async def _list(
    context: CommandContext,
    store: MetadataStore,
    ledgers: LedgerStore,
    wanted: LedgerFilter,
    listing: Listing | None,
) -> int:
    """Add the requested ledgers to ``listing`` until it is full; return how many there are."""
    number = not_judged = 0
    async with aclosing(scan_stored(store, ledgers)) as found:
        async for ledger in found:
            if ledger.metadata is None and wanted.needs_metadata:
                not_judged += wanted.wants_id(ledger.ledger_id)
                continue
            if not (wanted.wants(ledger) if ledger.metadata else wanted.wants_id(ledger.ledger_id)):
                continue
            if listing is not None and listing.end_if_full():
                break
            number += 1
            if listing is not None:
                listing.add(stored_row(ledger))
    if not_judged:
        context.console.warn(f"omitted because their metadata cannot be read: {counted(not_judged, 'ledger')}")
    return number
