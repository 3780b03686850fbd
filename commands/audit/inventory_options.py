"""The options of ``bkctl audit --inventory``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.help_page import INVENTORY
from bkctl.commands.parse import SEED_MAX
from bkctl.commands.shared_options import option, takes_options

_option = partial(option, INVENTORY)
# fmt: off
_PARAMETERS = (
    _option("is_inventory", bool, "--inventory", help="Also ask bookies which of these entries they hold"),
    _option("is_read", bool, "--read", help="Read the first, last and some other entries of each bookie"),
    _option("is_all_entries", bool, "--all-entries", help="With --read: read every entry"),
    _option("sample", str, "--sample", metavar="PERCENT", help="Read only a share of each ledger, like 1%"),
    _option("seed", int, "--seed", metavar="N", min=0, max=SEED_MAX, help="Repeat the sample with this seed"),
    _option("rate", str, "--copy-rate", metavar="RATE", help="Read at most this much, like 200MiB/s"),
    _option("rate_per_bookie", str, "--copy-rate-per-bookie", metavar="RATE", help="The same for each bookie"),
    _option("time_limit", str, "--for", metavar="DURATION",
        help="Begin no ledger after this time, like 20m; the longest unchecked come first"),
    _option("checked_file", str, "--checked-file", metavar="FILE",
        help="With --for: remember in FILE when each ledger was checked"),
    _option("is_all_bookies", bool, "--all-bookies", help="Ask every bookie for its list of every ledger"),
)
# fmt: on


def takes_inventory_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass ``flags`` to a command function, from the options of an inventory."""
    return takes_options(function, _PARAMETERS, InventoryFlags)


class InventoryFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Values of the options."""

    is_inventory: bool = False
    is_read: bool = False
    is_all_entries: bool = False
    sample: str | None = None
    seed: int | None = None
    rate: str | None = None
    rate_per_bookie: str | None = None
    time_limit: str | None = None
    checked_file: str | None = None
    is_all_bookies: bool = False

    def check(self) -> None:
        """InvalidArgumentError for an option that would have no effect."""
        for name, value in (
            ("--read", self.is_read),
            ("--copy-rate", self.rate),
            ("--copy-rate-per-bookie", self.rate_per_bookie),
            ("--all-bookies", self.is_all_bookies),
            ("--for", self.time_limit),
            ("--checked-file", self.checked_file),
        ):
            if value and not self.is_inventory:
                raise InvalidArgumentError(f"{name} needs --inventory")
        for name, value in (("--all-entries", self.is_all_entries), ("--sample", self.sample)):
            if value and not self.is_read:
                raise InvalidArgumentError(f"{name} needs --inventory --read")
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
