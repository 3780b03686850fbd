"""Opens the file that an audit or a data source reads: a snapshot, the newest whole one of a directory, or a backup.

The driver, an executor and a plain audit open it in the same way. They differ in where the bytes are: ``here``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from bkctl.runtime.config import LayoutConfig
from bkctl.runtime.metadata.bookies.bookie_rows import usual_racks_path
from bkctl.runtime.metadata.snapshot.cluster import ClusterFile, describes_cluster, find_cluster
from bkctl.runtime.metadata.snapshot.node_file import SnapshotFile, SnapshotSurvey
from bkctl.runtime.metadata.snapshot.opening import LocalPath, PlainFile, SnapshotPath, open_plain, read_newest
from bkctl.runtime.metadata.snapshot.store import FileStore
from bkctl.runtime.metadata.uri import ROOT_DEFAULT, MetadataUri
from bkctl.spark_reports.private_directory import private_directory
from bkctl.storage.adapters.filesystem import OsFileSystem

logger = logging.getLogger(__name__)


class NewestFile(NamedTuple):
    """A file that the user calls ``path``, in plain form, and the nodes that describe the cluster at ``root``.

    ``skipped``: newer snapshots of its directory that are not whole.
    """

    path: str
    plain: PlainFile
    survey: SnapshotSurvey
    root: str
    skipped: int

    async def cluster(self, uri: MetadataUri | None, layout: LayoutConfig) -> tuple[ClusterFile, FileStore]:
        """The cluster in it, under the name of the file, and a store of the nodes that describe it; errors of
        ``find_cluster``."""
        return await find_cluster(self.path, self.survey, self.root, None if uri is None else uri.tree, layout)


@contextmanager
def open_newest(
    source: SnapshotPath,
    uri: MetadataUri | None,
    ledgers_root: str | None,
    *,
    here: Callable[[str], str] = str,
    racks_path: Callable[[str], str] = usual_racks_path,
    warn: Callable[[str], None] = logger.warning,
) -> Iterator[NewestFile]:
    """Open what ``source`` names, after a look at all of it. Unpacked copies end with the block.

    The root of the cluster is ``ledgers_root``, else that of the backup, of the metadata URI, or /ledgers. ``here``:
    the path on this machine of a file of the source. ``racks_path``: the node with racks of the cluster at a root.
    ``warn`` gets a sentence about each newer snapshot that is skipped. MetadataFormatError, OSError.
    """
    with ExitStack() as at_end:

        def read(found: SnapshotPath) -> NewestFile:
            with ExitStack() as on_error:
                file, plain = on_error.enter_context(open_snapshot(here(str(found)), shown=str(found)))
                root = ledgers_root or plain.backup_root or (ROOT_DEFAULT if uri is None else uri.root)
                survey = file.survey(describes_cluster(root, racks_path(root)))
                at_end.push(on_error.pop_all())
            return NewestFile(str(found), plain, survey, root, 0)

        newest, skipped = read_newest(source, read, warn)
        yield newest._replace(skipped=skipped)


@contextmanager
def open_snapshot(path: str, shown: str) -> Iterator[tuple[SnapshotFile, PlainFile]]:
    """A file of this machine, unpacked if it is compressed or a backup; errors name it ``shown``."""
    fs = OsFileSystem()
    with private_directory() as directory:
        plain = open_plain(fs, path, directory, shown=shown)
        with SnapshotFile(fs, plain.path, shown=shown) as file:
            yield file, plain


class AddedPath:
    """A path that all executors have or, if it is not absolute, the name of a file of ``SparkContext.addFile``."""

    def __init__(self, asked: str) -> None:
        self._asked = asked
        self._local = LocalPath(OsFileSystem(), path_here(asked))

    def names(self) -> list[str] | None:
        """What is in the directory; None if it is a file. OSError."""
        return self._local.names()

    def child(self, name: str) -> AddedPath:
        """A file in the directory."""
        return AddedPath(f"{self._asked}/{name}")

    def ends(self) -> tuple[bytes, bytes]:
        """The first and the last bytes of the file."""
        return self._local.ends()

    def __str__(self) -> str:
        return self._asked


def path_here(path: str) -> str:
    """A path that is not absolute is the name of an added file."""
    if os.path.isabs(path):
        return path
    from pyspark import SparkFiles  # noqa: PLC0415  a plain audit does without Spark

    return str(SparkFiles.get(path))
