"""bkctl storage entrylog, held against the manifest of Java's own files."""

from __future__ import annotations

import base64
import hashlib
import struct
from pathlib import Path

import pytest

from bkctl.storage.entry_log.format import HEADER_BYTES
from tests.commands.storage.conftest import Directories
from tests.processes import run_bkctl
from tests.storage.engines import entry
from tests.storage.golden import FILES, content

LOGS = ("db-4.18.0/crash/ledgers/0.log.gz", "direct-io-4.18.0/replayed/ledgers/1.log.gz")


@pytest.fixture(params=LOGS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, object]]:
    path = tmp_path / "1f.log"
    path.write_bytes(content(request.param))
    return path, FILES[request.param]


def test_scan_of_a_log_of_java(golden: tuple[Path, dict[str, object]]) -> None:
    path, expected = golden
    entries = [each for each in expected["entries"] if each["ledger"] >= 0]  # type: ignore[attr-defined]
    items = run_bkctl("storage", "entrylog", "scan", str(path), "-o", "json").json()["items"]
    found = [(item["offset"], item["ledger_id"], item["entry_id"], item["size_bytes"]) for item in items]
    assert found == [(each["offset"], str(each["ledger"]), str(each["entry"]), each["size"]) for each in entries]
    one = run_bkctl("storage", "entrylog", "scan", str(path), "--ledger", "1", "--entry", "2", "-o", "name").stdout
    assert one.split() == [str(each["offset"]) for each in entries if (each["ledger"], each["entry"]) == (1, 2)]


def test_show_of_a_log_of_java(golden: tuple[Path, dict[str, object]]) -> None:
    path, expected = golden
    header = run_bkctl("storage", "entrylog", "show", str(path), "-o", "json").json()
    assert (header["version"], header["map_offset"], header["ledgers"], header["is_rolled"], header["size_bytes"]) == (
        expected["header_version"],
        expected["map_offset"],
        expected["ledgers_count"] or None,
        expected["rolled"],
        path.stat().st_size,
    )
    items = run_bkctl("storage", "entrylog", "show", str(path), "--ledger", "1", "-o", "json").json()["items"]
    ours = [each for each in expected["entries"] if each["ledger"] == 1]  # type: ignore[attr-defined]
    assert len(items) == len(ours) > 0
    for item, each in zip(items, ours, strict=True):
        head = struct.pack(">qqqq", 1, each["entry"], int(item["last_add_confirmed"]), int(item["length"]))
        text = item["digest_and_data"]
        data = base64.b64decode(text[7:]) if text.startswith("base64:") else text.encode()
        assert hashlib.sha1(head + data).hexdigest() == each["sha1"]


def test_ledgers_of_a_log_of_java(golden: tuple[Path, dict[str, object]]) -> None:
    path, expected = golden
    counted: dict[str, int] = {}
    for each in expected["entries"]:  # type: ignore[attr-defined]
        if each["ledger"] >= 0:
            counted[str(each["ledger"])] = counted.get(str(each["ledger"]), 0) + each["size"] + 4
    items = run_bkctl("storage", "entrylog", "ledgers", str(path), "-o", "json").json()["items"]
    assert {item["ledger_id"]: item["bytes"] for item in items} == counted


def test_a_torn_end_is_told(directories: Directories) -> None:
    directories.fill()
    current = Path(directories.config.ledger_directories[0]) / "current"
    with (current / "0.log").open("ab") as file:
        file.write(struct.pack(">i", 100) + entry(1, 3)[:16])
    result = directories.succeed("entrylog", "scan", "0", "-o", "json")
    assert result.json()["items"][-1] == {"type": "dropped", "size_bytes": 20}
    assert "20 bytes at its end" in result.stderr
    rest = directories.succeed("entrylog", "scan", "0x0", "--from", "1100", "--to", "1200", "-o", "json").json()[
        "items"
    ]
    assert rest
    assert all(1100 <= item["offset"] < 1200 for item in rest if item["type"] == "entry")


