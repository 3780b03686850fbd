"""``bkctl dev``: servers on this machine for development, demos and tests."""

from __future__ import annotations

from commands.command import group
from commands.dev import cluster, zookeeper

app = group("Servers on this machine: a whole cluster, or ZooKeeper alone.", zookeeper.run_zookeeper)
app.add_typer(cluster.app, name="cluster")
