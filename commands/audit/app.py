"""``bkctl audit``: reports about all ledgers of a cluster."""

from __future__ import annotations

from typing import Any

from bkctl.commands.audit.orphans import orphans
from bkctl.commands.audit.run import RUN, audit
from bkctl.commands.audit.show import show
from bkctl.commands.command import group
from bkctl.commands.help_page import HelpGroup


class AuditGroup(HelpGroup):
    """``bkctl audit [OPTIONS]`` is short for ``bkctl audit run [OPTIONS]``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the subcommand where the command line has none."""
        if not args or (args[0].startswith("-") and args[0] not in {"-h", "--help"}):
            args = [RUN, *args]
        return super().parse_args(ctx, args)


app = group(
    "Count live copies, and list under-replicated ledgers.\n\nbkctl audit is short for bkctl audit run.",
    audit,
    show,
    orphans,
    cls=AuditGroup,
)
