"""What ``--limit`` and ``-o name`` do to the lists of ``audit`` and ``ledger verify``, over metadata alone."""

from __future__ import annotations

import asyncio
import csv
import io
import json

import pytest

from tests.commands.ledger.conftest import CLOSED, LedgerShell
from tests.processes import BkctlResult, run_bkctl

GARBAGE = b"BookieMetadataFormatVersion\t3\n\xff\xff"


@pytest.fixture
async def damaged(shell: LedgerShell) -> LedgerShell:
    """No bookie is there, so all five ledgers have findings; the metadata of the second cannot be read."""
    for ledger_id in (1, 2, 3, 4, 5):
        await shell.plant(ledger_id, GARBAGE if ledger_id == 2 else CLOSED)
    return shell


async def report(shell: LedgerShell, *arguments: str) -> BkctlResult:
    result = await asyncio.to_thread(run_bkctl, *arguments, "-u", shell.uri)
    assert result.exit_code == 10, result
    return result


@pytest.mark.parametrize("command", [("audit",), ("ledger", "verify", "--all")])
async def test_csv_has_no_more_rows_than_the_limit(damaged: LedgerShell, command: tuple[str, ...]) -> None:
    for limit, expected in ((0, []), (2, ["1", "2"]), (9, ["1", "2", "3", "4", "5"])):
        found = await report(damaged, *command, "-o", "csv", "--limit", str(limit))
        assert [row["ledger_id"] for row in csv.DictReader(io.StringIO(found.stdout))] == expected


async def test_lists_in_json_are_cut_at_the_limit(damaged: LedgerShell) -> None:
    whole = json.loads((await report(damaged, "audit", "-o", "json")).stdout)
    cut = json.loads((await report(damaged, "audit", "-o", "json", "--limit", "2")).stdout)
    assert (whole["truncated"], cut["truncated"]) == (False, True)
    for key, count in (("bookies", 3), ("under_replicated_ledgers", 4), ("unreadable_ledgers", 1)):
        assert (len(whole[key]), cut[key]) == (count, whole[key][:2])
    changed = {key for key in whole if whole[key] != cut[key]} - {"seconds", "judged_at"}
    assert changed == {"bookies", "open_ages", "under_replicated_ledgers", "truncated"}, "all ledgers are counted"
    verified = json.loads((await report(damaged, "ledger", "verify", "--all", "-o", "json", "--limit", "2")).stdout)
    assert ([row["ledger_id"] for row in verified["items"]], verified["truncated"]) == (["1", "2"], True)
    assert (len(verified["unread"]), verified["ledgers"]) == (2, 5)
    complete = json.loads((await report(damaged, "ledger", "verify", "--all", "-o", "json", "--limit", "99")).stdout)
    assert (len(complete["items"]), complete["truncated"]) == (5, False)


async def test_names_are_those_of_all_ledgers_with_findings(damaged: LedgerShell) -> None:
    assert (await report(damaged, "audit", "-o", "name")).stdout.split() == ["1", "2", "3", "4", "5"]
    assert (await report(damaged, "audit", "-o", "name", "--limit", "2")).stdout.split() == ["1", "2"]
