"""``bkctl ledger``: list, look into, read, verify and test-write ledgers."""

from __future__ import annotations

import typer

from commands.ledger import list as list_command
from commands.ledger import read, show, verify, write_test

app = typer.Typer(help="List, show, read and verify ledgers; write test ledgers.", no_args_is_help=True)
list_command.register(app)
show.register(app)
read.register(app)
verify.register(app)
write_test.register(app)
