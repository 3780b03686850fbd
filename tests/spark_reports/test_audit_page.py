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
from bkctl.runtime.replication.cluster_audit.comparison import compare, run_of
from bkctl.runtime.replication.cluster_audit.counter import AuditCounter
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts
from bkctl.runtime.replication.cluster_audit.inventory_tables import BadCopyRange, BookieInventory, LostRange
from bkctl.runtime.replication.cluster_audit.tables import AuditReport, LossEffect
from bkctl.runtime.replication.cluster_audit.totals import report_of
from bkctl.runtime.replication.judge.verdict import judge_ledger, write_set_rows
from bkctl.spark_reports.audit_files import ReportExtras, read_report, write_report_files
from bkctl.spark_reports.audit_page import report_page
from bkctl.spark_reports.output import REPORT_JSON, REPORT_PAGE
from bkctl.spark_reports.page_tables import PRINTED_ROWS_MAX, TABLE_ROWS_MAX, page_table
from tests.browser import Browser
from tests.runtime.replication.samples import ledger

BOOKIES = [f"bookie-{number}:3181" for number in range(5)]
BOOKIES_BY_ADDRESS = ("127.0.0.1:28186", "192.168.111.222:31815")
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
SERIES = [
    msgspec.structs.replace(
        run_of(REPORT, f"run={number}"), judged_at_ms=REPORT.summary.judged_at_ms + number * 86_400_000
    )
    for number in range(90)
]


def test_the_worst_ledgers_come_first_and_the_page_says_how_many_are_left_out() -> None:
    table = page_table(REPORT, "under_replicated")
    assert table.rows[0][0].number == 2**62
    assert len(table.rows) == TABLE_ROWS_MAX
    assert table.rows_total == LEDGERS + 1
    assert f"1,000 rows of {LEDGERS + 1:,}" in report_page(REPORT)


def tiles_of(page: str) -> dict[str, int]:
    """The tiles by their labels; each is explained on hover, and in print."""
    found = re.findall(
        r'<div class="tile [^"]*" title="([^"]+)"><b>([\d,]+)</b>([^<]+)<small>([^<]+)</small></div>', page
    )
    assert found
    assert all(hover == printed for hover, _, _, printed in found)
    return {label: int(number.replace(",", "")) for _, number, label, _ in found}


def test_every_ledger_is_in_one_tile() -> None:
    tiles = tiles_of(report_page(REPORT))
    assert sum(tiles.values()) == REPORT.summary.ledgers
    assert tiles["under-replicated"] == REPORT.summary.under_replicated
    assert tiles["unavailable"] == 1
    assert list(tiles) == ["replicated", "empty", "under-replicated", "at risk", "unavailable", "lost", "unreadable"]


def test_tiles_have_the_colour_of_the_severity() -> None:
    """Ledgers that the auditor repairs are a warning, as the verdict says; red is for what is critical."""
    facts = AuditFacts(registrations=Registrations(tuple(BOOKIES[:4]), ()), now_ms=1_700_000_000_000, is_repaired=True)
    counter = AuditCounter(facts)
    for ledger_id, size in enumerate((3, 2, 3)):
        metadata = ledger({0: (*BOOKIES[: size - 1], BOOKIES[4])}, size, 2, last_entry_id=9, length=1000)
        counter.add(judge_ledger(write_set_rows(ledger_id, metadata), facts.registrations.live))
    found = report_of(counter.totals, facts)
    unrepaired = msgspec.structs.replace(found, summary=msgspec.structs.replace(found.summary, is_repaired=False))
    for report, severity in (found, "warning"), (unrepaired, "critical"):
        page = report_page(report)
        assert f'<p class="verdict {severity}">' in page
        tiles = re.findall(r'<div class="tile ([a-z]+)" title="[^"]+"><b>[\d,]+</b>([^<]+)<', page)
        assert {label: kind for kind, label in tiles} == {"under-replicated": severity, "at risk": severity}
        assert len(re.findall(rf'<rect class="part {severity}"', page)) == 2
        assert page.count('<line class="gap"') == 1, "neighbours of one colour are apart"
        assert len(re.findall(rf'<rect class="{severity}"', page)) == 1, "the bookie that is down"


