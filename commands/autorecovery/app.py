"""``bkctl autorecovery``: automatic replication as the metadata shows it, and its switches."""

from __future__ import annotations

from bkctl.commands.autorecovery import (
    auditor,
    delay,
    maintenance,
    pending,
    repair_marks,
    reset_checks,
    running,
    start,
    status,
    switch,
    trigger,
)
from bkctl.commands.command import group

app = group(
    "Run, show and control autorecovery: queue, workers, auditor.",
    start.start,
    status.show_status,
    switch.enable,
    switch.disable,
    pending.list_pending,
    running.list_running,
    repair_marks.repair_marks,
    auditor.show_auditor,
    trigger.trigger,
    reset_checks.reset_checks,
)
app.add_typer(delay.app, name="delay")
app.add_typer(maintenance.app, name="maintenance")
