"""What the listener asks of a bookie, and how the bookie answers. Source: wire section 5."""

from __future__ import annotations

from typing import Protocol

from runtime.ports import BookieInfo
from runtime.protocol.entry_list import EntryList
from runtime.protocol.status import Status


class Responder(Protocol):
    """Where the answers to a request go: the connection it came from. Called on the loop.

    Each request is answered once. Answers may come in any order; those to a connection that is gone are dropped.
    """

    def respond_add(self, txn_id: int, ledger_id: int, entry_id: int, status: Status) -> None:
        """Answer an add."""

    def respond_read(
        self,
        txn_id: int,
        ledger_id: int,
        entry_id: int,
        status: Status,
        body: bytes | None,
        max_last_add_confirmed: int | None,
    ) -> None:
        """Answer a read; ``entry_id`` is the one asked for. A body that no frame can hold becomes IO_ERROR."""

    def respond_read_lac(
        self, txn_id: int, ledger_id: int, status: Status, lac_body: bytes | None, last_entry_body: bytes | None
    ) -> None:
        """Answer a LAC read; None for what there is not."""

    def respond_write_lac(self, txn_id: int, ledger_id: int, status: Status) -> None:
        """Answer an explicit LAC."""

    def respond_force_ledger(self, txn_id: int, ledger_id: int, status: Status) -> None:
        """Answer a force."""

    def respond_bookie_info(self, txn_id: int, status: Status, requested: int, info: BookieInfo | None) -> None:
        """Answer with those numbers of ``info`` that ``requested`` asks for."""

    def respond_list_entries(self, txn_id: int, ledger_id: int, status: Status, entries: EntryList | None) -> None:
        """Answer a question for the entries of a ledger. A list that no frame can hold becomes IO_ERROR."""


class RequestHandler(Protocol):
    """What a bookie does with requests. Called on the loop, once per request.

    Reads wait for their turn; all other requests come in the order of their arrival.

    It must not wait; it answers through the responder now or later. Ids may be negative.
    """

    def add(
        self,
        connection: Responder,
        txn_id: int,
        ledger_id: int,
        entry_id: int,
        master_key: bytes,
        body: bytes,
        is_recovery_add: bool,
        is_high_priority: bool,
        is_deferred_sync: bool,
    ) -> None:
        """Store an entry (wire 5.1)."""

    def read_from_memory(self, ledger_id: int, entry_id: int) -> tuple[bytes, int | None] | None:
        """Body and LAC of an entry if they are in memory: such a read does not wait. None says nothing of the disk."""

    def read(
        self,
        connection: Responder,
        txn_id: int,
        ledger_id: int,
        entry_id: int,
        fence_with: bytes | None,
        is_high_priority: bool,
    ) -> None:
        """Read an entry, or the last one for -1; with a key, fence first (wire 5.2 and 5.3)."""

    def read_lac(self, connection: Responder, txn_id: int, ledger_id: int) -> None:
        """Give explicit LAC and last entry (wire 5.6)."""

    def write_lac(self, connection: Responder, txn_id: int, ledger_id: int, master_key: bytes, body: bytes) -> None:
        """Keep an explicit LAC packet (wire 5.5)."""

    def force_ledger(self, connection: Responder, txn_id: int, ledger_id: int) -> None:
        """Make the ledger's entries durable (wire 5.8)."""

    def bookie_info(self, connection: Responder, txn_id: int, requested: int) -> None:
        """Tell disk space (wire 5.7)."""

    def list_entries(self, connection: Responder, txn_id: int, ledger_id: int) -> None:
        """Tell which entries of a ledger are here (wire 5.9)."""