def test_a_lost_ledger_is_not_also_an_unavailable_one() -> None:
    summary = msgspec.structs.replace(REPORT.summary, unavailable=3, lost=2, ledgers=REPORT.summary.ledgers + 2)
    row = msgspec.structs.replace(REPORT.under_replicated[-1], is_lost=True)
    rows = (*REPORT.under_replicated, *(msgspec.structs.replace(row, ledger_id=2**62 + each) for each in (2, 3)))
    tiles = tiles_of(report_page(msgspec.structs.replace(REPORT, summary=summary, under_replicated=rows)))
    assert (tiles["unavailable"], tiles["lost"]) == (1, 2)
    assert sum(tiles.values()) == summary.ledgers


def test_parts_of_the_bar_with_one_colour_are_named_in_its_order() -> None:
    summary = msgspec.structs.replace(REPORT.summary, at_risk=3, unavailable=3, lost=2, unreadable=0)
    page = report_page(msgspec.structs.replace(REPORT, summary=summary))
    parts = re.findall(r'<rect class="part [^>]*><title>([^:]+): ([^<]+)</title>', page)
    legend = re.search(r"From left to right: ([^<]+)\.</p>", page)
    assert legend is not None
    assert legend[1] == ", ".join(f"{count} {label}" for label, count in parts)
    assert "3 at risk, 1 unavailable, 2 lost" in legend[1]


def test_the_verdict_and_what_to_do_come_first() -> None:
    page = report_page(REPORT)
    sentence = "1 ledger has no live copy; start bookie-3:3181 or bookie-4:3181"
    assert f'<p class="verdict critical"><b>critical:</b> {sentence}</p>' in page
    assert f"<title>Replication report, 2023-11-14 22:13 UTC: critical: {sentence}</title>" in page
    commands = re.findall(r"<div><code>([^<]+)</code></div>", page)
    shown = ["bkctl bookie show bookie-3:3181 bookie-4:3181", "bkctl bookie show bookie-3:3181 bookie-4:3181"]
    assert commands[:2] == shown, "three bookies cannot have four copies, and writers need four, too"
    places = [page.index(text) for text in ('class="verdict', 'id="actions"', 'class="tiles"', 'id="under_replicated"')]
    assert places == sorted(places)


def test_bookies_that_are_down_are_in_no_question_about_a_loss() -> None:
    table = page_table(REPORT, "losses")
    assert [row[1].text for row in table.rows] == BOOKIES[:3]
    assert (table.rows_total, len(REPORT.losses)) == (3, 5), "report.json has all"
    racks = (*(LossEffect("rack", each, bookies=1) for each in ("/r1", "/r2")), LossEffect("set", BOOKIES[3]))
    placed = [
        msgspec.structs.replace(each, rack="/r2" if each.mode == "unregistered" else "/r1") for each in REPORT.bookies
    ]
    report = msgspec.structs.replace(REPORT, bookies=tuple(placed), losses=racks)
    names = [row[1].text for row in page_table(report, "losses").rows]
    assert names == ["/r1", BOOKIES[3]], "and what the caller asked about"
    down = msgspec.structs.replace(REPORT, losses=REPORT.losses[3:])
    assert 'id="losses"' not in report_page(down)
    assert 'id="losses"' in report_page(REPORT)


def test_every_ledger_of_a_table_links_to_its_reasons() -> None:
    page = report_page(REPORT)
    targets = set(re.findall(r'<a href="#ledger-(\d+)"', page))
    anchors = re.findall(r'<li id="ledger-(\d+)"', page)
    assert len(anchors) == len(set(anchors))
    assert targets == set(anchors)
    assert str(2**62) in targets
    (lost,) = re.findall(rf'<li id="ledger-{2**62}">(.*)</li>', page)
    assert "some entries have no live copy: start bookie-3:3181 or bookie-4:3181" in lost
    assert f"<code>bkctl ledger explain {2**62}</code>" in lost


