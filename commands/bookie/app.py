"""``bkctl bookie``: run a bookie, list and inspect all."""

from __future__ import annotations

from bkctl.commands.bookie import (
    drain,
    garbage_collection,
    index,
    info,
    init,
    log_level,
    metrics,
    mode,
    ready,
    restart_check,
    sanity,
    show,
    start,
    stop,
    undrain,
)
from bkctl.commands.bookie import format as format_command
from bkctl.commands.bookie import list as list_command
from bkctl.commands.command import group

app = group(
    "Run a bookie; list and check the cluster's bookies.",
    start.start,
    init.init,
    list_command.list_bookies,
    show.show,
    mode.show_state,
    ready.ready,
    restart_check.restart_check,
    drain.drain,
    undrain.undrain,
    mode.set_mode,
    metrics.show_metrics,
    log_level.set_log_level,
    stop.stop,
    info.show_info,
    sanity.sanity,
    format_command.format_bookie,
)
app.add_typer(index.app, name="index")
app.add_typer(garbage_collection.app, name="gc")
