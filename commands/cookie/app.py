"""``bkctl cookie``: cookies prove that directories belong to bookies of this cluster."""

from __future__ import annotations

from bkctl.commands.command import group
from bkctl.commands.cookie import create, delete, expand, generate, migrate, update, verify
from bkctl.commands.cookie import list as list_command

app = group(
    "Inspect and repair cookies; find why a bookie cannot start.",
    list_command.list_cookies,
    list_command.show,
    verify.verify,
    create.create,
    update.update,
    delete.delete,
    generate.generate,
    migrate.migrate,
    expand.expand,
)
