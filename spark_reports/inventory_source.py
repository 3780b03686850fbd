"""Spark data source ``bookkeeper_inventory``: which ledgers bookies hold, one row per bookie and ledger.

It reads a directory of files, one per bookie, each named ``BOOKIE_ID.json``. A colon in the id can also be written as
``%3A``, because Hadoop has no file names with colons. A file has one or more results of ``bkctl storage entrylog
ledgers -o json``, one after the other: one result for each entry log of the bookie.

    register_sources(spark)
    spark.read.format("bookkeeper_inventory").load("/exports")

The only option is ``path``: a directory that every executor has there or, if it is no absolute path, under this name by
``SparkContext.addFile(uri, recursive=True)``. A task reads one file. Files whose names begin with a dot are ignored.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Annotated, Literal
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.ledger.metadata import is_valid_bookie_id
from bkctl.spark_reports.errors import SparkReportError
from bkctl.spark_reports.rows import schema_of
from bkctl.spark_reports.write_set_source import ROWS_PER_BATCH, path_here

INVENTORY_NAME = "bookkeeper_inventory"

_SUFFIX = ".json"
_HOW = "export the bookie again with bkctl storage entrylog ledgers -o json"


class InventoryRow(msgspec.Struct, frozen=True):
    """A ledger on a bookie. ``stored_bytes``: in all entry logs, also of copies that compaction will remove."""

    bookie_id: str
    ledger_id: int
    stored_bytes: int


class _LogShare(msgspec.Struct, frozen=True):
    """Bytes of a ledger in one entry log, whose offsets are below 2^31."""

    ledger_id: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    bytes: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _LogExport(msgspec.Struct, frozen=True):
    """A result of ``bkctl storage entrylog ledgers -o json``."""

    kind: Literal["EntryLogLedgers"]
    items: tuple[_LogShare, ...]
    truncated: bool


_DECODER = msgspec.json.Decoder(_LogExport, strict=False)
"""Not strict, because ledger ids are texts in JSON."""

INVENTORY_SCHEMA = schema_of(InventoryRow)


class BookieExportPartition(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """The file of one bookie."""

    def __init__(self, bookie_id: str, file_name: str) -> None:
        super().__init__(bookie_id)
        self.bookie_id = bookie_id
        self.file_name = file_name


class InventorySource(DataSource):  # type: ignore[misc]
    """``bookkeeper_inventory``, see the module docstring."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        if list(options) != ["path"]:
            raise ConfigurationError(f"the data source {INVENTORY_NAME} needs the option path, and has no other one")
        self._path = options["path"]

    @classmethod
    def name(cls) -> str:
        """Format name."""
        return INVENTORY_NAME

    def schema(self) -> object:
        """Spark schema of the rows."""
        return from_arrow_schema(INVENTORY_SCHEMA)

    def reader(self, schema: object) -> InventoryReader:  # noqa: ARG002  the source has one schema
        """Reader for the executors."""
        return InventoryReader(self._path)


class InventoryReader(DataSourceReader):  # type: ignore[misc]
    """Lists files on the driver, reads them on the executors."""

    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> Sequence[InputPartition]:
        """One for each bookie."""
        directory = path_here(self._path)
        try:
            names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
        except OSError as error:
            raise ConfigurationError(f"cannot read the directory of exports {directory}: {error.strerror}") from error
        if not names:
            raise ConfigurationError(f"{directory} has no exports: it needs a file BOOKIE_ID{_SUFFIX} for each bookie")
        found: dict[str, str] = {}
        for name in names:
            bookie_id = exported_bookie(name)
            if bookie_id in found:
                raise ConfigurationError(f"{directory}: {found[bookie_id]} and {name} are of the same bookie")
            found[bookie_id] = name
        return [BookieExportPartition(bookie_id, name) for bookie_id, name in found.items()]

    def read(self, partition: BookieExportPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of a bookie's ledgers."""
        path = os.path.join(path_here(self._path), partition.file_name)
        try:
            with open(path, "rb") as file:
                held = sorted(held_bytes(path, file).items())
        except OSError as error:
            raise SparkReportError(f"cannot read the export {path}: {error.strerror}") from error
        for start in range(0, len(held), ROWS_PER_BATCH):
            rows = [InventoryRow(partition.bookie_id, *each) for each in held[start : start + ROWS_PER_BATCH]]
            yield pa.RecordBatch.from_pylist([msgspec.to_builtins(row) for row in rows], schema=INVENTORY_SCHEMA)


def exported_bookie(file_name: str) -> str:
    """Id of the bookie that a file is of; ConfigurationError."""
    bookie_id = unquote(file_name.removesuffix(_SUFFIX))
    if not file_name.endswith(_SUFFIX) or not is_valid_bookie_id(bookie_id):
        raise ConfigurationError(f"'{file_name}' is no export: name each file BOOKIE_ID{_SUFFIX}, and move others away")
    return bookie_id


def held_bytes(path: str, lines: Iterable[bytes]) -> dict[int, int]:
    """Stored bytes of each ledger in the file at ``path``; SparkReportError, which names it, unless it is whole."""
    total: Counter[int] = Counter()
    number = 0
    for number, text in enumerate(_results(lines), 1):
        try:
            export = _DECODER.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SparkReportError(f"result {number} in {path} is damaged or truncated ({error}): {_HOW}") from error
        if export.truncated:
            raise SparkReportError(f"result {number} in {path} was cut by --limit: {_HOW}")
        for share in export.items:
            total[share.ledger_id] += share.bytes
    if not number:
        raise SparkReportError(f"{path} is empty: {_HOW}")
    return total


def _results(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Results in the file. The last line of each is a closing brace without an indent."""
    parts: list[bytes] = []
    for line in lines:
        parts.append(line)
        if line.rstrip() == b"}":
            yield b"".join(parts)
            parts = []
    rest = b"".join(parts)
    if rest.strip():
        yield rest