def test_what_only_an_inventory_shows_names_the_command_that_reads_all_entries() -> None:
    """The explanation of a ledger reads few entries."""
    lost = LostRange(7, "closed", None, None, 1, 1, 1)
    bad = BadCopyRange(8, "closed", None, None, BOOKIES[0], "corrupt", "read", 2, 5, 4)
    both = msgspec.structs.replace(lost, ledger_id=8)
    page = report_page(msgspec.structs.replace(REPORT, lost_ranges=(lost, both), bad_copy_ranges=(bad,)))
    assert "no bookie has a good copy of entry 1" in page
    assert f"some of its copies on {BOOKIES[0]} are corrupt" in page
    assert page.count("bkctl ledger verify 7 shows its bad copies") == 1
    assert page.count("bkctl ledger verify 8") == 1


def test_all_bookies_that_only_have_some_of_the_entries_are_to_be_started() -> None:
    sets = (("bookie-3:3181",), ("bookie-4:3181",))
    row = msgspec.structs.replace(REPORT.under_replicated[-1], no_copy_sets=sets)
    page = report_page(msgspec.structs.replace(REPORT, under_replicated=(*REPORT.under_replicated[:-1], row)))
    assert "some entries have no live copy: start bookie-3:3181 and bookie-4:3181" in page


def test_paper_has_no_boxes_and_says_what_it_leaves_out() -> None:
    page = report_page(REPORT)
    (style,) = re.findall(r"@media print \{\n(.*?)\n\}\n", page, re.DOTALL)
    assert ".scroll { max-height: none; overflow: visible" in style
    assert f"tbody tr:nth-child(n + {PRINTED_ROWS_MAX + 1})" in style
    assert f"; printed: the first {PRINTED_ROWS_MAX}</span>" in "".join(page.split("\n  "))


def test_what_changed_since_an_earlier_report_is_on_the_page() -> None:
    summary = msgspec.structs.replace(REPORT.summary, judged_at_ms=REPORT.summary.judged_at_ms - 3_600_000)
    before = msgspec.structs.replace(REPORT, summary=summary, under_replicated=REPORT.under_replicated[:-1])
    page = report_page(REPORT, compare(before, REPORT))
    assert '<h2 id="changed">Since the report of 2023-11-14 21:13 UTC</h2>' in page
    assert 'id="changed"' not in report_page(REPORT)
    assert '<section id="changes">' not in page, "a list that lacks a ledger may have been cut"
    summary = msgspec.structs.replace(summary, unavailable=0)
    page = report_page(REPORT, compare(msgspec.structs.replace(before, summary=summary), REPORT))
    assert "1 ledger that newly misses copies or cannot be read." in page
    assert '<section id="changes">' in page


def test_no_change_is_a_sentence() -> None:
    assert "<p>No ledger is better or worse.</p>" in report_page(REPORT, compare(REPORT, REPORT))


def test_the_trend_has_the_newest_runs() -> None:
    page = report_page(REPORT, None, SERIES)
    assert not re.search(r">1 (ledgers|copies of entries|entries)<", page)
    assert "60 of 90 runs" in page
    lost = page.partition('aria-label="Ledgers lost with their bookies"')[2].partition("</svg>")[0]
    assert lost.count("<rect") == 60
    assert ">2023-12-14 22:13</text>" in lost, "the first of them"
    assert HOSTILE not in report_page(REPORT, None, SERIES)
    assert 'id="trend"' not in report_page(REPORT, None, SERIES[:1])


