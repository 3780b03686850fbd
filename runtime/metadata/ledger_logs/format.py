"""The node of a log of ledgers: JSON, and the legal changes of it. Pure.

    {"apiVersion": "bkctl/v1", "kind": "LedgerLog", "format": 1, "log_id", "created_ms",
     "ensemble_size", "write_quorum_size", "ack_quorum_size", "roll_bytes", "roll_s",
     "ledgers": [{"ledger_id", "first_position", "created_ms"}, ...],
     "writer": {"token", "name", "since_ms"} or null, "released": [ledger ids], "is_deleted": false}

Positions count the entries of a log from 0 and have no gaps. Only the last ledger may be open: a writer closes it
before it adds another one. So the first position of each ledger is known when it is added, and never changes.
``released`` ledgers no longer belong to the log, but may not be deleted yet.
"""

from __future__ import annotations

import bisect
import itertools
import re
from typing import Literal

import msgspec

from bkctl.runtime.errors import ConfigurationError, MetadataFormatError
from bkctl.storage.json_text import JsonTextError, decode_json

FORMAT = 1
NAME_KEY = "bkctl/log"
LOG_ID_KEY = "bkctl/log-id"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)


class LogLedger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ledger of a log; ``first_position`` is that of its entry 0."""

    ledger_id: int
    first_position: int
    created_ms: int


class LogWriterClaim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The process that opened the log for writing last. ``token`` is unique, ``name`` is for people."""

    token: str
    name: str
    since_ms: int


class LedgerLog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contents of the node. ``log_id``: unique, also among logs that had the same name. Times in ms since 1970."""

    apiVersion: Literal["bkctl/v1"] = "bkctl/v1"  # noqa: N815  spelling of the structured output contract
    kind: Literal["LedgerLog"] = "LedgerLog"
    format: Literal[1] = 1
    log_id: str
    created_ms: int
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    roll_bytes: int
    roll_s: float
    ledgers: tuple[LogLedger, ...] = ()
    writer: LogWriterClaim | None = None
    released: tuple[int, ...] = ()
    is_deleted: bool = False

    @property
    def first_position(self) -> int:
        """The lowest position that was not trimmed."""
        return self.ledgers[0].first_position if self.ledgers else 0

    def lists(self, ledger_id: int) -> bool:
        """Whether the ledger is in use, or is to be deleted."""
        return ledger_id in self.released or any(each.ledger_id == ledger_id for each in self.ledgers)

    def end_of(self, ledger_id: int | None) -> int | None:
        """The position after the last one of a ledger in use; None for the last ledger, whose end the node has not."""
        return next(
            (after.first_position for each, after in itertools.pairwise(self.ledgers) if each.ledger_id == ledger_id),
            None,
        )

    def index_of(self, position: int) -> int:
        """Index of the ledger with the position, or of the last one if it is beyond the end."""
        return bisect.bisect_right(self.ledgers, position, key=lambda each: each.first_position) - 1


class _Header(msgspec.Struct):
    format: int


def check_log_name(name: str) -> None:
    """ConfigurationError unless this can be the name of a log."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is not a name of a log: use at most 100 letters, digits, dots, dashes and underscores, and "
            "begin with a letter, a digit or an underscore"
        )


def encode_log(log: LedgerLog) -> bytes:
    """The bytes of the node."""
    return msgspec.json.format(msgspec.json.encode(log), indent=2) + b"\n"


def decode_log(data: bytes) -> LedgerLog:
    """MetadataFormatError for other bytes, and for the format of a newer release."""
    try:
        version = decode_json(data, _Header).format
        if version > FORMAT:
            raise MetadataFormatError(f"this log has format {version}, and this bkctl knows {FORMAT}: use a newer one")
        log = decode_json(data, LedgerLog)
    except JsonTextError as error:
        raise MetadataFormatError(f"not the node of a log: {error}") from error
    firsts = [each.first_position for each in log.ledgers]
    if firsts != sorted(firsts) or any(first < 0 for first in firsts):
        raise MetadataFormatError("not the node of a log: the positions of its ledgers do not ascend")
    return log


def with_ledger(log: LedgerLog, added: LogLedger) -> LedgerLog:
    """With another ledger at the end. The last one is released if it turned out to be empty."""
    ledgers, released = log.ledgers, log.released
    if ledgers and ledgers[-1].first_position == added.first_position:
        released = (*released, ledgers[-1].ledger_id)
        ledgers = ledgers[:-1]
    return msgspec.structs.replace(log, ledgers=(*ledgers, added), released=released)


def trimmed(log: LedgerLog, before: int) -> LedgerLog:
    """Without the ledgers that have only positions below ``before``; the last one always stays."""
    count = max(0, min(log.index_of(before), len(log.ledgers) - 1))
    gone = tuple(each.ledger_id for each in log.ledgers[:count])
    return msgspec.structs.replace(log, ledgers=log.ledgers[count:], released=log.released + gone)


def without_released(log: LedgerLog, ledger_ids: frozenset[int]) -> LedgerLog:
    """After these released ledgers were deleted."""
    return msgspec.structs.replace(log, released=tuple(each for each in log.released if each not in ledger_ids))


def to_deleted(log: LedgerLog) -> LedgerLog:
    """All ledgers released; no writer can open the log again."""
    gone = tuple(each.ledger_id for each in log.ledgers)
    return msgspec.structs.replace(log, ledgers=(), released=log.released + gone, writer=None, is_deleted=True)
