"""``bkctl ledger``: list, inspect, read, verify, close, change and test-write ledgers."""

from __future__ import annotations

from bkctl.commands.command import group
from bkctl.commands.ledger import (
    close,
    delete,
    explain,
    export,
    import_ledgers,
    read,
    rewrite_bookie,
    show,
    verify,
    write_test,
)
from bkctl.commands.ledger import list as list_command

app = group(
    "List, read, verify, close, export, import and delete ledgers.",
    list_command.list_ledgers,
    show.show,
    explain.explain,
    read.read,
    verify.verify,
    write_test.write_test,
    export.export,
    import_ledgers.import_ledgers,
    close.close,
    delete.delete,
    rewrite_bookie.rewrite,
)