def test_every_bar_has_a_colour() -> None:
    """Without a rule for its class it would be black, also on a dark page."""
    page = report_page(REPORT, None, SERIES)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    used = {name for names in re.findall(r'<rect class="([^"]+)"', page) for name in names.split()} - {"part"}
    assert used >= {"ok", "warning", "critical", "neutral"}
    assert used <= set(re.findall(r"\.([a-z]+)[, ][^{}]*\{ --kind:", style))


def test_names_from_the_metadata_are_no_html() -> None:
    page = report_page(REPORT)
    assert "&lt;script&gt;" in page
    assert HOSTILE not in page
    assert "<img" not in page


def test_nothing_is_loaded() -> None:
    assert not re.search(r"<[^>]*\b(?:src=|href=[^#]\"?[^#])|url\(|https?://|@import", report_page(REPORT))


def test_json_has_the_whole_report_with_ids_as_strings(tmp_path: Path) -> None:
    write_report_files(str(tmp_path), REPORT)
    body = msgspec.json.decode((tmp_path / REPORT_JSON).read_bytes())
    assert body["kind"] == "AuditReport"
    assert body["under_replicated"][-1]["ledger_id"] == str(2**62)
    assert msgspec.structs.asdict(read_report(str(tmp_path))).items() >= msgspec.structs.asdict(REPORT).items()


def test_json_has_all_that_changed(tmp_path: Path) -> None:
    summary = msgspec.structs.replace(REPORT.summary, under_replicated=0)
    before = msgspec.structs.replace(REPORT, summary=summary, under_replicated=REPORT.under_replicated[-1:])
    write_report_files(str(tmp_path), REPORT, ReportExtras(before))
    changes = msgspec.json.decode((tmp_path / REPORT_JSON).read_bytes())["changes"]
    assert [row["ledger_id"] for row in changes["ledgers"]] == [str(each) for each in range(LEDGERS)]
    assert f"1,000 rows of {LEDGERS:,}; report.json has all" in " ".join((tmp_path / REPORT_PAGE).read_text().split())
    assert msgspec.structs.asdict(read_report(str(tmp_path))).items() >= msgspec.structs.asdict(REPORT).items()


def test_what_report_json_has_of_a_table_that_is_cut() -> None:
    """An audit lists 1,000 ledgers that are not closed, and 100,000 that miss copies."""
    summary = msgspec.structs.replace(REPORT.summary, open_ledgers=5000, under_replicated=200_000)
    (listed,) = REPORT.oldest_open
    page = report_page(msgspec.structs.replace(REPORT, summary=summary, oldest_open=TABLE_ROWS_MAX * (listed,)))
    found = " ".join(page.split())
    assert "1,000 rows of 5,000<" in found, "it has no more of them"
    assert f"1,000 rows of 200,001; report.json has {LEDGERS + 1:,}<" in found


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"kind": "ClusterBackup"}', b"\xff"])
def test_a_file_that_is_no_report(tmp_path: Path, data: bytes) -> None:
    (tmp_path / REPORT_JSON).write_bytes(data)
    with pytest.raises(MetadataFormatError, match=r"report\.json is not the report of an audit"):
        read_report(str(tmp_path))


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as browser:
        write_report_files(str(tmp_path), REPORT, ReportExtras(earlier=tuple(SERIES[:-1])))
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


_BEYOND = """
    const isBeyond = (each) => each.getClientRects().length && each.getBoundingClientRect().right > window.innerWidth;
    const all = document.querySelectorAll("td, th, code, .tile, svg text");
    return [...all].filter(isBeyond).map((each) => each.textContent);
"""
"""Texts that end beyond the right edge of the window."""


_IN_BOXES = """
    const boxes = [...document.querySelectorAll(".scroll")];
    return boxes.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.parentNode.id);
"""
"""Tables of which a part can only be seen by scrolling."""
_BROKEN = """
    const isBroken = (each) => each.getClientRects().length > 1;
    return [...document.querySelectorAll("td .short")].filter(isBroken).map((each) => each.textContent);
"""
"""Words on several lines."""


