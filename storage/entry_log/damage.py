"""Whether a scan found all that was ever written to an entry log, and which ledgers may lack something if not.

There is no checksum. What tells of a loss: bytes between the entries, a frame that leads nowhere, and, in a log that
was finished, the ledgers map, which says how many bytes each ledger has (storage sections 4.4 and 4.6). The end of a
log that was never finished may be cut by a crash: nothing there was acknowledged without being in the journal, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from storage.entry_log.format import HEADER_BYTES, EntryLogHeader, FrameStart
from storage.ids import LedgerId

if TYPE_CHECKING:
    from storage.entry_log.scan import Gap


_LEDGERS_TOLD_MAX: Final = 10
_SURPLUS: Final = "it has entries that its ledgers map does not list"


class LogFindings(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one log after a scan."""

    size_bytes: int
    header: EntryLogHeader | None
    """None: there is none, or not a whole one."""
    ledgers_map: Mapping[LedgerId, int] | None
    """Bytes of each ledger as the log says itself; None: it does not, or not credibly."""
    found_bytes: Mapping[LedgerId, int]
    """Bytes of each ledger that the scan found."""
    gaps: Sequence[Gap]
    dropped_bytes: int
    cut_frame: FrameStart | None
    hides_frames: bool
    """Whether entries can be seen behind the start of the cut frame."""
    entry_bytes_max: int


class LogDamage(msgspec.Struct, frozen=True):
    """Why entries may be missing from what a scan gave."""

    reason: str
    ledger_ids: tuple[LedgerId, ...] | None
    """Of which ledgers; None: nobody knows, so of any."""
    misread_ids: tuple[LedgerId, ...] = ()
    """Ledgers of which there is more than the ledgers map says: damaged bytes may read as entries of theirs."""

    @property
    def affected_ids(self) -> frozenset[LedgerId]:
        """Ledgers that a scan may have got wrong, as far as they are known."""
        return frozenset((*(self.ledger_ids or ()), *self.misread_ids))


def judge_log(findings: LogFindings) -> LogDamage | None:
    """What is wrong with a log; None if a scan of it may be believed."""
    header = findings.header
    if header is None:
        is_blank = not findings.found_bytes and not findings.gaps and not findings.dropped_bytes
        # Not even its first block was synced, so nothing in it was.
        is_unfinished = findings.size_bytes < HEADER_BYTES or is_blank
        return None if is_unfinished else LogDamage("it has no header", None)
    if header.has_map:
        return _judge_by_map(findings)
    if findings.gaps:
        gap = findings.gaps[0]
        return LogDamage(f"{gap.size_bytes} bytes from offset {gap.offset} on are not entries", None)
    if not _is_torn_by_crash(findings):
        return LogDamage(f"its last {findings.dropped_bytes} bytes are not entries", None)
    return None


def _judge_by_map(findings: LogFindings) -> LogDamage | None:
    stated, found = findings.ledgers_map, findings.found_bytes
    if stated is None:
        return LogDamage("cannot read its ledgers map", None)
    lacking = tuple(sorted(each for each in stated if found.get(each, 0) < stated[each]))
    misread = tuple(sorted(each for each in found if found[each] > stated.get(each, 0)))
    if not lacking and not misread:
        return None
    missing_bytes = sum(stated[each] - found.get(each, 0) for each in lacking)
    reason = f"{missing_bytes} bytes that its ledgers map lists are missing" if lacking else _SURPLUS
    # The id of misread bytes need never have existed: it is no ledger that lacks something.
    seen = f" (damaged bytes read as entries of {listed(misread)})" if misread else ""
    return LogDamage(reason + seen, lacking, misread)


def listed(ledger_ids: Collection[LedgerId]) -> str:
    """The first few of some ids, for people."""
    more = ", ..." if len(ledger_ids) > _LEDGERS_TOLD_MAX else ""
    return ", ".join(map(str, list(ledger_ids)[:_LEDGERS_TOLD_MAX])) + more


def _is_torn_by_crash(findings: LogFindings) -> bool:
    """Whether the end is a whole log's, or one that a crash can have left: some frame that had only begun."""
    cut = findings.cut_frame
    if cut is None:
        return True
    if findings.hides_frames:
        return False
    is_entry = cut.ledger_id >= 0 and cut.entry_id >= 0 and cut.size_bytes <= findings.entry_bytes_max
    is_map = cut.ledger_id == -1
    return is_entry or is_map
