"""``bkctl metadata``: the znodes of a whole cluster."""

from __future__ import annotations

from bkctl.commands.command import group
from bkctl.commands.metadata import doctor

app = group("Examine the metadata of a whole cluster.", doctor.examine)


@app.callback()
def metadata() -> None:
    """Examine the metadata of a whole cluster."""
