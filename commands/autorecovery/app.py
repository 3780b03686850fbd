"""``bkctl autorecovery``: automatic replication as the metadata shows it, and its switches."""

from __future__ import annotations

from commands.autorecovery import auditor, delay, pending, reset_checks, running, status, switch, trigger
from commands.command import group

app = group("Look at automatic replication, and switch it: what waits, who works, who audits.")
status.register(app)
switch.register(app)
pending.register(app)
running.register(app)
auditor.register(app)
trigger.register(app)
app.add_typer(delay.app, name="delay")
reset_checks.register(app)
