"""``bkctl storage``: the files of the bookie on this machine."""

from __future__ import annotations

from bkctl.commands.command import group
from bkctl.commands.storage import adopt, check, entrylog, files, hand_back, index, journal, limbo, mark

app = group(
    "Inspect, check and repair the files of a local bookie.",
    files.files,
    mark.mark,
    check.check,
    adopt.adopt,
    hand_back.hand_back,
)
app.add_typer(journal.app, name="journal")
app.add_typer(entrylog.app, name="entrylog")
app.add_typer(index.app, name="index")
app.add_typer(limbo.app, name="limbo")
