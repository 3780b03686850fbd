"""The report as a page and as JSON: complete, escaped, without a network; sorted and searched in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.replication.cluster_audit.counter import AuditCounter
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts
from bkctl.runtime.replication.cluster_audit.result import report_of
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from bkctl.runtime.replication.judge.verdict import judge_ledger, write_set_rows
from bkctl.spark_reports.audit_files import read_report, write_report_files
from bkctl.spark_reports.audit_page import TABLE_ROWS_MAX, page_table, report_page
from bkctl.spark_reports.output import REPORT_JSON, REPORT_PAGE
from tests.browser import Browser
from tests.runtime.replication.samples import ledger

BOOKIES = [f"bookie-{number}:3181" for number in range(5)]
HOSTILE = "<script>document.title='hacked'</script><img src=x onerror=alert(1)>"
LEDGERS = 2 * TABLE_ROWS_MAX + 10


def sample_report() -> AuditReport:
    """Many under-replicated ledgers, one that is unavailable, and an owner that looks like HTML."""
    facts = AuditFacts(
        registrations=Registrations(tuple(BOOKIES[:3]), ()),
        now_ms=1_700_000_000_000,
        with_cookie=frozenset(BOOKIES),
    )
    counter = AuditCounter(facts)
    for ledger_id in range(LEDGERS):
        metadata = ledger({0: BOOKIES[:4]}, 4, 2, last_entry_id=9, length=1000 + ledger_id)
        counter.add(judge_ledger(write_set_rows(ledger_id, metadata), facts.registrations.live))
    lost = ledger({0: BOOKIES[3:]}, 2, 2, last_entry_id=9, length=77)
    lost = msgspec.structs.replace(lost, custom_metadata=(("application", HOSTILE.encode()),))
    counter.add(judge_ledger(write_set_rows(2**62, lost), facts.registrations.live))
    writing = ledger({0: BOOKIES[:3]}, 3, 2, state=LedgerState.OPEN)
    counter.add(judge_ledger(write_set_rows(2**62 + 1, writing), facts.registrations.live))
    return report_of(counter.totals, facts)


REPORT = sample_report()


def test_the_worst_ledgers_come_first_and_the_page_says_how_many_are_left_out() -> None:
    table = page_table(REPORT, "under_replicated")
    assert table.rows[0][0].number == 2**62
    assert len(table.rows) == TABLE_ROWS_MAX
    assert table.rows_total == LEDGERS + 1
    assert f"1,000 rows of {LEDGERS + 1:,}" in report_page(REPORT)


def test_every_number_of_the_summary_with_a_card_is_on_the_page() -> None:
    page = report_page(REPORT)
    cards = {label: count for count, label in re.findall(r'<div class="count[^"]*"><b>([\d,]+)</b>([^<]+)</div>', page)}
    assert cards["under-replicated"] == f"{REPORT.summary.under_replicated:,}"
    assert cards["unavailable: no live copy"] == "1"
    assert cards["with an ack quorum of 1"] == "0"
    assert '<div class="count critical"><b>1</b>unavailable: no live copy' in page
    assert '<div class="count warning"><b>' in page


def test_names_from_the_metadata_are_no_html() -> None:
    page = report_page(REPORT)
    assert "&lt;script&gt;" in page
    assert HOSTILE not in page
    assert "<img" not in page


def test_nothing_is_loaded() -> None:
    assert not re.search(r"<[^>]*\b(?:src|href)=|url\(|https?://|@import", report_page(REPORT))


def test_json_has_the_whole_report_with_ids_as_strings(tmp_path: Path) -> None:
    write_report_files(str(tmp_path), REPORT)
    body = msgspec.json.decode((tmp_path / REPORT_JSON).read_bytes())
    assert body["kind"] == "AuditReport"
    assert body["under_replicated"][-1]["ledger_id"] == str(2**62)
    assert msgspec.structs.asdict(read_report(str(tmp_path))).items() >= msgspec.structs.asdict(REPORT).items()


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"kind": "ClusterBackup"}', b"\xff"])
def test_a_file_that_is_no_report(tmp_path: Path, data: bytes) -> None:
    (tmp_path / REPORT_JSON).write_bytes(data)
    with pytest.raises(MetadataFormatError, match=r"report\.json is not the report of an audit"):
        read_report(str(tmp_path))


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as browser:
        write_report_files(str(tmp_path), REPORT)
        yield browser


@pytest.mark.battery
def test_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / REPORT_PAGE
    browser.show(page)
    assert browser.run("return document.title").startswith("Replication report")
    first = "return document.querySelector('#under_replicated tbody tr').cells[0].textContent"
    assert browser.run(first) == str(2**62)
    browser.click("#under_replicated th:nth-child(1) button")
    assert browser.run(first) == str(2**62), "descending, by number and not by text"
    browser.click("#under_replicated th:nth-child(1) button")
    assert browser.run(first) == "0"

    shown = "return [...document.querySelectorAll('#under_replicated tbody tr')].filter((row) => !row.hidden).length"
    assert browser.run(shown) == TABLE_ROWS_MAX
    browser.type("#under_replicated input", "UNAVAILABLE script")
    assert browser.run(shown) == 1
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    assert browser.run("return document.querySelectorAll('svg rect').length") > len(BOOKIES)


@pytest.mark.battery
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_fits_the_window(browser: Browser, tmp_path: Path, width: int) -> None:
    browser.show(tmp_path / REPORT_PAGE, width)
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
