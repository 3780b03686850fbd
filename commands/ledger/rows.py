"""A ledger's metadata as rows for all output formats. Passwords are never shown, only whether there is one."""

from __future__ import annotations

import base64

from bkctl.commands.rendering import Column, Table, time_text
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.owner import owner_of
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.placement.isolation import isolation_demand
from bkctl.storage.words import size

SUMMARY_TABLE = Table(
    "LedgerList",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("state", "STATE"),
    Column("ensemble_size", "E", is_right=True),
    Column("write_quorum_size", "QW", is_right=True),
    Column("ack_quorum_size", "QA", is_right=True),
    Column("entries", "ENTRIES", is_right=True),
    Column("length_bytes", "BYTES", size, is_right=True),
    Column("segments", "SEGMENTS", is_right=True),
    Column("digest", "DIGEST", is_wide=True),
    Column("ensemble", "LAST ENSEMBLE", is_wide=True),
    Column("created", "CREATED", is_wide=True),
    Column("owner", "OWNER", is_wide=True),
    Column("problem", "PROBLEM", is_wide=True),
    name="ledger_id",
)

ENSEMBLE_TABLE = Table(
    "Ensembles",
    Column("first_entry_id", "FROM ENTRY", is_right=True),
    Column("ensemble", "ENSEMBLE"),
)


def summary_row(ledger_id: int, found: Versioned[LedgerMetadata]) -> dict[str, object]:
    """One ledger of a listing. Only closed ledgers have entries and bytes; entries are None for an impossible end."""
    metadata = found.value
    return {
        "ledger_id": str(ledger_id),
        "state": state_name(metadata),
        "ensemble_size": metadata.ensemble_size,
        "write_quorum_size": metadata.write_quorum_size,
        "ack_quorum_size": metadata.ack_quorum_size,
        "entries": metadata.entry_count,
        "length_bytes": metadata.length if metadata.is_closed else None,
        "segments": len(metadata.segments),
        "digest": metadata.digest_type.name.lower() if metadata.digest_type is not None else None,
        "ensemble": list(metadata.last_segment.ensemble),
        "created": time_text(found.value.created_ms(found.ctime_ms)),
        "owner": owner_text(metadata),
        "problem": None,
    }


def stored_row(ledger: StoredLedger) -> dict[str, object]:
    """One ledger of a listing, readable or not."""
    found = ledger.versioned
    if found is not None:
        return summary_row(ledger.ledger_id, found)
    row: dict[str, object] = dict.fromkeys(column.key for column in SUMMARY_TABLE.columns)
    return row | {"ledger_id": str(ledger.ledger_id), "state": "unreadable", "problem": ledger.problem}


def detail(ledger_id: int, found: Versioned[LedgerMetadata]) -> dict[str, object]:
    """All of a ledger's metadata except its ensembles."""
    metadata = found.value
    row, demand = summary_row(ledger_id, found), isolation_demand(metadata.custom_metadata)
    del row["problem"], row["ensemble"]
    return row | {
        "last_entry_id": str(metadata.last_entry_id) if metadata.is_closed and metadata.last_entry_id >= 0 else None,
        "has_password": bool(metadata.password),
        "metadata_format_version": metadata.format_version,
        "metadata_version": found.version,
        "isolation_groups": None if demand is None else str(demand),
        "custom_metadata": {key: bytes_text(value) for key, value in metadata.custom_metadata},
    }


def ensemble_rows(metadata: LedgerMetadata) -> list[dict[str, object]]:
    """The bookies of each segment."""
    return [
        {"first_entry_id": str(segment.first_entry_id), "ensemble": list(segment.ensemble)}
        for segment in metadata.segments
    ]


def owner_text(metadata: LedgerMetadata) -> str | None:
    """The owner of a ledger; None if the custom metadata names none."""
    return owner_of(dict(metadata.custom_metadata))


def state_name(metadata: LedgerMetadata) -> str:
    """``open``, ``in-recovery`` or ``closed``."""
    return metadata.state.name.lower().replace("_", "-")


def bytes_text(data: bytes) -> str:
    """Text unchanged; other bytes as ``base64:...``."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and (text or not data):
        return text
    return "base64:" + base64.b64encode(data).decode()
