"""Opening an existing ledger, with or without recovering it first. Source: protocol sections 1.3, 6.1 and 7.2."""

from __future__ import annotations

from runtime.client.last_entry import read_last_add_confirmed
from runtime.client.ports import ClientPorts, LedgerCredentials
from runtime.client.reader import LedgerReader, told_by_bookies
from runtime.client.recovery import LedgerRecovery
from runtime.errors import ConfigurationError, LedgerPasswordError
from runtime.ledger.metadata import DigestType, LedgerMetadata


async def open_ledger(
    ports: ClientPorts,
    ledger_id: int,
    password: bytes,
    *,
    recover: bool,
    digest_type: DigestType | None = None,
) -> LedgerReader:
    """A reader of the ledger.

    ``recover`` False: nothing is fenced, a writer goes on; the last add confirmed is what the bookies tell.
    ``recover`` True: a ledger that is not closed is fenced and closed first; its writer is out.
    ``digest_type`` serves only for metadata that stores none (written before BookKeeper 4.2).

    Raises LedgerNotFoundError; LedgerPasswordError before any bookie is asked; LedgerReadError, LedgerRecoveryError,
    ConflictError, MetadataError.
    """
    metadata = await ports.ledgers.read(ledger_id)
    credentials = _credentials(ledger_id, metadata.value, password, digest_type)
    if metadata.value.is_closed:
        return LedgerReader(ports, credentials, metadata, metadata.value.last_entry_id)
    if recover:
        metadata = await LedgerRecovery(ports, credentials, metadata).run()
        return LedgerReader(ports, credentials, metadata, metadata.value.last_entry_id)
    asking = read_last_add_confirmed(ports, credentials, metadata.value, is_fencing=False)
    confirmed = await told_by_bookies(ledger_id, asking)
    return LedgerReader(ports, credentials, metadata, confirmed)


def _credentials(
    ledger_id: int, metadata: LedgerMetadata, password: bytes, digest_type: DigestType | None
) -> LedgerCredentials:
    if metadata.password is not None and metadata.password != password:
        raise LedgerPasswordError(ledger_id, "the password is wrong; no bookie was asked")
    known = metadata.digest_type or digest_type
    if known is None:
        raise ConfigurationError(f"ledger {ledger_id}: its metadata names no digest type; say which one it uses")
    return LedgerCredentials(ledger_id, known, password)
