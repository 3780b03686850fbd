"""Bad copies in a file, for ``recover ledger --from-file``. ``ledger verify --out`` and
``audit --inventory --out`` write it. Pure.

JSON lines: a header, a line for each range of bad copies of a ledger on one bookie, and a last line with their number,
without which the file is incomplete. The format is in docs/formats/bkctl-files.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from bkctl.runtime.replication.judge.copies import CopyState, LedgerCheck
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.storage.ids import ENTRY_ID_MAX, LEDGER_ID_MAX
from bkctl.storage.json_text import JsonTextError, decode_json

KIND = "LedgerFindings"
END_KIND = "LedgerFindingsEnd"
FORMAT = 1


class CopyFinding(msgspec.Struct, frozen=True, kw_only=True):
    """``copies`` bad copies with entry ids in this range: all of the range, or some if there were too many ranges."""

    ledger_id: int
    bookie_id: str
    state: CopyState
    first_entry_id: int
    last_entry_id: int
    copies: int

    @property
    def entries(self) -> EntryRange:
        """The range."""
        return EntryRange(self.first_entry_id, self.last_entry_id)


class FindingsHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster that was verified, and when (RFC 3339)."""

    root: str
    instance_id: str | None
    created: str


class FindingsFormatError(ValueError):
    """The file is not a complete list of findings; the text says why."""


def copy_findings(check: LedgerCheck) -> Iterator[CopyFinding]:
    """The bad copies of one ledger; those that could not be read are unknown."""
    for defect in check.defects:
        for entries in () if defect.is_unknown else check.ranges_of(defect):
            yield CopyFinding(
                ledger_id=check.ledger_id,
                bookie_id=defect.bookie_id,
                state=defect.state,
                first_entry_id=entries.first_entry_id,
                last_entry_id=entries.last_entry_id,
                copies=min(entries.count, defect.copies),
            )


def encode_header(header: FindingsHeader) -> dict[str, object]:
    """The fields of the first line, without ``apiVersion`` and ``kind``."""
    return {"format": FORMAT, **msgspec.to_builtins(header)}


def encode_finding(finding: CopyFinding) -> dict[str, object]:
    """The fields of one line; ids are strings, as in all JSON of bkctl."""
    fields = msgspec.to_builtins(finding)
    return {name: str(value) if name.endswith("_id") else value for name, value in fields.items()}


def decode_findings(lines: Iterable[bytes]) -> tuple[FindingsHeader, tuple[CopyFinding, ...]]:
    """All of a file; FindingsFormatError."""
    header: FindingsHeader | None = None
    findings: list[CopyFinding] = []
    end: dict[str, Any] | None = None
    for number, line in enumerate(lines, 1):
        if end is not None:
            raise FindingsFormatError(f"line {number}: it is after the last line")
        try:
            fields = decode_json(line, dict[str, Any])
            if header is None:
                header = _header(fields)
            elif fields.get("kind") == END_KIND:
                end = fields
            else:
                findings.append(_finding(fields))
        except (JsonTextError, msgspec.ValidationError, FindingsFormatError) as error:
            raise FindingsFormatError(f"line {number}: {error}") from error
    if header is None or end is None:
        raise FindingsFormatError("it is incomplete: its last line is missing")
    if end != {"kind": END_KIND, "findings": len(findings)}:
        raise FindingsFormatError(f"its last line does not count {len(findings)} findings")
    return header, tuple(findings)


def _header(fields: dict[str, Any]) -> FindingsHeader:
    if fields.pop("kind", None) != KIND:
        raise FindingsFormatError("it was not written by bkctl ledger verify or bkctl audit --inventory")
    if fields.pop("format", None) != FORMAT:
        raise FindingsFormatError(f"it has another format than {FORMAT}: use the bkctl that wrote it")
    fields.pop("apiVersion", None)
    return msgspec.convert(fields, FindingsHeader)


def _finding(fields: dict[str, Any]) -> CopyFinding:
    if fields.keys() != set(CopyFinding.__struct_fields__):
        raise FindingsFormatError("it has other fields than a finding")
    finding = msgspec.convert(fields, CopyFinding, strict=False)  # the ids are strings
    if not 0 <= finding.ledger_id <= LEDGER_ID_MAX or not 0 <= finding.first_entry_id <= finding.last_entry_id:
        raise FindingsFormatError("it has an invalid ledger id or entry range")
    if finding.last_entry_id > ENTRY_ID_MAX or not 0 < finding.copies <= finding.entries.count:
        raise FindingsFormatError("it has an invalid entry range or number of copies")
    return finding
