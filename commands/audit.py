"""``bkctl audit``: how well every ledger is replicated, without reading an entry."""

from __future__ import annotations

import typer

app = typer.Typer()


@app.command("audit")
def audit() -> None:
    """Count live copies."""
