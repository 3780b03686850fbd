"""``bkctl bookie``: run one, list and look at all."""

from __future__ import annotations

import typer

from commands.bookie import info, start
from commands.bookie import list as list_command

app = typer.Typer(help="Run a bookie; list the cluster's bookies.", no_args_is_help=True)
start.register(app)
list_command.register(app)
info.register(app)