@pytest.mark.battery
@pytest.mark.parametrize("width", [1280, 800, 500])
def test_the_page_fits_the_window(browser: Browser, tmp_path: Path, width: int) -> None:
    """A headless window is at least 500 pixels wide. With an inventory, and long names."""
    held = BookieInventory(BOOKIES_BY_ADDRESS[0], *(9_876_543_210,) * 14)
    row = msgspec.structs.replace(REPORT.under_replicated[0], missing_bookies=BOOKIES_BY_ADDRESS)
    owner = msgspec.structs.replace(
        REPORT.owners[0], owner=f"topic persistent://{70 * 'tenant'}/shop.orders", ledgers=9
    )
    report = msgspec.structs.replace(REPORT, holdings=(held,), under_replicated=(row,), owners=(owner,))
    for each in (REPORT, report):
        (tmp_path / REPORT_PAGE).write_text(report_page(each, None, SERIES))
        browser.show(tmp_path / REPORT_PAGE, width)
        assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
        assert browser.run(_BEYOND) == []
        assert browser.run(_IN_BOXES) == []
        assert browser.run(_BROKEN) == []
    assert browser.run("return [...document.querySelectorAll('td .short')].map((each) => each.textContent)") == [
        f"{BOOKIES_BY_ADDRESS[0]},",
        BOOKIES_BY_ADDRESS[1],
    ]


@pytest.mark.battery
def test_a_usual_report_has_tables_at_each_width_that_has_room(browser: Browser, tmp_path: Path) -> None:
    held = BookieInventory(BOOKIES_BY_ADDRESS[0], *range(1_000, 15_000, 1_000))
    row = msgspec.structs.replace(REPORT.under_replicated[0], missing_bookies=BOOKIES_BY_ADDRESS)
    owner = msgspec.structs.replace(REPORT.owners[0], owner="topic persistent://tenant/shop/orders", ledgers=9)
    report = msgspec.structs.replace(REPORT, holdings=(held,), under_replicated=(row,), owners=(owner,))
    (tmp_path / REPORT_PAGE).write_text(report_page(report))
    cards = "return [...document.querySelectorAll('.cards')].map((each) => each.parentNode.id)"
    for width in (1280, 800):
        browser.show(tmp_path / REPORT_PAGE, width)
        assert browser.run(cards) == []
        owner_width = "return document.querySelector('#owners tbody td').clientWidth"
        assert browser.run(owner_width) > width / 8
    browser.show(tmp_path / REPORT_PAGE, 500)
    assert "owners" in browser.run(cards)


@pytest.mark.battery
def test_a_search_says_what_it_found(browser: Browser, tmp_path: Path) -> None:
    browser.show(tmp_path / REPORT_PAGE)
    count = "return document.querySelector('#under_replicated .bar span').textContent.replace(/\\s+/g, ' ')"
    all_rows = f"1,000 rows of {LEDGERS + 1:,}; report.json has all"
    assert browser.run(count).startswith(all_rows)
    browser.type("#under_replicated input", "unavailable")
    assert browser.run(count).startswith(f"1 found in {all_rows}")
    browser.type("#under_replicated input", "x")
    assert browser.run(count).startswith(f"0 found in {all_rows}")
    browser.type("#under_replicated input", 12 * "\ue003")
    assert browser.run(count).startswith(all_rows)


@pytest.mark.battery
def test_a_row_leads_to_its_reasons(browser: Browser, tmp_path: Path) -> None:
    browser.show(tmp_path / REPORT_PAGE)
    browser.click("#under_replicated tbody td a")
    assert browser.run("return document.querySelector(':target').textContent").startswith(f"Ledger {2**62}")
    age = browser.run("return document.querySelector('time').textContent")
    assert re.fullmatch(r"2023-11-14 22:13 UTC \(\d+ days before this page was opened\)", age)
