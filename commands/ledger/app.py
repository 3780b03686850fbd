"""``bkctl ledger``: list, look into, read, verify and test-write ledgers."""

from __future__ import annotations

from commands.command import group
from commands.ledger import list as list_command
from commands.ledger import read, show, verify, write_test

app = group("List, show, read and verify ledgers; write test ledgers.")
list_command.register(app)
show.register(app)
read.register(app)
verify.register(app)
write_test.register(app)
