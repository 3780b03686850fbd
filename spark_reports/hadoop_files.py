"""Files of the file systems that Hadoop reads, copied to the driver and all executors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bkctl.runtime.metadata.snapshot.opening import ENDS_BYTES
from bkctl.spark_reports.errors import SparkReportError, reason_of

if TYPE_CHECKING:
    from pyspark import SparkContext


def fetch_file(spark: SparkContext, uri: str) -> str:
    """Copy a file to all executors and here; return its path here. SparkReportError."""
    from pyspark import SparkFiles  # noqa: PLC0415

    with _errors_about(uri):
        spark.addFile(uri)
    path: str = SparkFiles.get(os.path.basename(uri))
    return path


class HadoopPath:
    """A file or directory of Hadoop. PySpark has no other way to list and read files than its Java objects.

    Looked at where it is: a snapshot that is still written would differ when the executors get it.
    """

    def __init__(self, spark: SparkContext, uri: str) -> None:
        self._spark = spark
        self._uri = uri
        with _errors_about(uri):
            self._path = spark._jvm.org.apache.hadoop.fs.Path(uri)  # noqa: SLF001
            self._file_system = self._path.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001
            self._status = self._file_system.getFileStatus(self._path)

    def names(self) -> list[str] | None:
        """What is in the directory; None if it is a file."""
        if not self._status.isDirectory():
            return None
        with _errors_about(self._uri):
            return [each.getPath().getName() for each in self._file_system.listStatus(self._path)]

    def child(self, name: str) -> HadoopPath:
        """A file in the directory."""
        return HadoopPath(self._spark, f"{self._uri.rstrip('/')}/{name}")

    def ends(self) -> tuple[bytes, bytes]:
        """The first and the last bytes of the file."""
        with _errors_about(self._uri), contextlib.closing(self._file_system.open(self._path)) as stream:
            beginning = bytes(stream.readNBytes(ENDS_BYTES))
            stream.seek(max(0, self._status.getLen() - ENDS_BYTES))
            return beginning, bytes(stream.readNBytes(ENDS_BYTES))

    def __str__(self) -> str:
        return self._uri


@contextmanager
def _errors_about(uri: str) -> Iterator[None]:
    from py4j.protocol import Py4JError  # noqa: PLC0415

    try:
        yield
    except Py4JError as error:
        raise SparkReportError(f"Spark cannot read {uri}: {reason_of(str(error))}") from error
