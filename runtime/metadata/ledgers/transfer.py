"""Ledger metadata in files, and the rules for importing it. Pure. Source: cli-parity card 14, metadata section 6.

Three forms are read:

- native: the bytes of one ledger's node, as ``bookkeeper shell ledgermetadata -dumptofile`` writes them
- an export: JSON Lines, ``{"apiVersion", "kind": "LedgerExport", "root", "instance_id", "ledger_id", "version",
  "ctime_ms", "data": base64, "metadata", "problem"}``; ``metadata`` is ``data`` in readable form and must agree with it
- the trash of bkctl: JSON Lines with ``path``, ``version`` and ``data``; lines of logs are skipped

If a ledger is in a file twice, the last one counts: a retried change is in the trash twice.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from bkctl.runtime.errors import MetadataFormatError, RefusedError
from bkctl.runtime.ledger.changes import find_regression
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.metadata_format import HEADER, decode_ledger_metadata
from bkctl.runtime.metadata.ledger_logs.nodes import logs_path
from bkctl.runtime.metadata.ledgers.layout import LedgerTree, require_storable_id
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger
from bkctl.storage.json_text import JsonTextError, decode_json

EXPORT_KIND = "LedgerExport"
SOURCE = "the file"
_LEDGER_ID = re.compile(r"[0-9]{1,39}")
"""Python refuses to parse numbers of thousands of digits."""
_PASSWORD = "password"  # noqa: S105  the name of the field


class IncomingLedger(msgspec.Struct, frozen=True):
    """A ledger in a file. ``recorded_version`` is the version of its node at that time; None: the file has none."""

    ledger_id: int
    data: bytes
    metadata: LedgerMetadata
    recorded_version: int | None = None


class TransferFile(msgspec.Struct, frozen=True):
    """Contents of a file, in its order.

    ``damaged``: ids of ledgers whose bytes are not valid metadata, with the reason; such bytes are never written.
    ``is_torn``: the last line is incomplete and was ignored.
    """

    ledgers: tuple[IncomingLedger, ...]
    damaged: tuple[tuple[int, str], ...] = ()
    is_torn: bool = False


class FieldChange(msgspec.Struct, frozen=True):
    """One field before and after; None: the field is absent."""

    field: str
    before: str | None
    after: str | None


def export_line(ledger: StoredLedger, root: str, instance_id: str | None) -> dict[str, object]:
    """A ledger as the JSON object of one line; the caller adds the fields common to all structured results."""
    assert ledger.node is not None
    return {
        "root": root,
        "instance_id": instance_id,
        "ledger_id": str(ledger.ledger_id),
        "version": ledger.node.stat.version,
        "ctime_ms": ledger.node.stat.ctime_ms,
        "data": base64.b64encode(ledger.node.data).decode(),
        "metadata": None if ledger.metadata is None else metadata_fields(ledger.metadata),
        "problem": ledger.problem or None,
    }


def metadata_fields(metadata: LedgerMetadata) -> dict[str, object]:
    """All fields as JSON values: 64-bit numbers as text, bytes in base64."""
    return {
        "format_version": metadata.format_version,
        "state": metadata.state.name,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum_size": metadata.write_quorum_size,
        "ack_quorum_size": metadata.ack_quorum_size,
        "last_entry_id": str(metadata.last_entry_id) if metadata.is_closed else None,
        "length_bytes": str(metadata.length) if metadata.is_closed else None,
        "digest": None if metadata.digest_type is None else metadata.digest_type.name,
        "password": None if metadata.password is None else base64.b64encode(metadata.password).decode(),
        "ctime_ms": None if metadata.ctime_ms is None else str(metadata.ctime_ms),
        "creator_token": str(metadata.creator_token),
        "custom_metadata": [
            {"key": key, "value": base64.b64encode(value).decode()} for key, value in metadata.custom_metadata
        ],
        "segments": [
            {"first_entry_id": str(segment.first_entry_id), "ensemble": list(segment.ensemble)}
            for segment in metadata.segments
        ],
    }


def parse_transfer(
    data: bytes, *, root: str, tree: LedgerTree, instance_id: str | None, ledger_id: int | None
) -> TransferFile:
    """The ledgers of a file, or only the requested one.

    Native bytes do not contain the ledger's id: they need ``ledger_id``. MetadataFormatError gives the damaged line;
    RefusedError when the file is from another cluster or has a forbidden id.
    """
    if data.startswith(HEADER):
        if ledger_id is None:
            raise RefusedError("nothing was changed: the file has the raw bytes of a ledger: add --ledger ID")
        require_storable_id(ledger_id)
        return TransferFile((IncomingLedger(ledger_id, data, decode_ledger_metadata(data)),))
    lines = data.split(b"\n")
    tail = lines.pop()
    is_torn = bool(tail) and not _is_json(tail)
    if tail and not is_torn:
        lines.append(tail)
    found: dict[int, IncomingLedger] = {}
    damaged: dict[int, str] = {}
    for number, line in enumerate(lines, 1):
        try:
            fields = _decode_line(line)
            if str(fields.get("path")).startswith(f"{logs_path(root)}/"):
                continue
            if "path" in fields:
                line_id = _id_of_path(fields["path"], root, tree)
            else:
                line_id = _id_of_export(fields, root, instance_id)
            if ledger_id is not None and line_id != ledger_id:
                continue
            found.pop(line_id, None)
            damaged.pop(line_id, None)
            found[line_id] = _incoming(line_id, fields)
        except _DamagedDataError as error:
            damaged[line_id] = str(error)
        except MetadataFormatError as error:
            raise MetadataFormatError(f"line {number}: {error}") from error
        except RefusedError as error:
            raise RefusedError(f"nothing was changed: line {number}: {error}") from error
    return TransferFile(tuple(found.values()), tuple(damaged.items()), is_torn)


def _is_json(line: bytes) -> bool:
    try:
        decode_json(line, object)
    except JsonTextError:
        return False
    return True


class _DamagedDataError(Exception):
    """The bytes of a line's ledger are not valid metadata."""


