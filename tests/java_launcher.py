"""A launcher of Java that gives ZooKeeper servers an archive of their classes: they start in two thirds of the time.

The tests start about 200 of them. A JVM that cannot use the archive ignores it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper, find_java, find_zookeeper_jars

CACHE = Path(__file__).parents[1] / ".cache"
ARCHIVE = "zookeeper.jsa"
_LAUNCHER = """\
#!/bin/sh
for word; do
    case $word in
    org.apache.zookeeper.server.*) exec '{java}' '-XX:SharedArchiveFile={archive}' -Xlog:disable "$@" ;;
    esac
done
exec '{java}' "$@"
"""


def use_launcher() -> None:
    """Have the processes that this one starts find the launcher in place of Java; make it if necessary."""
    try:
        java, jars = os.path.realpath(find_java()), find_zookeeper_jars()
    except ConfigurationError:
        return  # the tests that need Java say so
    if Path(java).is_relative_to(CACHE):
        return  # a test runs tests
    made_from = f"{java}\n{os.stat(java).st_mtime_ns}\n{jars}"
    home = CACHE / f"java-{hashlib.sha256(made_from.encode()).hexdigest()[:12]}"
    if not home.exists():
        _make(home, Path(java))
    os.environ.pop("JAVA_HOME", None)
    os.environ["PATH"] = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"


def _make(home: Path, java: Path) -> None:
    """What Java has next to its launcher is there as well."""
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as directory:
        new = Path(directory) / "home"
        (new / "bin").mkdir(parents=True)
        for path in (java.parents[1] / "release", *java.parent.iterdir()):
            (new / path.relative_to(java.parents[1])).symlink_to(path)
        launcher = new / "bin" / "java"
        launcher.unlink()
        launcher.write_text(_LAUNCHER.format(java=java, archive=home / ARCHIVE))
        launcher.chmod(0o755)
        _write_archive(new / ARCHIVE, Path(directory) / "data")
        with contextlib.suppress(OSError):  # another test run was faster
            new.rename(home)


def _write_archive(path: Path, directory: Path) -> None:
    """A server writes it at its end, with all that it has loaded for a client."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", f"-XX:ArchiveClassesAtExit={path}")
        asyncio.run(_serve_once(str(directory)))


async def _serve_once(directory: str) -> None:
    async with await EmbeddedZooKeeper.start(directory) as server:
        client = KazooClient(server.connect_string)
        await asyncio.to_thread(client.start)
        await asyncio.to_thread(client.create, "/node", ephemeral=True)
        await asyncio.to_thread(client.get_children, "/")
        await asyncio.to_thread(client.stop)
        await asyncio.to_thread(client.close)
