"""``bkctl bookie metrics``: the metrics of a running bookie, once or as rates."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import typer

from bkctl.commands.bookie.admin_access import DirectoryOption, IdArguments, open_admin
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.rendering import Column, Row, Table
from bkctl.commands.several import in_turn
from bkctl.commands.watch import IntervalOption, WatchOption, keep_looking, parse_watch
from bkctl.runtime.admin.client import AdminClient
from bkctl.runtime.admin.messages import AdminError, Problem
from bkctl.storage.words import decimal

_TYPE = re.compile(r"# TYPE (\S+) (\S+)")
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: -?[0-9]+)?")
_ADDED_UP = ("_count", "_sum", "_bucket")

_BOOKIE = Column("bookie_id", "BOOKIE", is_wide=True)
_TABLE = Table(
    "BookieMetrics",
    _BOOKIE,
    Column("name", "METRIC"),
    Column("labels", "LABELS", priority=1),
    Column("value", "VALUE", decimal, is_right=True),
    Column("type", "TYPE", is_wide=True),
    name="name",
)
_RATES = Table(
    "BookieMetricRates",
    _BOOKIE,
    Column("name", "METRIC"),
    Column("labels", "LABELS", priority=1),
    Column("per_second", "PER SECOND", decimal, is_right=True),
    Column("value", "VALUE", decimal, is_right=True),
    name="name",
)


class MetricSample(NamedTuple):
    """One line of the text: ``labels`` as they are written between the braces."""

    name: str
    labels: str
    type: str
    value: float

    @property
    def is_counted(self) -> bool:
        """Whether it only grows, so that a rate says more than its value."""
        return self.type == "counter" or (self.type in {"summary", "histogram"} and self.name.endswith(_ADDED_UP))


@command("metrics", example="bookie metrics --grep 'ADD_ENTRY|journal' --watch", is_listing=True)
async def show_metrics(
    context: CommandContext,
    bookie_ids: IdArguments = None,
    directory: DirectoryOption = None,
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="REGEX", help="Only metrics whose name or labels match")
    ] = None,
    watch: WatchOption = False,
    interval: IntervalOption = None,
) -> None:
    """Show the Prometheus metrics of running bookies.

    --watch reads them again and again, and shows counters as a rate per second. Their meaning is in
    bkctl help metrics.
    """
    pattern = _pattern(grep)
    interval_s = parse_watch(context, interval, is_watching=watch)
    if watch:
        async with contextlib.AsyncExitStack() as at_end:
            clients = {}
            for each in dict.fromkeys(bookie_ids or [""]):
                clients[each] = await at_end.enter_async_context(open_admin(context, each or None, directory))
            await _watch(context, clients, pattern, interval_s)
            return
    with in_turn(context, bookie_ids or [""]) as turns:
        rows: list[Row] = []
        for each in turns.ids:
            with turns.turn():
                async with open_admin(context, each or None, directory) as client:
                    rows += [_row(each, sample) for sample in await _read(client, pattern)]
        if rows or not turns.errors:
            context.console.rows(_naming(_TABLE, turns.ids), rows)


def _naming(table: Table, ids: Sequence[str]) -> Table:
    """The table, which names the bookies if there are several."""
    first, *others = table.columns
    return table if len(ids) == 1 else Table(table.title, first._replace(is_wide=False), *others, name=table.name)


async def _watch(
    context: CommandContext, clients: Mapping[str, AdminClient], pattern: re.Pattern[str] | None, interval_s: float
) -> None:
    """Until the command is interrupted, or a bookie no longer answers."""
    loop = asyncio.get_running_loop()
    before, read_at = await _read_all(clients, pattern), loop.time()
    await asyncio.sleep(interval_s)

    async def look() -> None:
        nonlocal before, read_at
        now, at = await _read_all(clients, pattern), loop.time()
        rows = []
        for bookie_id, samples in now.items():
            known = {(each.name, each.labels): each.value for each in before[bookie_id]}
            rows += [_rate_row(bookie_id, each, known, at - read_at) for each in samples]
        context.console.rows(_naming(_RATES, list(clients)), rows)
        before, read_at = now, at

    await keep_looking(context, interval_s, look)


async def _read_all(
    clients: Mapping[str, AdminClient], pattern: re.Pattern[str] | None
) -> dict[str, list[MetricSample]]:
    return {bookie_id: await _read(client, pattern) for bookie_id, client in clients.items()}


async def _read(client: AdminClient, pattern: re.Pattern[str] | None) -> list[MetricSample]:
    samples = parse_samples(await client.text("/metrics"))
    if not samples:
        raise AdminError(Problem.INTERNAL, f"bookie {client.name}: its answer at {client.address} has no metrics")
    if pattern is None:
        return samples
    return [each for each in samples if pattern.search(f"{each.name}{{{each.labels}}}")]


def parse_samples(text: str) -> list[MetricSample]:
    """The samples of a text in Prometheus's format; lines that are none are left out."""
    types: dict[str, str] = {}
    samples = []
    for line in text.splitlines():
        if line.startswith("#"):
            if found := _TYPE.fullmatch(line):
                types[found[1]] = found[2]
        elif (found := _SAMPLE.fullmatch(line)) and _is_number(found[3]):
            name, labels = found[1], found[2] or ""
            family = next((name.removesuffix(end) for end in _ADDED_UP if name.removesuffix(end) in types), name)
            samples.append(MetricSample(name, labels, types.get(name) or types.get(family, "untyped"), float(found[3])))
    return samples


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _pattern(grep: str | None) -> re.Pattern[str] | None:
    try:
        return None if grep is None else re.compile(grep)
    except re.error as error:
        raise InvalidArgumentError(f"--grep '{grep}' is not a regular expression: {error}") from error


def _row(bookie_id: str, sample: MetricSample) -> Row:
    """``bookie_id`` is empty if the command line does not name one."""
    values = {"labels": sample.labels, "type": sample.type, "value": _number(sample.value)}
    return {"bookie_id": bookie_id or None, "name": sample.name, **values}


def _rate_row(bookie_id: str, sample: MetricSample, before: dict[tuple[str, str], float], seconds: float) -> Row:
    """A counter that is smaller than before was set to zero by a restart."""
    rate = None
    if sample.is_counted:
        grown = sample.value - before.get((sample.name, sample.labels), 0.0)
        rate = round((grown if grown >= 0 else sample.value) / seconds, 3)
    return {**_row(bookie_id, sample), "per_second": rate}


def _number(value: float) -> float | int | None:
    """None for what JSON cannot have: NaN means that there is no value."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value