def _decode_line(line: bytes) -> dict[str, Any]:
    try:
        fields = decode_json(line, dict[str, Any])
        fields["data"] = base64.b64decode(fields["data"], validate=True)
        msgspec.convert(fields["version"], int)
    except (msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
        raise MetadataFormatError("neither an exported ledger nor a line of the trash") from error
    return fields


def _incoming(ledger_id: int, fields: Mapping[str, Any]) -> IncomingLedger:
    try:
        metadata = decode_ledger_metadata(fields["data"])
    except MetadataFormatError as error:
        raise _DamagedDataError(str(error)) from error
    told = fields.get("metadata")
    if told is not None and told != metadata_fields(metadata):
        raise RefusedError(f"ledger {ledger_id}: 'metadata' was edited and no longer matches 'data'")
    return IncomingLedger(ledger_id, fields["data"], metadata, fields["version"])


def _id_of_path(path: object, root: str, tree: LedgerTree) -> int:
    if not isinstance(path, str) or not path.startswith(f"{root}/"):
        raise RefusedError(f"{path} is not below the ledgers root {root} of this cluster")
    ledger_id = tree.parse_ledger_path(path.removeprefix(f"{root}/"))
    if ledger_id is None:
        raise RefusedError(f"{path} is not the place of a ledger in this cluster's layout, {tree.value}")
    return ledger_id


def _id_of_export(fields: Mapping[str, Any], root: str, instance_id: str | None) -> int:
    if fields.get("kind") != EXPORT_KIND:
        raise MetadataFormatError("neither an exported ledger nor a line of the trash")
    if (fields.get("root"), fields.get("instance_id")) != (root, instance_id):
        raise RefusedError(
            f"it was exported from {fields.get('root')}, instance {fields.get('instance_id')}, but this cluster "
            f"is {root}, instance {instance_id}"
        )
    text = fields.get("ledger_id")
    if not isinstance(text, str) or not _LEDGER_ID.fullmatch(text):
        raise MetadataFormatError(f"{str(text)[:100]!r} is not a ledger id")
    require_storable_id(int(text))
    return int(text)


def find_import_obstacle(present: StoredLedger, incoming: IncomingLedger) -> str | None:
    """Why ``incoming`` must not replace the present ledger; None if it may.

    A damaged ledger has no state to compare; then the version that the caller demands is the only safeguard. One that a
    newer release wrote is kept: it may be further than the file.
    """
    if present.is_newer:
        return present.problem
    if present.metadata is None:
        return None
    return find_regression(present.metadata, incoming.metadata, SOURCE)


def field_changes(before: LedgerMetadata | None, after: LedgerMetadata) -> list[FieldChange]:
    """Changes by an import, field by field. Passwords are not shown, only that they differ."""
    old = {} if before is None else _shown(before)
    new = _shown(after)
    if before is not None and before.password != after.password:
        new[_PASSWORD] = "another one"
    names = list(dict.fromkeys([*old, *new]))
    return [FieldChange(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def _shown(metadata: LedgerMetadata) -> dict[str, str]:
    """Fields as text, one per custom metadata key and segment."""
    fields = metadata_fields(metadata)
    if metadata.password is not None:
        fields[_PASSWORD] = "set"
    del fields["custom_metadata"], fields["segments"]
    fields |= {f"custom_metadata.{key}": repr(value)[1:] for key, value in metadata.custom_metadata}
    fields |= {f"segment.{each.first_entry_id}": ",".join(each.ensemble) for each in metadata.segments}
    return {name: str(value) for name, value in fields.items() if value is not None}
