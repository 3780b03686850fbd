"""Serialised forms of ledger metadata: versions 1, 2 and 3. Source: metadata section 6.

    BookieMetadataFormatVersion<TAB><version>\\n  then
    1  lines of text; has no digest, password, ack quorum, ctime or custom metadata
    2  protobuf text
    3  varint32 length, then protobuf binary; bytes after it are ignored

A rewrite keeps the version that was read. Input that Java rejects, or reads differently, is rejected here.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.changes import find_fault
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata, LedgerState, Segment, is_valid_bookie_id
from bkctl.runtime.ledger.protobuf_text import EnumName, Field, format_fields, parse_fields
from bkctl.storage.ids import INVALID_ENTRY_ID

if TYPE_CHECKING:
    from bkctl.runtime.ledger.ledger_metadata_pb2 import LedgerRecord

HEADER: Final = b"BookieMetadataFormatVersion\t"
"""Prefix of ledger metadata in every version."""

_VERSION_CHARACTERS_MAX: Final = 9
_CLOSED_WORD: Final = "CLOSED"
_IN_RECOVERY_MARK: Final = -102
_TOKEN_VERSION: Final = 3
_VERSION_MAX: Final = 3
_NUMBER: Final = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_WHAT: Final = "ledger metadata"


class MissingEndError(MetadataFormatError):
    """The metadata of a closed ledger has no last entry id."""


class NewerFormatError(MetadataFormatError):
    """A newer release wrote the metadata. It is valid, so it must not be treated as damaged."""


def encode_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    """Encode in ``format_version``; ValueError if the metadata is invalid or the version cannot express it."""
    if fault := find_fault(metadata):
        raise ValueError(f"refusing to write ledger metadata: {fault}")
    header = HEADER + b"%d\n" % metadata.format_version
    match metadata.format_version:
        case 1:
            return header + _encode_lines(metadata).encode()
        case 2:
            return header + format_fields(_text_fields(metadata)).encode("ascii")
        case 3:
            body = _to_record(metadata).SerializeToString()
            return header + _encode_varint(len(body)) + body
    raise ValueError(f"ledger metadata version {metadata.format_version} is unknown")


def decode_ledger_metadata(data: bytes) -> LedgerMetadata:
    """Decode the bytes of a node; MetadataFormatError with the reason if they are invalid, NewerFormatError."""
    metadata = decode_unsound_metadata(data)
    if fault := find_fault(metadata):
        raise MetadataFormatError(f"{_WHAT}: {fault}")
    for bookie_id in metadata.bookies():
        if not is_valid_bookie_id(bookie_id):
            raise MetadataFormatError(f"{_WHAT}: {bookie_id!r} is not a bookie id")
    return metadata


def decode_unsound_metadata(data: bytes) -> LedgerMetadata:
    """Like ``decode_ledger_metadata``, but accepts fields that violate structural rules. Only for diagnosis.

    MissingEndError, NewerFormatError, MetadataFormatError.
    """
    version, body = _split_header(data)
    match version:
        case 1:
            return _decode_lines(_decode_text(body))
        case 2:
            return _from_record(parse_fields(_decode_text(body), _record_type()(), _WHAT), version)
        case 3:
            return _from_record(_parse_delimited(body), version)
    if version > _VERSION_MAX:
        raise NewerFormatError(
            f"{_WHAT}: written by a newer release: format version {version}, this release reads up to {_VERSION_MAX}"
        )
    raise MetadataFormatError(f"{_WHAT}: version {version} is unknown")


def _split_header(data: bytes) -> tuple[int, bytes]:
    if not data.startswith(HEADER):
        raise MetadataFormatError(f"{_WHAT}: the header line is missing")
    end = data.find(b"\n", len(HEADER), len(HEADER) + _VERSION_CHARACTERS_MAX + 1)
    number = data[len(HEADER) : end]
    if end < 0 or not number.isdigit():
        raise MetadataFormatError(f"{_WHAT}: the header has no version")
    return int(number), data[end + 1 :]


def _decode_text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise MetadataFormatError(f"{_WHAT}: not UTF-8 at byte {error.start}") from error


@functools.cache
def _record_type() -> type[LedgerRecord]:
    """Import protobuf only when it is needed: commands that only count ledgers start faster without it."""
    from bkctl.runtime.ledger.ledger_metadata_pb2 import LedgerRecord  # noqa: PLC0415

    return LedgerRecord


# -- version 3 ----------------------------------------------------------------------------------------------------


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _parse_delimited(body: bytes) -> LedgerRecord:
    length = 0
    for position, byte in enumerate(body[:5]):
        length |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            start = position + 1
            break
    else:
        raise MetadataFormatError(f"{_WHAT}: the length is damaged")
    if start + length > len(body):
        raise MetadataFormatError(f"{_WHAT}: {len(body) - start} bytes instead of {length}")
    try:
        return _record_type().FromString(body[start : start + length])
    except _decode_error() as error:
        raise MetadataFormatError(f"{_WHAT}: the message is damaged") from error


def _decode_error() -> type[Exception]:
    from google.protobuf.message import DecodeError  # noqa: PLC0415  see _record_type

    return DecodeError


def _to_record(metadata: LedgerMetadata) -> LedgerRecord:
    record_type = _record_type()
    return record_type(
        quorumSize=metadata.write_quorum_size,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length if metadata.is_closed else 0,
        lastEntryId=metadata.last_entry_id if metadata.is_closed else INVALID_ENTRY_ID,
        state=metadata.state.name,
        segment=[
            record_type.SegmentRecord(ensembleMember=segment.ensemble, firstEntryId=segment.first_entry_id)
            for segment in metadata.segments
        ],
        digestType=None if metadata.digest_type is None else metadata.digest_type.name,
        password=metadata.password,
        ackQuorumSize=metadata.ack_quorum_size,
        ctime=metadata.ctime_ms,
        customMetadata=[record_type.CustomMetadata(key=key, value=value) for key, value in metadata.custom_metadata],
        cToken=metadata.creator_token,
    )


def _from_record(record: LedgerRecord, version: int) -> LedgerMetadata:
    for name in ("quorumSize", "ensembleSize", "length", "state"):
        if not record.HasField(name):
            raise MetadataFormatError(f"{_WHAT}: {name} is missing")
    state = LedgerState(record.state)
    is_closed = state is LedgerState.CLOSED
    if is_closed and not record.HasField("lastEntryId"):
        # Java reads this as entry 0, which would truncate the ledger or add an entry to it.
        raise MissingEndError(f"{_WHAT}: closed, but lastEntryId is missing")
    return LedgerMetadata(
        ensemble_size=record.ensembleSize,
        write_quorum_size=record.quorumSize,
        ack_quorum_size=record.ackQuorumSize if record.HasField("ackQuorumSize") else record.quorumSize,
        segments=tuple(
            Segment(segment.firstEntryId, tuple(map(_require_text, segment.ensembleMember)))
            for segment in record.segment
        ),
        state=state,
        last_entry_id=record.lastEntryId if is_closed else INVALID_ENTRY_ID,
        length=record.length if is_closed else 0,
        digest_type=DigestType(record.digestType) if record.HasField("digestType") else None,
        password=record.password if record.HasField("password") else None,
        ctime_ms=record.ctime if record.HasField("ctime") else None,
        custom_metadata=tuple((_require_text(entry.key), entry.value) for entry in record.customMetadata),
        creator_token=record.cToken if version == _TOKEN_VERSION else 0,
        format_version=version,
    )


def _require_text(value: str | bytes) -> str:
    """Protobuf returns a string that is not UTF-8 as bytes."""
    if isinstance(value, bytes):
        raise MetadataFormatError(f"{_WHAT}: {value!r} is not UTF-8")
    return value


# -- version 2 ----------------------------------------------------------------------------------------------------


def _text_fields(metadata: LedgerMetadata) -> list[Field]:
    """Fields 1 to 11 in the order of their numbers; the creator token never appears in text."""
    fields: list[Field] = [
        ("quorumSize", metadata.write_quorum_size),
        ("ensembleSize", metadata.ensemble_size),
        ("length", metadata.length if metadata.is_closed else 0),
        ("lastEntryId", metadata.last_entry_id if metadata.is_closed else INVALID_ENTRY_ID),
        ("state", EnumName(metadata.state.name)),
    ]
    for segment in metadata.segments:
        members: list[Field] = [("ensembleMember", bookie_id) for bookie_id in segment.ensemble]
        fields.append(("segment", [*members, ("firstEntryId", segment.first_entry_id)]))
    if metadata.digest_type is not None:
        fields.append(("digestType", EnumName(metadata.digest_type.name)))
    if metadata.password is not None:
        fields.append(("password", metadata.password))
    fields.append(("ackQuorumSize", metadata.ack_quorum_size))
    if metadata.ctime_ms is not None:
        fields.append(("ctime", metadata.ctime_ms))
    fields.extend(("customMetadata", [("key", key), ("value", value)]) for key, value in metadata.custom_metadata)
    return fields


# -- version 1 ----------------------------------------------------------------------------------------------------


def _encode_lines(metadata: LedgerMetadata) -> str:
    if metadata.ack_quorum_size != metadata.write_quorum_size or any(
        (metadata.password, metadata.digest_type, metadata.custom_metadata, metadata.ctime_ms is not None)
    ):
        # Java drops these silently, and the ledger can then no longer be repaired.
        raise ValueError(
            "version 1 of ledger metadata has no ack quorum, password, digest type, ctime or custom metadata"
        )
    length = metadata.length if metadata.is_closed else 0
    lines = [f"{metadata.write_quorum_size}\n{metadata.ensemble_size}\n{length}\n"]
    lines += ["\t".join((str(segment.first_entry_id), *segment.ensemble)) + "\n" for segment in metadata.segments]
    if metadata.state is LedgerState.IN_RECOVERY:
        lines.append(f"{_IN_RECOVERY_MARK}\t{_CLOSED_WORD}")
    elif metadata.is_closed:
        lines.append(f"{metadata.last_entry_id}\t{_CLOSED_WORD}")
    return "".join(lines)


def _decode_lines(text: str) -> LedgerMetadata:
    lines = text.replace("\r\n", "\n").split("\n")
    state, last_entry_id = LedgerState.OPEN, INVALID_ENTRY_ID
    segments: list[Segment] = []
    try:
        write_quorum_size, ensemble_size, length = map(_parse_number, lines[:3])
        for line in filter(None, lines[3:]):
            first, *rest = line.split("\t")
            if rest[:1] == [_CLOSED_WORD]:
                last_entry_id = _parse_number(first)
                state = LedgerState.IN_RECOVERY if last_entry_id == _IN_RECOVERY_MARK else LedgerState.CLOSED
                break
            segments.append(Segment(_parse_number(first), tuple(rest)))
    except ValueError as error:
        raise MetadataFormatError(f"{_WHAT}: a line of version 1 is damaged: {error}") from error
    is_closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ensemble_size=ensemble_size,
        write_quorum_size=write_quorum_size,
        ack_quorum_size=write_quorum_size,
        segments=tuple(segments),
        state=state,
        last_entry_id=last_entry_id if is_closed else INVALID_ENTRY_ID,
        length=length if is_closed else 0,
        format_version=1,
    )


def _parse_number(text: str) -> int:
    """Parse a number like Java: no spaces, no underscores, at most 64 bits."""
    if not _NUMBER.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"{text!r} is not a number")
    return int(text)
