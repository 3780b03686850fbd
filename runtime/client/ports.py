"""All ports that the client's algorithms use, as one value. The simulator passes its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bkctl.runtime.client.placement import Placement
from bkctl.runtime.config import ClientConfig, PlacementConfig
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.ports import Bookies, Clock
from bkctl.runtime.protocol.digest import master_key
from bkctl.runtime.protocol.entry_body import EntryCodec


class SuspectBookies:
    """Bookies that failed recently: a last resort for reads and new ensembles. Source: protocol sections 4.3 and 7.4.

    A dead bookie stays registered until its session expires, so without this the next ensemble could include it again.
    If no other bookie is left, suspects are used. All handles of one client share this.
    """

    def __init__(self, clock: Clock, suspicion_s: float) -> None:
        self._clock = clock
        self._suspicion_ns = int(suspicion_s * 1e9)
        self._until_ns: dict[str, int] = {}

    def add(self, bookie_id: str) -> None:
        """Suspect ``bookie_id`` because of a failure now."""
        self._until_ns[bookie_id] = self._clock.monotonic_ns() + self._suspicion_ns

    def current(self) -> frozenset[str]:
        """Currently suspected bookies."""
        if not self._until_ns:
            return frozenset()
        now_ns = self._clock.monotonic_ns()
        expired = [bookie_id for bookie_id, until_ns in self._until_ns.items() if until_ns <= now_ns]
        for bookie_id in expired:
            del self._until_ns[bookie_id]
        return frozenset(self._until_ns)

    def last(self, bookie_ids: Sequence[str]) -> list[str]:
        """``bookie_ids`` in their order, but with suspects after all others."""
        if not self._until_ns:
            return list(bookie_ids)
        suspects = self.current()
        return sorted(bookie_ids, key=suspects.__contains__)


@dataclasses.dataclass(frozen=True)
class ClientPorts:
    """Ports, settings and shared state of all handles of one client."""

    bookies: Bookies
    clock: Clock
    ledgers: LedgerStore
    registrations: RegistrationClient
    suspects: SuspectBookies
    config: ClientConfig
    placement: Placement = dataclasses.field(default_factory=lambda: Placement(PlacementConfig()))


class LedgerCredentials:
    """Derived from a ledger's password: the master key that bookies check, and the codec that protects entries."""

    def __init__(self, ledger_id: int, digest_type: DigestType, password: bytes) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key(password)
        self.codec = EntryCodec(ledger_id, digest_type, password)


def credentials_of(ledger_id: int, metadata: LedgerMetadata) -> LedgerCredentials:
    """Key and codec from the password and digest type in the metadata.

    Metadata of old releases has neither. Administrative access then uses the defaults, CRC32 and the empty password
    (replication section 2.1).
    """
    return LedgerCredentials(ledger_id, metadata.digest_type or DigestType.CRC32, metadata.password or b"")
