"""Whether a scan found everything that was written to an entry log, and which ledgers may have missing entries.

There is no checksum. Signs of a loss are bytes between the entries, a frame that leads nowhere, and, in a finished log,
a ledgers map that lists other numbers of bytes (storage sections 4.4 and 4.6). A crash may truncate the end of an
unfinished log: everything acknowledged there is also in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from bkctl.storage.entry_log.format import HEADER_BYTES, EntryLogHeader, StrayRecord
from bkctl.storage.ids import LedgerId
from bkctl.storage.words import listed

if TYPE_CHECKING:
    from bkctl.storage.entry_log.scan import LogScan


_SURPLUS: Final = "it has entries that its ledgers map does not list"


class LogFindings(msgspec.Struct, frozen=True, kw_only=True):
    """The results of the scan of one log."""

    scan: LogScan
    """At its end."""
    found_bytes: Mapping[LedgerId, int]
    """Bytes of each ledger that the scan found."""
    header: EntryLogHeader | None
    """None if it is missing or incomplete."""
    ledgers_map: Mapping[LedgerId, int] | None
    """Bytes of each ledger according to the log's own map; None if there is no valid map."""
    entry_bytes_max: int


class LogDamage(msgspec.Struct, frozen=True):
    """Why entries may be missing from the results of a scan."""

    reason: str
    ledger_ids: tuple[LedgerId, ...] | None
    """Ledgers whose entries may be missing; None: unknown, so any ledger."""
    misread_ids: tuple[LedgerId, ...] = ()
    """Ledgers with more bytes than the ledgers map lists: damaged bytes may read as entries of theirs."""
    stray: StrayRecord | None = None
    """The first record with a negative id."""

    @property
    def affected_ids(self) -> frozenset[LedgerId]:
        """Ledgers that a scan may have misread, as far as they are known."""
        return frozenset((*(self.ledger_ids or ()), *self.misread_ids))


def judge_log(findings: LogFindings) -> LogDamage | None:
    """The damage of a log; None if its scan can be trusted."""
    damage, stray = _judge(findings), findings.scan.stray
    if stray is None:
        return damage
    more = f" ({findings.scan.stray_count - 1} more like it)" if findings.scan.stray_count > 1 else ""
    reason = (
        f"the record at offset {stray.offset} has the ids {stray.ledger_id}:{stray.entry_id}, as no entry has{more}"
    )
    if damage is None:
        # A map that lists everything that was found shows that it is no entry that was acknowledged.
        is_listed = findings.header is not None and findings.header.has_map
        return LogDamage(reason, () if is_listed else None, stray=stray)
    return LogDamage(f"{damage.reason}; {reason}", damage.ledger_ids, damage.misread_ids, stray)


def _judge(findings: LogFindings) -> LogDamage | None:
    header, scan = findings.header, findings.scan
    if header is None:
        is_blank = not findings.found_bytes and not scan.gaps and not scan.dropped_bytes
        # Its first block was never synced, so nothing else in it was.
        is_unfinished = scan.size_bytes < HEADER_BYTES or is_blank
        return None if is_unfinished else LogDamage("it has no header", None)
    if header.has_map:
        return _judge_by_map(findings)
    if scan.gaps:
        gap = scan.gaps[0]
        return LogDamage(f"{gap.size_bytes} bytes from offset {gap.offset} on are not entries", None)
    if not _is_torn_by_crash(findings):
        return LogDamage(f"its last {scan.dropped_bytes} bytes are not entries", None)
    return None


def _judge_by_map(findings: LogFindings) -> LogDamage | None:
    stated, found = findings.ledgers_map, findings.found_bytes
    if stated is None:
        return LogDamage("cannot read its ledgers map", None)
    lacking = tuple(sorted(each for each in stated if each >= 0 and found.get(each, 0) < stated[each]))
    misread = tuple(sorted(each for each in found if found[each] > stated.get(each, 0)))
    if not lacking and not misread:
        return None
    missing_bytes = sum(stated[each] - found.get(each, 0) for each in lacking)
    reason = f"{missing_bytes} bytes that its ledgers map lists are missing" if lacking else _SURPLUS
    # The id in misread bytes need not be an existing ledger, so it does not count as missing entries.
    seen = f" (damaged bytes read as entries of {listed(misread)})" if misread else ""
    return LogDamage(reason + seen, lacking, misread)


def _is_torn_by_crash(findings: LogFindings) -> bool:
    """Whether the log's end is complete, or may be the result of a crash: a frame that was only begun."""
    cut = findings.scan.cut_frame
    if cut is None:
        return True
    if findings.scan.hides_frames:
        return False
    is_entry = cut.ledger_id >= 0 and cut.entry_id >= 0 and cut.size_bytes <= findings.entry_bytes_max
    is_map = cut.ledger_id == -1
    return is_entry or is_map
