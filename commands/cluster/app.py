"""``bkctl cluster``: create a cluster's metadata, look at it, save it, bring it back, end it."""

from __future__ import annotations

from commands.cluster import backup, health_check, info, init, instance_id, nuke, restore
from commands.cluster import format as format_command
from commands.command import group

app = group("Create a cluster's metadata, look at it, save it and bring it back; end a cluster.")
init.register(app)
info.register(app)
instance_id.register(app)
backup.register(app)
restore.register(app)
format_command.register(app)
nuke.register(app)
app.add_typer(health_check.app, name="health-check")
