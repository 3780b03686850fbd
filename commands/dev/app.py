"""``bkctl dev``: servers on this machine for development, demos and tests."""

from __future__ import annotations

from bkctl.commands.command import group
from bkctl.commands.dev import cluster, zookeeper

app = group("Run servers on this machine: a cluster, or only ZooKeeper.", zookeeper.run_zookeeper)
app.add_typer(cluster.app, name="cluster")