def test_a_record_with_a_negative_ledger_id(directories: Directories) -> None:
    directories.fill()
    log = Path(directories.config.ledger_directories[0]) / "current" / "0.log"
    with log.open("r+b") as file:
        file.seek(HEADER_BYTES + 4)
        ledger_id, entry_id = struct.unpack(">qq", file.read(16))
        file.seek(HEADER_BYTES + 4)
        file.write(struct.pack(">q", ledger_id - 2**63))
    broken = str(ledger_id - 2**63)
    items = directories.succeed("entrylog", "scan", "0", "-o", "json").json()["items"]
    assert (items[0]["type"], items[0]["offset"], items[0]["ledger_id"]) == ("stray", HEADER_BYTES, broken)
    assert {each["type"] for each in items[1:]} == {"entry"}
    one = directories.succeed("entrylog", "scan", "0", "--ledger", broken, "-o", "json").json()["items"]
    assert one == items[:1]
    shown = directories.succeed("entrylog", "show", "0", "--ledger", broken, "-o", "json").json()["items"]
    assert [(each["ledger_id"], each["entry_id"]) for each in shown] == [(broken, str(entry_id))]
    checked = directories.run("check", "-o", "json")
    assert checked.exit_code == 10
    [found] = [each for each in checked.json()["items"] if each["check"] == "entry logs"]
    assert (found["path"], found["offset"]) == (str(log), HEADER_BYTES)
    assert (found["ledger_id"], found["entry_id"]) == (broken, str(entry_id))


def test_a_range_where_no_entry_can_be_is_a_usage_error(golden: tuple[Path, dict[str, object]]) -> None:
    path, _ = golden
    size = path.stat().st_size
    for options, said in (
        (("--from", str(size + 1)), f"--from {size + 1} is after the end of {path}, which has {size} bytes"),
        (("--from", "-1"), "--from"),
        (("--from", "1023"), f"--from 1023 is in the header of {path}: its entries begin at 1024"),
        (("--from", "2048", "--to", "2047"), "the range ends before it starts"),
    ):
        result = run_bkctl("storage", "entrylog", "scan", str(path), *options, "-o", "csv")
        assert (result.exit_code, result.stdout, said in result.stderr) == (2, "", True), (options, result)
    assert run_bkctl("storage", "entrylog", "scan", str(path), "--from", str(size)).exit_code == 0


def test_names_and_directories(tmp_path: Path) -> None:
    directories = Directories(tmp_path, ledgers=2)
    directories.fill()
    result = directories.run("entrylog", "scan", "0.log")
    assert result.exit_code == 2
    first, second = (str(tmp_path / name / "current" / "0.log") for name in ("l0", "l1"))
    assert f"2 directories have an entry log 0.log: give the path of one: {first}, {second}" in result.stderr
    chosen = directories.succeed("entrylog", "scan", second, "-o", "json")
    assert {item["ledger_id"] for item in chosen.json()["items"]} == {"1", "3"}
    conf = tmp_path / "bk.conf"
    conf.write_text(
        f"metadataServiceUri=zk://h/ledgers\njournalDirectories={tmp_path}/j0\nledgerDirectories={tmp_path}/l0,{tmp_path}/l1\n"
    )
    one = ("--conf", str(conf), "--ledger-dir", str(tmp_path / "l1"))  # the option replaces the list of the file
    assert run_bkctl("storage", "entrylog", "scan", "0.log", *one, "-o", "json").stdout == chosen.stdout
    both = directories.succeed("entrylog", "show", second, "--ledger", "1", "--ledger", "3", "-o", "json")
    assert {item["ledger_id"] for item in both.json()["items"]} == {"1", "3"}
    (tmp_path / "8.log").mkdir()
    (tmp_path / "l0" / "current" / "7b.log").symlink_to("nowhere")
    for words, code, said in (
        (("show", "7"), 4, "no entry log 7.log"),
        (("show", "x"), 2, "'x' is not an entry log"),
        (("show", str(tmp_path / "foo.log")), 2, "not named like an entry log"),
        (("show", str(tmp_path / "9.log")), 4, "no entry log"),
        (("scan", str(tmp_path / "8.log")), 4, "8.log is not a file"),
        (("scan", "7b"), 2, "'7b' is not an entry log"),
        (("scan", "0x7b"), 4, "7b.log is a broken link"),
        (("show", first, "--entry", "3"), 2, "--entry needs --ledger"),
        (("show", first, "--ledger", "9"), 4, "has no entry of ledger 9"),
    ):
        failed = directories.run("entrylog", *words)
        assert (failed.exit_code, said in failed.stderr) == (code, True), failed
