"""Paths of a cluster's nodes. Source: metadata sections 1, 4.1 and 10.2."""

from __future__ import annotations

import msgspec

AVAILABLE = "available"
READ_ONLY = "readonly"
COOKIES = "cookies"
INSTANCE_ID = "INSTANCEID"
LAYOUT = "LAYOUT"
ID_PREFIX = "ID-"
HIGH_ORDER_PREFIX = "HOB-"
MARK_PREFIX = "urL"
VOTE_PREFIX = "V_"
PULSAR_AUDITOR = "leader"


class Paths(msgspec.Struct, frozen=True):
    """Paths below one ledgers root."""

    root: str

    @property
    def instance_id(self) -> str:
        """Identity of this incarnation of the cluster."""
        return f"{self.root}/{INSTANCE_ID}"

    @property
    def layout(self) -> str:
        """The ledger layout that the cluster uses."""
        return f"{self.root}/{LAYOUT}"

    @property
    def available(self) -> str:
        """Directory of writable bookies; the read-only directory is inside it."""
        return f"{self.root}/{AVAILABLE}"

    @property
    def read_only(self) -> str:
        """Directory of read-only bookies."""
        return f"{self.root}/{AVAILABLE}/{READ_ONLY}"

    @property
    def cookies(self) -> str:
        """Directory of cookies: every bookie that ever joined the cluster and was not decommissioned."""
        return f"{self.root}/{COOKIES}"

    @property
    def short_ids(self) -> str:
        """Directory whose child counter gives short ledger ids."""
        return f"{self.root}/idgen"

    @property
    def long_ids(self) -> str:
        """Directory of the high halves of long ledger ids."""
        return f"{self.root}/idgen-long"

    @property
    def under_replication(self) -> str:
        """Root of the under-replication tree."""
        return f"{self.root}/underreplication"

    @property
    def under_replication_layout(self) -> str:
        """Format of the under-replication tree."""
        return f"{self.under_replication}/{LAYOUT}"

    @property
    def under_replicated_ledgers(self) -> str:
        """Directory of marks; this name is fixed and does not depend on the root."""
        return f"{self.under_replication}/ledgers"

    @property
    def replication_locks(self) -> str:
        """Directory of replication locks."""
        return f"{self.under_replication}/locks"

    @property
    def replication_disabled(self) -> str:
        """Exists while automatic replication is switched off for the whole cluster."""
        return f"{self.under_replication}/disable"

    @property
    def auditor_election(self) -> str:
        """Directory of votes; the lowest number wins."""
        return f"{self.under_replication}/auditorelection"

    @property
    def pulsar_auditor(self) -> str:
        """Node of the auditor elected by Pulsar's metadata driver: a single ephemeral node, not a queue of votes."""
        return f"{self.under_replication}/{PULSAR_AUDITOR}"

    @property
    def lost_bookie_recovery_delay(self) -> str:
        """Seconds an auditor waits after losing one bookie. Never deleted: a running Java auditor would ignore it."""
        return f"{self.under_replication}/lostBookieRecoveryDelay"

    @property
    def health_check_disabled(self) -> str:
        """Exists while clients must not quarantine bookies."""
        return f"{self.root}/disableHealthCheck"

    def mark_directory(self, ledger_id: int) -> str:
        """Directory that holds only the mark of this ledger: its id as four groups of 16 bits."""
        digits = f"{ledger_id:016x}"
        groups = "/".join(digits[start : start + 4] for start in range(0, 16, 4))
        return f"{self.under_replicated_ledgers}/{groups}"

    def mark(self, ledger_id: int) -> str:
        """Mark of an under-replicated ledger."""
        return f"{self.mark_directory(ledger_id)}/{mark_name(ledger_id)}"

    def writable_bookie(self, bookie_id: str) -> str:
        """Registration of a writable bookie."""
        return f"{self.available}/{bookie_id}"

    def read_only_bookie(self, bookie_id: str) -> str:
        """Registration of a read-only bookie."""
        return f"{self.read_only}/{bookie_id}"

    def cookie(self, bookie_id: str) -> str:
        """Cookie of a bookie."""
        return f"{self.cookies}/{bookie_id}"

    def replication_lock(self, ledger_id: int) -> str:
        """Lock held by the process that copies the ledger."""
        return f"{self.replication_locks}/{mark_name(ledger_id)}"


def mark_name(ledger_id: int) -> str:
    """Name of a ledger's mark and lock; ids too large for the usual width get more digits."""
    return f"{MARK_PREFIX}{ledger_id:010d}"


def flat_ledger(ledger_id: int) -> str:
    """Path below the root in the flat layout; ids too large for the usual width get more digits."""
    return f"L{ledger_id:010d}"


def short_ledger(ledger_id: int) -> str:
    """Path below the root as 2-4-4 digits; ids below 10^10 only."""
    digits = f"{ledger_id:010d}"
    return f"{digits[:2]}/{digits[2:6]}/L{digits[6:]}"


def long_ledger(ledger_id: int) -> str:
    """Path below the root as 3-4-4-4-4 digits."""
    digits = f"{ledger_id:019d}"
    return f"{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"
