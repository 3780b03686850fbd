"""Archives of the classes that Java bookies load: with them a JVM starts in two thirds of the CPU time.

``make interop`` runs this. An archive that the JVM cannot use is ignored, so it need not be there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile

from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper, find_java
from tests.interop.java import RELEASES, JavaClient, class_archive, class_path_file
from tests.interop.java_cluster import HTTP, JavaCluster
from tests.processes import is_alive
from tests.until import wait_until


def is_current(release: str) -> bool:
    """Whether the archive was made with these jars and this JVM."""
    path = class_archive(release)
    made_from = (class_path_file(release), os.path.realpath(find_java()))
    return os.path.exists(path) and all(os.path.getmtime(path) > os.path.getmtime(each) for each in made_from)


def make(release: str, server: EmbeddedZooKeeper, directory: str) -> None:
    """Run a bookie with its replication worker, which has the client as well; it writes the archive at its end."""
    path = f"{class_archive(release)}.{os.getpid()}"
    uri = f"zk+hierarchical://{server.connect_string}/ledgers-{release}"
    options = (f"-XX:ArchiveClassesAtExit={path}", "-Xshare:auto")
    with JavaCluster(os.path.join(directory, release), uri, release=release, jvm_flags=options) as cluster:
        (bookie_id,) = cluster.start_bookies(1, **HTTP, autoRecoveryDaemonEnabled="true")
        asyncio.run(_write(uri, os.path.join(directory, f"client-{release}.log"), release))
        pid = cluster.pid_of(bookie_id)
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not is_alive(pid))
    os.replace(path, class_archive(release))


async def _write(uri: str, log_path: str, release: str) -> None:
    client = JavaClient(uri, log_path, release=release)
    try:
        ledger_id = await client.create(ensemble=(1, 1, 1))
        await client.append(ledger_id, [b"entry"] * 10)
        await client.close_ledger(ledger_id)
        await client.read(ledger_id)
    finally:
        client.stop()


def main() -> None:
    """Make those that are missing or old."""
    releases = [each for each in RELEASES if not is_current(each)]
    if not releases:
        return
    with tempfile.TemporaryDirectory() as directory:
        server = asyncio.run(EmbeddedZooKeeper.start(os.path.join(directory, "zookeeper")))
        try:
            for release in releases:
                make(release, server, directory)
        finally:
            asyncio.run(server.stop())


if __name__ == "__main__":
    main()
