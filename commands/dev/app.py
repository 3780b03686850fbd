"""``bkctl dev``: servers on this machine for development, demos and tests."""

from __future__ import annotations

import typer

from commands.dev import cluster, zookeeper

app = typer.Typer(help="Servers on this machine: a whole cluster, or ZooKeeper alone.", no_args_is_help=True)
app.add_typer(cluster.app, name="cluster")
zookeeper.register(app)
