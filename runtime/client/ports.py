"""Everything outside that the client's algorithms use, in one value: a simulator passes its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from runtime.config import ClientConfig
from runtime.ledger.metadata import DigestType, LedgerMetadata
from runtime.metadata.bookies.registration import RegistrationClient
from runtime.metadata.ledgers.ledgers import LedgerStore
from runtime.ports import Bookies, Clock
from runtime.protocol.digest import master_key
from runtime.protocol.entry_body import EntryCodec


class SuspectBookies:
    """Bookies that failed a moment ago: asked last, chosen last. Source: protocol sections 4.3 and 7.4.

    A dead bookie stays registered until its session expires. Without this memory the next ensemble would name it again.
    A suspicion is a hint: where no other bookie is left, suspects are used. Shared by all handles of one client.
    """

    def __init__(self, clock: Clock, suspicion_s: float) -> None:
        self._clock = clock
        self._suspicion_ns = int(suspicion_s * 1e9)
        self._until_ns: dict[str, int] = {}

    def add(self, bookie_id: str) -> None:
        """Remember a failure of ``bookie_id``, from now on."""
        self._until_ns[bookie_id] = self._clock.monotonic_ns() + self._suspicion_ns

    def current(self) -> frozenset[str]:
        """The bookies under suspicion now."""
        if not self._until_ns:
            return frozenset()
        now_ns = self._clock.monotonic_ns()
        expired = [bookie_id for bookie_id, until_ns in self._until_ns.items() if until_ns <= now_ns]
        for bookie_id in expired:
            del self._until_ns[bookie_id]
        return frozenset(self._until_ns)

    def last(self, bookie_ids: Sequence[str]) -> list[str]:
        """``bookie_ids`` in their order, with suspects after all others."""
        if not self._until_ns:
            return list(bookie_ids)
        suspects = self.current()
        return sorted(bookie_ids, key=suspects.__contains__)


@dataclasses.dataclass(frozen=True)
class ClientPorts:
    """Ports, settings and the memory that all handles of one client share."""

    bookies: Bookies
    clock: Clock
    ledgers: LedgerStore
    registrations: RegistrationClient
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
