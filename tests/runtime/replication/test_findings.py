"""Files of bad copies: what is written is read back, and nothing else is accepted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.replication.judge.copies import CopyDefect, CopyState, LedgerCheck
from bkctl.runtime.replication.judge.findings import (
    END_KIND,
    KIND,
    CopyFinding,
    FindingsFormatError,
    FindingsHeader,
    copy_findings,
    decode_findings,
    encode_finding,
    encode_header,
)
from bkctl.runtime.replication.judge.fragments import EntryRange

HEADER = FindingsHeader(root="/ledgers", instance_id="7f3a", created="2026-01-31T12:00:00.000Z")
FINDING = CopyFinding(
    ledger_id=17, bookie_id="b1:3181", state=CopyState.MISSING, first_entry_id=3, last_entry_id=5, copies=3
)


def lines(*findings: CopyFinding) -> list[bytes]:
    rows = [
        {"apiVersion": "bkctl/v1", "kind": KIND, **encode_header(HEADER)},
        *map(encode_finding, findings),
        {"kind": END_KIND, "findings": len(findings)},
    ]
    return [json.dumps(row).encode() + b"\n" for row in rows]


@given(st.integers(0, 2**63 - 2), st.sampled_from(CopyState), st.integers(0, 2**62), st.integers(1, 2**62))
def test_a_finding_is_read_as_it_was_written(ledger_id: int, state: CopyState, first: int, count: int) -> None:
    finding = CopyFinding(
        ledger_id=ledger_id,
        bookie_id="b1:3181",
        state=state,
        first_entry_id=first,
        last_entry_id=first + count - 1,
        copies=count,
    )
    assert decode_findings(lines(FINDING, finding)) == (HEADER, (FINDING, finding))


def changed(**fields: object) -> list[bytes]:
    first, line, last = lines(FINDING)
    return [first, json.dumps(json.loads(line) | fields).encode(), last]


def test_incomplete_and_invalid_files_are_refused() -> None:
    whole = lines(FINDING)
    for bad, reason in (
        ([], "incomplete"),
        (whole[:-1], "incomplete"),
        ([whole[0], whole[-1]], "does not count 0"),
        ([*whole, whole[1]], "line 4: it is after the last line"),
        (whole[1:], "line 1: it was not written by"),
        ([whole[0].replace(b'"format": 1', b'"format": 2'), *whole[1:]], "line 1: it has another format"),
        ([whole[0], b"{", *whole[1:]], "line 2"),
        (changed(more=1), "line 2: it has other fields"),
        (changed(state="good"), "line 2"),
        (changed(ledger_id="-1"), "line 2: it has an invalid ledger id"),
        (changed(ledger_id="x"), "line 2"),
        (changed(last_entry_id="2"), "line 2: it has an invalid"),
        (changed(last_entry_id=str(2**63)), "line 2: it has an invalid"),
        (changed(copies=4), "line 2: it has an invalid"),
        (changed(copies=0), "line 2: it has an invalid"),
    ):
        with pytest.raises(FindingsFormatError, match=reason):
            decode_findings(bad)


def test_a_check_gives_one_finding_per_range_and_one_for_all_if_there_were_too_many() -> None:
    ranges = (EntryRange(1, 2), EntryRange(5, 5))
    check = LedgerCheck(
        ledger_id=17,
        last_entry_id=99,
        defects=(
            CopyDefect("b1", CopyState.CORRUPT, 3, ranges, "digest"),
            CopyDefect("b2", CopyState.FAILED, 40, ranges, "it answered: input/output error"),
            CopyDefect("b3", CopyState.UNREACHABLE, 3, ranges, "it refuses the login", is_refused=True),
        ),
    )
    found = [(each.bookie_id, each.state, each.entries, each.copies) for each in copy_findings(check)]
    assert found == [
        ("b1", CopyState.CORRUPT, EntryRange(1, 2), 2),
        ("b1", CopyState.CORRUPT, EntryRange(5, 5), 1),
        ("b2", CopyState.FAILED, EntryRange(0, 99), 40),
    ]
