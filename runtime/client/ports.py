"""Everything outside that the client's algorithms use, in one value: a simulator passes its own."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from runtime.client.suspects import SuspectBookies
from runtime.config import ClientConfig
from runtime.ledger.metadata import DigestType, LedgerMetadata
from runtime.metadata.bookies.registration import Registrations
from runtime.metadata.ledgers.ledgers import LedgerStore
from runtime.ports import Bookies, Clock
from runtime.protocol.digest import master_key
from runtime.protocol.entry_body import EntryCodec


class WritableBookies(Protocol):
    """The bookies of which an ensemble can be made (``runtime.metadata.bookies.registration.RegistrationClient``)."""

    async def writable(self) -> list[str]:
        """Ids of the bookies registered as writable now."""

    async def snapshot(self) -> Registrations:
        """The bookies registered now, by mode."""


@dataclasses.dataclass(frozen=True)
class ClientPorts:
    """Ports, settings and the memory that all handles of one client share."""

    bookies: Bookies
    clock: Clock
    ledgers: LedgerStore
    registrations: WritableBookies
    suspects: SuspectBookies
    config: ClientConfig


class LedgerCredentials:
    """What the password of one ledger gives: the key that bookies check and the codec that protects entries."""

    def __init__(self, ledger_id: int, digest_type: DigestType, password: bytes) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key(password)
        self.codec = EntryCodec(ledger_id, digest_type, password)


def credentials_of(ledger_id: int, metadata: LedgerMetadata) -> LedgerCredentials:
    """Key and codec from the password and digest type that the metadata carries.

    Metadata of old releases carries neither: an administrator then opens with the defaults, CRC32 and the empty
    password (replication section 2.1).
    """
    return LedgerCredentials(ledger_id, metadata.digest_type or DigestType.CRC32, metadata.password or b"")
