"""What both sides do to the same metadata, in terms that fit either."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata, Segment
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.store import Versioned
from tests.interop.java_metadata import JavaMetadata
from tests.processes import BkctlResult, run_bkctl

LEDGER_EXISTS_CODE = -20
METADATA_VERSION_CODE = -17
NO_SUCH_LEDGER_CODE = -25

ENSEMBLE = ("10.0.0.1:3181", "10.0.0.2:3181", "bk-3.example_com")


def new_metadata(**changes: Any) -> LedgerMetadata:
    """An open ledger; what Java's ``ledger_create`` makes of ``NEW``."""
    metadata = LedgerMetadata(
        ensemble_size=3,
        write_quorum_size=2,
        ack_quorum_size=2,
        segments=(Segment(0, ENSEMBLE),),
        digest_type=DigestType.CRC32C,
        password=b"secret",
    )
    return msgspec.structs.replace(metadata, **changes)


async def create_ledger(
    ledgers: LedgerStore, metadata: LedgerMetadata, *, ledger_id: int | None = None
) -> tuple[int, Versioned[LedgerMetadata]]:
    """Create a ledger with a token, as the client does."""
    metadata = msgspec.structs.replace(metadata, creator_token=4711)
    return await ledgers.create(metadata, ledger_id=ledger_id)


NEW: dict[str, Any] = {"ensemble": ENSEMBLE, "password": "secret"}


async def init_by_java(java: JavaMetadata, tree: LedgerTree) -> None:
    """A new cluster, made by Java's shell."""
    assert (await java.shell("initnewcluster")).exit_code == 0
    if tree is LedgerTree.LEGACY_HIERARCHICAL:
        # No URI names this layout, and only formatting heeds the class that is set.
        formatted = await java.shell("metaformat", "-n", "-f", ledgerManagerFactoryClass=tree.factory)
        assert formatted.exit_code == 0, formatted.text


def uri_of(tree: LedgerTree, metadata_uri: str) -> str:
    """The test's URI with the layout in its name, where it has one there."""
    name = tree.uri_name
    return f"zk+{name}:{metadata_uri.partition(':')[2]}"


async def bkctl(java: JavaMetadata, *arguments: str, exit_code: int = 0) -> BkctlResult:
    """A bkctl command on the same root, which must end with this exit code."""
    result = await asyncio.to_thread(run_bkctl, *arguments, "--metadata-uri", java.metadata_uri)
    assert result.exit_code == exit_code, f"{arguments}: {result.exit_code}\n{result.stdout}{result.stderr}"
    return result


async def ids_of(ledgers: LedgerStore) -> list[int]:
    """What our listing finds."""
    return [ledger_id async for ledger_id in ledgers.list_ids()]
