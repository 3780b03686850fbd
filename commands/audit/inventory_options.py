"""The options of ``bkctl audit --inventory``."""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

import typer

from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.help_page import INVENTORY
from bkctl.commands.parse import SEED_MAX

IsInventory: TypeAlias = Annotated[
    bool,
    typer.Option("--inventory", help="Also ask bookies which of these entries they hold", rich_help_panel=INVENTORY),
]
IsRead: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--read", help="Read the first, last and some other entries of each bookie", rich_help_panel=INVENTORY
    ),
]
IsAllEntries: TypeAlias = Annotated[
    bool, typer.Option("--all-entries", help="With --read: read every entry", rich_help_panel=INVENTORY)
]
SampleShare: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--sample", metavar="PERCENT", help="Read only a share of each ledger, like 1%", rich_help_panel=INVENTORY
    ),
]
SampleSeed: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--seed", metavar="N", min=0, max=SEED_MAX, help="Repeat the sample with this seed", rich_help_panel=INVENTORY
    ),
]
ReadRate: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--copy-rate", metavar="RATE", help="Read at most this much, like 200MiB/s", rich_help_panel=INVENTORY
    ),
]
BookieRate: TypeAlias = Annotated[
    str | None,
    typer.Option("--copy-rate-per-bookie", metavar="RATE", help="The same for each bookie", rich_help_panel=INVENTORY),
]


IsAllBookies: TypeAlias = Annotated[
    bool,
    typer.Option("--all-bookies", help="Ask every bookie for its list of every ledger", rich_help_panel=INVENTORY),
]
TimeLimit: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="DURATION",
        help="Begin no ledger after this time, like 20m; the longest unchecked come first",
        rich_help_panel=INVENTORY,
    ),
]
CheckedFile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--checked-file",
        metavar="FILE",
        help="With --for: remember in FILE when each ledger was checked",
        rich_help_panel=INVENTORY,
    ),
]


class InventoryFlags(NamedTuple):
    """Values of the options."""

    is_inventory: bool
    is_read: bool
    is_all_entries: bool
    sample: str | None
    seed: int | None
    rate: str | None
    rate_per_bookie: str | None
    time_limit: str | None
    checked_file: str | None
    is_all_bookies: bool

    def check(self) -> None:
        """InvalidArgumentError for an option that would have no effect."""
        for option, value in (
            ("--read", self.is_read),
            ("--copy-rate", self.rate),
            ("--copy-rate-per-bookie", self.rate_per_bookie),
            ("--all-bookies", self.is_all_bookies),
            ("--for", self.time_limit),
            ("--checked-file", self.checked_file),
        ):
            if value and not self.is_inventory:
                raise InvalidArgumentError(f"{option} needs --inventory")
        for option, value in (("--all-entries", self.is_all_entries), ("--sample", self.sample)):
            if value and not self.is_read:
                raise InvalidArgumentError(f"{option} needs --inventory --read")
        if (self.time_limit is None) is not (self.checked_file is None):
            given, other = (
                ("--for", "--checked-file FILE") if self.checked_file is None else ("--checked-file", "--for DURATION")
            )
            raise InvalidArgumentError(f"{given} needs {other}: the file says which ledgers come first")
        if self.is_all_entries and self.is_all_bookies:
            raise InvalidArgumentError("--all-bookies asks for lists, --all-entries for none: leave out one of them")
        if self.is_all_entries and self.sample is not None:
            raise InvalidArgumentError("--all-entries reads every entry: leave out --sample")
        if self.seed is not None and (not self.is_read or self.is_all_entries):
            raise InvalidArgumentError("--seed needs --inventory --read, and has no effect with --all-entries")
