"""``bkctl cluster``: create, inspect, back up, restore and delete a cluster's metadata."""

from __future__ import annotations

from bkctl.commands.cluster import backup, health_check, info, init, nuke, restore
from bkctl.commands.cluster import format as format_command
from bkctl.commands.command import group

app = group(
    "Create, inspect, back up, restore or delete cluster metadata.",
    init.init,
    info.show_info,
    info.show_instance_id,
    backup.backup,
    restore.restore,
    format_command.format_cluster,
    nuke.nuke,
)
app.add_typer(health_check.app, name="health-check")
