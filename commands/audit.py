"""``bkctl audit``: how well every ledger is replicated, without reading an entry."""

from __future__ import annotations

from commands.command import group

app = group("")


@app.command("audit")
def audit() -> None:
    """Count live copies."""
