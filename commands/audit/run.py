"""``bkctl audit run``, or ``bkctl audit``: how well ledgers are replicated, from metadata and registrations alone."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from bkctl.commands.audit.earlier import Compare
from bkctl.commands.audit.findings import FAIL_ON_DEFAULT, FailOn, parse_fail_on, require_inventory
from bkctl.commands.audit.inventory_options import InventoryFlags, takes_inventory_options
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError, Outcome

RUN = "run"

LedgersRoot: TypeAlias = Annotated[
    str | None, typer.Option("--ledgers-root", metavar="PATH", help="Ledgers root in PATH (default: /ledgers)")
]
WhatIf: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--what-if", metavar="ID,...", help="Show what the loss of bookies or rack:/PATH would do"),
]


@command(RUN, example="audit run", is_listing=True)
@takes_inventory_options
def audit(
    context: CommandContext,
    is_spark: Annotated[bool, typer.Option("--spark", help="Run on Spark; the result is the same")] = False,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Write the report here: HTML, JSON and Parquet"),
    ] = None,
    fail_on: FailOn = FAIL_ON_DEFAULT,
    cores: Annotated[
        int | None, typer.Option("--cores", min=1, metavar="N", help="Cores for Spark (default: all)")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(
            "--master", metavar="URL", help="Run on this Spark master, e.g. spark://host:7077 (default: here)"
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="PATH", help="Read a ZooKeeper snapshot, or a cluster backup"),
    ] = None,
    ledgers_root: LedgersRoot = None,
    what_if: WhatIf = None,
    compare: Compare = None,
    *,
    flags: InventoryFlags,
) -> Outcome:
    """Count live copies, and list under-replicated ledgers.

    Copies are counted by metadata and registered bookies; with --inventory, also by what bookies list, and with --read
    by entries that are read. -o csv has one row, and -o name one id, for each ledger that misses copies or cannot be
    read. Exits with 10 if a finding is a warning or worse.
    """
    flags.check()
    if flags.is_inventory and source is not None:
        raise InvalidArgumentError("--inventory asks the bookies of now: leave out --from")
    for option, value in (("--cores", cores), ("--master", master)):
        if value is not None and not is_spark:
            raise InvalidArgumentError(f"{option} needs --spark")
    if ledgers_root is not None and source is None:
        raise InvalidArgumentError("--ledgers-root needs --from")
    kinds = parse_fail_on(fail_on)
    require_inventory(kinds, has_inventory=flags.is_inventory)
    from bkctl.commands.audit.execution import AuditFlags, execute  # what it imports takes longer than a help page

    spark = (master, cores) if is_spark else None
    given = AuditFlags(out, spark, source, ledgers_root, tuple(what_if or ()), compare, flags)
    return execute(context, given, kinds)
